"""Prices: milliseconds of canonical delay per unit of what a fill holds, as monotone curves of the load.

The prior follows the paper's Figure 5b: with contexts of one length 1-3 fills stretch a canonical request by
4-6 % and 48 by 53 %; 24 fills that grow from 3 % to 24 % of the KV pool stretch it by 11 % to 145 %.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from dynbranch.controller.core.pricing.load import View

SLOT_STRETCH = (0.53 - 0.06) / (48 - 3)
"""Of a canonical request by each further fill: Figure 5b between 3 and 48."""

KV_STRETCH = (1.45 - 0.11) / (0.24 - 0.03)
"""Of a canonical request by the whole KV pool: Figure 5b at 24 fills."""


@dataclass(frozen=True, slots=True)
class Curve:
    """Straight between points, flat before the first, and on with the last slope after the last."""

    points: tuple[tuple[float, float], ...]

    def __post_init__(self) -> None:
        if not self.points or self.points[0][1] < 0:
            raise ValueError("a price curve needs points, and none below zero")
        for (x0, y0), (x1, y1) in zip(self.points, self.points[1:], strict=False):
            if not (x0 < x1 and y0 <= y1):
                raise ValueError(f"a price curve rises: ({x0}, {y0}) then ({x1}, {y1})")

    def at(self, x: float) -> float:
        points = self.points
        if x <= points[0][0] or len(points) == 1:
            return points[0][1]
        index = min(bisect_right(points, (x, float("inf"))), len(points) - 1)
        (x0, y0), (x1, y1) = points[index - 1], points[index]
        return y0 + (y1 - y0) * (x - x0) / (x1 - x0)


@dataclass(frozen=True, slots=True)
class Footprint:
    """What a fill is expected to hold: ``slot_s`` of one slot; ``kv_share`` of the KV budget, over its stay
    ``kv_share_s``."""

    slot_s: float
    kv_share: float = 0.0
    kv_share_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Prices:
    """beta(V): per slot·s and per (share of the KV budget)·s, in ms, over all co-resident requests."""

    slot_ms: float
    kv_ms: float

    def of(self, footprint: Footprint) -> float:
        return self.slot_ms * footprint.slot_s + self.kv_ms * footprint.kv_share_s


@dataclass(frozen=True, slots=True)
class PriceCurves:
    """Per co-resident canonical request. ``slot``: ms per slot·s over the engine's whole load, canonical and
    fills; ``kv``: ms per budget·s over the budget's occupancy."""

    slot: Curve
    kv: Curve

    def at(self, view: View) -> Prices:
        met = view.co_resident
        load = view.rho_h + view.fills / max(1, view.slots)
        return Prices(met * self.slot.at(load), met * self.kv.at(view.o_kv))

    def cost(self, view: View, footprint: Footprint) -> float:
        """C_s(V) in ms."""
        return self.at(view).of(footprint)


def prior_curves(*, budget_of_pool: float = 0.5) -> PriceCurves:
    """Figure 5b's slopes below capacity, steeper near it: at capacity whoever comes next waits for a slot,
    beyond it everybody who waits already does. ``budget_of_pool``: the speculative budget's share of the KV
    pool, since the figure's axis is the pool."""
    slot = SLOT_STRETCH * 1000
    kv = KV_STRETCH * 1000 * budget_of_pool
    return PriceCurves(
        slot=Curve(((0.7, slot), (1.0, 4 * slot), (1.5, 10 * slot), (2.0, 20 * slot))),
        kv=Curve(((0.5, kv), (0.8, 2 * kv), (1.0, 8 * kv))),
    )


CURVE_VERSION = 1


class UnreadableCurves(ValueError):
    """What was given is no price curve. The message says where."""


def curves_from(document: Mapping[str, object]) -> PriceCurves:
    """Of a curve file, as ``dynbranch calibrate`` writes it; what else it holds is for people. Raises
    UnreadableCurves."""
    if document.get("version") != CURVE_VERSION:
        raise UnreadableCurves(f"version is {document.get('version')!r}, not {CURVE_VERSION}")
    curves = document.get("curves")
    if not isinstance(curves, Mapping):
        raise UnreadableCurves("curves: an object with slot and kv is missing")
    return PriceCurves(slot=_curve(curves, "slot"), kv=_curve(curves, "kv"))


def curves_json(curves: PriceCurves) -> dict[str, object]:
    return {
        "version": CURVE_VERSION,
        "curves": {name: [list(point) for point in curve.points] for name, curve in _named(curves)},
    }


def _named(curves: PriceCurves) -> tuple[tuple[str, Curve], ...]:
    return (("slot", curves.slot), ("kv", curves.kv))


def _curve(curves: Mapping[str, object], name: str) -> Curve:
    rows = curves.get(name)
    if not isinstance(rows, Sequence) or isinstance(rows, str):
        raise UnreadableCurves(f"curves.{name}: a list of [load, ms] is missing")
    points = []
    for row in rows:
        if not isinstance(row, Sequence) or len(row) != 2 or not all(_is_number(value) for value in row):
            raise UnreadableCurves(f"curves.{name}: {row!r} is not [load, ms]")
        points.append((float(row[0]), float(row[1])))
    try:
        return Curve(tuple(points))
    except ValueError as error:
        raise UnreadableCurves(f"curves.{name}: {error}") from None


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
