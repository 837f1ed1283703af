"""Real snapshots of admission, out of what the controller tells of its branches."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from dynbranch.bench.admission_snapshots import Snapshot
from dynbranch.controller.core.pricing.load import View
from dynbranch.controller.core.pricing.ordering import Priceable
from dynbranch.controller.core.pricing.prices import Footprint, PriceCurves

_PRINTED: Final = 0.01
"""Share by which a cost that is computed from printed numbers may be off."""


class OtherPrices(ValueError):
    """The costs that were told do not follow from these curves."""


def snapshot_of(branch: Mapping[str, Any], curves: PriceCurves) -> Snapshot | None:
    """What Action 1 saw at this branch, of the candidates that it priced; None where there are none. A
    candidate's only engine is the one that it was priced at, as the others are not told. Raises OtherPrices.
    """
    priced = [row for row in branch["candidates"] if "slot_s" in row.get("price", {})]
    if not priced:
        return None
    engines: dict[tuple[object, ...], str] = {}
    views: dict[str, View] = {}
    candidates = []
    for row in priced:
        told = row["price"]
        view, footprint = _view(told), Footprint(told["slot_s"], told["kv_share"], told["kv_share_s"])
        expected_ms = curves.cost(view, footprint)
        if abs(expected_ms - told["cost_ms"]) > _PRINTED * max(10.0, expected_ms):
            raise OtherPrices(f"{told['cost_ms']:.1f} ms were told, and {expected_ms:.1f} follow")
        machine = (view.slots, view.fill_slots, view.rho_h, view.rho, view.backlog)
        engine = engines.setdefault(machine, f"engine-{len(engines) + 1}")
        # Whoever was priced before the first admission saw the engine as it was.
        known = views.get(engine)
        if known is None or (view.o_fill, view.o_kv) < (known.o_fill, known.o_kv):
            views[engine] = view
        candidates.append(
            Priceable(row["selection"], told["probability"], told["gain_ms"], footprint, (engine,))
        )
    return Snapshot(tuple(candidates), views, curves)


def _view(told: Mapping[str, Any]) -> View:
    return View(
        rho_h=told["rho_h"],
        rho=told["rho"],
        o_fill=told["o_fill"],
        o_kv=told["o_kv"],
        backlog=told["backlog"],
        slots=int(told["slots"]),
        fill_slots=int(told["fill_slots"]),
    )
