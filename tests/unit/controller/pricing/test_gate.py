"""Both gates: cold trials, closing and opening again, the sign of refusals, regret."""

from __future__ import annotations

import math
from random import Random

import pytest
from dynbranch.bench.admission_regret import THRESHOLDS, regret
from dynbranch.controller.core.pricing.audits import FILLING, OPENING, is_audited
from dynbranch.controller.core.pricing.constants import Constants
from dynbranch.controller.core.pricing.gate import Gate, Offer
from dynbranch.controller.core.pricing.load import Reading
from dynbranch.controller.core.pricing.returns import Classes, Context, context_of
from dynbranch.domain.ids import BranchId, FillId, Instant, TrialId
from hypothesis import given
from hypothesis import strategies as st
from unit.controller.pricing.loads import KEY, Town, reading, views

N0 = Constants().cold_trials


@pytest.mark.promise("C3.cold_trials")
def test_the_first_trials_are_so_many_and_those_under_way_count() -> None:
    gate, now = Gate(), Instant(1.0)
    gate.see(reading(), now)
    openings = [
        gate.open(BranchId(bytes([n])), TrialId(bytes([n])), KEY, [reading()], now) for n in range(N0 + 3)
    ]
    assert [one.opens for one in openings] == [True] * N0 + [False] * 3
    assert openings[-1].reason == "its first trials are under way"
    gate.resolve(TrialId(bytes([0])), now)
    assert not gate.open(BranchId(b"x"), TrialId(b"x"), KEY, [reading()], now).opens
    gate.void(TrialId(bytes([1])))
    assert gate.open(BranchId(b"y"), TrialId(b"y"), KEY, [reading()], now).opens
    gate.validate_state()


def test_a_branch_has_one_trial() -> None:
    gate, now = Gate(), Instant(1.0)
    assert gate.open(BranchId(b"b"), TrialId(b"t"), KEY, [], now).opens
    again = gate.open(BranchId(b"b"), TrialId(b"t"), KEY, [], now)
    assert (again.opens, again.reason) == (False, "its trial was heard of before")


@pytest.mark.promise("C3.closes")
@pytest.mark.parametrize("rho", [0.0, 0.25, 1.0])
def test_a_predictor_that_is_never_right_stops_being_paid_for(rho: float) -> None:
    town = Town(rho=rho)
    for _ in range(50):
        town.branch(False)
    for _ in range(200):
        town.branch(False)
    assert all(one.audit for one in town.opens(200) if one.opens)
    assert 2 <= sum(one.opens for one in town.opens(200)) <= 25


@pytest.mark.promise("C3.closes")
def test_a_predictor_that_is_right_keeps_its_gate_open_at_low_load() -> None:
    town = Town(rho=0.25)
    for _ in range(100):
        _, decided = town.branch(True)
        assert decided[0].admitted
    assert all(one.opens for one in town.opened)


@pytest.mark.promise("C3.closes")
@pytest.mark.parametrize("rho", [0.0, 0.25, 0.75])
def test_a_class_that_turns_useless_is_closed_within_fifty_branches(rho: float) -> None:
    town = Town(rho=rho)
    for _ in range(150):
        town.branch(True)
    assert all(one.opens for one in town.opens(50))
    for _ in range(50):
        town.branch(False)
    for _ in range(50):
        town.branch(False)
    assert all(one.audit for one in town.opens(50) if one.opens)


@pytest.mark.promise("C3.opens_again")
@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.parametrize("rho", [0.0, 0.25])
def test_a_class_that_turns_useful_is_open_again_within_two_hundred_branches(seed: int, rho: float) -> None:
    town = Town(gate=Gate(seed=seed), rho=rho)
    for _ in range(150):
        town.branch(False)
    assert not all(one.opens for one in town.opens(20))
    for _ in range(200):
        town.branch(True)
    for _ in range(20):
        town.branch(True)
    assert all(one.opens and not one.audit for one in town.opens(20))


@pytest.mark.promise("C3.load")
def test_the_same_candidates_run_at_low_load_and_not_at_high() -> None:
    town = Town()
    for _ in range(60):
        town.branch(town.random.random() < 0.3)
    admitted = {}
    for rho in (0.125, 1.5):
        gate = town.gate
        now = Instant(town.now + 100 * (1 + rho))
        seen = Reading("e1", 8, 8 if rho > 1 else 1, 4 if rho > 1 else 0, 0, 8)
        gate.see(seen, now)
        offers = [Offer(f"s{n}", n, FillId(bytes([n])), "routing", ("work",), ("e1",)) for n in range(3)]
        decided = gate.admit(
            BranchId(b"b%f" % rho), TrialId(b"none"), KEY, offers, [seen], elapsed_ms=0.0, room=3, now=now
        )
        admitted[rho] = sum(one.admitted for one in decided)
    assert admitted[0.125] > admitted[1.5] == 0


@pytest.mark.promise("C3.refusals")
@given(data=st.data(), weights=st.lists(st.floats(-300, 300), min_size=6, max_size=6))
def test_a_refusal_says_that_the_stated_upper_bound_is_not_positive(
    data: st.DataObject, weights: list[float]
) -> None:
    """On a truth that is known: where it lies below the stated bound, what is refused is worth nothing."""
    gate, random = Gate(), Random(1)

    def mu(x: Context) -> float:
        return sum(weight * value for weight, value in zip(weights, x, strict=True))

    for number in range(60):
        now, trial_id = Instant(float(number)), TrialId(b"t%d" % number)
        seen = reading(data.draw(st.sampled_from([0.0, 0.25, 0.5, 1.0, 1.5])) if number < 12 else 0.5)
        gate.see(seen, now)
        opening = gate.open(BranchId(b"b%d" % number), trial_id, KEY, [seen], now)
        if not opening.opens:
            assert opening.score.upper <= 0.0 and opening.n >= N0
            if mu(opening.x) <= opening.score.upper:
                assert mu(opening.x) <= 0.0
            continue
        assert opening.cold or opening.audit or opening.score.upper > 0.0
        gate.charge_setup(trial_id, -mu(opening.x) - random.gauss(0.0, 1.0))
        gate.resolve(trial_id, now)


@pytest.mark.promise("C3.regret")
@pytest.mark.parametrize("truth", [150.0, 300.0])
def test_what_is_lost_grows_ever_more_slowly_and_less_than_under_most_fixed_thresholds(truth: float) -> None:
    priced = regret(None, truth_ms=truth, seed=11, rounds=2000)
    quarter, half = priced[499], priced[999]
    # Audits cost a fixed small share of what is refused; without them it is the logarithm that is left.
    assert (priced[1999] - half) < 1.2 * half and half < 2.2 * quarter
    fixed = [regret(at, truth_ms=truth, seed=11, rounds=2000)[-1] for at in THRESHOLDS]
    assert priced[-1] < sorted(fixed)[3]


def test_without_action_0_every_branch_opens_and_with_a_fixed_threshold_prices_do_not_count() -> None:
    town = Town(gate=Gate(judges=False, fixed_threshold=0.01), rho=1.5)
    for _ in range(60):
        _, decided = town.branch(False)
        assert decided[0].admitted == (decided[0].probability > 0.01)
    assert all(one.opens for one in town.opened)
    assert town.gate.trials.pending == 0 and town.gate.classes.get(KEY).n == 60


def test_audits_are_a_function_of_branch_and_level() -> None:
    ids = [BranchId(number.to_bytes(16, "big")) for number in range(4000)]
    opening = [is_audited(5, one, OPENING, 0.05) for one in ids]
    assert opening == [is_audited(5, one, OPENING, 0.05) for one in ids]
    assert opening != [is_audited(5, one, FILLING, 0.05) for one in ids]
    assert opening != [is_audited(6, one, OPENING, 0.05) for one in ids]
    assert 120 < sum(opening) < 280
    assert not any(is_audited(5, one, OPENING, 0.0) for one in ids)


@given(several=st.lists(views, max_size=3), consumption=st.floats(-1.0, 2.0))
def test_the_context_stays_within_one(several: list, consumption: float) -> None:  # type: ignore[type-arg]
    x = context_of(several, consumption)
    assert x[0] == 1.0 and all(0.0 <= value <= 1.0 for value in x)


def test_rare_classes_are_let_go() -> None:
    few = Constants(most_classes=3)
    classes = Classes(few)
    for number in range(20):
        classes.get(("type", f"point{number}", "t"))
        classes.validate_state()
    assert len(classes) <= 3


def test_the_window_bounds_what_can_be_hidden() -> None:
    town = Town()
    for _ in range(20):
        town.branch(True)
    gate, now = town.gate, Instant(town.now)
    assert gate.estimates.left_ms(KEY, 0.0) == pytest.approx(4000.0)
    assert gate.estimates.left_ms(KEY, 5000.0) == 0.0
    offer = Offer("s0", 0, FillId(b"f"), "routing", ("work",), ("e1",))
    decided = gate.admit(
        BranchId(b"b"), TrialId(b"t"), KEY, [offer], [reading()], elapsed_ms=5000.0, room=3, now=now
    )
    assert (decided[0].admitted, decided[0].reason) == (False, "no overlap remains")
    assert math.isclose(gate.horizon_s, 1.0, abs_tol=4.1)
