"""Prices on a real model: what running ahead gives and costs while workflows arrive whether or not they are
kept up with, at the rate that fills the engine, at a low one, and where nothing can be foretold.

Two stacks side by side, each with one embedded engine and a core of its own, so that two arms run at the
same time: whatever the machine does to one it does to the other. Both get the same workflows at the same
times with the same pauses, and each arm has either stack as often. Prices are calibrated on the first.

A workflow is one turn of the demo's menus: an offer, a person's pause, an act and its report. Each brings a
key of its own: nothing is reused, so that all there is comes from running ahead. ``floor`` goes through a
gateway with DynBranch disabled. Saturated is what begins full: the first workflows come at once, as many as
the engine has slots, and do not count; those that follow come at the rate that the engine can just serve.
"""

from __future__ import annotations

import asyncio
import hashlib
import statistics
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import aiohttp
from dynbranch.bench.cpu_time import Cores, pin
from dynbranch.bench.load_price_figures import Load, Segment, Served, figures_of, rows_of, table_of
from dynbranch.bench.load_price_traffic import PLACES, Arrival, arrivals
from dynbranch.bench.result import BenchFailed, Measured, Tell
from dynbranch.calibration.curves import TooFewProbes
from dynbranch.calibration.document import write_document
from dynbranch.calibration.plan import NothingToMeasure
from dynbranch.calibration.probing import ProbeFailed
from dynbranch.calibration.run import Wanted, calibrate
from dynbranch.demo.branch_arms import FLOOR, WRONG, Arm, Way, write_templates
from dynbranch.demo.branch_runs import PAUSE_MEDIAN_S, PAUSE_SIGMA
from dynbranch.demo.flows import MENUS, Model, menus
from dynbranch.demo.harness import ToolFailed, models
from dynbranch.demo.playing import AHEAD, Played, Player, RequestFailed
from dynbranch.demo.processes import ProcessDied, StartTimedOut
from dynbranch.demo.records import Dialogue
from dynbranch.demo.rehearsal import Performance
from dynbranch.demo.stack import StackOptions, running
from dynbranch.runtime.clock import SystemClock

SLOTS: Final = 4
"""Of each engine; fills may have half of them."""
PRICED: Final = Arm("priced", "priced", Way.FORESEEING, "-priced")
ALWAYS: Final = Arm("always", "always", Way.FORESEEING, "-always")
FORESEEING: Final = (PRICED, ALWAYS, WRONG)
"""``WRONG`` is priced, too, and its predictor is never right."""
PAIRINGS: Final[Mapping[Load, tuple[tuple[Arm, Arm], ...]]] = {
    Load.SATURATED: ((FLOOR, PRICED), (ALWAYS, PRICED)),
    Load.LOW: ((FLOOR, PRICED), (FLOOR, ALWAYS)),
    Load.FRESH: ((FLOOR, WRONG),),
}
SHARES: Final[Mapping[Load, float]] = {Load.SATURATED: 1.0, Load.LOW: 0.3, Load.FRESH: 0.6}
"""Of what the floor serves to clients that wait for nothing but their answers."""
_SETTLED_S: Final = 1.0
_WARM_AT_ONCE: Final = 3


@dataclass(frozen=True, slots=True)
class Size:
    """Workflows arrive for ``segment_s``, of a low load for ``low_s``; then all are waited for. ``pairs`` of
    segments, of which half are the other way around. ``warm``: workflows of each kind beforehand, so that its
    first trials are over."""

    pairs: int = 4
    segment_s: float = 30.0
    low_s: float = 52.0
    capacity_s: float = 20.0
    calibration_s: float = 40.0
    warm: int = 9

    def seconds(self, load: Load) -> float:
        return self.low_s if load is Load.LOW else self.segment_s


QUICK: Final = Size(pairs=2, segment_s=6.0, low_s=6.0, capacity_s=10.0, calibration_s=25.0, warm=3)


def measure(tell: Tell, *, quick: bool = False, size: Size | None = None) -> Measured:
    """Raises BenchFailed."""
    size = size or (QUICK if quick else Size())
    try:
        with TemporaryDirectory(prefix="dynbranch-bench-") as name:
            return asyncio.run(_measured(tell, size, Path(name)))
    except (
        ProcessDied,
        StartTimedOut,
        RequestFailed,
        ToolFailed,
        aiohttp.ClientError,
        TimeoutError,
    ) as failure:
        raise BenchFailed(str(failure) or type(failure).__name__) from failure


async def _measured(tell: Tell, size: Size, folder: Path) -> Measured:
    curve = folder / "curve.json"
    document = await _calibrated(tell, size, folder / "first")
    write_document(curve, document)
    templates = folder / "templates"
    write_templates(templates, FORESEEING)
    tell("starting the services", 0, 0)
    async with AsyncExitStack() as owned:
        stands = [
            await owned.enter_async_context(standing(_options(folder / name, templates, curve), core))
            for name, core in zip(("one", "other"), _cores(), strict=True)
        ]
        for arm in FORESEEING:
            tell(f"warming up, {arm.title}", 0, 0)
            ahead = await asyncio.gather(*(stand.warm(arm, size) for stand in stands))
            if arm is ALWAYS and not all(ahead):
                raise BenchFailed("nothing runs ahead")
        tell("capacity", 0, 0)
        per_s = statistics.mean(await asyncio.gather(*(stand.capacity(size) for stand in stands)))
        segments = await _segments(tell, size, stands, per_s)
    raw = {
        "capacity_per_s": per_s,
        "rates_per_s": {load.value: share * per_s for load, share in SHARES.items()},
        "slots": SLOTS,
        "pause_s": {"median": PAUSE_MEDIAN_S, "sigma": PAUSE_SIGMA},
        "picked_at_place": PLACES,
        "size": asdict(size),
        "curve": {"curves": document["curves"], "samples": document["samples"]},
        "segments": rows_of(segments),
    }
    figures = figures_of(segments)
    return Measured(figures, raw, (), table_of(segments), "Time of a workflow, pauses left out")


async def _segments(tell: Tell, size: Size, stands: Sequence[Stand], per_s: float) -> list[Segment]:
    todo = [
        (load, pairing, pair) for pair in range(size.pairs) for load in Load for pairing in PAIRINGS[load]
    ]
    found = []
    for number, (load, pairing, pair) in enumerate(todo):
        title = " beside ".join(arm.title for arm in pairing)
        tell(f"{load.value}, {title}", number, len(todo))
        due = arrivals(
            SHARES[load] * per_s,
            size.seconds(load),
            seed=f"{load.value} {pair // 2}",
            at_once=SLOTS if load is Load.SATURATED else 0,
        )
        label = f"{load.value}-{pair}-{number}"
        sides = stands[::-1] if pair % 2 else stands
        together = await asyncio.gather(
            *(stand.segment(arm, due, label) for stand, arm in zip(sides, pairing, strict=True))
        )
        for arm, served in zip(pairing, together, strict=True):
            counted = tuple(one for one, arrival in zip(served, due, strict=True) if arrival.counts)
            # Both priced arms are one to the figures: they differ by what can be foretold.
            name = PRICED.name if arm is WRONG else arm.name
            others = {PRICED.name if one is WRONG else one.name for one in pairing} - {name}
            found.append(Segment(load, name, others.pop(), pair, counted))
        await asyncio.sleep(_SETTLED_S)
    return found


def _cores() -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Of each stack. Empty where there is no choice."""
    cores = Cores.choose()
    return cores.measured, cores.load


# -- the services ------------------------------------------------------------------------------------------


def _options(folder: Path, templates: Path | None, curve: Path | None) -> StackOptions:
    settings = {"DYNBRANCH_CONTROLLER_POLICIES": f"{MENUS}{ALWAYS.suffix}=always"}
    if curve is not None:
        settings["DYNBRANCH_CONTROLLER_PRICE_CURVE"] = str(curve)
    return StackOptions(
        state_dir=folder,
        engines=1,
        threads=1,
        slots=SLOTS,
        floor_gateway=True,
        templates=templates,
        policy="priced",
        settings=settings,
    )


async def _calibrated(tell: Tell, size: Size, folder: Path) -> dict[str, Any]:
    """Of an engine that is like the one that is measured, and does nothing else."""
    tell("starting the services", 0, 0)
    async with running(_options(folder, None, None)) as stack:
        wanted = Wanted(agent=stack.addresses.agents[0], seconds=size.calibration_s)
        try:
            done = await calibrate(
                wanted, SystemClock(), lambda what, share: tell(what, round(share * 100), 100)
            )
        except (ProbeFailed, NothingToMeasure, TooFewProbes) as failure:
            raise BenchFailed(f"prices could not be calibrated: {failure}") from failure
    return done.document


# -- the harnesses -----------------------------------------------------------------------------------------


@asynccontextmanager
async def standing(options: StackOptions, core: tuple[int, ...]) -> AsyncIterator[Stand]:
    """A stack on a core of its own. Raises ProcessDied and StartTimedOut."""
    async with running(options) as stack:
        pin(stack.pids.values(), core)
        (model, *_) = await asyncio.to_thread(models, stack.url)
        async with Player(stack.floor_url) as floor, Player(stack.url) as foreseeing:
            yield Stand(floor, foreseeing, Model(model), stack.check)


class Stand:
    """``check`` raises ProcessDied."""

    def __init__(self, floor: Player, foreseeing: Player, model: Model, check: Callable[[], None]) -> None:
        self._players = {Way.FLOOR: floor, Way.FORESEEING: foreseeing}
        self._model = model
        self._check = check

    async def warm(self, arm: Arm, size: Size) -> int:
        """How many requests were served by what ran ahead."""
        ahead = 0
        due = arrivals(1.0, float(size.warm), seed=f"warm {arm.name}")[: size.warm]
        for at in range(0, len(due), _WARM_AT_ONCE):
            at_once = [replace(one, at=0.0) for one in due[at : at + _WARM_AT_ONCE]]
            served = await self.segment(arm, at_once, f"warm{at}")
            ahead += sum(outcome in AHEAD for one in served for outcome in one.outcomes)
        return ahead

    async def capacity(self, size: Size) -> float:
        """Workflows a second of the floor, with as many clients as the engine has slots, none of which
        pauses: by the requests that were served within that time."""
        loop = asyncio.get_running_loop()
        begin, requests, within = loop.time(), 0, 0
        due = arrivals(100.0, size.capacity_s, seed="capacity")
        left = iter(due)

        async def client() -> None:
            nonlocal requests, within
            for arrival in left:
                began_s = loop.time() - begin
                if began_s > size.capacity_s:
                    return
                played = await self._one(FLOOR, replace(arrival, pause_s=0.0), "capacity")
                ends_s = [began_s + (step.begin_ms + step.latency_ms) / 1000 for step in played.steps]
                requests = len(ends_s)
                within += sum(end_s <= size.capacity_s for end_s in ends_s)

        await asyncio.gather(*(client() for _ in range(SLOTS)))
        if not within:
            raise BenchFailed("the engine is too slow to be measured")
        return within / requests / size.capacity_s

    async def segment(self, arm: Arm, due: Sequence[Arrival], label: str) -> list[Served]:
        """Each begins when it is due, whatever became of those before it; in the order of ``due``."""
        loop = asyncio.get_running_loop()
        begin = loop.time()

        async def one(arrival: Arrival) -> Served:
            await asyncio.sleep(max(0.0, begin + arrival.at - loop.time()))
            played = await self._one(arm, arrival, label)
            outcomes = tuple(step.outcome for step in played.steps)
            return Served(played.latency_ms, outcomes, _digest(played))

        found = await asyncio.gather(*map(one, due))
        self._check()
        return found

    async def _one(self, arm: Arm, arrival: Arrival, label: str) -> Played:
        workflow = f"{label}-{arm.name}-{arrival.number}"
        flow = menus(Dialogue(workflow, (arrival.turn,)), self._model)
        return await self._players[arm.way].play(
            Performance(MENUS, workflow, flow),
            workflow_id=workflow,
            workflow_type=MENUS + arm.suffix,
            key=workflow,
            pause_s=lambda: arrival.pause_s,
        )


def _digest(played: Played) -> str:
    """Of everything that was asked and answered."""
    said = hashlib.sha256()
    for step in played.steps:
        said.update(repr((step.stage, step.request, step.result)).encode())
    return said.hexdigest()
