"""DynBranch before engines of fixed times: each thing that it does, with its time added up by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest
from dynbranch.controller.core.branches.admission import PolicyName
from dynbranch.sim.fleet.playing import floor
from dynbranch.sim.fleet.serving import ADDED_S, ALWAYS, C1, C2, HIT_S, DynBranch, DynBranchArm
from dynbranch.sim.fleet.workflows import Turn, Workflow, Write
from unit.sim.fleet.tiny import FIXED, Done, call, choice, played, step, workflow, workload

HOLD_S = 0.005
"""A recorded decision is told within so long; until then no fill begins."""
AHEAD = replace(ALWAYS, reuse=False)
ORACLE = replace(ALWAYS, foreseen=True)


def serving(done: Done) -> DynBranch:
    assert isinstance(done.serving, DynBranch)
    return done.serving


def decided(decode_s: int, act_s: int, picked: str = "a", ranked: tuple[str, ...] = ("a",), **more: object):
    """One decision and what follows from it."""
    chains = {one: (call("act", f"act {one}", act_s),) for one in {*ranked, picked} if one}
    decide = step(call("decide", "decide", decode_s), choice(picked, ranked, chains, **more))
    return (decide, *(step(chains[picked][0]) for _ in range(bool(picked))))


def test_the_floor_executes_everything() -> None:
    done = played(workload(workflow(0, *decided(5, 3))), floor)
    assert done.latencies == [8.0]


def test_a_result_that_stands_is_served_to_the_next_workflow_of_its_tenant() -> None:
    asks = step(call("begin", "question", 10))
    load = workload(
        workflow(0, asks),
        workflow(1, asks, at_s=20.0),
        workflow(2, asks, at_s=20.0, tenant="another"),
    )
    done = played(load, C1)
    assert done.outcomes == [["miss"], ["hit"], ["miss"]]
    assert done.latencies == pytest.approx([10 + ADDED_S, HIT_S, 10 + ADDED_S])


def test_who_asks_for_what_runs_already_follows_it() -> None:
    asks = step(call("begin", "question", 10))
    done = played(workload(workflow(0, asks), workflow(1, asks, at_s=4.0)), C1)
    assert done.outcomes == [["miss"], ["joined"]]
    assert done.latencies == pytest.approx([10 + ADDED_S, 6 + ADDED_S])


def test_without_reuse_a_workflow_is_alone() -> None:
    asks = step(call("begin", "question", 10))
    done = played(workload(workflow(0, asks), workflow(1, asks, at_s=20.0)), C2)
    assert done.outcomes == [["miss"], ["miss"]]


@pytest.mark.promise("C2.promotion_atomic_once")
def test_a_fill_that_has_ended_is_promoted() -> None:
    done = played(workload(workflow(0, *decided(5, 3))), AHEAD)
    assert done.outcomes == [["miss", "promoted"]]
    assert done.latencies == pytest.approx([5 + ADDED_S + HIT_S])
    account = serving(done).accounts.workflows[0]
    assert (account.opened, account.predictions, account.fills, account.consumed) == (1, 1, 1, 1)
    assert (account.used_s, account.discarded_s) == pytest.approx((3.0, 0.0))


def test_a_fill_that_runs_is_adopted() -> None:
    done = played(workload(workflow(0, *decided(3, 5))), AHEAD)
    assert done.outcomes == [["miss", "adopted"]]
    assert done.latencies == pytest.approx([HOLD_S + 5 + ADDED_S])
    assert done.fleet.places[0].busy_s[True] == done.fleet.places[1].busy_s[True] == 0.0


def test_a_predictor_s_time_is_waited_for() -> None:
    done = played(workload(workflow(0, *decided(3, 5, spent_s=2.0))), AHEAD)
    assert done.latencies == pytest.approx([2 + 5 + ADDED_S])


@pytest.mark.promise("I2")
def test_what_was_not_chosen_ends_with_its_branch() -> None:
    done = played(workload(workflow(0, *decided(3, 5, ranked=("b",)))), AHEAD)
    assert done.outcomes == [["miss", "miss"]]
    assert done.latencies == pytest.approx([3 + 5 + 2 * ADDED_S])
    account = serving(done).accounts.workflows[0]
    assert (account.fills, account.consumed) == (1, 0)
    assert account.discarded_s == pytest.approx(3 + ADDED_S - HOLD_S)
    assert serving(done).is_quiet


def test_nothing_may_follow_at_all() -> None:
    done = played(workload(workflow(0, *decided(3, 5, picked="", ranked=("a", "b")))), AHEAD)
    assert done.latencies == pytest.approx([3 + ADDED_S])
    assert serving(done).accounts.workflows[0].discarded_s == pytest.approx(2 * (3 + ADDED_S - HOLD_S))


def test_a_chain_goes_on_from_its_own_results() -> None:
    chain = (call("act", "act a", 2), call("more", "more a", 3))
    steps = [
        step(call("decide", "decide", 10), choice("a", ("a",), {"a": chain})),
        *(step(one) for one in chain),
    ]
    done = played(workload(workflow(0, *steps)), AHEAD)
    assert done.outcomes == [["miss", "promoted", "promoted"]]
    assert done.latencies == pytest.approx([10 + ADDED_S + 2 * HIT_S])
    account = serving(done).accounts.workflows[0]
    assert (account.fills, account.stages, account.used_s) == (1, 2, pytest.approx(5.0))


def test_a_chain_goes_through_what_stands_and_follows_what_runs() -> None:
    chain = (call("act", "act a", 2), call("more", "more a", 3))
    decide = step(call("decide", "decide", 10), choice("a", ("a",), {"a": chain}))
    stands = workflow(0, step(chain[0]))
    done = played(workload(stands, workflow(1, decide, *map(step, chain), at_s=5.0)), ALWAYS)
    assert done.outcomes[1] == ["miss", "hit", "promoted"]
    assert serving(done).accounts.workflows[1].used_s == pytest.approx(3.0)

    runs = workflow(0, step(chain[0]), at_s=4.0)
    done = played(workload(runs, workflow(1, decide, *map(step, chain), at_s=5.0)), ALWAYS)
    assert done.outcomes[1] == ["miss", "hit", "promoted"]
    assert serving(done).accounts.workflows[1].stages == 1


def test_what_a_call_waits_for_a_fill_waits_for_too() -> None:
    act = call("act", "act a", 3, before_s=1.0)
    decide = step(call("decide", "decide", 3), choice("a", ("a",), {"a": (act,)}))
    done = played(workload(workflow(0, decide, step(act))), AHEAD)
    assert done.outcomes == [["miss", "adopted"]]
    # Retrieved from 0.005 to 1.005, run until 4.005, and asked for at 4.002.
    assert done.latencies == pytest.approx([HOLD_S + 1 + 3 + ADDED_S])


def test_a_loser_is_let_go_while_it_retrieves() -> None:
    acts = {one: (call("act", f"act {one}", 3, before_s=4.0),) for one in "ab"}
    decide = step(call("decide", "decide", 2), choice("a", ("b",), acts))
    done = played(workload(workflow(0, decide, step(acts["a"][0]))), AHEAD)
    assert done.outcomes == [["miss", "miss"]]
    account = serving(done).accounts.workflows[0]
    assert (account.fills, account.used_s) == (0, 0.0)
    assert serving(done).is_quiet


@pytest.mark.promise("I3")
def test_a_write_fells_what_ran_ahead() -> None:
    read = call("act", "act a", 3, "s/k")
    more = call("more", "more a", 3, "s/k")
    for act in (read, more):
        decide = step(call("decide", "decide", 5), choice("a", ("a",), {"a": (act,)}))
        for written_s in (2.0, 4.0):
            load = workload(workflow(0, decide, step(act)), writes=[Write(written_s, ("s/k",))])
            done = played(load, AHEAD)
            assert done.outcomes == [["miss", "miss"]]
            assert done.latencies == pytest.approx([5 + 3 + 2 * ADDED_S])
            assert done.plays[0].wrong == 0
            assert serving(done).is_quiet


def test_another_record_s_write_fells_nothing() -> None:
    act = call("more", "more a", 3, "s/k")
    decide = step(call("decide", "decide", 5), choice("a", ("a",), {"a": (act,)}))
    load = workload(workflow(0, decide, step(act)), writes=[Write(4.0, ("s/other",))])
    assert played(load, AHEAD).outcomes == [["miss", "promoted"]]


@pytest.mark.promise("I3")
def test_a_hit_after_a_write_is_no_hit() -> None:
    asks = step(call("more", "what", 3, "s/k"))
    load = workload(
        workflow(0, asks), workflow(1, asks, at_s=5.0), workflow(2, asks, at_s=7.0),
        writes=[Write(6.0, ("s/k",))],
    )  # fmt: skip
    done = played(load, C1)
    assert done.outcomes == [["miss"], ["hit"], ["miss"]]
    assert [play.wrong for play in done.plays] == [0, 0, 0]


def person(number: int, picked: str, at_s: float) -> Workflow:
    acts = {one: (call("act", f"act {one} {number}", 3),) for one in "ab"}
    offered = step(call("offer", "offer", 2), choice(picked, ("a",), acts, point="pick"))
    tail = step(call("end", f"tail {number}", 1))
    turns = (Turn((offered,), measured=False), Turn((step(acts[picked][0]), tail), gap_s=4.0))
    return Workflow(number, at_s, "t", turns)


def test_a_person_s_window_opens_with_the_offer_also_when_that_is_a_hit() -> None:
    done = played(workload(person(0, "a", 0.0), person(1, "a", 20.0)), ALWAYS)
    assert done.outcomes == [["miss", "promoted", "miss"], ["hit", "promoted", "miss"]]
    assert [play.turns_s for play in done.plays] == [pytest.approx([HIT_S + 1 + ADDED_S])] * 2


def test_a_person_picks_another() -> None:
    done = played(workload(person(0, "b", 0.0)), ALWAYS)
    assert done.outcomes == [["miss", "miss", "miss"]]
    account = serving(done).accounts.workflows[0]
    assert (account.consumed, account.discarded_s) == (0, pytest.approx(3.0))
    assert serving(done).is_quiet


def test_a_decision_that_stood_already_opens_nothing() -> None:
    done = played(workload(workflow(0, *decided(5, 3)), workflow(1, *decided(5, 3), at_s=20.0)), ALWAYS)
    assert done.outcomes[1] == ["hit", "hit"]
    assert serving(done).accounts.workflows[1].fills == 0


def test_independent_offers_stay_until_they_are_asked_for() -> None:
    acts = {one: (call("act", f"act {one}", 3),) for one in "ab"}
    offers = step(call("list", "list", 4), choice("a", ("a", "b"), acts, point="several"))
    steps = (offers, step(acts["a"][0]), step(call("begin", "between", 2)), step(acts["b"][0]))
    done = played(workload(workflow(0, *steps)), AHEAD)
    assert done.outcomes == [["miss", "promoted", "miss", "promoted"]]
    assert serving(done).accounts.workflows[0].discarded_s == 0.0


def test_a_branch_opens_before_its_decision_s_own_stage() -> None:
    act = call("act", "act a", 6)
    late = step(call("late", "late", 2), choice("a", ("a",), {"a": (act,)}, point="early"))
    done = played(workload(workflow(0, step(call("begin", "begin", 5)), late, step(act))), AHEAD)
    assert done.outcomes == [["miss", "miss", "promoted"]]
    assert done.latencies == pytest.approx([5 + 2 + 2 * ADDED_S + HIT_S])


@pytest.mark.parametrize(("final", "used_s"), [(False, 5.0), (True, 4 - HOLD_S)])
def test_what_shows_in_the_decode_is_filled_at_once(final: bool, used_s: float) -> None:
    asks = decided(6, 5, ranked=("b",), shown_at=4, final=final)
    done = played(workload(workflow(0, *asks)), AHEAD)
    # Token 4 comes after 4 s. What cannot change any more ends the other fill then and there.
    assert done.outcomes == [["miss", "adopted"]]
    assert done.latencies == pytest.approx([4 + 5 + ADDED_S])
    assert serving(done).accounts.workflows[0].discarded_s == pytest.approx(used_s)
    unseen = played(workload(workflow(0, *asks)), replace(AHEAD, streams=False))
    assert unseen.outcomes == [["miss", "miss"]]


def test_a_name_that_is_spoken_of_is_filled_and_decides_nothing() -> None:
    asks = decided(6, 5, ranked=("b",), shown_at=4, spoken=((1, "b"), (2, "a"), (3, "c")))
    done = played(workload(workflow(0, *asks)), AHEAD)
    # The choice is named after 2 s. What nobody knows of the third name is no fill.
    assert done.outcomes == [["miss", "adopted"]]
    assert done.latencies == pytest.approx([2 + 5 + ADDED_S])
    assert serving(done).accounts.workflows[0].fills == 2
    mute = played(workload(workflow(0, *asks)), replace(AHEAD, speaks=False))
    assert mute.latencies == pytest.approx([4 + 5 + ADDED_S])
    blind = played(workload(workflow(0, *asks)), replace(AHEAD, streams=False))
    assert blind.outcomes == [["miss", "miss"]]
    foreseen = played(workload(workflow(0, *asks)), replace(AHEAD, foreseen=True))
    assert serving(foreseen).accounts.workflows[0].fills == 1, "who knows what is chosen hears nothing new"


def test_followers_of_one_decode_hear_what_it_says_from_where_they_come() -> None:
    asks = decided(8, 5, ranked=("b",), spoken=((2, "a"), (6, "b")))
    shared = replace(ALWAYS, reuse=True)
    done = played(workload(workflow(0, *asks), workflow(1, *asks, at_s=4.0)), shared)
    assert done.outcomes == [["miss", "promoted"], ["joined", "hit"]]
    assert [serving(done).accounts.workflows[number].opened for number in (0, 1)] == [1, 1]


@pytest.mark.parametrize(("decode_s", "act_s"), [(5, 3), (3, 5), (4, 4), (1, 9), (9, 1)])
def test_the_oracle_hides_the_shorter_of_decode_and_execution(decode_s: int, act_s: int) -> None:
    """Lemma A.6: that is the most that can be hidden, and a right fill at once hides it."""
    load = workload(workflow(0, *decided(decode_s, act_s, ranked=("b", "c"))))
    hidden = played(load, floor).latencies[0] - played(load, ORACLE).latencies[0]
    bound = min(decode_s, act_s)
    assert bound - HOLD_S - 2 * ADDED_S <= hidden <= bound


def test_the_oracle_knows_what_is_asked_for_later() -> None:
    acts = {one: (call("act", f"act {one}", 3),) for one in "abc"}
    offers = step(call("list", "list", 4), choice("a", ("c", "a", "b"), acts, point="several"))
    steps = (offers, step(acts["a"][0]), step(call("begin", "between", 2)), step(acts["b"][0]))
    done = played(workload(workflow(0, *steps)), replace(ORACLE, reuse=False))
    assert done.outcomes == [["miss", "promoted", "miss", "promoted"]]
    assert serving(done).accounts.workflows[0].discarded_s == 0.0


def test_an_adopted_fill_that_waits_for_a_slot_is_canonical_from_then_on() -> None:
    one_slot = replace(FIXED, slots=1)
    act = call("act", "act b", 3)
    offers = step(call("list", "list", 4), choice("b", ("b",), {"b": (act,)}, point="several"))
    load = workload(
        workflow(0, step(call("begin", "first", 9))),
        workflow(1, offers, step(act)),
        workflow(2, step(call("begin", "second", 5)), at_s=12.0),
        workflow(3, step(call("begin", "third", 5)), at_s=14.0),
    )
    done = played(load, AHEAD, one_slot, engines=1)
    # The one slot: first until 9, the offer until 13, second until 18; the fill, which came before third.
    assert done.outcomes[1] == ["miss", "adopted"]
    assert done.latencies == pytest.approx([9 + ADDED_S, 21 + ADDED_S, 6 + ADDED_S, 12 + ADDED_S])


@pytest.mark.parametrize("policy", list(PolicyName))
def test_every_policy_leaves_nothing_behind(policy: PolicyName) -> None:
    load = workload(*(workflow(n, *decided(4, 3, ranked=("b", "a")), at_s=n / 3) for n in range(12)))
    done = played(load, DynBranchArm(policy=policy, reuse=False))
    assert serving(done).is_quiet
    assert all(play.wrong == 0 for play in done.plays)
