"""Action 0's models: what one branch of a class returns, learned by ridge regression (paper equations 4, 5).

A class learns within its coordinate, its parents from all their classes; a class that is new begins with what
its parent expects. One whose residuals stay on one side has turned, and starts anew.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field

from dynbranch.controller.core.pricing.constants import Constants
from dynbranch.controller.core.pricing.load import View

DIMENSION = 6

Context = tuple[float, float, float, float, float, float]
ClassKey = tuple[str, ...]
"""From the most general to the most special; a class's parent is all but the last."""

ROOT: ClassKey = ()


def context_of(views: Sequence[View], consumption: float) -> Context:
    """x: one, horizon pressure, how far a low reading is below it, recent consumption of fills, queue
    backlog, KV occupancy; of all engines by their slots, each in [0, 1]. Pressure and backlog count up to
    twice the slots."""
    slots = sum(view.slots for view in views)
    if not slots:
        return (1.0, 0.0, 0.0, _unit(consumption), 0.0, 0.0)

    def mean(values: Sequence[float]) -> float:
        return sum(value * view.slots for value, view in zip(values, views, strict=True)) / slots

    return (
        1.0,
        _unit(mean([view.rho_h for view in views]) / 2),
        _unit(mean([view.rho_h - view.rho for view in views]) / 2),
        _unit(consumption),
        _unit(mean([view.backlog for view in views]) / 2),
        _unit(mean([view.o_kv for view in views])),
    )


def _unit(value: float) -> float:
    return min(1.0, max(0.0, value))


@dataclass(frozen=True, slots=True)
class Score:
    """``mean`` is m_c(x), ``radius`` r_c(x), in ms; their sum is U0."""

    mean: float
    radius: float

    @property
    def upper(self) -> float:
        return self.mean + self.radius


@dataclass(slots=True)
class ClassModel:
    """A_c is kept as its inverse (rank-one updates). ``pending`` trials have begun and not entered. ``life``
    counts the fresh starts; trials of a former life no longer count."""

    q: list[float]
    inverse: list[list[float]] = field(
        default_factory=lambda: [[float(i == j) for j in range(DIMENSION)] for i in range(DIMENSION)]
    )
    n: int = 0
    pending: int = 0
    squares: float = 0.0
    life: int = 0
    spread: float = 0.0
    """Mean of squared residuals."""
    judged: int = 0
    up: float = 0.0
    down: float = 0.0

    @property
    def scale(self) -> float:
        """sigma_c: RMS of the observed targets."""
        return math.sqrt(max(0.0, self.squares) / self.n) if self.n else 0.0

    @property
    def expectation(self) -> list[float]:
        return [_dot(row, self.q) for row in self.inverse]

    def score(self, x: Context) -> Score:
        v = [_dot(row, x) for row in self.inverse]
        return Score(_dot(v, self.q), self.scale * math.sqrt(max(0.0, _dot(v, x))))

    def enter(self, x: Context, target: float) -> None:
        """One observation, O(d^2)."""
        v = [_dot(row, x) for row in self.inverse]
        below = 1.0 + _dot(v, x)
        for i, row in enumerate(self.inverse):
            share = v[i] / below
            for j in range(DIMENSION):
                row[j] -= share * v[j]
        self.n += 1
        self.squares += target * target
        for i in range(DIMENSION):
            self.q[i] += x[i] * target

    def revise(self, x: Context, before: float, after: float) -> None:
        """A target that is known better, O(d): neither A nor n change."""
        self.squares += after * after - before * before
        for i in range(DIMENSION):
            self.q[i] += x[i] * (after - before)

    def judge(self, x: Context, target: float, constants: Constants) -> bool:
        """Whether, with this final target, the class has turned: two cumulative sums of residuals in units of
        their spread."""
        residual = target - self.score(x).mean
        spread = math.sqrt(self.spread) if self.judged else 0.0
        weight = max(1.0 / (self.judged + 1), 1.0 - constants.keep)
        trained = self.judged >= constants.cold_trials
        clip = constants.surprise_clip
        bounded = residual
        if trained and spread > 0.0:
            unit = min(clip, max(-clip, residual / spread))
            bounded = unit * spread
            self.up = max(0.0, self.up + unit - constants.surprise_drift)
            self.down = max(0.0, self.down - unit - constants.surprise_drift)
        # A spread of nothing would make every residual a turn: a tenth of the targets' scale is noise.
        floor = (0.1 * max(self.scale, 1.0)) ** 2
        self.spread = max(floor, self.spread + weight * (bounded * bounded - self.spread))
        self.judged += 1
        return max(self.up, self.down) > constants.surprise_limit


class Classes:
    """Bounded: the class that was longest unused goes first, and its parents keep what they learned of it."""

    def __init__(self, constants: Constants) -> None:
        self._constants = constants
        self._root = ClassModel([constants.root_ms] + [0.0] * (DIMENSION - 1))
        self._models: OrderedDict[ClassKey, ClassModel] = OrderedDict()
        self._lives = 0

    def __len__(self) -> int:
        return len(self._models)

    def get(self, key: ClassKey) -> ClassModel:
        if key == ROOT:
            return self._root
        model = self._models.get(key)
        if model is None:
            model = self._fresh(key)
            self._models[key] = model
        self._models.move_to_end(key)
        while len(self._models) > self._constants.most_classes:
            self._models.popitem(last=False)
        return model

    def known(self, key: ClassKey, life: int) -> ClassModel | None:
        """The class if it is still the one of that life."""
        model = self._root if key == ROOT else self._models.get(key)
        return model if model is not None and model.life == life else None

    def restart(self, key: ClassKey) -> None:
        """It has turned: cold trials again, from the parent's expectation. The trials that are under way
        belong to the former life."""
        if key != ROOT:
            self._models[key] = self._fresh(key)

    def _fresh(self, key: ClassKey) -> ClassModel:
        parent = self.get(key[:-1])
        self._lives += 1
        trained = parent.n >= self._constants.cold_trials
        expected = parent.expectation if trained else self._root_prior()
        length = math.sqrt(_dot(expected, expected))
        most = self._constants.root_ms
        if length > most:
            expected = [value * most / length for value in expected]
        return ClassModel(expected, life=self._lives)

    def _root_prior(self) -> list[float]:
        return [self._constants.root_ms] + [0.0] * (DIMENSION - 1)

    # -- state ---------------------------------------------------------------------------------------------

    def rows(self) -> list[tuple[ClassKey, ClassModel]]:
        return [(ROOT, self._root), *self._models.items()]

    def put(self, key: ClassKey, model: ClassModel) -> None:
        self._lives = max(self._lives, model.life)
        if key == ROOT:
            self._root = model
        else:
            self._models[key] = model

    def validate_state(self) -> None:
        assert len(self._models) <= self._constants.most_classes
        for _, model in self.rows():
            assert model.n >= 0 and model.pending >= 0
            assert all(math.isfinite(value) for row in (*model.inverse, model.q) for value in row)
            assert all(model.inverse[i][i] > 0 for i in range(DIMENSION))


def _dot(a: Sequence[float], b: Sequence[float]) -> float:
    return a[0] * b[0] + a[1] * b[1] + a[2] * b[2] + a[3] * b[3] + a[4] * b[4] + a[5] * b[5]
