"""Each compared system before a fleet: times that can be computed by hand."""

from __future__ import annotations

import pickle
from dataclasses import replace

import pytest
from dynbranch.sim.baselines.arms import NAMES, Baseline, BaselineArm, UnknownArm, arm, setting_of
from dynbranch.sim.baselines.dataflow import Limits
from dynbranch.sim.baselines.dsp import Dsp, DspSetting
from dynbranch.sim.baselines.foretelling import Rates, drawn
from dynbranch.sim.baselines.helium import HeliumSetting
from dynbranch.sim.baselines.instcache import LOOKUP_S, InstCacheSetting
from dynbranch.sim.baselines.parrot import ParrotSetting
from dynbranch.sim.baselines.spagent import Spagent, SpagentSetting
from dynbranch.sim.baselines.sweeping import tried
from dynbranch.sim.fleet.engines import Fleet
from dynbranch.sim.fleet.playing import Records
from dynbranch.sim.fleet.runs import run
from dynbranch.sim.fleet.workflows import Call, Decision, Step, Turn, Workload, Write
from hypothesis import given, settings
from hypothesis import strategies as st
from unit.sim.baselines.tiny import (
    CLOSE_S,
    ENGINE,
    TEMPLATE,
    call,
    hops,
    latencies,
    played,
    workflow,
    workload,
)

ONE_HOP_S = 3.5
TWO_HOPS_S = 6.5
SELDOM = 0.01


def close(value: float) -> object:
    return pytest.approx(value, abs=CLOSE_S)


def dsp(rate: float, *, depth: int = 1, draft_s: float = 0.2) -> BaselineArm:
    """As if it had learned to be so deep."""

    def raised(fleet: Fleet, records: Records, load: Workload, seed: int) -> Baseline:
        setting = DspSetting(offset=depth, lam=1.0, trained=1, draft_s=draft_s)
        serving = Dsp(fleet, records, setting, load.template, Rates((rate,)), seed)
        serving.depth.learn([("action", False)])
        return serving

    return raised


def spagent(rate: float, **given: object) -> BaselineArm:
    def raised(fleet: Fleet, records: Records, load: Workload, seed: int) -> Baseline:
        setting = replace(SpagentSetting(), **given)  # type: ignore[arg-type]
        return Spagent(fleet, records, setting, load.template, Rates((rate,)), seed)

    return raised


def test_instcache_answers_a_whole_request_again() -> None:
    load = workload(workflow(0, Turn(hops("a", 1))), workflow(1, Turn(hops("a", 1))))
    (first, again), serving, _ = played(load, arm("instcache"))
    assert first.turns_s == [close(ONE_HOP_S)]
    assert again.turns_s == [LOOKUP_S]
    assert again.outcomes == ["hit"] * 3
    assert serving.spending.hits == 3


def test_instcache_knows_no_part_of_a_request() -> None:
    shared = hops("a", 1)
    other = (Step(call("b think", 100, stage="think"), None), *shared[1:])
    load = workload(workflow(0, Turn(shared)), workflow(1, Turn(other)))
    (_, second), _, _ = played(load, arm("instcache"))
    assert second.turns_s == [close(ONE_HOP_S)]


def test_instcache_is_prefilled_with_what_was_predicted() -> None:
    load = workload(workflow(0, Turn(hops("a", 1))), workflow(1, Turn(hops("b", 1))))
    history = [workflow(number, Turn(hops(name, 1))) for number, name in enumerate("abb")]
    plays, serving, _ = played(load, arm("instcache", InstCacheSetting(predictions=1), history=history))
    assert latencies(plays) == [close(ONE_HOP_S), LOOKUP_S]
    assert serving.spending.prefilled == 1


def test_instcache_is_stale_after_a_write_and_that_is_counted() -> None:
    turn = Turn(hops("a", 1, reads="store/x"))
    load = workload(workflow(0, turn), workflow(1, turn), writes=[Write(3.0, ("store/x",))])
    (_, again), _, _ = played(load, arm("instcache"))
    assert again.turns_s == [LOOKUP_S]
    assert again.wrong == 1


def test_instcache_answers_each_turn_of_a_conversation_by_itself() -> None:
    def offer(name: str) -> Turn:
        return Turn((Step(call(f"offer {name}", 100), Decision("menu", ("x",))),), measured=False)

    x, y = (Turn((Step(call(f"take {pick}", 200)),), gap_s=3.0) for pick in "xy")
    asked = (("a", x), ("a", y), ("a", x), ("b", x))
    load = workload(*(workflow(number, offer(name), turn) for number, (name, turn) in enumerate(asked)))
    plays, _, _ = played(load, arm("instcache"))
    # The same pick of another offer is another request.
    assert latencies(plays) == [close(2.0), close(2.0), close(LOOKUP_S), close(2.0)]


def test_helium_answers_each_operator_again_whoever_asks() -> None:
    shared = hops("a", 1)
    other = (Step(call("b think", 100, stage="think")), *shared[1:])
    plays, serving, _ = played(workload(workflow(0, Turn(shared)), workflow(1, Turn(other))), arm("helium"))
    assert latencies(plays) == [close(ONE_HOP_S), close(1.0)]
    assert serving.spending.hits == 2


def test_helium_never_invalidates() -> None:
    turn = Turn(hops("a", 1, reads="store/x"))
    load = workload(workflow(0, turn), workflow(1, turn), writes=[Write(3.0, ("store/x",))])
    (_, again), _, _ = played(load, arm("helium"))
    assert again.turns_s == [close(0.0)]
    assert again.wrong == 1


def test_helium_does_not_cache_what_samples() -> None:
    turn = Turn((Step(call("dice", 100, stage="roll")),))
    plays, _, _ = played(workload(workflow(0, turn), workflow(1, turn)), arm("helium"))
    assert latencies(plays) == [close(1.0), close(1.0)]


def test_helium_lets_the_longer_chain_go_first_where_workers_are_full() -> None:
    long, short = Turn(hops("long", 1)), Turn((Step(call("short", 100)),))
    full = Turn((Step(call("full", 100)),))
    load = workload(workflow(0, full), workflow(1, short), workflow(2, long), clients=3)
    plays, _, _ = played(load, arm("helium"), engines=1, parameters=replace(ENGINE, slots=1))
    # full, long's three calls, each ahead of what has as much or less after it; short comes before the last.
    assert [play.turns_s[0] for play in plays] == [close(1.0), close(5.0), close(5.5)]


def test_helium_sends_a_prompt_where_its_beginning_is() -> None:
    blocks = tuple(f"block {number}" for number in range(6))
    step = Step(Call("act", "a", 100, 100, blocks))
    like = Step(Call("act", "b", 100, 100, blocks))
    other = Step(call("busy", 300))
    load = workload(
        workflow(0, Turn((other,))), workflow(1, Turn((step,))), workflow(2, Turn((like,))), clients=2
    )
    _, _, fleet = played(load, arm("helium", HeliumSetting(slack=0)), engines=3)
    assert [place.model.gauges.counters.prefix_hit_tokens for place in fleet.places] == [0, 96, 0]


def test_parrot_keeps_an_engine_at_four_tasks() -> None:
    turn = Turn((Step(call("a", 100)),))
    load = workload(*(workflow(number, turn) for number in range(6)), clients=6)
    plays, _, _ = played(load, arm("parrot", ParrotSetting(Limits())), engines=1)
    assert sorted(latencies(plays)) == [close(1.0)] * 4 + [close(2.0)] * 2
    plays, _, _ = played(load, arm("parrot", ParrotSetting(Limits(6, 8192))), engines=1)
    assert latencies(plays) == [close(1.0)] * 6


def test_parrot_reuses_nothing_and_runs_nothing_ahead() -> None:
    load = workload(workflow(0, Turn(hops("a", 2))), workflow(1, Turn(hops("a", 2))))
    plays, serving, _ = played(load, arm("parrot"))
    assert latencies(plays) == [close(TWO_HOPS_S)] * 2
    assert (serving.spending.total.stages, serving.spending.extra_s) == (0, 0.0)


def test_dsp_runs_a_drafted_action_beside_the_target_s_decode() -> None:
    plays, serving, _ = played(workload(workflow(0, Turn(hops("a", 2)))), dsp(1.0))
    # Each hop: drafted at 0.2, acted by 2.2, and the thought over at 1.0.
    assert latencies(plays) == [close(2.2 + 2.2 + 0.5)]
    assert plays[0].outcomes == ["miss", "adopted", "miss", "adopted", "miss"]
    spending, whole = serving.spending, serving.spending.total
    assert (whole.fills, whole.stages, whole.consumed, whole.discarded_s) == (2, 2, 2, 0.0)
    assert whole.consumed_s == close(4.0)
    assert (spending.drafts, spending.drafting_s, spending.extra_s) == (2, close(0.4), 0.0)


def test_dsp_two_deep_runs_the_target_s_next_step_on_the_drafted_prefix() -> None:
    load = workload(workflow(0, Turn(hops("a", 2, think=300, act=50))))
    plays, _, _ = played(load, dsp(1.0))
    assert latencies(plays) == [close(3.0 + 3.0 + 0.5)]
    plays, serving, _ = played(load, dsp(1.0, depth=2))
    # The second thought begins when the first act is there, at 0.7.
    assert latencies(plays) == [close(0.7 + 3.0 + 0.5)]
    assert plays[0].outcomes == ["miss", "promoted", "adopted", "promoted", "miss"]
    assert serving.spending.extra_s == 0.0


def test_dsp_ends_what_follows_the_first_mismatch() -> None:
    load = workload(workflow(0, Turn(hops("a", 2))))
    plays, serving, _ = played(load, dsp(0.0))
    assert latencies(plays) == [close(TWO_HOPS_S)]
    assert (serving.spending.total.stages, serving.spending.total.consumed) == (2, 0)
    # From the draft to the end of each thought.
    assert serving.spending.extra_s == close(0.8 + 0.8)


def test_dsp_s_target_goes_astray_with_a_wrong_draft() -> None:
    load = workload(workflow(0, Turn(hops("a", 2, think=300, act=50))))
    plays, serving, _ = played(load, dsp(0.0, depth=2))
    assert latencies(plays) == [close(3.0 + 0.5 + 3.0 + 0.5 + 0.5)]
    # Act and, of the first hop, the next thought up to the verdict; of the second, the answer.
    assert serving.spending.total.stages == 4
    assert serving.spending.total.discarded_s == close(0.5 + 2.3 + 0.5 + 0.5)


def test_a_draft_that_is_slower_than_the_target_helps_nobody() -> None:
    plays, serving, _ = played(workload(workflow(0, Turn(hops("a", 1)))), dsp(1.0, draft_s=2.0))
    assert latencies(plays) == [close(ONE_HOP_S)]
    assert (serving.spending.total.opened, serving.spending.total.stages) == (1, 0)


def test_nothing_of_dsp_and_spagent_outlives_a_workflow() -> None:
    load = workload(workflow(0, Turn(hops("a", 1))), workflow(1, Turn(hops("a", 1))))
    for by in (dsp(1.0), spagent(1.0)):
        (first, again), _, _ = played(load, by)
        assert again.turns_s == [close(first.turns_s[0])]


def test_spagent_runs_sampled_actions_while_the_step_is_reasoned_out() -> None:
    plays, serving, _ = played(workload(workflow(0, Turn(hops("a", 2)))), spagent(1.0))
    # The first token at 0.01, nine more of the samples by 0.1, the act by 2.1.
    assert latencies(plays) == [close(2.1 + 2.1 + 0.5)]
    whole = serving.spending.total
    # Four samples say the same.
    assert (serving.spending.samples, whole.stages, whole.consumed) == (8, 2, 2)
    assert whole.draft_s == close(8 * 0.09)
    assert (whole.opened, whole.predictions) == (2, 2)


def test_spagent_s_wrong_actions_end_with_the_reasoning_unless_they_are_kept() -> None:
    load = workload(workflow(0, Turn(hops("a", 1))))
    plays, serving, _ = played(load, spagent(SELDOM, keep=False))
    assert latencies(plays) == [close(ONE_HOP_S)]
    assert serving.spending.total.discarded_s == close(0.9)
    _, serving, _ = played(load, spagent(SELDOM))
    assert serving.spending.total.discarded_s == close(2.0)


def test_spagent_s_kept_actions_serve_a_later_step() -> None:
    first, second = call("one", 200), call("two", 200)
    chains = {"one": (first,), "two": (second,)}
    steps = (
        Step(call("think 1", 100, stage="think"), Decision("action", ("one",), ("two", "one"), chains)),
        Step(first),
        Step(call("think 2", 100, stage="think"), Decision("action", ("two",), ("one", "two"), chains)),
        Step(second),
    )
    load = workload(workflow(0, Turn(steps)))
    plays, _, _ = played(load, spagent(SELDOM, keep=True))
    assert latencies(plays) == [close(1.0 + 2.0 + 1.0)]


def test_spagent_leaves_alone_what_would_hold_up_more_than_it_saves() -> None:
    slow = replace(ENGINE, sequence_ms=50.0)
    plays, serving, _ = played(workload(workflow(0, Turn(hops("a", 1)))), spagent(0.001), parameters=slow)
    assert (serving.spending.total.opened, serving.spending.total.refused) == (1, 1)
    assert plays[0].outcomes == ["miss"] * 3


def test_a_person_s_choice_is_not_speculated_on() -> None:
    picked = call("take x", 200)
    offer = Turn((Step(call("offer", 100), Decision("menu", ("x",), ("x",), {"x": (picked,)})),))
    load = workload(workflow(0, offer, Turn((Step(picked),), gap_s=3.0)))
    for by in (dsp(1.0), spagent(1.0)):
        plays, serving, _ = played(load, by)
        assert latencies(plays) == [close(1.0), close(2.0)]
        assert serving.spending.total.stages == 0


def test_arms_are_known_by_name() -> None:
    with pytest.raises(UnknownArm, match="instcache, helium"):
        arm("vulcan")
    with pytest.raises(UnknownArm, match="no setting of the arm 'parrot'"):
        arm("parrot", setting_of("dsp"))
    assert len({type(setting_of(name)) for name in NAMES}) == len(NAMES)


def test_the_best_setting_is_found_on_a_stream() -> None:
    turn = Turn((Step(call("a", 100)),))
    load = workload(*(workflow(number, turn) for number in range(12)), clients=12)
    order = tried("parrot", load, ENGINE, 1, 1)
    assert order[0].over_floor == pytest.approx(1.0, abs=0.01)
    assert order[-1].setting == ParrotSetting(Limits())
    assert order[-1].over_floor > 1.5


CONTENTS = st.sampled_from(["a", "b", "c"])
TOKENS = st.sampled_from([1, 20, 60])


@st.composite
def random_turns(draw: st.DrawFn) -> Turn:
    """Chains of one or two calls, shared between candidates and between steps; nothing, one or several are
    picked, by the model or by a person."""
    gap_s = draw(st.sampled_from([0.0, 0.5]))
    chains = {}
    for name in "xyz":
        calls = [
            call(f"{draw(CONTENTS)} {tokens}", tokens, before_s=draw(st.sampled_from([0.0, 0.1])))
            for tokens in draw(st.lists(TOKENS, min_size=1, max_size=2))
        ]
        chains[name] = tuple(replace(one, reads=("store/x",)) for one in calls)
    steps: list[Step] = []
    for _ in range(draw(st.integers(1, 3))):
        picked = tuple(draw(st.lists(st.sampled_from("xyz"), max_size=2, unique=True)))
        ranked = tuple(draw(st.permutations("xyz")))[: draw(st.integers(0, 3))]
        decision = Decision(draw(st.sampled_from(["action", "action", "menu"])), picked, ranked, chains)
        steps.append(Step(call("", draw(TOKENS), stage="think"), decision))
        steps += [Step(one) for name in picked for one in chains[name]]
    steps.append(Step(call("", 10)))
    # What is asked first decides what follows.
    whole = drawn(steps)
    named = [
        step if step.call.content else replace(step, call=replace(step.call, content=f"{whole} {number}"))
        for number, step in enumerate(steps)
    ]
    return Turn(tuple(named), gap_s=gap_s)


@st.composite
def random_workloads(draw: st.DrawFn) -> Workload:
    turns = draw(st.lists(random_turns(), min_size=1, max_size=3))
    workflows = []
    for number in range(draw(st.integers(1, 6))):
        its = draw(st.lists(st.sampled_from(turns), min_size=1, max_size=2))
        at_s = draw(st.floats(0, 1))
        workflows.append(replace(workflow(number, *its), at_s=at_s))
    clients = draw(st.integers(0, 3))
    return Workload("random", TEMPLATE, tuple(workflows), (), clients)


ARMS: tuple[BaselineArm, ...] = (
    *(arm(name) for name in NAMES),
    dsp(0.5, depth=3, draft_s=0.05),
    spagent(0.7, keep=False),
    spagent(0.7, samples=2),
)


@settings(max_examples=100, deadline=None)
@given(random_workloads(), st.sampled_from(ARMS), st.integers(1, 3))
def test_every_workflow_ends_and_without_writes_nothing_is_wrong(
    load: Workload, by: BaselineArm, engines: int
) -> None:
    plays, serving, _ = played(load, by, engines=engines)
    assert len(plays) == len(load.workflows)
    assert not any(play.wrong for play in plays)
    for play in plays:
        assert len(play.outcomes) == sum(len(turn.steps) for turn in play.workflow.turns)
    whole = serving.spending.total
    assert whole.consumed <= whole.fills <= whole.stages
    # The same seconds, added up in another order.
    assert 0 <= whole.discarded_s <= whole.used_s + 1e-9


@settings(max_examples=30, deadline=None)
@given(random_workloads(), st.sampled_from(ARMS), st.lists(st.floats(0, 4), max_size=3))
def test_every_workflow_ends_with_writes_too(load: Workload, by: BaselineArm, at: list[float]) -> None:
    writes = tuple(Write(at_s, ("store/x",)) for at_s in sorted(at))
    plays, _, _ = played(replace(load, writes=writes), by)
    assert len(plays) == len(load.workflows)


def test_runs_repeat() -> None:
    load = workload(*(workflow(number, Turn(hops(str(number), 2))) for number in range(5)), clients=3)
    for name in NAMES:
        # As in another process.
        sent = pickle.loads(pickle.dumps(arm(name)))
        once, again = (run(load, by, ENGINE, 2, 3) for by in (arm(name), sent))
        assert once == again
