"""Real snapshots of admission, out of what the controller tells of its branches."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from dynbranch.bench.admission_snapshots import Snapshot
from dynbranch.controller.core.pricing.load import View
from dynbranch.controller.core.pricing.ordering import Priceable
from dynbranch.controller.core.pricing.prices import Footprint, PriceCurves

_SAME: Final = 1e-6


class OtherPrices(ValueError):
    """The costs that were told do not follow from these curves."""


def snapshot_of(branch: Mapping[str, Any], curves: PriceCurves) -> Snapshot | None:
    """What Action 1 saw at this branch, of the candidates that it priced; None where there are none. A
    candidate's only engine is the one that it was priced at, as the others are not told. Raises OtherPrices.
    """
    priced = [row for row in branch["candidates"] if "slot_s" in row and "fill_slots" in row]
    if not priced:
        return None
    engines: dict[tuple[object, ...], str] = {}
    views: dict[str, View] = {}
    candidates = []
    for row in priced:
        view, footprint = _view(row), Footprint(row["slot_s"], row["kv_share"], row["kv_share_s"])
        expected_ms = curves.cost(view, footprint)
        if abs(expected_ms - row["cost_ms"]) > _SAME * max(1.0, expected_ms):
            raise OtherPrices(f"{row['cost_ms']:.3f} ms were told, and {expected_ms:.3f} follow")
        machine = (view.slots, view.fill_slots, view.rho_h, view.rho, view.backlog)
        engine = engines.setdefault(machine, f"engine-{len(engines) + 1}")
        # Whoever was priced before the first admission saw the engine as it was.
        known = views.get(engine)
        if known is None or (view.o_fill, view.o_kv) < (known.o_fill, known.o_kv):
            views[engine] = view
        candidates.append(
            Priceable(row["selection"], row["probability"], row["gain_ms"], footprint, (engine,))
        )
    return Snapshot(tuple(candidates), views, curves)


def _view(row: Mapping[str, Any]) -> View:
    return View(
        rho_h=row["rho_h"],
        rho=row["rho"],
        o_fill=row["o_fill"],
        o_kv=row["o_kv"],
        backlog=row["backlog"],
        slots=int(row["slots"]),
        fill_slots=int(row["fill_slots"]),
    )
