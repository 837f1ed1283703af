"""One run of one arm: values in, values out, so that it may happen in a process of its own."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

from dynbranch.enginemodel.parameters import Parameters
from dynbranch.sim.fleet.accounts import Account, Accounted, Accounts, Meter, Price, Slice, total
from dynbranch.sim.fleet.engines import Fleet
from dynbranch.sim.fleet.playing import Arm, Harnesses, Play, Records, Serving
from dynbranch.sim.fleet.workflows import Workload
from dynbranch.sim.heap import EventHeap

ENGINES: Final = 4
NOTHING: Final = Account()


@dataclass(frozen=True, slots=True)
class Played:
    """One workflow, from its arrival to its end. ``turns_s``: of its measured turns; ``wrong``: answers that
    were not what an execution would have given."""

    number: int
    began_s: float
    latency_s: float
    turns_s: tuple[float, ...]
    outcomes: tuple[str, ...]
    wrong: int
    account: Account


@dataclass(frozen=True, slots=True)
class Outcome:
    """``plays`` are in the order of the workload. ``slot_s``: time that engines' slots were used, by whether
    nobody waited for what used them. ``events``: steps of the simulation."""

    workload: str
    seed: int
    engines: int
    plays: tuple[Played, ...]
    slices: tuple[Slice, ...]
    prices: tuple[Price, ...]
    slot_s: dict[bool, float]
    ended_s: float
    events: int

    @property
    def requests(self) -> int:
        """Arrivals at a gateway."""
        return sum(len(play.outcomes) for play in self.plays)

    @property
    def wrong(self) -> int:
        return sum(play.wrong for play in self.plays)

    @property
    def account(self) -> Account:
        return total({play.number: play.account for play in self.plays})


def run(
    workload: Workload,
    arm: Arm,
    parameters: Parameters,
    engines: int = ENGINES,
    seed: int = 0,
    told: Callable[[int], None] | None = None,
    *,
    meter_s: float = 1.0,
) -> Outcome:
    """Until every workflow has ended. ``told`` hears how many have, now and then. ``meter_s``: how often the
    engines' gauges are read."""
    return performed(workload, arm, parameters, engines, seed, told, meter_s=meter_s)[0]


def performed(
    workload: Workload,
    arm: Arm,
    parameters: Parameters,
    engines: int = ENGINES,
    seed: int = 0,
    told: Callable[[int], None] | None = None,
    *,
    meter_s: float = 1.0,
) -> tuple[Outcome, Serving]:
    """The same, with what served, which may know more."""
    with _rare_collection():
        return _performed(workload, arm, parameters, engines, seed, told, meter_s)


def _performed(
    workload: Workload,
    arm: Arm,
    parameters: Parameters,
    engines: int,
    seed: int,
    told: Callable[[int], None] | None,
    meter_s: float,
) -> tuple[Outcome, Serving]:
    heap = EventHeap()
    fleet = Fleet(heap, parameters, engines)
    records = Records()
    serving = arm(fleet, records, workload, seed)
    meter = Meter(heap, fleet, every_s=meter_s, slice_s=10 * meter_s)
    finished = Harnesses(heap, serving, records).play(workload, told)
    accounts = serving.accounts if isinstance(serving, Accounted) else Accounts()
    slot_s = {ahead: sum(place.busy_s[ahead] for place in fleet.places) for ahead in (False, True)}
    plays = sorted((_played(play, accounts) for play in finished), key=lambda one: one.number)
    outcome = Outcome(
        workload.name,
        seed,
        engines,
        tuple(plays),
        tuple(meter.slices),
        tuple(accounts.prices),
        slot_s,
        heap.now,
        heap.steps,
    )
    return outcome, serving


@contextmanager
def _rare_collection() -> Iterator[None]:
    """What a run makes stays for long: to look through all of it every few hundred objects takes a tenth of
    the time."""
    before = gc.get_threshold()
    gc.set_threshold(50_000, 20, 20)
    try:
        yield
    finally:
        gc.set_threshold(*before)


def _played(play: Play, accounts: Accounts) -> Played:
    assert play.ended is not None
    number = play.workflow.number
    return Played(
        number,
        play.began,
        play.ended - play.began,
        tuple(play.turns_s),
        tuple(play.outcomes),
        play.wrong,
        accounts.workflows.get(number, NOTHING),
    )
