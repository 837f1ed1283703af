"""The demo's four workflows on real records and a real model: floor, reuse, branches, and both.

Two embedded engines of one thread each, on whatever cores there are; every arm has both. One workflow runs at
a time. The arms of a record follow one another, each as often early as late.
"""

from __future__ import annotations

import asyncio
import json
import math
import random
import statistics
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from urllib.parse import quote

from dynbranch.demo.branch_arms import (
    AHEAD_ONLY,
    BOTH,
    FLOOR,
    REUSE_ONLY,
    WRONG,
    WRONG_KINDS,
    Arm,
    Way,
    write_templates,
)
from dynbranch.demo.flows import MENUS, REACT, ROUTING_CHAIN, SUB_AGENTS
from dynbranch.demo.harness import models
from dynbranch.demo.losers import LOSERS, losing, write_losers
from dynbranch.demo.measures import Figure, exact, median, ratio, share
from dynbranch.demo.playing import AHEAD, Played, Player, Step
from dynbranch.demo.rehearsal import Performance, performances
from dynbranch.demo.run import EDITION
from dynbranch.demo.stack import Stack, StackOptions, running
from dynbranch.demo.tracefile import SeenSpan, TraceReceiver

PAUSE_MEDIAN_S = 2.7
PAUSE_SIGMA = 0.5
SEED = 20
KINDS = (ROUTING_CHAIN, REACT, SUB_AGENTS, MENUS)
ARMS = (FLOOR, REUSE_ONLY, AHEAD_ONLY, BOTH, WRONG)
COMPARED = (FLOOR, AHEAD_ONLY, WRONG)
SHOWN_ARMS = (FLOOR, REUSE_ONLY, AHEAD_ONLY, BOTH)
REUSED = frozenset({"hit", "joined"}) | AHEAD
_TIMEOUT_S = 30.0
_LOOK_S = 0.2
_AT_WORK = frozenset({"admitted", "running", "adopted"})


Tell = Callable[[str, int, int], None]
"""Progress: what is going on, how many steps are done, and how many there are (0: not known)."""


class BranchesFailed(Exception):
    """Nothing can be said of the run. The message is for a person."""


@dataclass(frozen=True, slots=True)
class Size:
    """Records of each kind on the real model, and of routing on simulated engines. ``thorough``: how many of
    each kind run in every arm; the others run in those of ``COMPARED``."""

    records: Mapping[str, int] = field(
        default_factory=lambda: {ROUTING_CHAIN: 6, REACT: 1, SUB_AGENTS: 1, MENUS: 4}
    )
    thorough: int = 1
    simulated: int = 8
    wrong: Mapping[str, int] = field(default_factory=lambda: {ROUTING_CHAIN: 12, MENUS: 6})
    """Records on simulated engines beside a predictor that is never right, ``wrong_rounds`` times each."""
    wrong_rounds: int = 5
    losers: int = 10
    """Decisions that lose every fill of theirs."""
    fills: int = 2
    """At most in a person's pause; in a decode's window the templates say one."""


SHORT = Size({ROUTING_CHAIN: 1, REACT: 1, SUB_AGENTS: 1, MENUS: 1}, simulated=0, wrong={}, losers=0)
QUICK = Size(
    {ROUTING_CHAIN: 1, REACT: 1, SUB_AGENTS: 1, MENUS: 1},
    thorough=0,
    simulated=2,
    wrong={ROUTING_CHAIN: 1, MENUS: 1},
    wrong_rounds=1,
    losers=4,
)


@dataclass(frozen=True, slots=True)
class Run:
    """One record in one arm."""

    arm: Arm
    played: Played
    branches: tuple[Mapping[str, Any], ...] = ()


@dataclass(frozen=True, slots=True)
class Rewritten:
    """A question again, after passages that it reads were written: what was served, and what is right now."""

    served: Played
    right: Played


# -- the real model ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Seen:
    """``lost`` are the branches of decisions that lose every fill."""

    runs: tuple[Run, ...]
    rewritten: tuple[Rewritten, ...]
    lost: tuple[Mapping[str, Any], ...] = ()


async def run_branches(
    tell: Tell, size: Size, *, arms: tuple[Arm, ...] = ARMS, folder: Path | None = None
) -> Seen:
    """With a stack of its own. Raises BranchesFailed, ProcessDied, StartTimedOut and what players raise."""
    with nullcontext(folder) if folder else TemporaryDirectory(prefix="dynbranch-") as name:
        folder = Path(name)
        write_templates(folder / "templates", arms)
        write_losers(folder / "templates")
        tell("starting the services", 0, 0)
        async with AsyncExitStack() as owned:
            stack = await owned.enter_async_context(running(options_for(folder, size)))
            session = Session(stack, models(stack.url)[0], arms)
            await session.open(owned)
            return await session.run(tell, size)


async def one_with_spans(
    kind: str, place: int, folder: Path, tell: Tell
) -> tuple[Played, Played, list[SeenSpan]]:
    """A record with DynBranch disabled, then running ahead with the spans of it. As ``run_branches``."""
    arms = (FLOOR, AHEAD_ONLY)
    write_templates(folder / "templates", arms)
    with TraceReceiver(folder / "traces.jsonl") as receiver:
        tell("starting the services", 0, 0)
        async with AsyncExitStack() as owned:
            stack = await owned.enter_async_context(running(options_for(folder, Size(), receiver.endpoint)))
            session = Session(stack, models(stack.url)[0], arms)
            await session.open(owned)
            await session.warm(tell)
            tell("one workflow, twice", 0, 0)
            floor = await session.one(FLOOR, kind, place, "m")
            ahead = await session.one(AHEAD_ONLY, kind, place, "m")
        # What had not ended has ended with the stack: only now are all spans told.
        began_ns = ahead.played.began_unix_ms * 1e6
        spans = [span for span in receiver.spans() if span.start_ns >= began_ns]
    return floor.played, ahead.played, spans


def options_for(folder: Path, size: Size, traces: str = "") -> StackOptions:
    """``folder`` has the templates of the arms."""
    return StackOptions(
        state_dir=folder / "stack",
        engines=2,
        threads=1,
        floor_gateway=True,
        unforeseeing_gateway=True,
        templates=folder / "templates",
        policy="priced",
        # An engine of one thread keeps no prompts, and is full with one request.
        slots=3,
        settings={
            "DYNBRANCH_CONTROLLER_FILLS": str(size.fills),
            "DYNBRANCH_CONTROLLER_FILL_PLACEMENT": "least_loaded",
            "DYNBRANCH_ENGINE_AGENT_FILL_SLOTS": "1",
            "DYNBRANCH_GATEWAY_ROUTING": "least_in_flight",
        },
        traces_endpoint=traces,
    )


class Session:
    """Plays records in arms, one after the other, before one stack."""

    def __init__(self, stack: Stack, model: str, arms: tuple[Arm, ...] = ARMS) -> None:
        self._arms = arms
        self._stack = stack
        self._model = model
        self._players: dict[Way, Player] = {}

    async def open(self, owned: AsyncExitStack) -> None:
        for way, url in (
            (Way.FLOOR, self._stack.floor_url),
            (Way.UNFORESEEING, self._stack.unforeseeing_url),
            (Way.FORESEEING, self._stack.url),
        ):
            self._players[way] = await owned.enter_async_context(Player(url))

    async def run(self, tell: Tell, size: Size) -> Seen:
        todo = list(interleaved(size.records))
        await self.warm(tell)
        runs: list[Run] = []
        for number, (kind, place) in enumerate(todo):
            arms = [arm for arm in self._arms if arm is not WRONG or kind in WRONG_KINDS]
            if number >= size.thorough * len(size.records):
                arms = [arm for arm in arms if arm in COMPARED]
            for arm in in_turns(arms, number):
                tell(f"{kind}, {arm.title}", number, len(todo))
                runs.append(await self.one(arm, kind, place, "m"))
                self._stack.check()
        rewritten = await self._after_writes(tell, runs)
        return Seen(tuple(runs), tuple(rewritten), tuple(await self._losers(tell, size.losers)))

    async def warm(self, tell: Tell) -> None:
        """Every way, and the templates at the gateway. The record is none of those that are measured."""
        tell("warming up", 0, 0)
        cold = list(self._arms)
        for number in range(20):
            found = [await self.one(arm, ROUTING_CHAIN, -1, f"warm{number}", at_most=1) for arm in cold]
            cold = [run.arm for run in found if run.arm.way is Way.FORESEEING and not run.branches]
            if not cold:
                return
        raise BranchesFailed("no branch opens")

    async def one(self, arm: Arm, kind: str, place: int, label: str, *, at_most: int = 1000) -> Run:
        """``at_most`` requests of it."""
        performance = self._performances(kind)[place]
        workflow = f"{label}-{arm.name}-{kind}-{performance.record}"
        key = "" if arm.way is Way.FLOOR else arm.name if arm.shares else workflow
        played = await self._players[arm.way].play(
            performance,
            workflow_id=workflow,
            workflow_type=kind + arm.suffix,
            key=key,
            pause_s=pauses(kind, performance.record),
            at_most=at_most,
        )
        if arm.way is not Way.FORESEEING:
            return Run(arm, played)
        return Run(arm, played, await self._idle(workflow))

    def _performances(self, kind: str) -> list[Performance]:
        return [one for one in performances(self._model) if one.workflow_type == kind]

    async def _idle(self, workflow: str) -> tuple[Mapping[str, Any], ...]:
        """The workflow's branches, when nothing of them runs any more: the next arm has the engines alone."""
        deadline = time.monotonic() + _TIMEOUT_S
        while True:
            await asyncio.sleep(_LOOK_S)
            branches = await asyncio.to_thread(self._branches, workflow)
            states = {stage["state"] for one in branches for fill in one["fills"] for stage in fill["stages"]}
            if not states & _AT_WORK:
                return tuple(branches)
            if time.monotonic() > deadline:
                raise BranchesFailed("a fill does not end")

    def _branches(self, workflow: str) -> list[Mapping[str, Any]]:
        at = f"{self._stack.url}/dynbranch/v1/branches"
        listed = _json(f"{at}?workflow={quote(workflow, safe='')}")["data"]
        return [_json(f"{at}/{one['branch']}") for one in listed]

    async def _losers(self, tell: Tell, count: int) -> list[Mapping[str, Any]]:
        found: list[Mapping[str, Any]] = []
        for number in range(count):
            tell("fills that are lost", number, count)
            workflow = f"losers-{number}"
            performance = Performance(LOSERS, str(number), losing(self._model, number))
            await self._players[Way.FORESEEING].play(performance, workflow_id=workflow, key=workflow)
            found += await self._idle(workflow)
        return found

    async def _after_writes(self, tell: Tell, runs: Sequence[Run]) -> list[Rewritten]:
        """Write a passage that each of two questions read, and ask the questions again."""
        tell("after writes", 0, 0)
        found = []
        for kind in (REACT, SUB_AGENTS):
            for run in runs:
                reads = [json.loads(step.text) for step in run.played.steps if step.stage == "get"]
                if run.arm is BOTH and run.played.workflow_type == kind and reads:
                    await asyncio.to_thread(self._write, str(reads[0]["id"]), str(reads[0]["text"]))
                    found.append(await self._again(kind, run.played.record))
                    break
        return found

    def _write(self, id: str, text: str) -> None:
        url = f"{self._stack.passages_url}/passages/{quote(id, safe='')}"
        _json(url, method="PUT", body={"text": EDITION + text})

    async def _again(self, kind: str, record: str) -> Rewritten:
        place = [one.record for one in self._performances(kind)].index(record)
        served = await self.one(BOTH, kind, place, "again")
        right = await self.one(FLOOR, kind, place, "again")
        return Rewritten(served.played, right.played)


def in_turns(arms: Sequence[Arm], repetition: int) -> list[Arm]:
    """Every arm once; over the repetitions each comes early as often as late."""
    at = (repetition // 2) % len(arms)
    order = [*arms[at:], *arms[:at]]
    return order[::-1] if repetition % 2 else order


def interleaved(records: Mapping[str, int]) -> Iterator[tuple[str, int]]:
    """Kinds in turns."""
    for place in range(max(records.values())):
        for kind, count in records.items():
            if place < count:
                yield kind, place


def pauses(kind: str, record: str) -> Callable[[], float]:
    """A person's, lognormal; the same in every arm."""
    chance = random.Random(f"{SEED}/{kind}/{record}")
    return lambda: chance.lognormvariate(math.log(PAUSE_MEDIAN_S), PAUSE_SIGMA)


def _json(url: str, *, method: str = "GET", body: Mapping[str, Any] | None = None) -> Any:
    """Raises BranchesFailed."""
    data = None if body is None else json.dumps(body).encode()
    asked = urllib.request.Request(url, data, {"content-type": "application/json"}, method=method)
    try:
        with urllib.request.urlopen(asked, timeout=_TIMEOUT_S) as response:
            return json.load(response)
    except (urllib.error.URLError, TimeoutError) as error:
        raise BranchesFailed(f"{method} {url}: {error}") from error


# -- figures -----------------------------------------------------------------------------------------------


def figures_of(seen: Seen) -> dict[str, Figure]:
    runs, rewritten = seen.runs, seen.rewritten
    floors = {_key(run): run.played for run in runs if run.arm is FLOOR}
    others = [run for run in runs if run.arm is not FLOOR]
    equal = [run.played.equals(floors[_key(run)]) for run in others]
    equal += [one.served.equals(one.right) for one in rewritten]
    compared = [(run.played, floors[_key(run)]) for run in others]
    compared += [(one.served, one.right) for one in rewritten]
    reused = [pair for pair in _steps(compared) if pair[0].outcome in REUSED]
    ahead = [step.outcome for run in others for step in run.played.steps if step.outcome in AHEAD]
    branches = [*seen.lost, *(one for run in others for one in run.branches)]
    aborts = [ms for one in branches for ms in one["abort_confirmed_ms"]]
    turn = ratio(_pairs(runs, floors, AHEAD_ONLY, (MENUS,), _turns_ms))
    figures = {
        "byte_equal_share": share(sum(equal), len(equal)),
        "unsafe_splices": exact(sum(mine.result != its.result for mine, its in reused), len(reused)),
        "hci_turn_reduction_c1_off": _less(turn),
        "routing_mean_over_floor_c1_off": ratio(
            _pairs(runs, floors, AHEAD_ONLY, (ROUTING_CHAIN,), _whole_ms)
        ),
        "finished_at_demand_share": share(ahead.count("promoted"), len(ahead)),
        "abort_p50_ms": median(aborts) if aborts else exact(0.0, 0),
        "always_wrong_on_the_model_over_floor": ratio(_pairs(runs, floors, WRONG, WRONG_KINDS, _whole_ms)),
    }
    for arm in (REUSE_ONLY, AHEAD_ONLY, BOTH):
        for kind in KINDS:
            pairs = _pairs(runs, floors, arm, (kind,), _whole_ms)
            if pairs:
                figures[f"{kind.replace('-', '_')}_mean_over_floor_{arm.name}"] = ratio(pairs)
    return figures


def _key(run: Run) -> tuple[str, str]:
    return run.played.workflow_type, run.played.record


def _steps(compared: Sequence[tuple[Played, Played]]) -> Iterator[tuple[Step, Step]]:
    """Requests that are the same in both, with what each was answered."""
    for mine, other in compared:
        answered = {step.request + step.stage.encode(): step for step in other.steps}
        for step in mine.steps:
            if (found := answered.get(step.request + step.stage.encode())) is not None:
                yield step, found


def _pairs(
    runs: Sequence[Run],
    floors: Mapping[tuple[str, str], Played],
    arm: Arm,
    kinds: Sequence[str],
    of: Callable[[Played], list[float]],
) -> list[tuple[float, float]]:
    found: list[tuple[float, float]] = []
    for run in runs:
        if run.arm is arm and run.played.workflow_type in kinds:
            found += zip(of(run.played), of(floors[_key(run)]), strict=False)
    return found


def _whole_ms(played: Played) -> list[float]:
    return [played.latency_ms]


def _turns_ms(played: Played) -> list[float]:
    """From each pick of a person to the end of what is told of it."""
    turns_ms: list[float] = []
    for step in played.steps:
        if step.stage == "act":
            turns_ms.append(step.latency_ms)
        elif step.stage == "tell":
            turns_ms[-1] += step.latency_ms
    return turns_ms


def _less(figure: Figure) -> Figure:
    """A ratio as a reduction."""
    return Figure(1 - figure.value, 1 - figure.ci_high, 1 - figure.ci_low, figure.n)


def problems_of(figures: Mapping[str, Figure]) -> Iterator[str]:
    """What did not hold, for a person."""
    if figures["byte_equal_share"].value != 1.0:
        yield "a result differs from the floor's"
    if figures["unsafe_splices"].value:
        yield "a result was reused that executing would not have given"


def arms_table(runs: Sequence[Run], arms: Sequence[Arm] = ARMS) -> list[list[str]]:
    """Mean seconds of a workflow without its pauses, and over the floor's with the interval."""
    floors = {_key(run): run.played for run in runs if run.arm is FLOOR}
    rows = [["workflow", *(arm.title for arm in arms)]]
    for kind in KINDS:
        of_kind = [played.latency_ms for (found, _), played in floors.items() if found == kind]
        if not of_kind:
            continue
        row = [kind, f"{statistics.mean(of_kind) / 1e3:.2f} s"]
        for arm in arms[1:]:
            pairs = _pairs(runs, floors, arm, (kind,), _whole_ms)
            over = ratio(pairs)
            row.append(f"{over.value:.2f} ({over.ci_low:.2f}–{over.ci_high:.2f})" if pairs else "")
        rows.append(row)
    return rows
