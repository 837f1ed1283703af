"""The causal envelope, and prices that only rise with load."""

from __future__ import annotations

from dataclasses import replace

import pytest
from dynbranch.controller.core.pricing.load import Envelope, Reading, View, view_of
from dynbranch.controller.core.pricing.prices import Curve, Footprint, prior_curves
from dynbranch.controller.core.pricing.quantiles import beta_below, beta_quantile
from dynbranch.domain.ids import Instant
from hypothesis import given
from hypothesis import strategies as st
from unit.controller.pricing.loads import footprints, reading, views

H = 5.0
CURVES = prior_curves()
steps = st.lists(st.tuples(st.floats(0.01, 3.0), st.floats(0.0, 2.0)), min_size=1, max_size=30)


def told(history: list[tuple[float, float]]) -> tuple[Envelope, float]:
    envelope, now = Envelope(H), 100.0
    for after, value in history:
        now += after
        envelope.see(value, Instant(now))
    return envelope, now


@pytest.mark.promise("C3.envelope")
@given(history=steps, rise=st.floats(0.0, 2.0))
def test_the_envelope_rises_at_once(history: list[tuple[float, float]], rise: float) -> None:
    envelope, now = told(history)
    before = envelope.value(Instant(now))
    envelope.see(before + rise, Instant(now + 0.001))
    assert envelope.value(Instant(now + 0.001)) >= before + rise - 1e-9


@pytest.mark.promise("C3.envelope")
@given(history=steps, low=st.floats(0.0, 1.0), part=st.floats(0.0, 1.0))
def test_the_envelope_relaxes_over_its_horizon(
    history: list[tuple[float, float]], low: float, part: float
) -> None:
    envelope, now = told(history)
    highest = max(value for _, value in history)
    envelope.see(low, Instant(now + 0.001))
    begun = now + 0.001
    values = [envelope.value(Instant(begun + share * H)) for share in (0.0, part, 1.0)]
    if low <= min(value for _, value in history):
        assert values[0] >= values[1] - 1e-9 and values[1] >= values[2] - 1e-9
    assert values[2] == pytest.approx(low, abs=1e-6)
    assert all(low - 1e-9 <= value <= max(low, highest) + 1e-6 for value in values)


def test_the_envelope_is_the_mean_of_what_held() -> None:
    envelope = Envelope(4.0)
    envelope.see(1.0, Instant(0.0))
    envelope.see(0.0, Instant(2.0))
    assert envelope.value(Instant(2.0)) == pytest.approx(1.0)
    assert envelope.value(Instant(3.0)) == pytest.approx(0.75)
    assert envelope.value(Instant(6.0)) == pytest.approx(0.0)
    envelope.see(9.0, Instant(1.0))
    assert envelope.latest == 0.0, "a late reading changes nothing"
    envelope.see(0.5, Instant(2.0))
    assert envelope.latest == 0.5, "of two at one time the later counts"


def test_the_envelope_forgets_what_is_older_than_its_horizon() -> None:
    envelope = Envelope(1.0)
    for number in range(20_000):
        envelope.see(number % 3, Instant(number / 100))
    assert envelope.value(Instant(200.0)) == pytest.approx(1.0, abs=0.1) or envelope.latest > 1.0
    assert len(envelope._times) < 500


def test_a_view_counts_shares_of_its_engine() -> None:
    envelope = Envelope(H)
    seen = Reading("e1", 8, 4, 2, 1, 4, kv_tokens=500, kv_budget=2000)
    envelope.see(seen.pressure, Instant(1.0))
    view = view_of(seen, envelope, Instant(1.0))
    assert view == View(0.75, 0.75, 0.25, 0.25, 0.25, 8, 4)
    later = view.with_fill(0.25)
    assert (later.o_fill, later.o_kv, later.rho_h) == (0.5, 0.5, 0.75)
    assert reading(0.25).pressure == 0.25


@pytest.mark.promise("C3.prices")
@given(
    view=views,
    footprint=footprints,
    more=st.floats(0.0, 1.0),
    which=st.sampled_from(["rho_h", "o_fill", "o_kv"]),
)
def test_prices_only_rise_with_load(view: View, footprint: Footprint, more: float, which: str) -> None:
    higher = replace(view, **{which: getattr(view, which) + more})
    assert CURVES.cost(view, footprint) >= 0.0
    assert CURVES.cost(higher, footprint) >= CURVES.cost(view, footprint) - 1e-9


def test_an_idle_engine_asks_for_nothing_and_a_full_one_for_much() -> None:
    fill = Footprint(2.0)
    costs = [CURVES.cost(View(rho, rho, 0.0, 0.0, 0.0, 8, 8), fill) for rho in (0.0, 0.25, 0.5, 1.0, 1.5)]
    assert costs[0] == 0.0
    assert costs[3] > 4 * costs[1] and costs[4] > 2 * costs[3]


def test_a_curve_is_straight_between_its_points_and_only_rises() -> None:
    curve = Curve(((0.0, 1.0), (1.0, 3.0)))
    assert [curve.at(x) for x in (-1.0, 0.0, 0.5, 1.0, 2.0)] == [1.0, 1.0, 2.0, 3.0, 5.0]
    for wrong in ((), ((0.0, 2.0), (1.0, 1.0)), ((1.0, 1.0), (0.0, 2.0)), ((0.0, -1.0),)):
        with pytest.raises(ValueError, match="curve"):
            Curve(wrong)


@given(a=st.floats(0.05, 300.0), share=st.floats(0.01, 0.99))
def test_quantiles_where_one_parameter_is_one(a: float, share: float) -> None:
    assert beta_quantile(a, 1.0, share) == pytest.approx(share ** (1 / a), abs=2e-6)
    assert beta_quantile(1.0, a, share) == pytest.approx(1 - (1 - share) ** (1 / a), abs=2e-6)


@given(a=st.integers(1, 60), b=st.integers(1, 60), x=st.floats(0.001, 0.999))
def test_what_lies_below_is_a_sum_of_binomials(a: int, b: int, x: float) -> None:
    from math import comb

    n = a + b - 1
    exact = sum(comb(n, j) * x**j * (1 - x) ** (n - j) for j in range(a, n + 1))
    assert beta_below(a, b, x) == pytest.approx(exact, abs=1e-9)


@given(a=st.floats(0.1, 400.0), b=st.floats(0.1, 400.0), share=st.floats(0.05, 0.95))
def test_a_quantile_leaves_its_share_below(a: float, b: float, share: float) -> None:
    found = beta_quantile(a, b, share)
    slack = 2e-6
    assert beta_below(a, b, found - slack) - 1e-9 <= share <= beta_below(a, b, found + slack) + 1e-9
