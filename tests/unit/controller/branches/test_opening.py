"""When a branch opens, for which time that a decision falls, and when none does."""

from __future__ import annotations

from dataclasses import replace

import pytest
from dynbranch.controller.core.branches.admission import Off, Static
from dynbranch.controller.core.branches.instances import Bounds
from dynbranch.controller.core.branches.lifecycle import BranchState
from dynbranch.controller.core.branches.messages import (
    Answer,
    Effect,
    Learn,
    Passport,
    Propose,
    StageAnswered,
    StageArrived,
    Unlearn,
)
from dynbranch.controller.core.branches.workflows import MAX_OUTPUTS
from dynbranch.domain.events import Selection
from dynbranch.domain.ids import DemandId, Instant, UnixMs
from dynbranch.domain.reuse import Identity
from dynbranch.domain.template import (
    Branching,
    Moment,
    MomentKind,
    Output,
    Speculable,
    Template,
    WorkflowContext,
)
from unit.controller.branches.scenes import WORKFLOW, Scene, of, picked, routed, started

MENU = Identity("t", "menus", "w1", "main")
EARLY = (Moment(MomentKind.ARRIVAL, "route"), Moment(MomentKind.OUTPUT, "work"))


def test_the_arrival_of_a_decision_opens_a_branch_and_asks_the_predictors() -> None:
    scene = Scene()
    (asked,) = of(Propose, scene.arrive("route", "r1"))
    branch = scene.branch
    assert branch.state is BranchState.OPENING and branch.demand_id == b"r1"
    assert asked.branch_id == branch.branch_id and asked.context.inputs == {"q": "question"}
    assert asked.not_before == scene.now + scene.bounds.hold_s
    assert started(scene.propose(branch, "a", "b")) == ["work:a", "work:b"]
    assert branch.state is BranchState.OPEN


def test_the_same_arrival_told_twice_opens_one_branch() -> None:
    scene = Scene()
    scene.arrive("route", "r1")
    assert scene.arrive("route", "r1") == []
    assert scene.book.branches.opened == 1


@pytest.mark.promise("C2.branch_opens")
def test_a_recorded_decision_goes_straight_to_resolved_and_runs_nothing() -> None:
    scene = Scene()
    scene.arrive("route", "r1")
    branch = scene.branch
    scene.answer("r1", chosen=["a"], outcome="hit")
    assert branch.state is BranchState.SETTLED and branch.selections == ("a",)
    # What the predictors say now comes too late for fills, and they still learn from it.
    out = scene.propose(branch, "b", "a")
    assert started(out) == [] and of(Learn, out) == [Learn(branch.branch_id, ("a",))]
    assert [record.selected for record in branch.candidates] == [False, True]


@pytest.mark.promise("C2.branch_opens")
def test_a_wait_opens_from_the_recorded_output() -> None:
    scene = Scene(picked())
    assert of(Propose, scene.arrive("offer", "o1", identity=MENU)) == []
    (asked,) = of(Propose, scene.answer("o1", outcome="hit", text="1. a"))
    assert asked.context.outputs["offer"] == (Output("1. a"),)
    assert scene.branch.demand_id == b"o1" and asked.not_before == scene.now


def test_a_branch_opens_before_its_window_where_the_point_says_so() -> None:
    scene = Scene(routed(opens=EARLY))
    scene.arrive("route", "r1")
    scene.answer("r1", chosen=["a"])
    scene.arrive("work", "d1")
    (asked,) = of(Propose, scene.answer("d1", text="worked"))
    early = scene.branch
    assert early.demand_id is None and asked.context.selections == {"way": (("a",),)}
    scene.propose(early, "b")
    # The decision's own arrival binds it, and opens no second one.
    assert of(Propose, scene.arrive("route", "r2")) == []
    assert early.demand_id == b"r2"
    scene.answer("r2", chosen=["b"])
    assert early.selections == ("b",)


def test_what_one_agent_opened_early_another_may_decide() -> None:
    scene = Scene(routed(opens=EARLY))
    scene.arrive("work", "d1", identity=replace(WORKFLOW, agent_id="researcher"))
    scene.answer("d1")
    scene.arrive("route", "r1", identity=replace(WORKFLOW, agent_id="lead"))
    assert scene.branch.demand_id == b"r1" and scene.book.branches.opened == 1


def test_what_a_workflow_said_under_one_key_never_goes_out_under_another() -> None:
    scene = Scene()

    def heard(stage: str, demand: str, key: str, text: str) -> list[Effect]:
        passport = Passport(f"group of {key}", key, (("authorization", key),))
        own = DemandId(demand.encode())
        return scene.do(
            StageArrived(UnixMs(1), own, WORKFLOW, scene.template, stage, {"q": text}, passport=passport)
        )

    # The same tenant, workflow type, workflow and agent, but another key.
    for own, text, demand in (("key of a", "private", "a1"), ("key of b", "other", "b1")):
        heard("work", demand, own, text)
        scene.answer(demand, text=f"for {text}")
    for own, text, demand in (("key of a", "private", "a2"), ("key of b", "other", "b2")):
        (asked,) = of(Propose, heard("route", demand, own, text))
        branch = scene.book.branches.get(asked.branch_id)
        assert branch is not None and branch.passport.cache_scope == own
        assert asked.context.inputs == {"q": text}
        assert asked.context.outputs["work"] == (Output(f"for {text}"),)
        assert own not in repr(branch.workflow)


def test_of_a_workflow_without_an_end_no_more_is_kept_than_may_be() -> None:
    scene = Scene()
    for number in range(MAX_OUTPUTS + 1):
        answer = Answer(Output(""), (Selection("way", ("a",)),))
        for event in (
            StageArrived(UnixMs(1), *told(scene, number), {"q": "question"}),
            StageAnswered(UnixMs(2), told(scene, number)[0], "miss", answer=answer),
        ):
            scene.book.handle(event, Instant(scene.now))
    workflow = scene.book.workflows.of_demand(told(scene, MAX_OUTPUTS)[0])
    assert workflow is not None and "outputs" in workflow.incomplete
    assert workflow.context() == WorkflowContext(inputs={"q": "question"}) and workflow.trail() == ()
    # What it would quote is not there any more, so nothing of it runs ahead.
    opened = scene.book.branches.opened
    last = StageArrived(UnixMs(3), DemandId(b"last"), WORKFLOW, scene.template, "route")
    assert of(Propose, scene.do(last)) == [] and scene.book.branches.opened == opened


def told(scene: Scene, number: int) -> tuple[DemandId, Identity, Template, str]:
    return DemandId(b"%d" % number), WORKFLOW, scene.template, "work"


@pytest.mark.promise("C2.late_events")
def test_a_late_opening_finds_the_decision_made() -> None:
    scene = Scene(routed(opens=(Moment(MomentKind.OUTPUT, "work"),)))
    scene.arrive("work", "d1")
    scene.arrive("route", "r1")
    scene.answer("r1", chosen=["a"])
    assert of(Propose, scene.answer("d1")) == []
    assert (scene.book.late_openings, scene.book.branches.opened) == (1, 0)


@pytest.mark.promise("C2.late_events")
def test_an_answer_that_comes_before_its_arrival_is_kept_for_it() -> None:
    scene = Scene()
    assert scene.answer("r1", chosen=["a"]) == []
    scene.choice("r1", "a")
    scene.arrive("route", "r1")
    assert scene.branch.selections == ("a",)


def test_outputs_stand_in_the_order_of_arrivals_whatever_order_answers_come_in() -> None:
    scene = Scene()
    scene.arrive("work", "d1")
    scene.arrive("work", "d2")
    scene.answer("d2", text="second")
    scene.answer("d1", text="first")
    (asked,) = of(Propose, scene.arrive("route", "r1"))
    assert asked.context.outputs["work"] == (Output("first"), Output("second"))


def test_a_closed_gate_asks_no_predictor() -> None:
    scene = Scene(admission=Off())
    assert of(Propose, scene.arrive("route", "r1")) == []
    assert scene.branch.decision.reason == "the policy is off"
    scene.answer("r1", chosen=["a"])
    assert scene.branch.state is BranchState.SETTLED


def test_a_full_book_and_a_workflow_that_can_not_be_rendered_open_nothing() -> None:
    scene = Scene(bounds=Bounds(branches=1))
    scene.arrive("route", "r1")
    scene.arrive("route", "r2")
    assert (scene.book.branches.opened, scene.book.turned_away) == (1, 1)
    scene = Scene()
    scene.arrive("work", "d1")
    untold = Answer(None, ())
    scene.do(StageAnswered(UnixMs(1), DemandId(b"d1"), "miss", False, untold))
    assert of(Propose, scene.arrive("route", "r1")) == []
    assert scene.book.turned_away == 1


def test_a_stage_that_may_not_run_ahead_is_no_candidate() -> None:
    scene = Scene(routed(speculable=Speculable.NO))
    scene.arrive("route", "r1")
    assert started(scene.propose(scene.branch, "a")) == []
    assert scene.branch.candidates[0].reason == "not speculable"


def test_a_chain_ends_before_the_first_stage_that_may_not_run_ahead() -> None:
    scene = Scene(routed(then=("work", "sum", "finish")))
    scene.arrive("route", "r1")
    scene.propose(scene.branch, "a")
    assert scene.branch.fills["a"].chain == ("work",)


def test_fixed_thresholds_refuse_and_say_why() -> None:
    scene = Scene(admission=Static(width=3), slots=4)
    scene.arrive("route", "r1")
    scene.propose(scene.branch, "a", "b", "c")
    told = [(one.selection, one.admitted, one.reason) for one in scene.branch.candidates]
    assert told == [
        ("a", True, "free enough"),
        ("b", True, "free enough"),
        ("c", False, "2 free slots, fewer than 3"),
    ]


def test_the_width_bounds_the_guesses() -> None:
    scene = Scene()
    scene.arrive("route", "r1")
    scene.propose(scene.branch, "a", "b", "c", "d")
    assert [one.admitted for one in scene.branch.candidates] == [True, True, True, False]
    assert scene.branch.candidates[3].reason == "beyond the first 3"


def test_a_proposal_for_a_branch_that_nobody_knows_is_let_go() -> None:
    scene = Scene(bounds=Bounds(history=1))
    scene.arrive("route", "r1")
    forgotten = scene.branch
    scene.answer("r1", chosen=["a"])
    scene.arrive("route", "r2")
    scene.answer("r2", chosen=["a"])
    assert scene.propose(forgotten, "a") == [Unlearn(forgotten.branch_id)]


def test_without_a_workflow_there_is_no_branch() -> None:
    scene = Scene()
    assert scene.arrive("route", "r1", identity=Identity("t", "routing")) == []


def test_a_pick_is_of_what_that_agent_was_asked_last() -> None:
    scene = Scene(picked(branching=Branching.EXCLUSIVE))
    for number in (1, 2):
        scene.arrive("offer", f"o{number}", identity=MENU)
        scene.answer(f"o{number}")
    first, second = scene.book.branches.listed("", 9)
    branch = first if first.demand_id == b"o2" else second
    scene.arrive("act", "a1", identity=MENU, selections=[Selection("pick", ("x",))])
    assert branch.selections == ("x",)
