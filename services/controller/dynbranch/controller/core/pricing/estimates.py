"""What a candidate is worth and holds, learned from what became of those before it.

Selection is learned by rank from every predicted candidate, admitted or not; use in time only from fills that
were admitted and selected, so that missing the deadline is no error of prediction. Gains and stays are learned
per pricing class: chains apart from single stages.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

from dynbranch.controller.core.pricing.constants import Constants
from dynbranch.controller.core.pricing.quantiles import beta_quantile
from dynbranch.controller.core.pricing.returns import ClassKey

RANKS = 8


@dataclass(frozen=True, slots=True, order=True)
class PricingClass:
    """Fills that are compared with one another."""

    key: ClassKey
    multi_stage: bool


@dataclass(slots=True)
class Rate:
    """Counts of a share, older ones for less. ``upper`` is kept until the counts change."""

    yes: float = 0.0
    no: float = 0.0
    upper: float = -1.0


@dataclass(slots=True)
class Mean:
    total: float = 0.0
    weight: float = 0.0

    def learn(self, value: float, keep: float) -> None:
        self.total = self.total * keep + value
        self.weight = self.weight * keep + 1.0

    def value(self, prior: float, prior_weight: float) -> float:
        return (self.total + prior * prior_weight) / (self.weight + prior_weight)


@dataclass(slots=True)
class Known:
    """Of one pricing class: use in time, saved ms, ms of stay."""

    use: Rate
    gain: Mean
    stay: Mean


class Estimates:
    def __init__(self, constants: Constants) -> None:
        self._constants = constants
        self.ranks: OrderedDict[tuple[ClassKey, int], Rate] = OrderedDict()
        self.classes: OrderedDict[PricingClass, Known] = OrderedDict()
        self.windows: OrderedDict[ClassKey, Mean] = OrderedDict()
        self.consumption = Mean()
        """Of all fills that ended: the share that was consumed."""

    # -- asking --------------------------------------------------------------------------------------------

    def selection(self, key: ClassKey, rank: int) -> float:
        """The optimistic probability that this rank is selected: never more than the rank before it could
        not be told apart from."""
        c = self._constants
        rank = min(rank, RANKS - 1)
        rate = self.ranks.get((key, rank)) or Rate()
        if rate.upper < 0.0:
            prior = c.first_rank * 0.5**rank
            a = rate.yes + c.prior_weight * prior
            b = rate.no + c.prior_weight * (1 - prior)
            rate.upper = beta_quantile(a, b, c.quantile)
        return rate.upper

    def use(self, kind: PricingClass) -> float:
        """The posterior mean of timely use given selected."""
        c, known = self._constants, self.classes.get(kind)
        yes, no = (known.use.yes, known.use.no) if known else (0.0, 0.0)
        return (yes + c.prior_weight * c.prior_use) / (yes + no + c.prior_weight)

    def gain_ms(self, kind: PricingClass, prior_ms: float, left_ms: float | None) -> float:
        """What a consumed fill saves, of which no more can be hidden than the window has left. None: the
        window has no known end."""
        known = self.classes.get(kind)
        gain = known.gain.value(prior_ms, self._constants.prior_weight) if known else prior_ms
        return max(0.0, gain if left_ms is None else min(gain, left_ms))

    def stay_ms(self, kind: PricingClass, prior_ms: float) -> float:
        known = self.classes.get(kind)
        return known.stay.value(prior_ms, self._constants.prior_weight) if known else prior_ms

    def window_ms(self, key: ClassKey) -> float | None:
        """None until enough windows were seen."""
        known = self.windows.get(key)
        enough = known is not None and known.weight >= self._constants.cold_trials * 0.9
        return known.total / known.weight if known is not None and enough else None

    # -- learning ------------------------------------------------------------------------------------------

    def selected(self, key: ClassKey, rank: int, chosen: bool) -> None:
        if rank >= RANKS:
            return
        rate = self.ranks.setdefault((key, rank), Rate())
        self._count(rate, chosen)
        self._bound(self.ranks, (key, rank), self._constants.most_classes * RANKS)

    def used(self, kind: PricingClass, in_time: bool) -> None:
        self._count(self._known(kind).use, in_time)

    def gained(self, kind: PricingClass, saved_ms: float) -> None:
        self._known(kind).gain.learn(saved_ms, self._constants.keep)

    def stayed(self, kind: PricingClass, stay_ms: float) -> None:
        self._known(kind).stay.learn(stay_ms, self._constants.keep)

    def lasted(self, key: ClassKey, window_ms: float) -> None:
        self.windows.setdefault(key, Mean()).learn(window_ms, self._constants.keep)
        self._bound(self.windows, key, self._constants.most_classes)

    def ended(self, consumed: bool) -> None:
        self.consumption.learn(float(consumed), self._constants.keep)

    def _known(self, kind: PricingClass) -> Known:
        known = self.classes.setdefault(kind, Known(Rate(), Mean(), Mean()))
        self._bound(self.classes, kind, self._constants.most_classes * 2)
        return known

    def _count(self, rate: Rate, yes: bool) -> None:
        keep = self._constants.keep
        rate.yes, rate.no = rate.yes * keep + yes, rate.no * keep + (not yes)
        rate.upper = -1.0

    @staticmethod
    def _bound(rows: OrderedDict, key: object, most: int) -> None:  # type: ignore[type-arg]
        rows.move_to_end(key)
        while len(rows) > most:
            rows.popitem(last=False)
