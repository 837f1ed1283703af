"""Small workflows on engines that take the same time at every load: their times can be added up by hand.

A call of ``n`` seconds has ``n + 1`` tokens; the first comes at once, then one a second.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from dynbranch.domain.template import (
    Branching,
    Candidates,
    DecisionPoint,
    Moment,
    MomentKind,
    Origin,
    PredictorUse,
    Reads,
    ReadsKind,
    Speculable,
    Stage,
    StageKind,
    Template,
    Where,
    Window,
)
from dynbranch.enginemodel.parameters import FixedParameters, Parameters
from dynbranch.sim.fleet.engines import Fleet
from dynbranch.sim.fleet.playing import Arm, Harnesses, Play, Records, Serving
from dynbranch.sim.fleet.workflows import Call, Decision, Step, Turn, Workflow, Workload, Write
from dynbranch.sim.heap import EventHeap

FIXED = FixedParameters(time_to_first_token_ms=0, inter_token_ms=1000, block_tokens=0)
READS = Reads(ReadsKind.SOURCE)


def _point(
    name: str,
    stage: str,
    opens: Moment,
    *,
    window: Window = Window.DECODE,
    branching: Branching = Branching.EXCLUSIVE,
) -> DecisionPoint:
    told = Origin.REQUEST if window is Window.WAIT else Origin.OUTPUT
    return DecisionPoint(
        name,
        stage,
        Where(told, "act" if window is Window.WAIT else stage),
        window,
        branching,
        (opens,),
        Candidates((PredictorUse("history"),)),
        ("act", "more"),
        expires_s=60.0,
    )


def _chat(name: str, *, speculable: Speculable = Speculable.NO) -> Stage:
    return Stage(name, StageKind.CHAT, name, repeats=True, speculable=speculable)


def _arrival(stage: str) -> Moment:
    return Moment(MomentKind.ARRIVAL, stage)


TEMPLATE = Template(
    "tiny",
    1,
    (),
    (
        *(_chat(name) for name in ("begin", "decide", "offer", "list", "late", "end")),
        _chat("act", speculable=Speculable.YES),
        Stage("more", StageKind.TOOL, "more", "more", Speculable.YES, READS, repeats=True),
    ),
    (
        _point("choice", "decide", _arrival("decide")),
        _point("pick", "offer", Moment(MomentKind.OUTPUT, "offer"), window=Window.WAIT),
        _point("several", "list", _arrival("list"), branching=Branching.INDEPENDENT),
        _point("early", "late", _arrival("begin")),
    ),
    "tiny",
)


def call(stage: str, content: str, seconds: int, *reads: str, before_s: float = 0.0) -> Call:
    return Call(stage, content, 1, seconds + 1, reads=reads, before_s=before_s)


def step(call: Call, decision: Decision | None = None) -> Step:
    return Step(call, decision)


def choice(
    picked: str,
    ranked: Sequence[str],
    chains: Mapping[str, Sequence[Call]],
    *,
    point: str = "choice",
    spent_s: float = 0.0,
    shown_at: int | None = None,
    final: bool = False,
    spoken: Sequence[tuple[int, str]] = (),
) -> Decision:
    made = {selection: tuple(calls) for selection, calls in chains.items()}
    told = tuple(spoken)
    return Decision(point, (picked,) if picked else (), tuple(ranked), made, spent_s, shown_at, final, told)


def workflow(number: int, *steps: Step, at_s: float = 0.0, tenant: str = "t") -> Workflow:
    return Workflow(number, at_s, tenant, (Turn(steps),))


def workload(*workflows: Workflow, writes: Sequence[Write] = (), clients: int = 0) -> Workload:
    return Workload("tiny", TEMPLATE, workflows, tuple(writes), clients)


@dataclass
class Done:
    plays: list[Play]
    """By the workflow's number."""
    serving: Serving
    fleet: Fleet

    @property
    def latencies(self) -> list[float]:
        return [play.ended - play.began for play in self.plays if play.ended is not None]

    @property
    def outcomes(self) -> list[list[str]]:
        return [play.outcomes for play in self.plays]


def played(
    load: Workload,
    arm: Arm,
    parameters: Parameters = FIXED,
    *,
    engines: int = 2,
    validate_every: int = 1,
    rest_s: float = 200.0,
) -> Done:
    """To the end and ``rest_s`` beyond, every state looked at."""
    heap = EventHeap()
    fleet = Fleet(heap, parameters, engines)
    records = Records()
    serving = arm(fleet, records, load, 0)
    harnesses = Harnesses(heap, serving, records)
    harnesses.begin(load)
    while len(harnesses.finished) < len(load.workflows):
        assert heap.step(), "a workflow does not end"
        if heap.steps % validate_every == 0:
            serving.validate_state()
    ended = heap.now
    while heap.now < ended + rest_s and heap.step():
        pass
    serving.validate_state()
    plays = sorted(harnesses.finished, key=lambda play: play.workflow.number)
    return Done(plays, serving, fleet)
