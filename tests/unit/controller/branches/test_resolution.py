"""What a selection removes, what outlives it, and what the store's settlements make of fills."""

from __future__ import annotations

from dataclasses import replace

import pytest
from dynbranch.controller.core.branches.admission import Off
from dynbranch.controller.core.branches.instances import Bounds
from dynbranch.controller.core.branches.lifecycle import BranchState, FillState
from dynbranch.controller.core.branches.messages import (
    AbortGeneration,
    Detach,
    DiscardRuns,
    Ending,
    EngineGone,
    FillsDiscarded,
    Learn,
    Mark,
    RunStage,
    Settled,
    StagePrepared,
    Told,
    Unlearn,
)
from dynbranch.controller.core.branches.records import Branch, Fill
from dynbranch.controller.core.branches.reservations import Quota
from dynbranch.domain.events import Selection
from dynbranch.domain.fills import DiscardReason, Settlement, SettlementKind
from dynbranch.domain.ids import BranchId, FillId, GenerationId, Name, TrialId, UnixMs
from dynbranch.domain.reuse import FillOrigin, GenerationRef, Identity, Incarnation
from dynbranch.domain.template import Branching
from unit.controller.branches.scenes import WORKFLOW, Scene, of, picked, prepared_for, routed, started

OTHER = replace(WORKFLOW, workflow_id="w2")


def opened(scene: Scene, *ranked: str, demand: str = "r1") -> Branch:
    scene.arrive("route", demand)
    branch = scene.branch
    scene.propose(branch, *ranked)
    return branch


@pytest.mark.promise("C2.selection_removes")
def test_the_losers_of_an_exclusive_branch_are_discarded_and_the_winner_goes_on() -> None:
    scene = Scene()
    branch = opened(scene, "a", "b")
    a, b = branch.fills["a"], branch.fills["b"]
    key_a, key_b = scene.run(a), scene.run(b)
    out = scene.answer("r1", chosen=["a"])
    (discard,) = of(DiscardRuns, out)
    assert (discard.fills, discard.keys, discard.reason) == ((b.fill_id,), (key_b,), DiscardReason.LOST)
    assert started(scene.end(key_a)) == ["finish:a"]
    # The store names the loser's generation, its engine confirms the abort, its follower ends.
    scene.discarded(b)
    assert started(scene.end(key_b, Ending.ABORTED, ms=7.0)) == []
    assert b.stages[0].state is FillState.ABORTED and b.discarded_ms == 7.0
    assert branch.abort_ms == [3.0]


@pytest.mark.promise("I4")
@pytest.mark.parametrize(
    ("kind", "state"),
    [(SettlementKind.SERVED, FillState.SERVED_ONLY), (SettlementKind.FAILED, FillState.FAILED)],
)
def test_an_adopted_stage_that_was_not_stored_is_over_as_soon_as_the_store_says_so(
    kind: SettlementKind, state: FillState
) -> None:
    scene = Scene(routed(then=("work",)))
    branch = opened(scene, "a")
    fill = branch.fills["a"]
    key = scene.run(fill)
    scene.settle(fill.stages[0], fill, SettlementKind.ADOPTED, by=WORKFLOW)
    scene.end(key, Ending.ABORTED)
    assert branch.state is BranchState.RESOLVED
    scene.settle(fill.stages[0], fill, kind, reason="lease_closed")
    assert fill.stages[0].state is state and branch.state is BranchState.SETTLED


def sharing(scene: Scene, *ranked: str, then: Ending = Ending.JOINED) -> tuple[Branch, list[Fill]]:
    """All candidates lead to one request. The first runs it; the others find it running."""
    branch = opened(scene, *ranked)
    owner, *others = branch.fills.values()
    scene.run(owner)
    name = owner.stages[0].name
    assert name is not None
    for fill in others:
        key = fill.stages[0].key
        scene.do(StagePrepared(key, replace(prepared_for(key), name=name)))
        scene.end(key, then)
    return branch, [owner, *others]


@pytest.mark.promise("C2.selection_removes")
def test_what_the_winner_would_have_run_stays_whoever_runs_it() -> None:
    scene = Scene(routed(then=("work",)))
    branch, (owner, winner) = sharing(scene, "a", "b")
    assert winner.stages[0].state is FillState.PASSED
    assert of(DiscardRuns, scene.answer("r1", chosen=["b"])) == []
    assert branch.state is BranchState.RESOLVED and owner.spared
    scene.end(owner.stages[0].key)
    scene.settle(owner.stages[0], owner, SettlementKind.SHADOWED)
    scene.settle(owner.stages[0], owner, SettlementKind.PROMOTED, by=WORKFLOW)
    assert branch.state is BranchState.SETTLED and not scene.reserved


def test_a_winner_that_gave_up_what_it_leaned_on_keeps_no_loser() -> None:
    scene = Scene()
    _, (owner, _) = sharing(scene, "a", "b", then=Ending.ABORTED)
    (discard,) = of(DiscardRuns, scene.answer("r1", chosen=["b"]))
    assert discard.fills == (owner.fill_id,)


@pytest.mark.promise("I4")
def test_what_was_kept_for_the_winner_goes_when_its_time_is_over() -> None:
    scene = Scene()
    _, (owner, _) = sharing(scene, "a", "b")
    scene.answer("r1", chosen=["b"])
    # It goes no further: what comes next is the winner's own.
    assert started(scene.end(owner.stages[0].key)) == []
    scene.settle(owner.stages[0], owner, SettlementKind.SHADOWED)
    (discard,) = of(DiscardRuns, scene.later(61))
    assert owner.fill_id in discard.fills and discard.reason is DiscardReason.EXPIRED


def test_a_loser_that_runs_more_than_what_is_shared_is_discarded() -> None:
    scene = Scene()
    _, (owner, *_) = sharing(scene, "a", "b")
    assert started(scene.end(owner.stages[0].key)) == ["finish:a"]
    (discard,) = of(DiscardRuns, scene.answer("r1", chosen=["b"]))
    assert discard.fills == (owner.fill_id,)


def test_a_demand_that_two_selections_lead_to_says_of_neither_that_it_was_made() -> None:
    scene = Scene(routed(then=("work",)))
    branch, (owner, _) = sharing(scene, "a", "b")
    scene.settle(owner.stages[0], owner, SettlementKind.ADOPTED, by=WORKFLOW)
    assert branch.unresolved
    scene.answer("r1", chosen=["b"])
    assert branch.selections == ("b",)


@pytest.mark.promise("I4")
def test_a_fill_of_another_branch_that_leaned_on_a_lost_one_holds_nothing() -> None:
    scene = Scene(routed(then=("work",)))
    owner = opened(scene, "a").fills["a"]
    first = scene.branch
    scene.run(owner)
    scene.arrive("route", "r2", identity=OTHER)
    second = scene.branch
    scene.propose(second, "a")
    leaning = second.fills["a"].stages[0]
    assert owner.stages[0].name is not None
    scene.do(StagePrepared(leaning.key, replace(prepared_for(leaning.key), name=owner.stages[0].name)))
    scene.end(leaning.key, Ending.JOINED)
    scene.answer("r1", chosen=["z"])
    scene.do(FillsDiscarded(first.branch_id, (owner.fill_id,)))
    scene.end(owner.stages[0].key, Ending.ABORTED)
    assert first.state is BranchState.SETTLED and not scene.reserved
    scene.answer("r2", chosen=["a"])
    assert second.state is BranchState.SETTLED and not len(scene.book.filling)


@pytest.mark.promise("C2.selection_removes")
def test_independent_offers_stay_until_their_time_is_over() -> None:
    scene = Scene(routed(branching=Branching.INDEPENDENT))
    branch = opened(scene, "a", "b")
    keys = [scene.run(fill) for fill in branch.fills.values()]
    assert of(DiscardRuns, scene.answer("r1", chosen=["a"])) == []
    for key in keys:
        scene.end(key, Ending.STORED)
    (discard,) = of(DiscardRuns, scene.later(61))
    assert discard.reason is DiscardReason.EXPIRED and len(discard.fills) == 2


@pytest.mark.promise("C2.selection_removes")
def test_an_ambiguous_resolution_keeps_nothing_and_teaches_nothing() -> None:
    scene = Scene(routed(branching=Branching.INDEPENDENT))
    branch = opened(scene, "a", "b")
    scene.run(branch.fills["a"])
    out = scene.answer("r1", ambiguous=True)
    assert branch.state is BranchState.AMBIGUOUS
    assert of(Unlearn, out) == [Unlearn(branch.branch_id)]
    # One was asked of the store already, the other needs only be left alone.
    assert of(DiscardRuns, out)[0].fills == (branch.fills["a"].fill_id,)
    assert of(Detach, out) == [Detach(branch.fills["b"].stages[0].key)]


def test_a_decision_stage_that_failed_keeps_nothing() -> None:
    scene = Scene()
    branch = opened(scene, "a")
    scene.answer("r1", failed=True)
    assert branch.state is BranchState.AMBIGUOUS


def test_no_selection_at_all_is_a_selection_of_nothing() -> None:
    scene = Scene()
    branch = opened(scene, "a")
    out = scene.answer("r1")
    assert branch.selections == () and of(Learn, out) == [Learn(branch.branch_id, ())]


def test_every_proposed_candidate_is_told_what_became_of_it() -> None:
    scene = Scene()
    branch = opened(scene, "a", "b", "c", "d")
    assert of(Learn, scene.answer("r1", chosen=["d"])) == [Learn(branch.branch_id, ("d",))]
    assert [one.selected for one in branch.candidates] == [False, False, False, True]


@pytest.mark.promise("C2.stream_first")
def test_a_choice_that_shows_gets_one_more_fill_and_a_closed_one_resolves() -> None:
    scene = Scene()
    branch = opened(scene, "a", "b", "c", "d")
    assert started(scene.choice("r1", "d")) == ["work:d"]
    assert branch.known("d") is not None and branch.unresolved
    assert scene.choice("r1", "d") == []
    assert started(scene.choice("r1", "a")) == [], "it runs already"
    out = scene.choice("r1", "d", closed=True)
    assert branch.selections == ("d",) and branch.resolved_by == "stream"
    assert {effect.key.fill_id for effect in of(Detach, out)} == {branch.fills[x].fill_id for x in "abc"}
    assert scene.answer("r1", chosen=["d"]) == []


def test_a_closed_choice_that_nobody_guessed_is_filled_and_survives() -> None:
    scene = Scene()
    branch = opened(scene, "a")
    out = scene.choice("r1", "z", closed=True)
    assert started(out) == ["work:z"] and branch.fills["a"].lost and not branch.fills["z"].lost


@pytest.mark.promise("C2.stream_first")
def test_a_name_that_is_spoken_of_gets_a_fill_and_resolves_nothing() -> None:
    scene = Scene()
    branch = opened(scene, "a", "b", "c", "d")
    out = scene.choice("r1", "d", spoken=True)
    assert started(out) == ["work:d"] and of(Told, out)[0].mark is Mark.SPOKEN
    record = branch.known("d")
    assert record is not None and record.spoken and not record.seen
    assert record.reason == "spoken of: always" and record.predicted
    assert scene.choice("r1", "d", spoken=True) == [], "once"
    assert started(scene.choice("r1", "a", spoken=True)) == [], "it runs already"
    # Not even one that calls itself closed.
    scene.choice("r1", "e", spoken=True, closed=True)
    assert branch.unresolved and not any(fill.lost for fill in branch.fills.values())
    assert started(scene.choice("r1", "f", spoken=True)) == [], "no more of one branch"
    assert branch.known("f") is None
    assert started(scene.choice("r1", "f")) == ["work:f"], "what is chosen is another matter"
    scene.answer("r1", chosen=["d"])
    assert branch.selections == ("d",) and not branch.fills["d"].lost and branch.fills["a"].lost


def test_what_was_chosen_before_is_not_spoken_of_as_a_choice() -> None:
    scene = Scene(routed(unused=True))
    opened(scene, "a")
    scene.answer("r1", chosen=["a"])
    branch = opened(scene, "b", demand="r2")
    assert scene.choice("r2", "a", spoken=True) == []
    assert started(scene.choice("r2", "c", spoken=True)) == ["work:c"] and branch.known("a") is None


def test_nothing_is_spoken_of_at_a_branch_that_does_not_open() -> None:
    scene = Scene(admission=Off())
    scene.arrive("route", "r1")
    assert scene.choice("r1", "a", spoken=True) == []
    scene.answer("r1", chosen=["a"])
    assert scene.choice("r1", "a", spoken=True) == [], "nor at one that is over"


@pytest.mark.promise("C2.chain")
def test_a_chain_goes_on_from_results_that_stood_already_or_ran_elsewhere() -> None:
    scene = Scene()
    branch = opened(scene, "a", "b")
    a, b = branch.fills["a"], branch.fills["b"]
    for fill, how in ((a, Ending.KNOWN), (b, Ending.JOINED)):
        assert scene.prepare(fill) is not None
        assert started(scene.end(fill.stages[0].key, how))
        assert fill.stages[0].state is FillState.PASSED and fill.used_ms == 0
    run = scene.prepare(a)
    assert run is not None and not run.continues
    assert run.producers == (Incarnation(a.stages[0].name or Name(b""), 0),)
    assert a.context.outputs["work"][-1].text == "result"


def test_what_a_fill_carries_is_the_workflows_own() -> None:
    scene = Scene()
    branch = opened(scene, "a")
    run = scene.prepare(branch.fills["a"])
    assert run is not None
    assert run.identity == replace(WORKFLOW, stage="work")
    assert run.passport.sharing_group == "group" and run.passport.cache_scope == "scope"
    assert "secret" not in repr(run)
    assert run.shadow_ttl_ms == 65_000 and run.continues


@pytest.mark.promise("C2.settled_once")
def test_a_demand_by_the_own_workflow_implies_its_selection() -> None:
    scene = Scene()
    branch = opened(scene, "a", "b")
    key = scene.run(branch.fills["a"])
    scene.run(branch.fills["b"])
    scene.end(key)
    (stage_run, _) = branch.fills["a"].stages
    scene.settle(stage_run, branch.fills["a"], SettlementKind.SHADOWED)
    out = scene.settle(stage_run, branch.fills["a"], SettlementKind.PROMOTED, by=WORKFLOW)
    assert branch.selections == ("a",) and branch.resolved_by == "demand"
    assert of(DiscardRuns, out)[0].fills == (branch.fills["b"].fill_id,)
    assert scene.answer("r1", chosen=["a"]) == []


def test_another_workflows_demand_leaves_the_branch_open() -> None:
    scene = Scene()
    branch = opened(scene, "a")
    key = scene.run(branch.fills["a"])
    scene.end(key)
    scene.settle(branch.fills["a"].stages[0], branch.fills["a"], SettlementKind.SHADOWED)
    scene.settle(branch.fills["a"].stages[0], branch.fills["a"], SettlementKind.PROMOTED, by=OTHER)
    assert branch.unresolved and branch.fills["a"].stages[0].state is FillState.PROMOTED


def test_one_of_several_calls_does_not_decide() -> None:
    scene = Scene(routed(several=True))
    branch = opened(scene, "a", "b")
    scene.run(branch.fills["a"])
    scene.settle(branch.fills["a"].stages[0], branch.fills["a"], SettlementKind.ADOPTED, by=WORKFLOW)
    assert branch.unresolved
    scene.answer("r1", chosen=["a", "b"])
    assert branch.selections == ("a", "b") and not any(fill.lost for fill in branch.fills.values())


@pytest.mark.promise("C2.settled_once")
def test_a_settlement_that_comes_twice_counts_once() -> None:
    scene = Scene(routed(then=("work",)))
    branch = opened(scene, "a")
    fill = branch.fills["a"]
    scene.end(scene.run(fill))
    for _ in range(2):
        scene.settle(fill.stages[0], fill, SettlementKind.SHADOWED)
        scene.settle(fill.stages[0], fill, SettlementKind.PROMOTED, by=OTHER)
    assert scene.book.filling.duplicates == 2 and branch.consumed == 1
    scene.answer("r1", chosen=["a"])
    assert branch.state is BranchState.SETTLED and fill.saved_ms == 50.0


@pytest.mark.promise("I4")
def test_a_stage_whose_settlement_came_before_its_end_is_counted_once() -> None:
    scene = Scene(routed(then=("work",)))
    fill = opened(scene, "a").fills["a"]
    key = scene.run(fill)
    scene.settle(fill.stages[0], fill, SettlementKind.SHADOWED)
    scene.settle(fill.stages[0], fill, SettlementKind.PROMOTED, by=WORKFLOW)
    scene.end(key)
    moves = [dict(one.facts)["state"] for one in of(Told, scene.effects) if one.mark is Mark.STAGE_MOVED]
    assert moves == ["shadow", "promoted"]


def test_an_adopted_stage_is_immune_to_the_loss_that_comes_after() -> None:
    scene = Scene(routed(then=("work",)))
    branch = opened(scene, "a", "b")
    b = branch.fills["b"]
    key = scene.run(b)
    scene.answer("r1", chosen=["a"])
    scene.discarded(b, immune=[b])
    scene.end(key, Ending.ABORTED)  # its follower left; the demand's own goes on
    scene.settle(b.stages[0], b, SettlementKind.ADOPTED, by=OTHER, ms=0.0)
    assert b.stages[0].state is FillState.ADOPTED and branch.consumed == 1
    scene.settle(b.stages[0], b, SettlementKind.CONFIRMED)
    assert b.stages[0].state is FillState.CONFIRMED
    assert scene.book.filling.late == 0


@pytest.mark.promise("I4")
def test_what_was_promoted_before_its_loss_counts_though_its_end_was_not_heard() -> None:
    scene = Scene(routed(then=("work",)))
    branch = opened(scene, "a")
    fill = branch.fills["a"]
    key = scene.run(fill)
    scene.answer("r1", chosen=["b"])
    scene.discarded(fill, immune=[fill])
    scene.end(key, Ending.ABORTED)
    assert branch.state is BranchState.RESOLVED
    scene.settle(fill.stages[0], fill, SettlementKind.SHADOWED)
    scene.settle(fill.stages[0], fill, SettlementKind.PROMOTED, by=OTHER)
    assert branch.state is BranchState.SETTLED and branch.consumed == 1 and fill.saved_ms == 50.0


def test_an_adopted_stage_ends_as_the_store_says() -> None:
    scene = Scene(routed(then=("work",)))
    branch = opened(scene, "a", "b", "c")
    for selection, how, kind, state in (
        ("a", Ending.STORED, SettlementKind.CONFIRMED, FillState.CONFIRMED),
        ("b", Ending.NOT_STORED, None, FillState.SERVED_ONLY),
        ("c", Ending.FAILED, None, FillState.FAILED),
    ):
        fill = branch.fills[selection]
        key = scene.run(fill)
        scene.now += 1
        scene.settle(fill.stages[0], fill, SettlementKind.ADOPTED, by=OTHER, ms=0.0)
        assert fill.saved_ms == pytest.approx(1000)
        scene.end(key, how)
        if kind is not None:
            scene.settle(fill.stages[0], fill, kind)
        assert fill.stages[0].state is state
    scene.answer("r1", chosen=["a"])
    assert branch.state is BranchState.SETTLED


def test_a_write_that_closes_a_running_fill_ends_its_generation() -> None:
    scene = Scene()
    branch = opened(scene, "a")
    fill = branch.fills["a"]
    key = scene.run(fill)
    there = GenerationRef(GenerationId(b"g1"), "e1")
    out = scene.settle(fill.stages[0], fill, SettlementKind.STALE, reason="write", generation=there)
    assert of(AbortGeneration, out)[0].generation == there
    assert fill.stages[0].state is FillState.ABORTED and scene.reserved == 1
    scene.end(key, Ending.ABORTED)
    assert scene.reserved == 0 and fill.is_over


def test_a_shadow_that_nobody_knows_is_taken_away() -> None:
    scene = Scene()
    origin = FillOrigin(BranchId(b"b"), TrialId(b"t"), FillId(b"f"))
    row = Settlement(1, SettlementKind.SHADOWED, origin, UnixMs(1), Name(b"n" * 32))
    (discard,) = of(DiscardRuns, scene.do(Settled(row)))
    assert discard.fills == (FillId(b"f"),) and discard.branch_id is None
    assert scene.do(Settled(row)) == []


def test_a_dropped_row_is_made_good_by_the_next() -> None:
    scene = Scene(routed(then=("work",)))
    branch = opened(scene, "a")
    fill = branch.fills["a"]
    scene.end(scene.run(fill))
    scene.settle(fill.stages[0], fill, SettlementKind.PROMOTED, by=OTHER)
    assert fill.stages[0].state is FillState.PROMOTED


@pytest.mark.promise("C2.branch_expires")
def test_time_ends_a_branch_and_whatever_the_store_never_tells() -> None:
    scene = Scene()
    branch = opened(scene, "a")
    scene.end(scene.run(branch.fills["a"]), Ending.NOT_STORED)
    out = scene.later(61)
    assert branch.state is BranchState.SETTLED and of(Unlearn, out)
    scene.arrive("route", "r2")
    second = scene.branch
    scene.propose(second, "a")
    key = scene.run(second.fills["a"])
    scene.end(key)  # stored, but its row never comes
    scene.later(61)
    assert second.state is BranchState.EXPIRED
    scene.end(second.fills["a"].stages[1].key, Ending.ABORTED)
    assert second.state is BranchState.EXPIRED
    scene.later(60)
    assert second.state is BranchState.SETTLED
    assert second.fills["a"].stages[-1].is_over


@pytest.mark.promise("C2.branch_expires")
def test_a_silent_workflow_ends_with_its_branches() -> None:
    scene = Scene(bounds=Bounds(workflow_ttl_s=10))
    branch = opened(scene, "a")
    scene.run(branch.fills["a"])
    (discard,) = of(DiscardRuns, scene.later(11))
    assert discard.reason is DiscardReason.CANCELLED and branch.state is BranchState.EXPIRED
    assert len(scene.book.workflows) == 0


def test_what_an_agent_has_no_room_for_is_refused_at_dispatch() -> None:
    scene = Scene()
    branch = opened(scene, "a", "b")
    a, b = branch.fills["a"], branch.fills["b"]
    scene.end(scene.run(a), Ending.REFUSED)
    key = scene.run(b)
    scene.settle(b.stages[0], b, SettlementKind.ADOPTED, by=OTHER)
    scene.end(key, Ending.REFUSED)
    assert (a.stages[0].state, b.stages[0].state) == (FillState.REFUSED, FillState.FAILED)
    assert scene.reserved == 0


def test_what_the_store_was_not_told_is_over_when_it_tells_or_in_time() -> None:
    scene = Scene(routed(then=("work",)))
    branch = opened(scene, "a", "b")
    b = branch.fills["b"]
    scene.end(scene.run(b))
    scene.settle(b.stages[0], b, SettlementKind.SHADOWED)
    scene.answer("r1", chosen=["a"])
    scene.do(FillsDiscarded(branch.branch_id, (b.fill_id,), confirmed=False))
    assert b.stages[0].state is FillState.SHADOW
    scene.settle(b.stages[0], b, SettlementKind.PROMOTED, by=OTHER)
    assert branch.consumed == 1


def test_a_settled_branch_keeps_no_header_and_no_text() -> None:
    scene = Scene()
    branch = opened(scene, "a")
    scene.end(scene.run(branch.fills["a"]), Ending.NOT_STORED)
    assert branch.passport.forward_headers
    scene.answer("r1", chosen=["b"])
    assert branch.state is BranchState.SETTLED
    assert branch.passport.forward_headers == () and branch.context.inputs == {}
    assert branch.fills["a"].context.inputs == {}


def test_engines_take_as_many_fills_as_their_quota() -> None:
    scene = Scene(quota=Quota(slots=1))
    branch = opened(scene, "a", "b")
    a, b = branch.fills["a"], branch.fills["b"]
    key = scene.run(a)
    assert scene.prepare(b) is None
    assert b.stages[0].state is FillState.REFUSED
    assert b.stages[0].reason == "no engine has room for one more fill"
    scene.end(key)
    assert scene.reserved == 0


def test_an_engine_that_is_gone_takes_none_and_what_it_held_is_given_back() -> None:
    scene = Scene()
    branch = opened(scene, "a", "b")
    key = scene.run(branch.fills["a"])
    scene.do(EngineGone("e1"))
    assert scene.prepare(branch.fills["b"]) is None
    scene.end(key, Ending.FAILED)
    assert scene.reserved == 0


def test_a_loser_that_was_being_written_never_asks_the_store() -> None:
    scene = Scene()
    branch = opened(scene, "a", "b")
    b = branch.fills["b"]
    assert of(Detach, scene.answer("r1", chosen=["a"])) == [Detach(b.stages[0].key)]
    assert of(RunStage, [scene.prepare(b)]) == []
    assert b.stages[0].state is FillState.ABORTED and b.is_over


def test_events_of_stages_that_have_ended_change_nothing() -> None:
    scene = Scene(routed(then=("work",)))
    branch = opened(scene, "a")
    key = scene.run(branch.fills["a"])
    scene.end(key)
    assert scene.end(key) == [] and scene.prepare(branch.fills["a"]) is None
    scene.begin(branch.fills["a"])
    assert branch.fills["a"].stages[0].state is FillState.RUNNING


def test_a_pick_resolves_and_the_unpicked_stay() -> None:
    scene = Scene(picked())
    menu = Identity("t", "menus", "w1", "main")
    scene.arrive("offer", "o1", identity=menu)
    scene.answer("o1")
    branch = scene.branch
    scene.propose(branch, "x", "y")
    scene.arrive("act", "a1", identity=menu, selections=[Selection("pick", ("x",))])
    assert branch.selections == ("x",) and not branch.fills["y"].lost
