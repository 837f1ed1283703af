"""A fill gate that heeds no load, for comparison: one probability is enough, whatever it costs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from dynbranch.controller.core.pricing.load import View
from dynbranch.controller.core.pricing.ordering import Priceable, Priced, order
from dynbranch.controller.core.pricing.prices import PriceCurves


def order_fixed(
    candidates: Sequence[Priceable], views: Mapping[str, View], curves: PriceCurves, needed: float
) -> tuple[Priced, ...]:
    """Whatever is more probable than ``needed``, the most probable first, while there is room. What it would
    have cost is told all the same."""
    now = dict(views)
    decided: list[Priced] = []
    left: list[Priceable] = []
    for one in sorted(candidates, key=lambda each: -each.probability):
        (priced,) = order([one], now, curves)
        if not priced.engine or one.probability <= needed:
            left.append(one)
            continue
        decided.append(
            replace(priced, admitted=True, reason="above the threshold", threshold=needed, audit=False)
        )
        now[priced.engine] = now[priced.engine].with_fill(one.footprint.kv_share)
    for one in left:
        (priced,) = order([one], now, curves)
        reason = "not above the threshold" if priced.engine else priced.reason
        decided.append(replace(priced.refused(reason), threshold=needed))
    return tuple(decided)
