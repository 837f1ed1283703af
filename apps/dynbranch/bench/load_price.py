"""Prices on a real model: what running ahead gives and costs while workflows arrive whether or not they are
kept up with, at a rate that fills the engine, at a low one, and where nothing can be foretold.

Two embedded engines of one thread each. Prices are calibrated first, on one of them.
A workflow is one turn of the demo's menus: an offer, a person's pause, an act and its report. Each brings a
key of its own: nothing is reused, so that all there is comes from running ahead. ``floor`` goes through a
gateway with DynBranch disabled. All arms of a repetition get the same workflows at the same times with the
same pauses; each arm comes early as often as late.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import aiohttp
from dynbranch.bench.load_price_figures import Load, Segment, Served, figures_of, rows_of, table_of
from dynbranch.bench.load_price_traffic import PLACES, Arrival, arrivals
from dynbranch.bench.result import BenchFailed, Measured, Tell
from dynbranch.calibration.curves import TooFewProbes
from dynbranch.calibration.document import write_document
from dynbranch.calibration.plan import NothingToMeasure
from dynbranch.calibration.probing import ProbeFailed
from dynbranch.calibration.run import Wanted, calibrate
from dynbranch.demo.branch_arms import FLOOR, WRONG, Arm, Way, write_templates
from dynbranch.demo.branch_runs import PAUSE_MEDIAN_S, PAUSE_SIGMA, in_turns
from dynbranch.demo.flows import MENUS, Model, menus
from dynbranch.demo.harness import ToolFailed, models
from dynbranch.demo.playing import AHEAD, Played, Player, RequestFailed
from dynbranch.demo.processes import ProcessDied, StartTimedOut
from dynbranch.demo.records import Dialogue
from dynbranch.demo.rehearsal import Performance
from dynbranch.demo.stack import Stack, StackOptions, running
from dynbranch.runtime.clock import SystemClock

ENGINES: Final = 2
SLOTS: Final = 4
"""Of each engine; fills may have half of them."""
PRICED: Final = Arm("priced", "priced", Way.FORESEEING, "-priced")
ALWAYS: Final = Arm("always", "always", Way.FORESEEING, "-always")
FORESEEING: Final = (PRICED, ALWAYS, WRONG)
"""``WRONG`` is priced, too, and its predictor is never right."""
ARMS: Final[Mapping[Load, tuple[Arm, ...]]] = {
    Load.SATURATED: (FLOOR, PRICED, ALWAYS),
    Load.LOW: (FLOOR, PRICED, ALWAYS),
    Load.FRESH: (FLOOR, WRONG),
}
SHARES: Final[Mapping[Load, float]] = {Load.SATURATED: 0.95, Load.LOW: 0.2, Load.FRESH: 0.5}
"""Of what the floor serves to clients that wait for nothing but their answers."""
_SETTLED_S: Final = 1.0
_WARM_AT_ONCE: Final = 3


@dataclass(frozen=True, slots=True)
class Size:
    """Workflows arrive for ``segment_s``, of a low load for ``low_s``; then all are waited for. ``warm``:
    workflows of each kind beforehand, so that its first trials are over."""

    pairs: int = 3
    segment_s: float = 28.0
    low_s: float = 42.0
    capacity_s: float = 20.0
    calibration_s: float = 40.0
    warm: int = 9

    def seconds(self, load: Load) -> float:
        return self.low_s if load is Load.LOW else self.segment_s


QUICK: Final = Size(pairs=1, segment_s=6.0, low_s=6.0, capacity_s=10.0, calibration_s=25.0, warm=3)


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
    async with running(_options(folder / "stack", templates, curve)) as stack:
        (model, *_) = await asyncio.to_thread(models, stack.url)
        async with AsyncExitStack() as owned:
            stand = Stand(
                await owned.enter_async_context(Player(stack.floor_url)),
                await owned.enter_async_context(Player(stack.url)),
                Model(model),
            )
            await stand.warm(tell, size)
            per_s = await stand.capacity(tell, size)
            segments = await _segments(tell, size, stand, per_s, stack)
    figures = figures_of(segments)
    raw = {
        "capacity_per_s": per_s,
        "rates_per_s": {load.value: share * per_s for load, share in SHARES.items()},
        "engines": ENGINES,
        "slots": SLOTS,
        "pause_s": {"median": PAUSE_MEDIAN_S, "sigma": PAUSE_SIGMA},
        "picked_at_place": PLACES,
        "size": asdict(size),
        "curve": {"curves": document["curves"], "samples": document["samples"]},
        "segments": rows_of(segments),
    }
    return Measured(figures, raw, (), table_of(segments), "Time of a workflow, pauses left out")


async def _segments(tell: Tell, size: Size, stand: Stand, per_s: float, stack: Stack) -> list[Segment]:
    todo = [
        (load, arm, pair) for pair in range(size.pairs) for load in Load for arm in in_turns(ARMS[load], pair)
    ]
    found = []
    for number, (load, arm, pair) in enumerate(todo):
        tell(f"{load.value}, {arm.title}", number, len(todo))
        due = arrivals(SHARES[load] * per_s, size.seconds(load), seed=f"{load.value} {pair}")
        served = await stand.segment(arm, due, f"{load.value}-{pair}")
        # Both priced arms are one to the figures: they differ by what can be foretold.
        name = PRICED.name if arm is WRONG else arm.name
        found.append(Segment(load, name, pair, tuple(served)))
        stack.check()
        await asyncio.sleep(_SETTLED_S)
    return found


# -- the services ------------------------------------------------------------------------------------------


def _options(folder: Path, templates: Path | None, curve: Path | None) -> StackOptions:
    settings = {"DYNBRANCH_CONTROLLER_POLICIES": f"{MENUS}{ALWAYS.suffix}=always"}
    if curve is not None:
        settings["DYNBRANCH_CONTROLLER_PRICE_CURVE"] = str(curve)
    return StackOptions(
        state_dir=folder,
        engines=ENGINES,
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


class Stand:
    def __init__(self, floor: Player, foreseeing: Player, model: Model) -> None:
        self._players = {Way.FLOOR: floor, Way.FORESEEING: foreseeing}
        self._model = model

    async def warm(self, tell: Tell, size: Size) -> None:
        """Every kind of what runs ahead. Raises BenchFailed where nothing comes to run ahead."""
        ahead = 0
        for arm in FORESEEING:
            tell(f"warming up, {arm.title}", 0, 0)
            due = arrivals(1.0, float(size.warm), seed=f"warm {arm.name}")[: size.warm]
            for at in range(0, len(due), _WARM_AT_ONCE):
                at_once = [replace(one, at=0.0) for one in due[at : at + _WARM_AT_ONCE]]
                served = await self.segment(arm, at_once, f"warm{at}")
                ahead += sum(outcome in AHEAD for one in served for outcome in one.outcomes)
        if not ahead:
            raise BenchFailed("nothing runs ahead")

    async def capacity(self, tell: Tell, size: Size) -> float:
        """Workflows a second of the floor, with as many clients as the engines have slots, none of which
        pauses: by the requests that were served within that time."""
        tell("capacity", 0, 0)
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

        await asyncio.gather(*(client() for _ in range(ENGINES * SLOTS)))
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

        return await asyncio.gather(*map(one, due))

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
