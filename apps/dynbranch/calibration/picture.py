"""The prior and the measured curves, side by side. Needs matplotlib, of the extra ``plot``."""

from __future__ import annotations

import importlib.util
from pathlib import Path

from dynbranch.controller.core.pricing.prices import Curve, PriceCurves

_POINTS = 200


def can_draw() -> bool:
    return importlib.util.find_spec("matplotlib") is not None


def draw(path: Path, measured: PriceCurves, prior: PriceCurves, title: str) -> None:
    """As the file's suffix says: png, svg or pdf. Raises OSError, ValueError."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 3.6), layout="constrained")
    axes = figure.subplots(1, 2)
    figure.suptitle(title)
    rows = (
        (measured.slot, prior.slot, "slots in use: canonical + fills", "ms per slot·s", 2.0),
        (measured.kv, prior.kv, "KV budget in use", "ms per budget·s", 1.0),
    )
    for axis, (found, before, across, up, right) in zip(axes, rows, strict=True):
        for curve, name, style in ((before, "prior", "--"), (found, "measured", "-")):
            across_points = [right * number / _POINTS for number in range(_POINTS + 1)]
            axis.plot(across_points, [curve.at(x) for x in across_points], style, label=name)
        inside = [(x, y) for x, y in _own(found, before) if x <= right]
        axis.plot([x for x, _ in inside], [y for _, y in inside], "o", markersize=3)
        axis.set_xlabel(across)
        axis.set_ylabel(f"{up}, per canonical request")
        axis.set_ylim(bottom=0)
        axis.legend()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path)


def _own(found: Curve, prior: Curve) -> list[tuple[float, float]]:
    """Without the points at the prior's places, which have their steepness from it."""
    places = {x for x, _ in prior.points}
    return [(x, y) for x, y in found.points if x not in places]
