"""The evaluation's pictures. Needs matplotlib, of the extra ``plot``."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dynbranch.bench.paper.parts import Panel

_WIDTH, _HEIGHT = 4.6, 3.4
_COLUMNS = 4


def draw(path: Path, title: str, panels: Sequence[Panel]) -> None:
    """As the file's suffix says: png, svg or pdf. Raises OSError, ValueError."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    columns = min(_COLUMNS, len(panels))
    rows = -(-len(panels) // columns)
    figure = Figure(figsize=(_WIDTH * columns, _HEIGHT * rows), layout="constrained")
    axes = figure.subplots(rows, columns, squeeze=False)
    figure.suptitle(title)
    for number, axis in enumerate(axes.flat):
        if number < len(panels):
            _panel(axis, panels[number])
        else:
            axis.set_axis_off()
    path.parent.mkdir(parents=True, exist_ok=True)
    # Texts stay texts, and without a date the same numbers make the same file.
    with rc_context({"svg.fonttype": "none", "svg.hashsalt": title}):
        figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)


def _panel(axis: Any, panel: Panel) -> None:
    axis.set_title(panel.title, fontsize="medium")
    axis.set_xlabel(panel.across)
    axis.set_ylabel(panel.up)
    if panel.bars:
        _bars(axis, panel)
    else:
        for line in panel.lines:
            axis.errorbar(line.x, line.y, yerr=line.spread or None, marker="o", markersize=3, label=line.name)
    if panel.log_x:
        axis.set_xscale("log")
    if all(value >= 0 for line in panel.lines for value in line.y):
        axis.set_ylim(bottom=0)
    if len(panel.lines) > 1:
        axis.legend(fontsize="small")


def _bars(axis: Any, panel: Panel) -> None:
    places = list(dict.fromkeys(x for line in panel.lines for x in line.x))
    width = 0.8 / len(panel.lines)
    for number, line in enumerate(panel.lines):
        left = [places.index(x) + (number - (len(panel.lines) - 1) / 2) * width for x in line.x]
        axis.bar(left, line.y, width, yerr=line.spread or None, label=line.name)
    axis.set_xticks(range(len(places)), [str(place) for place in places])
