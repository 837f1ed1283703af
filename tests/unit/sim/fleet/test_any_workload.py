"""What holds of every arm, whatever is asked of it."""

from __future__ import annotations

from dataclasses import replace

import pytest
from dynbranch.controller.core.branches.admission import PolicyName
from dynbranch.enginemodel.parameters import BatchParameters
from dynbranch.sim.fleet.playing import Arm, floor
from dynbranch.sim.fleet.serving import ARMS, DynBranch, DynBranchArm
from dynbranch.sim.fleet.workflows import Call, Decision, Step, Turn, Workflow, Workload, Write
from hypothesis import given, settings
from hypothesis import strategies as st
from unit.sim.fleet.tiny import FIXED, TEMPLATE, call, played

SMALL = BatchParameters(
    decode_step_ms=100,
    batched_extra_ms=5,
    sequence_ms=1,
    kilotoken_ms=50,
    prefill_tokens_per_s=1000,
    kv_pool_tokens=300,
    slots=3,
    block_tokens=0,
)
DECIDES = {"decide": "choice", "offer": "pick", "list": "several", "late": "early"}
SELECTIONS = ("a", "b", "c")
SUBJECTS = st.integers(0, 2)
SECONDS = st.integers(0, 6)


@st.composite
def chains(draw: st.DrawFn) -> tuple[Call, ...]:
    """Of one selection: equal subjects give equal calls, in whatever workflow."""
    subject, wait = draw(SUBJECTS), draw(st.sampled_from([0.0, 0.5]))
    act = call("act", f"act {subject}", 1 + subject, *["s/0"] * (subject == 2), before_s=wait)
    more = call("more", f"more {subject}", 2, f"s/{subject}")
    return (act, more)[: draw(st.integers(1, 2))]


@st.composite
def decisions(draw: st.DrawFn, stage: str) -> Decision:
    offered = {selection: draw(chains()) for selection in SELECTIONS}
    picked = draw(st.sampled_from(["", *SELECTIONS]))
    ranked = tuple(draw(st.lists(st.sampled_from(SELECTIONS), unique=True, max_size=3)))
    return Decision(
        DECIDES[stage],
        (picked,) if picked else (),
        ranked,
        offered,
        draw(st.sampled_from([0.0, 0.3, 2.0])),
        draw(st.sampled_from([None, 0, 2])),
        draw(st.booleans()),
        tuple(sorted(draw(st.lists(st.tuples(st.integers(0, 2), st.sampled_from(SELECTIONS)), max_size=3)))),
    )


@st.composite
def turns(draw: st.DrawFn) -> tuple[Turn, ...]:
    """What follows a person's pick comes in the next turn, everything else at once."""
    made: list[Turn] = []
    steps: list[Step] = []
    for _ in range(draw(st.integers(1, 3))):
        if draw(st.booleans()):
            steps.append(Step(call("begin", f"begin {draw(SUBJECTS)}", draw(SECONDS))))
        stage = draw(st.sampled_from(sorted(DECIDES)))
        decision = draw(decisions(stage))
        number, seconds = draw(SUBJECTS), draw(SECONDS)
        shown = None if decision.shown_at is None else min(decision.shown_at, seconds)
        asked = call(stage, f"{stage} {number} {decision}", seconds)
        spoken = tuple((min(token, seconds), name) for token, name in decision.spoken)
        steps.append(Step(asked, replace(decision, shown_at=shown, spoken=spoken)))
        if stage == "offer":
            made.append(Turn(tuple(steps), measured=False))
            steps = []
        for selection in decision.picked:
            steps += [Step(one) for one in decision.chains[selection][: draw(st.integers(0, 2))]]
    return (
        *made,
        Turn(tuple(steps) or (Step(call("end", "end", 1)),), gap_s=draw(st.sampled_from([0.0, 3.0]))),
    )


@st.composite
def workloads(draw: st.DrawFn) -> Workload:
    flows: list[Workflow] = []
    for number in range(draw(st.integers(1, 5))):
        at_s, tenant = draw(st.integers(0, 40)) / 4, draw(st.sampled_from("tu"))
        made = draw(turns()) if not flows or draw(st.booleans()) else draw(st.sampled_from(flows)).turns
        flows.append(Workflow(number, at_s, tenant, made))
    writes = [
        Write(draw(st.integers(0, 80)) / 4, (draw(st.sampled_from(["s/0", "s/1", "s/2", "s/*"])),))
        for _ in range(draw(st.integers(0, 5)))
    ]
    clients = draw(st.sampled_from([0, 0, 2]))
    return Workload("drawn", TEMPLATE, tuple(flows), tuple(writes), clients)


ANY_ARM = st.sampled_from(
    [*ARMS, DynBranchArm("always, alone", PolicyName.ALWAYS, reuse=False, width=2), floor]
)


@pytest.mark.promise("I1", "I4")
@settings(max_examples=150, deadline=None)
@given(workloads(), ANY_ARM, st.sampled_from([FIXED, replace(FIXED, slots=1), SMALL]), st.integers(1, 3))
def test_every_workflow_ends_as_the_floor_s_would_and_leaves_nothing(
    load: Workload, arm: Arm, parameters: BatchParameters, engines: int
) -> None:
    done = played(load, arm, parameters, engines=engines, validate_every=3)
    assert len(done.plays) == len(load.workflows)
    for play in done.plays:
        assert len(play.outcomes) == sum(len(turn.steps) for turn in play.workflow.turns)
        assert play.wrong == 0
    if isinstance(done.serving, DynBranch):
        assert done.serving.is_quiet
        assert done.serving.accounts.workflows.keys() <= {one.number for one in load.workflows}
    assert not done.fleet.runs
