"""How fast the simulated fleet is, whether its cost stays the same as it grows, and what each part takes.

A *request* is one that arrives at the gateway: what runs ahead comes on top and is in its cost. Times are CPU
time of one process on one core. The cores are the production ones: what an event takes here it takes in a
service, too, beside its shell. From that follows which core is busy first as a fleet grows.
"""

from __future__ import annotations

import gc
import resource
import time
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Final

from dynbranch.bench.result import Measured, Tell
from dynbranch.demo.measures import Figure, exact, median, ratio
from dynbranch.enginemodel.parameters import H200_QWEN3_32B
from dynbranch.sim.fleet.engines import Fleet
from dynbranch.sim.fleet.playing import Arm, Records, Serving, floor
from dynbranch.sim.fleet.runs import run
from dynbranch.sim.fleet.serving import DYNBRANCH
from dynbranch.sim.fleet.workflows import Workflow, Workload
from dynbranch.sim.workloads.workload import workload

WORKLOADS: Final = ("routing", "react", "subagent", "hci")
RATE: Final = 0.8
"""Workflows a second on four engines: the paper's load."""
ENGINES: Final = 4
PARAMETERS: Final = replace(H200_QWEN3_32B, slots=64)
LONG: Final = "routing"
"""The workload of the long runs, which is quick to make."""
TENANTS: Final = 1000
"""Each has a coordinate of its own: ten of them for each of a hundred controllers."""


@dataclass(frozen=True, slots=True)
class Size:
    """``count`` workflows of each workload, ``repetitions`` times. ``small`` and ``large`` in requests,
    compared ``pairs`` times. ``fleets``: engines, and workflows before them."""

    count: int = 150
    repetitions: int = 7
    small: int = 1_000
    large: int = 100_000
    pairs: int = 3
    fleets: tuple[tuple[int, int], ...] = ((4, 400), (32, 400), (256, 800), (1000, 1000))


QUICK: Final = Size(30, 2, 300, 3_000, 2, ((4, 30), (32, 60)))


@dataclass(frozen=True, slots=True)
class Spent:
    """One run."""

    requests: int
    workflows: int
    cpu_s: float

    @property
    def us_per_request(self) -> float:
        return self.cpu_s / self.requests * 1e6


@dataclass(slots=True)
class Part:
    """Events of one kind in one core."""

    count: int = 0
    cpu_s: float = 0.0


def measure(tell: Tell, *, quick: bool = False, size: Size | None = None) -> Measured:
    size = size or (QUICK if quick else Size())
    whole = _whole(size, tell)
    pairs = _pairs(size, tell)
    fleets = {engines: _fleet(engines, count, tell) for engines, count in size.fleets}
    figures = {
        "requests_per_min_core": _per_minute(whole["dynbranch"], "requests"),
        "workflows_per_min_core": _per_minute(whole["dynbranch"], "workflows"),
        "floor_requests_per_min_core": _per_minute(whole["floor"], "requests"),
        f"cost_per_request_{_power(size.large)}_over_{_power(size.small)}": ratio(
            [(large.us_per_request, small.us_per_request) for small, large in pairs]
        ),
        "peak_memory_mib": exact(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024, 1),
    }
    for engines, found in fleets.items():
        figures |= found.figures(engines)
    raw = {
        "size": asdict(size),
        "rate": RATE,
        "engines": ENGINES,
        "whole": {arm: [asdict(one) for one in spent] for arm, spent in whole.items()},
        "pairs": [[asdict(small), asdict(large)] for small, large in pairs],
        "fleets": {str(engines): found.as_json() for engines, found in fleets.items()},
    }
    return Measured(figures, raw, (), _table(fleets), "CPU microseconds of a request, by part")


def _whole(size: Size, tell: Tell) -> dict[str, list[Spent]]:
    """All four workloads are one observation."""
    tell("making workloads", 0, 0)
    loads = [workload(name, rate=RATE, count=size.count) for name in WORKLOADS]
    arms: dict[str, Arm] = {"dynbranch": DYNBRANCH, "floor": floor}
    found: dict[str, list[Spent]] = {name: [] for name in arms}
    _timed(loads[0], DYNBRANCH, ENGINES)
    for number in range(size.repetitions):
        tell("whole runs", number, size.repetitions)
        order = list(arms) if number % 2 else list(reversed(arms))
        for name in order:
            spent = [_timed(load, arms[name], ENGINES) for load in loads]
            found[name].append(
                Spent(
                    sum(one.requests for one in spent),
                    sum(one.workflows for one in spent),
                    sum(one.cpu_s for one in spent),
                )
            )
    return found


def _pairs(size: Size, tell: Tell) -> list[tuple[Spent, Spent]]:
    tell("making a long stream", 0, 0)
    stream = workload(LONG, rate=RATE, count=max(1, size.large // 4))
    small, large = _first(stream, size.small), _first(stream, size.large)
    found = []
    for number in range(size.pairs):
        tell("short and long streams", number, size.pairs)
        # As much of the short one before the long one as behind it.
        short = [_timed(small, DYNBRANCH, ENGINES) for _ in range(5)]
        long = _timed(large, DYNBRANCH, ENGINES)
        short += [_timed(small, DYNBRANCH, ENGINES) for _ in range(5)]
        together = Spent(
            sum(one.requests for one in short),
            sum(one.workflows for one in short),
            sum(one.cpu_s for one in short),
        )
        found.append((together, long))
    return found


def _first(stream: Workload, requests: int) -> Workload:
    """As many workflows as have so many requests."""
    flows: list[Workflow] = []
    for workflow in stream.workflows:
        if requests <= 0:
            break
        flows.append(workflow)
        requests -= sum(len(turn.steps) for turn in workflow.turns)
    return replace(stream, workflows=tuple(flows))


def _timed(load: Workload, arm: Arm, engines: int, *, meter_s: float = 1.0) -> Spent:
    gc.collect()
    before = time.process_time()
    outcome = run(load, arm, PARAMETERS, engines, 1, meter_s=meter_s)
    cpu_s = time.process_time() - before
    assert not outcome.wrong, "an answer was not what an execution gives"
    return Spent(outcome.requests, len(outcome.plays), cpu_s)


# -- fleets --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Costs:
    """``plain``: without looking at parts. ``parts`` by core and kind of event."""

    plain: Spent
    parts: Mapping[tuple[str, str], Part]
    requests: int

    def of(self, core: str) -> Part:
        mine = [part for (known, _), part in self.parts.items() if known == core]
        return Part(sum(part.count for part in mine), sum(part.cpu_s for part in mine))

    def figures(self, engines: int) -> dict[str, Figure]:
        return {
            f"us_per_request_{engines}_engines": exact(self.plain.us_per_request, self.plain.requests),
            **{
                f"{core}_requests_per_s_core_{engines}_engines": exact(
                    self.requests / self.of(core).cpu_s, self.of(core).count
                )
                for core in ("controller", "store")
            },
        }

    def as_json(self) -> dict[str, Any]:
        return {
            "plain": asdict(self.plain),
            "requests": self.requests,
            "parts": {
                f"{core}.{kind}": {
                    "per_request": part.count / self.requests,
                    "us_each": part.cpu_s / part.count * 1e6,
                }
                for (core, kind), part in sorted(self.parts.items())
            },
        }


@dataclass(slots=True)
class Clocked:
    """The whole arm, with a clock at the door of each core."""

    parts: defaultdict[tuple[str, str], Part] = field(default_factory=lambda: defaultdict(Part))

    def __call__(self, fleet: Fleet, records: Records, load: Workload, seed: int) -> Serving:
        serving = WIDE(fleet, records, load, seed)
        assert serving.ahead is not None
        doors: list[tuple[str, Any]] = [("controller", serving.ahead.book), ("store", serving.store.library)]
        doors += [("engine model", place.model) for place in fleet.places]
        for core, door in doors:
            door.handle = self._clocked(core, door.handle)
        return serving

    def _clocked(self, core: str, handle: Callable[..., Any]) -> Callable[..., Any]:
        parts, clock = self.parts, time.thread_time

        def clocked(event: object, *rest: object) -> Any:
            before = clock()
            reply = handle(event, *rest)
            part = parts[core, type(event).__name__]
            part.cpu_s += clock() - before
            part.count += 1
            return reply

        return clocked


WIDE: Final = replace(DYNBRANCH, branches=1 << 17)
"""With room for the branches of a hundred controllers."""


def _fleet(engines: int, count: int, tell: Tell) -> Costs:
    tell(f"{engines} engines", 0, 2)
    load = _many_tenants(workload(LONG, rate=RATE * engines / ENGINES, count=count))
    plain = _timed(load, WIDE, engines, meter_s=5.0)
    tell(f"{engines} engines", 1, 2)
    clocked = Clocked()
    outcome = run(load, clocked, PARAMETERS, engines, 1, meter_s=5.0)
    return Costs(plain, dict(clocked.parts), outcome.requests)


def _many_tenants(load: Workload) -> Workload:
    """Whoever says again what another said is of its tenant."""
    tenants: dict[int, str] = {}
    flows = []
    for workflow in load.workflows:
        known = None if workflow.repeats is None else tenants.get(workflow.repeats)
        tenant = tenants[workflow.number] = known or f"tenant {workflow.number % TENANTS}"
        flows.append(replace(workflow, tenant=tenant))
    return replace(load, workflows=tuple(flows))


def _per_minute(spent: list[Spent], what: str) -> Figure:
    return median([getattr(one, what) / one.cpu_s * 60 for one in spent])


def _power(requests: int) -> str:
    """1e5 of 100,000."""
    digits = str(requests)
    return f"{digits[0]}e{len(digits) - 1}"


def _table(fleets: Mapping[int, Costs]) -> tuple[tuple[str, ...], ...]:
    kinds = sorted({place for found in fleets.values() for place in found.parts})
    rows: list[tuple[str, ...]] = [("part", *(f"{engines} engines" for engines in fleets))]
    rows.append(("all", *(f"{found.plain.us_per_request:.0f}" for found in fleets.values())))
    for place in kinds:
        cells = []
        for found in fleets.values():
            part = found.parts.get(place, Part())
            cells.append(f"{part.cpu_s / found.requests * 1e6:.1f}")
        rows.append((f"{place[0]}: {place[1]}", *cells))
    return tuple(rows)
