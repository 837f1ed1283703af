"""Recorded traffic as a workload."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from dynbranch.demo.stack import TEMPLATES
from dynbranch.domain.events import Selection
from dynbranch.domain.template import (
    Branching,
    Candidates,
    DecisionPoint,
    Moment,
    MomentKind,
    Origin,
    Output,
    PredictorUse,
    Stage,
    StageKind,
    Template,
    Where,
    Window,
)
from dynbranch.enginemodel.parameters import BatchParameters
from dynbranch.rendering.reading import parse_template
from dynbranch.sim.fleet.engines import Fleet
from dynbranch.sim.fleet.playing import Floor, Harnesses, Records
from dynbranch.sim.fleet.runs import run
from dynbranch.sim.fleet.serving import C1
from dynbranch.sim.fleet.workflows import Step, Workload
from dynbranch.sim.heap import EventHeap
from dynbranch.sim.workloads.traffic import NothingToReplay, from_traffic, replayable
from dynbranch.sim.workloads.traffic_decisions import without_tools
from dynbranch.templates.traffic import Exchange, Written
from hypothesis import given, settings
from hypothesis import strategies as st


def asked(at_s: float, took_s: float, stage: str = "a", **more: object) -> Exchange:
    one = Exchange(
        workflow_type="t",
        workflow_id="w",
        kind=StageKind.CHAT,
        target="m",
        body=b"",
        body_sha256="00",
        stage=stage,
        at_ms=1000 * at_s,
        done_ms=1000 * (at_s + took_s),
        outcome="miss",
        name=stage,
        prompt_tokens=100,
        output_tokens=10,
    )
    return replace(one, **more)  # type: ignore[arg-type]


def tool(at_s: float, took_s: float) -> Exchange:
    return asked(at_s, took_s, kind=StageKind.TOOL)


def steps_of(workload: Workload) -> list[Step]:
    return [step for workflow in workload.workflows for turn in workflow.turns for step in turn.steps]


def template(window: Window, then: tuple[str, ...] = ("act",)) -> Template:
    picks = window is Window.WAIT
    resolved = Where(Origin.REQUEST, "act") if picks else Where(Origin.OUTPUT, "ask")
    moment = Moment(MomentKind.OUTPUT if picks else MomentKind.ARRIVAL, "ask")
    names = dict.fromkeys(("ask", *then))
    stages = tuple(Stage(name, StageKind.CHAT, request="", repeats=True) for name in names)
    point = DecisionPoint(
        name="pick",
        stage="ask",
        resolved_by=resolved,
        window=window,
        branching=Branching.EXCLUSIVE,
        opens=(moment,),
        candidates=Candidates((PredictorUse("history"),)),
        then=then,
    )
    return Template("t", 1, (), stages, (point,))


def test_pauses_are_a_person_s_or_a_tool_s() -> None:
    exchanges = [
        asked(100, 1, "a"),
        tool(101.5, 2),
        asked(104, 1, "b"),
        asked(105.5, 1, "c"),
        asked(110.5, 1, "d"),
    ]
    found = replayable(exchanges, name="x")
    (workflow,) = found.workload.workflows
    assert [(turn.gap_s, [step.call.stage for step in turn.steps]) for turn in workflow.turns] == [
        (0.0, ["a", "b", "c"]),
        (4.0, ["d"]),
    ]
    assert [step.call.before_s for step in workflow.turns[0].steps] == [0.0, 3.0, 0.5]
    assert "1 tool calls are pauses of the length that they had" in found.notes


def test_the_floor_takes_as_long_as_its_requests_and_pauses() -> None:
    parameters = BatchParameters(10.0, 0.0, 0.0, 0.0, 1e5, 10_000, slots=4, block_tokens=0)
    exchanges = [asked(0, 1, "a"), asked(1.5, 1, "b"), asked(7.5, 1, "c", workflow_id="v")]
    heap = EventHeap()
    fleet, records = Fleet(heap, parameters, 1), Records()
    plays = Harnesses(heap, Floor(fleet, records), records).play(replayable(exchanges, name="x").workload)
    # A prompt's step is as long as a decode's at least; ten tokens are ten steps.
    assert [play.turns_s for play in plays] == [[pytest.approx(0.1 + 0.5 + 0.1)], [pytest.approx(0.1)]]
    assert [play.began for play in plays] == [0.0, 7.5]


def test_equal_names_are_equal_content_and_no_name_is_like_no_other() -> None:
    greedy, drawn = (
        json.dumps({"temperature": t, "messages": [{"role": "user", "content": "hi"}]}).encode()
        for t in (0, 1)
    )
    named = [asked(0, 1, name="n"), asked(2, 1, name="n", workflow_id="v"), asked(4, 1, name="m")]
    unnamed = [
        asked(10 + number, 0.5, name="", body=body, body_sha256="", workflow_id=f"u{number}")
        for number, body in enumerate((greedy, greedy, drawn, drawn))
    ]
    contents = [step.call.content for step in steps_of(replayable(named, name="x").workload)]
    assert sorted(contents) == ["m", "n", "n"]
    contents = [step.call.content for step in steps_of(replayable(unnamed, name="x").workload)]
    assert contents[0] == contents[1] and len(set(contents)) == 3


def test_overlapping_requests_are_sequences_of_their_own() -> None:
    exchanges = [
        asked(0, 5, "lead", agent_id="lead"),
        asked(1, 2, "one", agent_id="one"),
        asked(1, 3, "two", agent_id="two"),
        asked(3.5, 1, "more", agent_id="one"),
        asked(3.7, 1, "beside", agent_id="one"),
    ]
    found = replayable(exchanges, name="x")
    stages = [
        [step.call.stage for turn in workflow.turns for step in turn.steps]
        for workflow in found.workload.workflows
    ]
    assert sorted(stages) == [["beside"], ["lead"], ["one", "more"], ["two"]]
    assert "workflows whose requests overlap are replayed as 3 sequences more" in found.notes


def test_requests_of_no_workflow_stand_alone() -> None:
    found = replayable([asked(0, 1, workflow_id=""), asked(2, 1, workflow_id="")], name="x")
    assert [workflow.at_s for workflow in found.workload.workflows] == [0.0, 2.0]
    assert "2 requests tell no workflow: each stands alone" in found.notes


def test_what_has_no_size_is_left_out_or_estimated() -> None:
    kept = asked(0, 1, prompt_tokens=0, output_tokens=0, body=b"x" * 400, output=Output("y" * 40))
    lost = asked(2, 1, prompt_tokens=0)
    failed = asked(4, 1, failed=True)
    found = replayable([kept, lost, failed], name="x")
    (step,) = steps_of(found.workload)
    assert (step.call.prompt_tokens, step.call.output_tokens) == (100, 10)
    assert "2 requests without an answer or token counts are left out" in found.notes
    with pytest.raises(NothingToReplay):
        replayable([lost, failed], name="x")


def test_prompts_that_begin_alike_share_their_blocks() -> None:
    said = [{"role": "system", "content": "x" * 2000}]
    bodies = [
        json.dumps(
            {"messages": [*said, *({"role": "user", "content": word * 800} for word in words)]}
        ).encode()
        for words in (("a",), ("a", "b"), ("c",))
    ]
    exchanges = [
        asked(number, 0.5, body=body, body_sha256="", prompt_tokens=len(body) // 4)
        for number, body in enumerate(bodies)
    ]
    first, longer, other = (step.call.blocks for step in steps_of(replayable(exchanges, name="x").workload))
    assert len(first) >= 40 and longer[: len(first)] == first and len(longer) > len(first)
    shared = sum(a == b for a, b in zip(first, other, strict=False))
    assert 30 <= shared < len(first) and not set(first[shared:]) & set(other)


def picks(window: Window, *selections: str) -> list[Exchange]:
    """A workflow each: what is asked, and what is done for the pick."""
    exchanges = []
    for number, selection in enumerate(selections):
        told = (Selection("pick", (selection,)),)
        ask, act = asked(10 * number, 1, "ask"), asked(10 * number + 4, 1, "act", name=f"act {selection}")
        if window is Window.WAIT:
            act = replace(act, selections=told)
        else:
            ask = replace(ask, selections=told)
        exchanges += [replace(one, workflow_id=f"w{number}") for one in (ask, act)]
    return exchanges


@pytest.mark.parametrize("window", list(Window))
def test_history_foretells_what_was_selected_before(window: Window) -> None:
    found = replayable(picks(window, "red", "red", "blue", "red"), name="x", template=template(window))
    decisions = [step.decision for step in steps_of(found.workload) if step.call.stage == "ask"]
    assert all(step.decision is None for step in steps_of(found.workload) if step.call.stage == "act")
    ranked = []
    for decision, picked in zip(decisions, ("red", "red", "blue", "red"), strict=True):
        assert decision is not None and decision.picked == (picked,)
        assert decision.chains[picked][0].content == f"act {picked}"
        assert all(decision.chains[one] for one in decision.ranked)
        ranked.append(decision.ranked)
    assert ranked == [(), ("red",), ("red",), ("red", "blue")]
    assert decisions[2] is not None and decisions[2].chains["red"][0].content not in ("act red", "act blue")
    gaps = [turn.gap_s for workflow in found.workload.workflows for turn in workflow.turns]
    assert gaps == [0.0, 3.0] * 4, "three seconds are a person's in both"


def test_several_selections_have_a_chain_each() -> None:
    told = (Selection("pick", ("red", "blue")),)
    lane = [
        asked(0, 1, "ask", selections=told),
        *(asked(2 + n, 1, stage, name=f"{stage} {n}") for n, stage in enumerate(("act", "tell") * 2)),
    ]
    found = replayable(lane, name="x", template=template(Window.DECODE, ("act", "tell")))
    decision = steps_of(found.workload)[0].decision
    assert decision is not None
    names = {key: [call.content for call in chain] for key, chain in decision.chains.items()}
    assert names == {"red": ["act 0", "tell 1"], "blue": ["act 2", "tell 3"]}


def test_what_falls_later_foretells_nothing() -> None:
    """The first decision is made when the second one's branch has opened already."""
    first, act = picks(Window.DECODE, "red")
    slow = replace(first, done_ms=first.at_ms + 5000)
    second = replace(first, workflow_id="v", at_ms=first.at_ms + 100, done_ms=first.at_ms + 200)
    late = replace(act, at_ms=first.at_ms + 6000, done_ms=first.at_ms + 7000)
    found = replayable([slow, second, late], name="x", template=template(Window.DECODE))
    assert [s.decision.ranked for s in steps_of(found.workload) if s.decision is not None] == [(), ()]


def test_files_are_put_together_in_the_order_of_time(tmp_path: Path) -> None:
    line = {"workflow_type": "t", "target": "m", "body_sha256": "00", "prompt_tokens": 9, "output_tokens": 2}
    for name, at_ms, workflow in (("a.jsonl", 2000, "w"), ("a.jsonl.1", 1000, "v")):
        told = {**line, "workflow_id": workflow, "at_ms": at_ms, "done_ms": at_ms + 5}
        (tmp_path / name).write_text(json.dumps(told) + "\n" + '{"workflow_type": "t", "wor')
    found = from_traffic([tmp_path / "a.jsonl", tmp_path / "a.jsonl.1"])
    assert [workflow.at_s for workflow in found.workload.workflows] == [0.0, 1.0]
    assert "bodies were not kept: no prompt shares its beginning with another" in found.notes


WORDS = st.sampled_from(("a", "b", "c"))


@given(
    st.lists(
        st.tuples(
            WORDS, WORDS, st.integers(0, 40), st.integers(0, 30), st.sampled_from(("ask", "act")), WORDS
        ),
        min_size=1,
        max_size=20,
    ),
    st.sampled_from(list(Window)),
)
@settings(max_examples=60, deadline=None)
def test_whatever_was_recorded_every_request_is_replayed_once(
    rows: list[tuple[str, str, int, int, str, str]], window: Window
) -> None:
    exchanges = sorted(
        (
            asked(
                at,
                took,
                stage,
                workflow_id=workflow,
                agent_id=agent,
                name=f"{number}",
                selections=(Selection("pick", (chosen,)),)
                if (stage == "act") == (window is Window.WAIT)
                else (),
            )
            for number, (workflow, agent, at, took, stage, chosen) in enumerate(rows)
        ),
        key=lambda one: one.at_ms,
    )
    workload = replayable(exchanges, name="x", template=template(window)).workload
    steps = steps_of(workload)
    assert sorted(step.call.content for step in steps) == sorted(one.name for one in exchanges)
    assert all(step.call.before_s >= 0 for step in steps)
    for workflow in workload.workflows:
        assert workflow.at_s >= 0 and all(turn.steps and turn.gap_s >= 0 for turn in workflow.turns)
    for step in steps:
        if step.decision is not None:
            assert all(step.decision.chains[one] for one in step.decision.ranked)


def test_what_runs_ahead_waits_for_its_tools_and_for_nobody_s_thinking() -> None:
    exchanges = [
        asked(0, 1, "ask", selections=(Selection("pick", ("red",)),)),
        tool(1.2, 0.5),
        asked(2, 1, "act", name="act red"),
        asked(8, 1, "tell", name="tell red"),
    ]
    found = replayable(exchanges, name="x", template=template(Window.DECODE, ("act", "tell")))
    steps = steps_of(found.workload)
    assert steps[0].decision is not None
    assert [call.before_s for call in steps[0].decision.chains["red"]] == [1.0, 0.0]
    assert [turn.gap_s for turn in found.workload.workflows[0].turns] == [0.0, 5.0]


@pytest.mark.parametrize("kind", ["react", "sub-agents"])
def test_tools_of_a_template_are_pauses(kind: str) -> None:
    file = TEMPLATES / f"{kind}.yaml"
    plain = without_tools(parse_template(file.read_text(), file.name))
    assert {stage.kind for stage in plain.stages} == {StageKind.CHAT}
    (point,) = plain.decision_points
    (last,) = point.then
    assert point.opens == (
        Moment(MomentKind.ARRIVAL, point.stage),
        Moment(MomentKind.ARRIVAL, last),
    )
    lane = [
        asked(0, 1, point.stage, selections=(Selection(point.name, ("x",)),), workflow_type=kind),
        replace(tool(1.1, 0.2), workflow_type=kind),
        asked(1.5, 1, last, workflow_type=kind),
    ]
    whole = parse_template(file.read_text(), file.name)
    decision = steps_of(replayable(lane, name="x", template=whole).workload)[0].decision
    assert decision is not None
    assert [(call.stage, call.before_s) for call in decision.chains["x"]] == [(last, 0.5)]


def test_a_decision_that_only_tools_follow_is_none() -> None:
    one = template(Window.DECODE)
    point = replace(one.decision_points[0], then=("look",))
    stages = (*one.stages, Stage("look", StageKind.TOOL, request="", target="look"))
    assert without_tools(replace(one, stages=stages, decision_points=(point,))).decision_points == ()


def test_a_write_between_two_equal_requests_has_the_second_execute() -> None:
    exchanges = [
        asked(10 * number, 1, name="n", reads=("people/1",), workflow_id=f"w{number}") for number in range(4)
    ]
    writes = [
        Written(("people/1",), 15_000.0),
        Written(("people/2",), 25_000.0),
        Written(("people/1",), -5.0),
    ]
    workload = replayable(exchanges, name="x", writes=writes).workload
    assert [write.at_s for write in workload.writes] == [15.0, 25.0]
    outcome = run(workload, C1, BatchParameters(10.0, 0.0, 0.0, 0.0, 1e5, 10_000, slots=4), engines=1)
    assert [play.outcomes for play in outcome.plays] == [("miss",), ("hit",), ("miss",), ("hit",)]
    assert outcome.wrong == 0
