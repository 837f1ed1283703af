"""Figures: a value, the interval around it, and how many observations it comes from."""

from __future__ import annotations

import random
import statistics
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import TypeVar

RESAMPLES = 2000
_SEED = 7

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Figure:
    """``ci_low`` and ``ci_high`` bound the 95 % interval; a count or an exact share repeats its value."""

    value: float
    ci_low: float
    ci_high: float
    n: int

    def as_json(self) -> dict[str, float]:
        return asdict(self)


def exact(value: float, n: int) -> Figure:
    """A count, or a share that is claimed of every single observation."""
    return Figure(value, value, value, n)


def share(matching: int, n: int) -> Figure:
    return exact(matching / n if n else 0.0, n)


def median(values: Sequence[float]) -> Figure:
    """The median with its bootstrap interval."""
    return bootstrap(values, statistics.median)


def quantile(values: Sequence[float], at: float) -> Figure:
    """The value that a share ``at`` of them does not exceed, with its bootstrap interval."""
    return bootstrap(values, lambda sample: sorted(sample)[round(at * (len(sample) - 1))])


def ratio(
    pairs: Sequence[tuple[float, float]], of: Callable[[Sequence[float]], float] = statistics.mean
) -> Figure:
    """``of`` the first members over ``of`` the second ones; whole pairs are resampled."""
    if not pairs:
        return Figure(0.0, 0.0, 0.0, 0)
    return bootstrap(pairs, lambda sample: of([a for a, _ in sample]) / of([b for _, b in sample]))


def bootstrap(
    values: Sequence[T], of: Callable[[Sequence[T]], float], *, resamples: int = RESAMPLES
) -> Figure:
    """``of`` the values, with the interval of resampled ones."""
    chance = random.Random(_SEED)
    found = sorted(of(chance.choices(values, k=len(values))) for _ in range(resamples))
    low, high = found[round(0.025 * (resamples - 1))], found[round(0.975 * (resamples - 1))]
    value = of(values)
    # A percentile interval of a skewed statistic may leave the estimate itself just outside.
    return Figure(value, min(low, value), max(high, value), len(values))
