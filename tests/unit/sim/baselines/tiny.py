"""Hand-made workflows on an engine that writes a hundred tokens a second and reads at once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from dynbranch.domain.template import (
    Branching,
    Candidates,
    DecisionPoint,
    Origin,
    Speculable,
    Stage,
    StageKind,
    Template,
    Where,
    Window,
)
from dynbranch.enginemodel.parameters import BatchParameters
from dynbranch.sim.baselines.arms import Baseline, BaselineArm
from dynbranch.sim.fleet.engines import Fleet
from dynbranch.sim.fleet.playing import Harnesses, Play, Records
from dynbranch.sim.fleet.workflows import Call, Decision, Step, Turn, Workflow, Workload, Write
from dynbranch.sim.heap import EventHeap

ENGINE: Final = BatchParameters(
    decode_step_ms=10.0,
    batched_extra_ms=0.0,
    sequence_ms=0.0,
    kilotoken_ms=0.0,
    prefill_tokens_per_s=1e9,
    kv_pool_tokens=1_000_000,
    slots=64,
)
CLOSE_S: Final = 0.03
"""A request joins at the end of a step, and a tenth of a second's samples are steps, too."""


def point(name: str, window: Window) -> DecisionPoint:
    return DecisionPoint(
        name=name,
        stage="think",
        resolved_by=Where(Origin.OUTPUT, "think"),
        window=window,
        branching=Branching.EXCLUSIVE,
        opens=(),
        candidates=Candidates(()),
        then=("act",),
    )


TEMPLATE: Final = Template(
    "tiny",
    1,
    (),
    (
        Stage("think", StageKind.CHAT, request="think", repeats=True),
        Stage("act", StageKind.CHAT, request="act", repeats=True, speculable=Speculable.YES),
        Stage("roll", StageKind.CHAT, request="roll", speculable=Speculable.ONCE),
    ),
    (point("action", Window.DECODE), point("menu", Window.WAIT)),
)


def call(content: str, tokens: int, *, stage: str = "act", before_s: float = 0.0, reads: str = "") -> Call:
    return Call(stage, content, 100, tokens, (), (reads,) if reads else (), before_s)


def hops(
    name: str, count: int, *, think: int = 100, act: int = 200, last: int = 50, reads: str = ""
) -> tuple[Step, ...]:
    """Thoughts that each lead to an act, and an answer."""
    steps = []
    for hop in range(count):
        right = call(f"{name} act {hop}", act, reads=reads)
        wrong = call(f"{name} other {hop}", act)
        decision = Decision("action", ("right",), ("wrong", "right"), {"right": (right,), "wrong": (wrong,)})
        steps += [Step(call(f"{name} think {hop}", think, stage="think"), decision), Step(right)]
    return (*steps, Step(call(f"{name} answer", last)))


def workflow(number: int, *turns: Turn, at_s: float = 0.0) -> Workflow:
    return Workflow(number, at_s, "tenant", turns)


def workload(*workflows: Workflow, writes: Sequence[Write] = (), clients: int = 1) -> Workload:
    return Workload("tiny", TEMPLATE, workflows, tuple(writes), clients)


class Checked(EventHeap):
    """Looks at the arm's state after each event."""

    def __init__(self) -> None:
        super().__init__()
        self.serving: Baseline | None = None

    def step(self) -> bool:
        stepped = super().step()
        if self.serving is not None:
            self.serving.validate_state()
        return stepped


def played(
    load: Workload, by: BaselineArm, *, engines: int = 4, parameters: BatchParameters = ENGINE
) -> tuple[list[Play], Baseline, Fleet]:
    """In the workflows' order. Nothing is left on the engines."""
    heap = Checked()
    fleet, records = Fleet(heap, parameters, engines), Records()
    heap.serving = serving = by(fleet, records, load, 1)
    plays = Harnesses(heap, serving, records).play(load)
    assert not fleet.runs
    assert all(not place.canonical and not place.ahead for place in fleet.places)
    return sorted(plays, key=lambda play: play.workflow.number), serving, fleet


def latencies(plays: Sequence[Play]) -> list[float]:
    return [latency for play in plays for latency in play.turns_s]
