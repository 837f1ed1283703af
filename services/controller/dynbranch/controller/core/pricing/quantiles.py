"""The upper quantile of a Beta distribution, from the continued fraction of its distribution function."""

from __future__ import annotations

import math

_STEPS = 200
_TINY = 1e-300
_NEAR = 1e-7
_EVEN = 1e-3
"""A density that changes by less over so short a way is as good as even there: the last step was the way."""


def beta_below(a: float, b: float, x: float) -> float:
    """The share of Beta(a, b) below ``x``."""
    if x <= 0.0:
        return 0.0
    if x >= 1.0:
        return 1.0
    front = math.exp(
        math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log1p(-x)
    )
    if x < (a + 1.0) / (a + b + 2.0):
        return front * _fraction(a, b, x) / a
    return 1.0 - front * _fraction(b, a, 1.0 - x) / b


def beta_quantile(a: float, b: float, share: float, near: float | None = None) -> float:
    """The x below which ``share`` of Beta(a, b) lies, to 1e-6: Halley's steps, halving where one leads out of
    what is known to hold x. ``near``: where to begin, if it is about known."""
    assert a > 0 and b > 0 and 0 < share < 1
    scale = math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b)
    low, high, x = 0.0, 1.0, a / (a + b)
    if near is not None and low < near < high:
        x = near
    while high - low > _NEAR:
        over = beta_below(a, b, x) - share
        low, high = (x, high) if over < 0 else (low, x)
        density = math.exp(min(700.0, scale + (a - 1) * math.log(x) + (b - 1) * math.log1p(-x)))
        # How fast the density changes here, relative to itself.
        slope = (a - 1) / x - (b - 1) / (1.0 - x)
        nearer = -1.0
        if density > 0:
            step = over / density
            bend = 1.0 - step * slope / 2
            nearer = x - (step / bend if bend > 0.5 else step)
        inside = low < nearer < high
        if inside and abs(nearer - x) < _NEAR:
            if abs(slope) * _NEAR < _EVEN:
                return nearer
            # Where the density is large the steps are small, far from x as well.
            below, above = beta_below(a, b, nearer - 5 * _NEAR), beta_below(a, b, nearer + 5 * _NEAR)
            if below <= share <= above:
                return nearer
            inside = False
        x = nearer if inside else (low + high) / 2
    return (low + high) / 2


def _fraction(a: float, b: float, x: float) -> float:
    """Lentz's method."""
    # Written out: every decision of admission comes here some times.
    d = 1.0 - (a + b) * x / (a + 1.0)
    c, d = 1.0, 1.0 / (d if d > _TINY or d < -_TINY else _TINY)
    value = d
    for m in range(1, _STEPS):
        at = a + 2 * m
        even = m * (b - m) * x / ((at - 1.0) * at)
        odd = -(a + m) * (a + b + m) * x / (at * (at + 1.0))
        before = value
        d = 1.0 + even * d
        d = 1.0 / (d if d > _TINY or d < -_TINY else _TINY)
        c = 1.0 + even / c
        c = c if c > _TINY or c < -_TINY else _TINY
        value *= d * c
        d = 1.0 + odd * d
        d = 1.0 / (d if d > _TINY or d < -_TINY else _TINY)
        c = 1.0 + odd / c
        c = c if c > _TINY or c < -_TINY else _TINY
        value *= d * c
        if abs(value - before) < 1e-12 * abs(value):
            break
    return value
