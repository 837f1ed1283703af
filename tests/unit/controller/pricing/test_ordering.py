"""Action 1: thresholds, the stop, feasibility, audits, and the exact order."""

from __future__ import annotations

from dataclasses import replace
from itertools import permutations

import pytest
from dynbranch.controller.core.pricing.fixed_threshold import order_fixed
from dynbranch.controller.core.pricing.load import View
from dynbranch.controller.core.pricing.ordering import (
    Priceable,
    is_feasible,
    order,
    order_exactly,
    sequence_utility,
    threshold,
    utility,
)
from dynbranch.controller.core.pricing.prices import Footprint, prior_curves
from hypothesis import given, settings
from hypothesis import strategies as st
from unit.controller.pricing.loads import footprints, views

CURVES = prior_curves()
candidate = st.builds(
    Priceable,
    selection=st.just("?"),
    probability=st.floats(0.0, 1.0),
    gain_ms=st.one_of(st.just(0.0), st.floats(1.0, 8000.0)),
    footprint=footprints,
    engines=st.just(("e1",)),
)
candidates = st.lists(candidate, max_size=5).map(
    lambda found: [replace(one, selection=f"s{number}") for number, one in enumerate(found)]
)


@pytest.mark.promise("C3.threshold")
@given(
    probability=st.floats(0.0, 1.0),
    gain_ms=st.one_of(st.just(0.0), st.floats(1e-3, 1e5)),
    cost_ms=st.one_of(st.just(0.0), st.floats(1e-3, 1e5)),
)
def test_a_positive_utility_is_a_probability_above_the_threshold(
    probability: float, gain_ms: float, cost_ms: float
) -> None:
    worth, needed = utility(probability, gain_ms, cost_ms), threshold(gain_ms, cost_ms)
    if abs(worth) > 1e-9 * (gain_ms + cost_ms):
        assert (worth > 0) == (probability > needed)
    if gain_ms == cost_ms == 0.0:
        assert worth == 0.0 and not probability > needed


@pytest.mark.promise("C3.stop")
@given(found=candidates, view=views, more=candidates)
def test_after_the_stop_nothing_turns_positive_whatever_else_is_admitted(
    found: list[Priceable], view: View, more: list[Priceable]
) -> None:
    decided = order(found, {"e1": view}, CURVES)
    by_name = {one.selection: one for one in found}
    now = view
    for priced in decided:
        if priced.admitted:
            one = by_name[priced.selection]
            assert is_feasible(now, one.footprint) and priced.view == now
            assert priced.utility_ms > 0 and priced.probability > priced.threshold - 1e-12
            now = now.with_fill(one.footprint.kv_share)
    for further in (None, *more):
        if further is not None:
            now = now.with_fill(further.footprint.kv_share)
        for priced in decided:
            if not priced.admitted and is_feasible(now, by_name[priced.selection].footprint):
                one = by_name[priced.selection]
                cost = CURVES.cost(now, one.footprint)
                assert utility(one.probability, one.gain_ms, cost) <= 1e-9


@given(found=candidates, view=views)
def test_every_candidate_is_answered_once(found: list[Priceable], view: View) -> None:
    decided = order(found, {"e1": view}, CURVES)
    assert sorted(one.selection for one in decided) == sorted(one.selection for one in found)
    assert all(one.reason for one in decided)
    admitted = [one.admitted for one in decided]
    assert admitted == sorted(admitted, reverse=True)


def test_an_audit_lets_the_best_refused_one_run_and_then_stops() -> None:
    busy = View(1.5, 1.5, 0.0, 0.0, 0.5, 8, 8)
    poor = [Priceable(f"s{n}", 0.01, 100.0 - n, Footprint(2.0), ("e1",)) for n in range(3)]
    assert not any(one.admitted for one in order(poor, {"e1": busy}, CURVES))
    decided = order(poor, {"e1": busy}, CURVES, audit=True)
    assert [(one.selection, one.audit) for one in decided if one.admitted] == [("s0", True)]
    hopeless = [replace(one, gain_ms=0.0) for one in poor]
    assert not any(one.admitted for one in order(hopeless, {"e1": busy}, CURVES, audit=True))


def test_no_room_no_engine_and_no_overlap_are_told_apart() -> None:
    full = View(0.1, 0.1, 1.0, 0.0, 0.0, 8, 4)
    free = replace(full, o_fill=0.0)
    one = Priceable("s", 0.9, 1000.0, Footprint(1.0), ("e1",))
    reasons = [
        order([one], {"e1": full}, CURVES)[0].reason,
        order([replace(one, engines=())], {"e1": free}, CURVES)[0].reason,
        order([replace(one, gain_ms=0.0)], {"e1": free}, CURVES)[0].reason,
        order([replace(one, probability=0.0)], {"e1": free}, CURVES)[0].reason,
        order([one], {"e1": free}, CURVES)[0].reason,
    ]
    assert reasons == [
        "no engine has room for one more fill",
        "no engine can run it",
        "no overlap remains",
        "not worth its price",
        "worth its price",
    ]


@given(found=candidates, view=views, needed=st.floats(0.0, 0.99))
def test_a_fixed_threshold_heeds_room_and_no_price(found: list[Priceable], view: View, needed: float) -> None:
    decided = order_fixed(found, {"e1": view}, CURVES, needed)
    assert sorted(one.selection for one in decided) == sorted(one.selection for one in found)
    by_name, now = {one.selection: one for one in found}, view
    for priced in decided:
        one = by_name[priced.selection]
        if priced.admitted:
            assert one.probability > needed and is_feasible(now, one.footprint)
            now = now.with_fill(one.footprint.kv_share)
    for priced in decided:
        one = by_name[priced.selection]
        assert priced.admitted or one.probability <= needed or not is_feasible(now, one.footprint)
        assert priced.reason and priced.threshold == needed


def test_the_better_engine_takes_it() -> None:
    views_by_engine = {"e1": View(1.0, 1.0, 0.0, 0.0, 0.0, 8, 8), "e2": View(0.2, 0.2, 0.0, 0.0, 0.0, 8, 8)}
    one = Priceable("s", 0.5, 1000.0, Footprint(1.0), ("e1", "e2"))
    assert order([one], views_by_engine, CURVES)[0].engine == "e2"


@pytest.mark.promise("C3.exact_order")
@settings(max_examples=60)
@given(found=candidates.filter(lambda some: len(some) <= 4), view=views)
def test_the_exact_order_is_the_best_of_all_ordered_subsets(found: list[Priceable], view: View) -> None:
    def worth(sequence: tuple[Priceable, ...]) -> float:
        now, total = view, 0.0
        for one in sequence:
            if not is_feasible(now, one.footprint):
                return float("-inf")
            total += utility(one.probability, one.gain_ms, CURVES.cost(now, one.footprint))
            now = now.with_fill(one.footprint.kv_share)
        return total

    best = max(
        worth(sequence) for length in range(len(found) + 1) for sequence in permutations(found, length)
    )
    exactly = sequence_utility(order_exactly(found, {"e1": view}, CURVES))
    assert exactly == pytest.approx(best, abs=1e-6)
    assert sequence_utility(order(found, {"e1": view}, CURVES)) <= exactly + 1e-6
