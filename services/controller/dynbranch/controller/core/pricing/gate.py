"""Both gates and their learning: may a branch predict, which of its candidates run, what came of them.

Pure: load, facts and the time come in. A branch that may open has a trial from then on; each fact about it
counts once, in whatever order they come.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from dynbranch.controller.core.pricing.audits import FILLING, OPENING, is_audited
from dynbranch.controller.core.pricing.constants import Constants
from dynbranch.controller.core.pricing.estimates import Estimates, PricingClass
from dynbranch.controller.core.pricing.fixed_threshold import order_fixed
from dynbranch.controller.core.pricing.load import Envelope, Reading, View, view_of
from dynbranch.controller.core.pricing.ordering import (
    MOST_EXACT,
    Priceable,
    Priced,
    order,
    order_exactly,
)
from dynbranch.controller.core.pricing.prices import Footprint, PriceCurves, prior_curves
from dynbranch.controller.core.pricing.returns import Classes, ClassKey, Context, Score, context_of
from dynbranch.controller.core.pricing.trials import FillAccount, StageUse, Trials
from dynbranch.domain.ids import BranchId, FillId, Instant, TrialId

_NOTHING = Score(0.0, 0.0)
_HORIZON_EVERY = 16
"""Fills that end between two looks at the horizon."""


@dataclass(frozen=True, slots=True)
class Opening:
    """Action 0's answer, and by which numbers. ``cold`` and ``audit`` say why it opens unjudged."""

    opens: bool
    reason: str
    x: Context
    score: Score = _NOTHING
    n: int = 0
    pending: int = 0
    cold: bool = False
    audit: bool = False


@dataclass(frozen=True, slots=True)
class Offer:
    """One candidate. ``rank`` counts from 0, or is SEEN or SPOKEN. ``engines`` may run its stages."""

    selection: str
    rank: int
    fill_id: FillId
    workflow_type_id: str
    stages: tuple[str, ...]
    engines: tuple[str, ...]

    @property
    def guessed(self) -> bool:
        return self.rank >= 0


@dataclass(frozen=True, slots=True)
class FillEnd:
    """``selected`` is None where the selection was never told. ``ran``: some stage of it was executed for
    this fill, not known or under way already."""

    trial_id: TrialId
    fill_id: FillId
    workflow_type_id: str
    stages: tuple[StageUse, ...]
    selected: bool | None
    consumed: bool
    saved_ms: float
    ran: bool = True


class Gate:
    def __init__(
        self,
        *,
        constants: Constants | None = None,
        curves: PriceCurves | None = None,
        seed: int = 0,
        exact: bool = False,
        judges: bool = True,
        fixed_threshold: float | None = None,
    ) -> None:
        """``judges``: whether Action 0 refuses anything. ``fixed_threshold`` stands in for p*. Both are for
        comparison."""
        self.constants = constants or Constants()
        self.curves = curves or prior_curves()
        self.classes = Classes(self.constants)
        self.estimates = Estimates(self.constants)
        self.trials = Trials(self.classes, self.constants)
        self._envelopes: dict[str, Envelope] = {}
        self._horizon_s = self.constants.horizon_s
        self._ends = 0
        self._seed = seed
        self._exact = exact
        self._judges = judges
        self._fixed_threshold = fixed_threshold

    # -- load ----------------------------------------------------------------------------------------------

    @property
    def horizon_s(self) -> float:
        return self._horizon_s

    def see(self, reading: Reading, now: Instant) -> None:
        """Every report of an engine, whether any gate is open or not."""
        envelope = self._envelopes.get(reading.engine)
        if envelope is None:
            envelope = self._envelopes[reading.engine] = Envelope(self._horizon_s)
        envelope.see(reading.pressure, now)

    def lose(self, engine: str) -> None:
        self._envelopes.pop(engine, None)

    def views(self, readings: Sequence[Reading], now: Instant) -> dict[str, View]:
        """Of the engines whose pressure is known."""
        return {
            reading.engine: view_of(reading, self._envelopes[reading.engine], now)
            for reading in readings
            if reading.engine in self._envelopes
        }

    # -- Action 0 ------------------------------------------------------------------------------------------

    def open(
        self,
        branch_id: BranchId,
        trial_id: TrialId,
        key: ClassKey,
        readings: Sequence[Reading],
        now: Instant,
    ) -> Opening:
        """Where it opens, its trial has begun."""
        x = context_of(list(self.views(readings, now).values()), self.estimates.consumption.value(0.0, 1.0))
        opening = self._judge(branch_id, key, x)
        if opening.opens and self.trials.get(trial_id) is not None:
            return Opening(False, "its trial was heard of before", x)
        if opening.opens:
            self.trials.begin(trial_id, key, x, now)
        return opening

    def _judge(self, branch_id: BranchId, key: ClassKey, x: Context) -> Opening:
        model, n0 = self.classes.get(key), self.constants.cold_trials
        n, pending = model.n, model.pending
        if not self._judges:
            return Opening(True, "every branch opens", x, model.score(x), n, pending)
        if n < n0:
            if n + pending >= n0:
                return Opening(False, "its first trials are under way", x, _NOTHING, n, pending)
            return Opening(True, "one of the first trials", x, _NOTHING, n, pending, cold=True)
        score = model.score(x)
        if score.upper > 0.0:
            return Opening(True, "worth its cost", x, score, n, pending)
        if is_audited(self._seed, branch_id, OPENING, self.constants.audit_open):
            return Opening(True, "audit", x, score, n, pending, audit=True)
        return Opening(False, "not worth its cost", x, score, n, pending)

    # -- Action 1 ------------------------------------------------------------------------------------------

    def admit(
        self,
        branch_id: BranchId,
        trial_id: TrialId,
        key: ClassKey,
        offers: Sequence[Offer],
        readings: Sequence[Reading],
        *,
        elapsed_ms: float,
        room: int,
        now: Instant,
    ) -> tuple[Priced, ...]:
        """One answer per offer, the admitted first, in the order in which they start; what is admitted is
        recorded. At most ``room`` guesses."""
        known = {offer.selection: offer for offer in offers}
        candidates, views = self.weigh(key, tuple(known.values()), readings, elapsed_ms=elapsed_ms, now=now)
        guesses = any(offer.guessed for offer in offers)
        audit = guesses and is_audited(self._seed, branch_id, FILLING, self.constants.audit_fill)
        if self._fixed_threshold is not None:
            decided = order_fixed(candidates, views, self.curves, self._fixed_threshold)
        elif self._exact and not audit and len(candidates) <= MOST_EXACT:
            decided = order_exactly(candidates, views, self.curves)
        else:
            decided = order(candidates, views, self.curves, audit=audit)
        decided = _within(decided, known, room)
        for priced in decided:
            if priced.admitted:
                self._reserve(trial_id, key, known[priced.selection], priced)
        return decided

    def weigh(
        self,
        key: ClassKey,
        offers: Sequence[Offer],
        readings: Sequence[Reading],
        *,
        elapsed_ms: float,
        now: Instant,
    ) -> tuple[list[Priceable], dict[str, View]]:
        """All that the decision is a function of, beside the curves: candidates, and engines as they are."""
        left_ms = self.estimates.left_ms(key, elapsed_ms)
        candidates = [self._priceable(key, offer, readings, left_ms) for offer in offers]
        return candidates, self.views(readings, now)

    def _priceable(
        self, key: ClassKey, offer: Offer, readings: Sequence[Reading], left_ms: float | None
    ) -> Priceable:
        known, kind = self.estimates, PricingClass(key, len(offer.stages) > 1)
        execution_ms = known.execution_ms(offer.workflow_type_id, offer.stages)
        stay_s = known.stay_ms(kind, execution_ms) / 1000
        budgets = [one.kv_budget for one in readings if one.engine in offer.engines and one.kv_budget]
        tokens = known.tokens(offer.workflow_type_id, offer.stages) if budgets else 0.0
        share = tokens / min(budgets) if budgets else 0.0
        return Priceable(
            selection=offer.selection,
            probability=known.selection(key, offer.rank) * known.use(kind),
            gain_ms=known.gain_ms(kind, execution_ms, left_ms),
            footprint=Footprint(stay_s, share, share * stay_s),
            engines=offer.engines,
        )

    def _reserve(self, trial_id: TrialId, key: ClassKey, offer: Offer, priced: Priced) -> None:
        assert priced.view is not None, "what is admitted was priced"
        budget_share = priced.footprint.kv_share if priced.footprint is not None else 0.0
        account = FillAccount(
            selection=offer.selection,
            kind=PricingClass(key, len(offer.stages) > 1),
            expected_ms=priced.expected_cost_ms,
            prices=self.curves.at(priced.view),
            kv_share=budget_share,
        )
        self.trials.reserve(trial_id, offer.fill_id, account)

    # -- what came of it -----------------------------------------------------------------------------------

    def charge_setup(self, trial_id: TrialId, spent_ms: float) -> None:
        self.trials.charge_setup(trial_id, spent_ms)

    def select(self, key: ClassKey, chosen_by_rank: Sequence[tuple[int, bool]]) -> None:
        """Of every predicted candidate, and of what was seen or spoken of; once per branch."""
        for rank, chosen in chosen_by_rank:
            self.estimates.selected(key, rank, chosen)

    def resolve(self, trial_id: TrialId, now: Instant, *, window_ms: float | None = None) -> None:
        """Also where its selection can not be told, or its time is over: what it cost counts."""
        trial = self.trials.get(trial_id)
        if trial is None or trial.entered is not None:
            return
        if window_ms is not None:
            self.estimates.lasted(trial.keys[0], window_ms)
        self.trials.enter(trial, now)

    def void(self, trial_id: TrialId) -> None:
        self.trials.void(trial_id)

    def consume(self, trial_id: TrialId, fill_id: FillId, stage: int, saved_ms: float) -> None:
        self.trials.consume(trial_id, fill_id, stage, saved_ms)

    def end_fill(self, end: FillEnd) -> None:
        trial = self.trials.get(end.trial_id)
        account = None if trial is None else trial.fills.get(end.fill_id)
        if trial is None or account is None or account.used is not None:
            self.trials.ignored += 1
            return
        known = self.estimates
        for number, stage in enumerate(end.stages):
            if stage.wait_ms is not None:
                normal_ms = known.execution_ms(end.workflow_type_id, (stage.stage,))
                late_ms = stage.wait_ms if stage.abandoned else stage.wait_ms - normal_ms
                self.trials.wait(end.trial_id, end.fill_id, number, max(0.0, late_ms))
        stays_s = [stage.used_ms / 1000 for stage in end.stages]
        used = tuple(Footprint(stay_s, account.kv_share, account.kv_share * stay_s) for stay_s in stays_s)
        self.trials.end(end.trial_id, end.fill_id, used)
        if end.ran:
            known.stayed(account.kind, sum(stays_s) * 1000)
        if end.ran and end.selected:
            known.used(account.kind, end.consumed)
        if end.consumed:
            known.gained(account.kind, end.saved_ms)
        known.ended(end.consumed)
        self._ends += 1
        if self._ends % _HORIZON_EVERY == 0:
            self._horizon_s = known.horizon_s()
            for envelope in self._envelopes.values():
                envelope.horizon_s = self._horizon_s

    def pass_time(self, now: Instant) -> None:
        self.trials.pass_time(now)

    def validate_state(self) -> None:
        self.classes.validate_state()
        self.estimates.validate_state()
        self.trials.validate_state()


def _within(decided: Sequence[Priced], known: Mapping[str, Offer], room: int) -> tuple[Priced, ...]:
    """As many guesses as there is room for; what the decode tells of comes on top."""
    kept, refused = [], []
    for priced in decided:
        guess = priced.admitted and known[priced.selection].guessed
        if guess and room <= 0:
            refused.append(priced.refused("no more fills for one branch"))
            continue
        room -= guess
        kept.append(priced)
    return (*kept, *refused)
