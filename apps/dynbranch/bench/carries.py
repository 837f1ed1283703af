"""What one process of each service carries: ``python -m dynbranch.bench.carries RESULTS PAGE``.

Reads ``pass_through.json`` and ``hit_path.json`` of the folder, and writes the table into the page.
"""

from __future__ import annotations

import json
import statistics
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from dynbranch.bench.pages import page_with

PLACE = "what one process carries"
FILLED = 0.7
"""How full a core may be: beyond it, queues grow faster than load."""

Row = tuple[str, ...]
_HEADINGS = ("one process", "does", "CPU µs each", "a second on a whole core", f"at {FILLED:.0%} of a core")


def table(passed: Mapping[str, Any], hits: Mapping[str, Any]) -> tuple[Row, ...]:
    """Medians over the rounds of the two results."""
    crowds = [one["crowd"]["dynbranch"]["cpu_us_per_request_of"] for one in passed["raw"]["rounds"]]
    streams = [one["streams"]["dynbranch"]["cpu_us_per_token_of"] for one in passed["raw"]["rounds"]]
    served = [one["crowd"]["dynbranch"]["cpu_us_per_request_of"] for one in hits["raw"]["rounds"]]
    return (
        _HEADINGS,
        _row("gateway", "hits", "gateway", served),
        _row("gateway", "requests that reach an engine", "gateway", crowds),
        _row("gateway", "streamed tokens", "gateway", streams),
        _row("store", "hits", "csl", served),
        _row("engine agent", "requests", "engine agent", crowds),
        _row("engine agent", "streamed tokens", "engine agent", streams),
    )


def _row(service: str, does: str, process: str, rounds: Iterable[Mapping[str, float]]) -> Row:
    each_us = statistics.median(one[process] for one in rounds)
    whole = 1e6 / each_us
    return (service, does, f"{each_us:,.0f}", f"{whole:,.0f}", f"{FILLED * whole:,.0f}")


def main() -> None:
    results, page = Path(sys.argv[1]), Path(sys.argv[2])
    passed, hits = (
        json.loads((results / f"{name}.json").read_text(encoding="utf-8"))
        for name in ("pass_through", "hit_path")
    )
    page.write_text(page_with(page.read_text(encoding="utf-8"), PLACE, table(passed, hits)), encoding="utf-8")


if __name__ == "__main__":
    main()
