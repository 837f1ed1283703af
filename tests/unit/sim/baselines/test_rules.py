"""Each compared system's decision rule on a worked example: values in, decision out."""

from __future__ import annotations

import pytest
from dynbranch.enginemodel.messages import Block
from dynbranch.sim.baselines.dataflow import Criterion, EngineLoad, Limits, Need, Task, propagate, tick
from dynbranch.sim.baselines.foretelling import Rates, chain_of, drawn, foretold, of_any, of_one
from dynbranch.sim.baselines.operator_cache import OperatorCache
from dynbranch.sim.baselines.plan_depth import PlanDepth, first_mismatch, returns
from dynbranch.sim.baselines.prefixes import Prefixes, Worker, cache_aware
from dynbranch.sim.baselines.subset import Main, chosen
from dynbranch.sim.baselines.whole_requests import WholeRequests, predicted, request_of
from dynbranch.sim.fleet.workflows import Decision, Step, Turn
from unit.sim.baselines.tiny import call, hops, workflow

LATENCY, THROUGHPUT = Criterion.LATENCY, Criterion.THROUGHPUT


def test_instcache_predicts_what_was_asked_most_often_and_among_equals_the_first() -> None:
    turns = {name: Turn(hops(name, 1)) for name in "abc"}
    history = [workflow(number, turns[name]) for number, name in enumerate("abbcc")]
    b, c = (request_of((turns[name],), 0) for name in "bc")
    assert list(predicted(history, 2)) == [b, c]
    assert predicted(history, 1)[b] == ("b think 0", "b act 0", "b answer")


def test_another_stream_s_request_is_not_taken_for_one_that_only_begins_like_it() -> None:
    first = hops("a", 1)
    other = (first[0], *hops("b", 1)[1:])
    assert request_of((Turn(other),), 0) not in predicted([workflow(0, Turn(first))], 9)
    assert request_of((Turn(first),), 0) in predicted([workflow(0, Turn(first))], 9)


def test_instcache_keeps_the_first_answer_and_never_lets_go() -> None:
    cache = WholeRequests()
    cache.insert(("asked",), ("old",))
    cache.insert(("asked",), ("new",))
    assert cache.find(("asked",)) == ("old",)
    assert cache.find(("asked", "again")) is None


def test_helium_s_first_writer_wins_and_the_least_recently_used_goes() -> None:
    cache = OperatorCache(2)
    cache.insert(("read", "a"), "first")
    cache.insert(("read", "a"), "second")
    cache.insert(("note", "a"), "another operator")
    assert cache.find(("read", "a")) == "first"
    cache.insert(("read", "b"), "b")
    assert cache.find(("note", "a")) is None
    assert cache.find(("read", "a")) == "first"
    assert len(cache) == 2


def test_helium_s_worker_is_the_one_with_the_longest_shared_prefix_that_is_not_too_busy() -> None:
    workers = [Worker(0, 5, 8), Worker(1, 2, 3), Worker(2, 1, 0), Worker(3, 2, 3)]
    assert cache_aware(workers, 0) == 2
    assert cache_aware(workers, 1) == 1
    assert cache_aware(workers, 4) == 0


def test_a_prefix_is_held_up_to_its_first_missing_block() -> None:
    prefixes = Prefixes(2, 4)
    blocks: tuple[Block, ...] = ("a", "ab", "abc")
    prefixes.sent(1, blocks)
    assert prefixes.longest(1, (*blocks, "abcd")) == 3
    assert prefixes.longest(0, blocks) == 0
    prefixes.sent(1, ("x", "xy"))
    # The longest prefix went first.
    assert prefixes.longest(1, blocks) == 2


def test_parrot_s_criteria_go_backward_with_their_depth() -> None:
    chain = {"answer": ("note",), "note": ("thought",)}
    assert propagate(chain, {"answer": LATENCY}) == {
        "answer": Need(LATENCY, 0),
        "note": Need(LATENCY, 1),
        "thought": Need(LATENCY, 2),
    }


def test_parrot_s_parallel_producers_are_a_group_for_throughput() -> None:
    summary = {"all": ("one", "two"), "one": ("text",), "two": ("text",)}
    needs = propagate(summary, {"all": LATENCY})
    assert needs["one"] == needs["two"] == Need(THROUGHPUT, 1, "all")
    assert needs["text"] == Need(THROUGHPUT, 2)


def task(number: int, depth: int, *, tokens: int = 100, held: tuple[int, ...] = ()) -> Task:
    return Task(number, Need(LATENCY, depth), tokens, held)


def test_parrot_places_the_deepest_first_and_no_more_than_four_to_a_latency_engine() -> None:
    engines = [EngineLoad(3, 300, 3), EngineLoad(4, 400, 4)]
    assert tick([task(1, 0), task(2, 2), task(3, 2)], engines, Limits()) == ((2, 0),)


def test_parrot_counts_the_tokens_of_a_latency_engine() -> None:
    engines = [EngineLoad(1, 4000, 1)]
    assert tick([task(1, 0, tokens=97)], engines, Limits()) == ()
    assert tick([task(1, 0, tokens=96)], engines, Limits()) == ((1, 0),)
    # Alone, it is as large as it is.
    assert tick([task(1, 0, tokens=9999)], [EngineLoad()], Limits()) == ((1, 0),)


def test_parrot_s_engine_for_throughput_takes_whatever_comes_but_nothing_for_latency() -> None:
    busy = [EngineLoad(50, 90_000, 0)]
    assert tick([Task(1, Need(THROUGHPUT, 1), 500)], busy, Limits()) == ((1, 0),)
    assert tick([task(1, 0)], busy, Limits()) == ()


def test_parrot_dispatches_a_group_together_or_not_at_all() -> None:
    group = [Task(number, Need(LATENCY, 1, "all"), 100) for number in (1, 2)]
    assert tick(group, [EngineLoad(3, 300, 3)], Limits()) == ()
    assert tick(group, [EngineLoad(3, 300, 3), EngineLoad(2, 200, 2)], Limits()) == ((1, 1), (2, 1))


def test_parrot_prefers_the_engine_that_holds_the_prefix() -> None:
    engines = [EngineLoad(), EngineLoad(3, 300, 3), EngineLoad(4, 400, 4)]
    assert tick([task(1, 0, held=(0, 5, 9))], engines, Limits()) == ((1, 1),)


def test_dsp_counts_consecutive_right_drafts() -> None:
    assert returns([True, True, False], [0.0, 0.0, 0.0], 1.0) == (2.0, 1.0, 0.0)
    # The first leans by one twentieth on what was expected of the second.
    assert returns([True, False], [0.0, 4.0], 0.95) == pytest.approx((1.2, 0.0))


def test_dsp_is_one_deep_until_it_has_learned() -> None:
    depth = PlanDepth(offset=1, lam=1.0, trained=4)
    depth.learn([("class", True), ("class", True), ("class", False)])
    assert depth.depth("class") == 1
    depth.learn([("class", True), ("class", True), ("class", True), ("class", False)])
    # (2 + 1 + 0 + 3 + 2 + 1 + 0) / 7 is 1.3: one, and the offset.
    assert depth.depth("class") == 2
    assert depth.depth("another") == 1


def test_dsp_s_depth_is_at_least_one() -> None:
    depth = PlanDepth(offset=-1, trained=1)
    depth.learn([("class", False)])
    assert depth.depth("class") == 1


def test_dsp_verifies_by_exact_equality() -> None:
    assert first_mismatch([("a",), ("b",), ("c",)], [("a",), ("b ",), ("c",)]) == 1
    assert first_mismatch([("a",), ("b",)], [("a",)]) is None
    assert first_mismatch([("a", "b")], [("b", "a")]) == 0


def test_spagent_picks_the_subset_that_is_worth_the_most() -> None:
    mains = [Main("long", 0.5, 8.0), Main("short", 0.5, 1.0), Main("hopeless", 0.0, 8.0)]
    assert mains[0].saves_s(2) == pytest.approx(6.0)
    assert mains[1].saves_s(2) == pytest.approx(0.75)

    def decode_s(speculated: int) -> float:
        return speculated * 1.0

    assert [main.key for main in chosen(mains, 2, decode_s)] == ["long"]
    assert [main.key for main in chosen(mains, 2, lambda count: 0.5 * count)] == ["long", "short"]
    assert chosen(mains, 2, lambda count: 7.0 * count) == ()


def test_spagent_s_prefill_overhead_is_the_request_s_own() -> None:
    mains = [Main("read again", 0.5, 4.0, prefill_s=4.0), Main("held", 0.5, 4.0)]
    assert [main.key for main in chosen(mains, 2, lambda count: 0.0)] == ["held"]


def test_any_of_four_samples() -> None:
    assert of_any(of_one(0.73, 4), 4) == pytest.approx(0.73)
    assert of_one(0.73, 4) == pytest.approx(0.279, abs=0.001)


def test_the_last_rate_is_that_of_all_later_places() -> None:
    rates = Rates((0.73, 0.11))
    assert [rates.at(place) for place in (0, 1, 9)] == [0.73, 0.11, 0.11]
    with pytest.raises(ValueError, match="share"):
        Rates((1.2,))


def test_what_is_foretold_is_right_as_often_as_stated_and_the_same_again() -> None:
    decision = Decision("action", ("b",), ("a", "b", "c"))
    said = [foretold(decision, 0.3, 7, place) for place in range(4000)]
    assert said == [foretold(decision, 0.3, 7, place) for place in range(4000)]
    assert said.count(("b",)) / 4000 == pytest.approx(0.3, abs=0.03)
    assert said.count(("a",)) / 4000 == pytest.approx(0.35, abs=0.03)
    assert foretold(decision, 1.0, "any") == ("b",)
    assert 0 <= drawn("any") < 1


def test_what_nobody_ranked_costs_what_the_real_action_costs() -> None:
    act = call("act", 200)
    decision = Decision("action", ("b",), ("b",), {"b": (act,)})
    (said,) = foretold(decision, 0.0, "any")
    (wrong,) = chain_of(decision, said)
    assert said != "b"
    assert wrong.content != act.content
    assert wrong.output_tokens == 200
    assert chain_of(decision, "b") == (act,)
    assert chain_of(Decision("action", ()), "finish") == ()


def test_tiny_workflows_demand_what_their_chains_say() -> None:
    steps: tuple[Step, ...] = hops("w", 2)
    assert [step.call.content for step in steps] == [
        "w think 0",
        "w act 0",
        "w think 1",
        "w act 1",
        "w answer",
    ]
