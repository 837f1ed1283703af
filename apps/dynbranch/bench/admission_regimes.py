"""A class that turns: how many branches until the gate opens a useful one again, or closes a useless one. The
product's own gate decides and learns, audits and all; only what becomes of its fills is drawn here."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from random import Random
from typing import Final

from dynbranch.controller.core.pricing.gate import FillEnd, Gate, Offer
from dynbranch.controller.core.pricing.load import Reading
from dynbranch.controller.core.pricing.returns import ClassKey
from dynbranch.controller.core.pricing.trials import StageUse
from dynbranch.domain.ids import BranchId, FillId, Instant, TrialId

KEY: Final[ClassKey] = ("tenant", "workflow", "decision")
ENGINE: Final = "engine"
STAGE: Final = "stage"

STEADY: Final = 10
"""The gate is open, or closed, when so many decisions in a row say so. Opening for an audit is closed."""


@dataclass(frozen=True, slots=True)
class Truth:
    """``rates``: how often each rank is right. A right fill is ready in time with ``in_time``."""

    rates: tuple[float, ...]
    in_time: float = 0.9


USEFUL: Final = Truth((0.6, 0.2, 0.1))
USELESS: Final = {
    "never_right": Truth((0.0, 0.0, 0.0)),
    "never_in_time": Truth((0.6, 0.2, 0.1), in_time=0.0),
}


@dataclass(frozen=True, slots=True)
class Traffic:
    """A branch begins each ``every_s`` and resolves ``window_s`` later. Its canonical demand runs, and a fill
    stays, for ``stay_s``, evenly. Prediction takes ``setup_ms``. The engine's canonical requests walk at
    random within ``canonical``."""

    every_s: float = 1.0
    window_s: float = 4.6
    setup_ms: float = 40.0
    stay_s: tuple[float, float] = (2.7, 6.5)
    slots: int = 16
    fill_slots: int = 8
    canonical: tuple[int, int] = (1, 10)


@dataclass(frozen=True, slots=True)
class _Opened:
    """A branch that is not resolved, and the ranks of its fills."""

    trial_id: TrialId
    resolves: float
    truth: Truth
    fills: tuple[Offer, ...]


class Drive:
    """One seed's traffic of one class."""

    def __init__(self, seed: int, traffic: Traffic | None = None) -> None:
        self.traffic = traffic or Traffic()
        self.gate = Gate(seed=seed)
        self.branches = 0
        self.fills = 0
        self._rng = Random(seed)
        self._canonical = sum(self.traffic.canonical) // 2
        self._open: deque[_Opened] = deque()

    def branch(self, truth: Truth) -> bool:
        """Whether Action 0 opened it for its own sake."""
        self.branches += 1
        now = Instant(self.branches * self.traffic.every_s)
        self._resolve(now)
        self.gate.pass_time(now)
        readings = (self._reading(),)
        self.gate.see(readings[0], now)
        branch_id = BranchId(self.branches.to_bytes(16, "big"))
        trial_id = TrialId(branch_id)
        opening = self.gate.open(branch_id, trial_id, KEY, readings, now)
        if not opening.opens:
            return False
        self.gate.charge_setup(trial_id, self.traffic.setup_ms)
        offers = {str(rank): self._offer(branch_id, rank) for rank in range(len(truth.rates))}
        decided = self.gate.admit(
            branch_id,
            trial_id,
            KEY,
            tuple(offers.values()),
            readings,
            elapsed_ms=self.traffic.setup_ms,
            room=len(offers),
            now=now,
        )
        ran = tuple(offers[one.selection] for one in decided if one.admitted)
        self.fills += len(ran)
        self._open.append(_Opened(trial_id, now + self.traffic.window_s, truth, ran))
        return not opening.audit

    def until(self, truth: Truth, *, opened: bool, at_most: int) -> int:
        """Branches of this truth until the first of ``STEADY`` decisions as asked; ``at_most``: never."""
        row = 0
        for count in range(1, at_most + 1):
            row = row + 1 if self.branch(truth) is opened else 0
            if row == STEADY:
                return count - STEADY + 1
        return at_most

    def _offer(self, branch_id: BranchId, rank: int) -> Offer:
        fill_id = FillId(branch_id + bytes([rank]))
        return Offer(str(rank), rank, fill_id, "workflow", (STAGE,), (ENGINE,))

    def _reading(self) -> Reading:
        traffic = self.traffic
        low, high = traffic.canonical
        self._canonical = min(high, max(low, self._canonical + self._rng.choice((-1, 0, 1))))
        fills = min(traffic.fill_slots, sum(len(one.fills) for one in self._open))
        return Reading(ENGINE, traffic.slots, self._canonical, 0, fills, traffic.fill_slots)

    def _resolve(self, now: Instant) -> None:
        while self._open and self._open[0].resolves <= now:
            one = self._open.popleft()
            right = self._right(one.truth)
            self.gate.select(KEY, [(rank, rank == right) for rank in range(len(one.truth.rates))])
            self.gate.resolve(one.trial_id, now, window_ms=1000 * self.traffic.window_s)
            if not any(offer.rank == right for offer in one.fills):
                # The harness waited for the stage itself.
                self.gate.estimates.executed("workflow", STAGE, 1000 * self._stay_s())
            for offer in one.fills:
                self._end(one, offer, selected=offer.rank == right)

    def _end(self, one: _Opened, offer: Offer, *, selected: bool) -> None:
        stay_ms = 1000 * self._stay_s()
        in_time = self._rng.random() < one.truth.in_time
        consumed = selected and in_time
        saved_ms = min(stay_ms, 1000 * self.traffic.window_s) if consumed else 0.0
        if consumed:
            self.gate.consume(one.trial_id, offer.fill_id, 0, saved_ms)
        uses = (StageUse(STAGE, stay_ms),)
        self.gate.end_fill(
            FillEnd(one.trial_id, offer.fill_id, "workflow", uses, selected, consumed, saved_ms)
        )

    def _stay_s(self) -> float:
        return self._rng.uniform(*self.traffic.stay_s)

    def _right(self, truth: Truth) -> int | None:
        drawn = self._rng.random()
        for rank, rate in enumerate(truth.rates):
            drawn -= rate
            if drawn < 0:
                return rank
        return None
