"""What a candidate is worth and holds, learned from what became of those before it.

Selection is learned by rank from every predicted candidate, admitted or not; use in time only from fills
that were admitted and selected, so that missing the deadline is no error of prediction. Gains and stays are
learned per pricing class: chains apart from single stages. Until one is known, a fill is worth what its
stages took where harnesses waited for them.
"""

from __future__ import annotations

import math
from collections import OrderedDict, deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from dynbranch.controller.core.pricing.constants import Constants
from dynbranch.controller.core.pricing.quantiles import beta_quantile
from dynbranch.controller.core.pricing.returns import ClassKey

RANKS = 8
"""Those that come later share the last one's rate."""

SEEN = -1
"""In place of a rank: what shows in the decode already."""

SPOKEN = -2
"""The same for what the decode only speaks of."""

CLASSES = RANKS + 2

K = TypeVar("K")
V = TypeVar("V")


@dataclass(frozen=True, slots=True, order=True)
class PricingClass:
    """Fills that are compared with one another."""

    key: ClassKey
    multi_stage: bool


@dataclass(frozen=True, slots=True, order=True)
class StageKind:
    workflow_type_id: str
    stage: str


@dataclass(slots=True)
class Rate:
    """Counts of a share, older ones for less. ``upper`` is kept until the counts change; from then on it is
    negative, as large as it was, which is near what it will be."""

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

    use: Rate = field(default_factory=Rate)
    gain: Mean = field(default_factory=Mean)
    stay: Mean = field(default_factory=Mean)


@dataclass(slots=True)
class KnownStage:
    """Of one stage: ms that it ran where a harness waited, KV tokens that its fills reserve."""

    execution: Mean = field(default_factory=Mean)
    tokens: Mean = field(default_factory=Mean)


class Estimates:
    def __init__(self, constants: Constants) -> None:
        self._constants = constants
        self.ranks: OrderedDict[tuple[ClassKey, int], Rate] = OrderedDict()
        self.classes: OrderedDict[PricingClass, Known] = OrderedDict()
        self.stages: OrderedDict[StageKind, KnownStage] = OrderedDict()
        self.windows: OrderedDict[ClassKey, deque[float]] = OrderedDict()
        self.residencies: deque[float] = deque(maxlen=constants.residencies)
        self.consumption = Mean()
        """Of all fills that ended: the share that was consumed."""

    # -- asking --------------------------------------------------------------------------------------------

    def selection(self, key: ClassKey, rank: int) -> float:
        """The optimistic probability that this rank, or what was seen or spoken of, is selected."""
        c = self._constants
        rank = min(rank, RANKS - 1)
        rate = self.ranks.get((key, rank)) or Rate()
        if rate.upper < 0.0:
            prior = self._prior(rank)
            a = rate.yes + c.prior_weight * prior
            b = rate.no + c.prior_weight * (1 - prior)
            rate.upper = beta_quantile(a, b, c.quantile, -rate.upper)
        return rate.upper

    def _prior(self, rank: int) -> float:
        c = self._constants
        if rank == SEEN:
            return c.seen_rate
        return c.spoken_rate if rank == SPOKEN else c.first_rank * 0.5**rank

    def use(self, kind: PricingClass) -> float:
        """The posterior mean of timely use given selected."""
        c, known = self._constants, self.classes.get(kind)
        yes, no = (known.use.yes, known.use.no) if known else (0.0, 0.0)
        return (yes + c.prior_weight * c.prior_use) / (yes + no + c.prior_weight)

    def gain_ms(self, kind: PricingClass, prior_ms: float, left_ms: float | None) -> float:
        """What a consumed fill saves, of which no more can be hidden than the window has left. None: nobody
        knows how long it will be."""
        known = self.classes.get(kind)
        gain = known.gain.value(prior_ms, self._constants.prior_weight) if known else prior_ms
        return max(0.0, gain if left_ms is None else min(gain, left_ms))

    def stay_ms(self, kind: PricingClass, prior_ms: float) -> float:
        known = self.classes.get(kind)
        return known.stay.value(prior_ms, self._constants.prior_weight) if known else prior_ms

    def execution_ms(self, workflow_type_id: str, stages: Sequence[str]) -> float:
        """What harnesses would wait for these stages, one after another."""
        c, total = self._constants, 0.0
        for stage in stages:
            known = self.stages.get(StageKind(workflow_type_id, stage))
            mean = known.execution if known else Mean()
            total += mean.total / mean.weight if mean.weight else c.stage_ms
        return total

    def tokens(self, workflow_type_id: str, stages: Sequence[str]) -> float:
        """The most that these hold of the KV cache at a time: they run one after another."""
        most = 0.0
        for stage in stages:
            known = self.stages.get(StageKind(workflow_type_id, stage))
            mean = known.tokens if known else Mean()
            most = max(most, mean.total / mean.weight if mean.weight else self._constants.stage_tokens)
        return most

    def left_ms(self, key: ClassKey, elapsed_ms: float) -> float | None:
        """What is expected to be left of a window that is open for so long. None until enough were seen."""
        known = self.windows.get(key)
        if known is None or len(known) < self._constants.cold_trials:
            return None
        longer = [length - elapsed_ms for length in known if length > elapsed_ms]
        return sum(longer) / len(longer) if longer else 0.0

    def horizon_s(self) -> float:
        """H, a high quantile of residencies."""
        c = self._constants
        if len(self.residencies) < c.cold_trials:
            return c.horizon_s
        ordered = sorted(self.residencies)
        return max(0.1, ordered[min(len(ordered) - 1, int(c.horizon_share * len(ordered)))] / 1000)

    # -- learning ------------------------------------------------------------------------------------------

    def selected(self, key: ClassKey, rank: int, chosen: bool) -> None:
        if rank >= RANKS:
            return
        self._count(self._row(self.ranks, (key, rank), Rate(), CLASSES), chosen)

    def used(self, kind: PricingClass, in_time: bool) -> None:
        self._count(self._known(kind).use, in_time)

    def gained(self, kind: PricingClass, saved_ms: float) -> None:
        self._known(kind).gain.learn(saved_ms, self._constants.keep)

    def stayed(self, kind: PricingClass, stay_ms: float) -> None:
        self._known(kind).stay.learn(stay_ms, self._constants.keep)
        self.residencies.append(stay_ms)

    def executed(self, workflow_type_id: str, stage: str, execution_ms: float) -> None:
        self._stage(workflow_type_id, stage).execution.learn(execution_ms, self._constants.keep)

    def sized(self, workflow_type_id: str, stage: str, tokens: float) -> None:
        self._stage(workflow_type_id, stage).tokens.learn(tokens, self._constants.keep)

    def lasted(self, key: ClassKey, window_ms: float) -> None:
        fresh: deque[float] = deque(maxlen=self._constants.windows)
        self._row(self.windows, key, fresh, 1).append(window_ms)

    def ended(self, consumed: bool) -> None:
        self.consumption.learn(float(consumed), self._constants.keep)

    def _known(self, kind: PricingClass) -> Known:
        return self._row(self.classes, kind, Known(), 2)

    def _stage(self, workflow_type_id: str, stage: str) -> KnownStage:
        return self._row(self.stages, StageKind(workflow_type_id, stage), KnownStage(), 4)

    def _count(self, rate: Rate, yes: bool) -> None:
        keep = self._constants.keep
        rate.yes, rate.no = rate.yes * keep + yes, rate.no * keep + (not yes)
        rate.upper = -abs(rate.upper)

    def _row(self, rows: OrderedDict[K, V], key: K, fresh: V, per_class: int) -> V:
        """The row under this key, kept from now on; the one that was longest unused goes."""
        row = rows.setdefault(key, fresh)
        rows.move_to_end(key)
        while len(rows) > self._constants.most_classes * per_class:
            rows.popitem(last=False)
        return row

    def validate_state(self) -> None:
        most = self._constants.most_classes
        assert len(self.ranks) <= most * CLASSES and len(self.classes) <= most * 2
        assert len(self.stages) <= most * 4 and len(self.windows) <= most
        numbers = [rate.yes + rate.no for rate in self.ranks.values()]
        numbers += [known.gain.total + known.stay.total for known in self.classes.values()]
        assert all(math.isfinite(number) for number in numbers)
