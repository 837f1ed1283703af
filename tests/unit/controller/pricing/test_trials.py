"""Trials: every fact counts once, whatever order facts come in and however often."""

from __future__ import annotations

from random import Random

import pytest
from dynbranch.controller.core.pricing.constants import Constants
from dynbranch.controller.core.pricing.estimates import PricingClass
from dynbranch.controller.core.pricing.prices import Footprint, Prices
from dynbranch.controller.core.pricing.returns import DIMENSION, ROOT, Classes, ClassModel, Context
from dynbranch.controller.core.pricing.trials import FillAccount, Trials
from dynbranch.domain.ids import FillId, Instant, TrialId
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule
from unit.controller.pricing.loads import KEY, constants

X: Context = (1.0, 0.2, 0.0, 0.5, 0.1, 0.0)
KIND = PricingClass(KEY, False)
FILLS = [FillId(b"fill%d" % number) for number in range(3)]
STAGES = (0, 1)


def trial_of(number: int) -> TrialId:
    return TrialId(b"trial%d" % number)


def account(fill: FillId) -> FillAccount:
    return FillAccount("s", KIND, 40.0 + fill[-1], Prices(10.0, 5.0))


class Ledger:
    """Two trials, and every fact about them as a call that may be made at any time."""

    def __init__(self, numbers: Constants | None = None) -> None:
        self.constants = numbers or Constants()
        self.classes = Classes(self.constants)
        self.trials = Trials(self.classes, self.constants)
        for number in range(2):
            self.trials.begin(trial_of(number), KEY, X, Instant(number))
            for fill in FILLS:
                # Which fills there are is decided before anything can be heard of them.
                self.trials.reserve(trial_of(number), fill, account(fill))

    def tell(self, fact: tuple[str, int, int, int]) -> None:
        what, number, place, stage = fact
        trial_id, fill = trial_of(number), FILLS[place]
        match what:
            case "setup":
                self.trials.charge_setup(trial_id, 3.0 + number)
            case "consume":
                self.trials.consume(trial_id, fill, stage, 100.0 * (1 + place + stage))
            case "end":
                used = (Footprint(1.0 + place, 0.1, 0.2), Footprint(0.5))
                self.trials.end(trial_id, fill, used)
            case "wait":
                self.trials.wait(trial_id, fill, stage, 7.0 + place)
            case "enter":
                trial = self.trials.get(trial_id)
                assert trial is not None
                self.trials.enter(trial, Instant(5.0))

    @property
    def state(self) -> list[float]:
        """Of the class and its parents: A⁻¹, q, n, the squares, what is pending."""
        numbers: list[float] = []
        for key in (KEY, KEY[:-1], KEY[:-2], ROOT):
            model = self.classes.get(key)
            numbers += [value for row in model.inverse for value in row] + model.q
            numbers += [model.n, model.squares, model.pending]
        return numbers


FACTS = [("setup", number, 0, 0) for number in range(2)]
FACTS += [("enter", number, 0, 0) for number in range(2)]
FACTS += [("end", number, place, 0) for number in range(2) for place in range(3)]
FACTS += [
    (what, number, place, stage)
    for what in ("consume", "wait")
    for number in range(2)
    for place in (0, 2)
    for stage in STAGES
]


def settled() -> list[float]:
    ledger = Ledger()
    for fact in FACTS:
        ledger.tell(fact)
    return ledger.state


@pytest.mark.promise("C3.settled_once")
@given(seed=st.integers(0, 10_000), repeats=st.integers(0, 30))
def test_any_order_and_any_repetition_of_the_facts_come_to_the_same(seed: int, repeats: int) -> None:
    random, ledger = Random(seed), Ledger()
    told = FACTS + random.choices(FACTS, k=repeats)
    random.shuffle(told)
    for fact in told:
        ledger.tell(fact)
        ledger.trials.validate_state()
        ledger.classes.validate_state()
    assert ledger.state == pytest.approx(settled(), abs=1e-6)
    assert ledger.classes.get(KEY).n == 2, "observations are branches, not events"


class Ledgers(RuleBasedStateMachine):
    """Facts of two trials come as they like; at any time the class knows what the entered ones are worth."""

    @initialize()
    def begin(self) -> None:
        self.ledger = Ledger()

    @rule(place=st.integers(0, len(FACTS) - 1))
    def tell(self, place: int) -> None:
        before = self.ledger.classes.get(KEY)
        n, inverse = before.n, [row.copy() for row in before.inverse]
        self.ledger.tell(FACTS[place])
        after = self.ledger.classes.get(KEY)
        if FACTS[place][0] != "enter":
            assert (after.n, after.inverse) == (n, inverse), "what comes late changes no observation"

    @rule(place=st.integers(0, len(FACTS) - 1))
    def tell_again(self, place: int) -> None:
        self.ledger.tell(FACTS[place])
        state = self.ledger.state
        self.ledger.tell(FACTS[place])
        assert self.ledger.state == state

    def teardown(self) -> None:
        if not hasattr(self, "ledger"):
            return
        self.ledger.trials.validate_state()
        trials = [self.ledger.trials.get(trial_of(number)) for number in range(2)]
        entered = [trial for trial in trials if trial is not None and trial.entered is not None]
        model = self.ledger.classes.get(KEY)
        assert model.n == len(entered) and model.pending == 2 - len(entered)
        prior = Classes(self.ledger.constants).get(KEY).q
        for place in range(DIMENSION):
            total = prior[place] + sum(trial.x[place] * trial.return_ms for trial in entered)
            assert model.q[place] == pytest.approx(total, abs=1e-6)


TestLedgers = Ledgers.TestCase


def test_what_a_branch_returns() -> None:
    ledger = Ledger()
    trial = ledger.trials.get(trial_of(0))
    assert trial is not None
    expected = sum(account(fill).expected_ms for fill in FILLS)
    assert trial.return_ms == pytest.approx(-expected)
    ledger.tell(("setup", 0, 0, 0))
    ledger.tell(("consume", 0, 0, 0))
    left = sum(account(fill).expected_ms for fill in FILLS[1:])
    assert trial.return_ms == pytest.approx(100.0 - 3.0 - left), "what is consumed costs nothing"
    ledger.tell(("end", 0, 0, 0))
    # The second stage of the chain ran for nothing: half a slot-second at ten.
    assert trial.return_ms == pytest.approx(100.0 - 3.0 - left - 5.0)
    ledger.tell(("wait", 0, 0, 0))
    assert trial.return_ms == pytest.approx(100.0 - 3.0 - left - 5.0 - 7.0)


def test_a_trial_that_never_resolves_counts_as_it_stands() -> None:
    ledger = Ledger(constants(trial_ttl_s=100.0, keep_closed_s=50.0))
    ledger.tell(("setup", 0, 0, 0))
    ledger.trials.pass_time(Instant(99.0))
    assert ledger.trials.pending == 2
    ledger.trials.pass_time(Instant(101.0))
    assert ledger.trials.pending == 0 and ledger.classes.get(KEY).n == 2
    ledger.tell(("consume", 0, 1, 0))
    trial = ledger.trials.get(trial_of(0))
    assert trial is not None and trial.target == pytest.approx(trial.return_ms), "late events revise it"
    ledger.trials.pass_time(Instant(200.0))
    assert len(ledger.trials) == 0
    ignored = ledger.trials.ignored
    ledger.trials.consume(trial_of(0), FILLS[2], 0, 1.0)
    assert ledger.trials.ignored == ignored + 1


def test_no_more_trials_are_kept_than_there_is_room_for() -> None:
    few = constants(most_trials=10)
    trials = Trials(Classes(few), few)
    for number in range(25):
        trials.begin(trial_of(number), KEY, X, Instant(number))
        trials.validate_state()
    assert len(trials) == 10 and trials.pending == 10


def test_a_void_trial_is_no_observation() -> None:
    ledger = Ledger()
    assert ledger.trials.void(trial_of(0)) and not ledger.trials.void(trial_of(0))
    ledger.trials.validate_state()
    model = ledger.classes.get(KEY)
    assert (model.n, model.pending) == (0, 1)


@given(
    rows=st.lists(
        st.tuples(st.lists(st.floats(0, 1), min_size=5, max_size=5), st.floats(-1e4, 1e4)), max_size=30
    )
)
def test_the_kept_inverse_is_the_inverse(rows: list[tuple[list[float], float]]) -> None:
    model = ClassModel([20.0] + [0.0] * 5)
    matrix = [[float(i == j) for j in range(DIMENSION)] for i in range(DIMENSION)]
    for features, target in rows:
        x: Context = (1.0, features[0], features[1], features[2], features[3], features[4])
        model.enter(x, target)
        for i in range(DIMENSION):
            for j in range(DIMENSION):
                matrix[i][j] += x[i] * x[j]
    for i in range(DIMENSION):
        for j in range(DIMENSION):
            product = sum(matrix[i][k] * model.inverse[k][j] for k in range(DIMENSION))
            assert product == pytest.approx(float(i == j), abs=1e-6)


def test_a_new_class_takes_its_parents_direction_and_no_more_than_a_small_worth() -> None:
    ledger = Ledger()
    for number in range(20):
        parent = ledger.classes.get(KEY[:-1])
        parent.enter(X, 800.0 + number)
    fresh = ledger.classes.get((*KEY[:-1], "another tenant"))
    assert 0 < fresh.score(X).mean <= 20.0 * sum(value * value for value in X) ** 0.5
    unknown = ledger.classes.get(("elsewhere", "point", "t"))
    assert unknown.score(X).mean == pytest.approx(20.0), "none is dead at birth"
