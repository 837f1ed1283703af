"""What DynBranch costs, and what one process of each service carries.

``python -m dynbranch.bench.carries RESULTS PAGE`` reads ``pass_through.json`` and ``hit_path.json`` of the
folder, and writes both tables into the page.
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
COSTS_PLACE = "what it costs"
FILLED = 0.7
"""How full a core may be: beyond it, queues grow faster than load."""

Row = tuple[str, ...]
_HEADINGS = ("one process", "does", "CPU µs each", "a second on a whole core", f"at {FILLED:.0%} of a core")

_COSTS = (
    ("a hit, HTTP to HTTP, 1 KiB", "hit_path", "p50_ms_c1", "{} ms"),
    ("the same for 99 of 100", "hit_path", "p99_ms_c1", "{} ms"),
    (
        "hits a second of gateway and store, 32 clients and their load on the same two cores",
        "hit_path",
        "requests_per_s_c32",
        "{}",
    ),
    (
        "first byte of a streamed hit, over that of a plain one",
        "hit_path",
        "stream_first_byte_over_plain",
        "{} times",
    ),
    (
        "a hit for 99 of 100 while a write fells 10,000 results",
        "hit_path",
        "p99_ms_during_1e4_cascade",
        "{} ms",
    ),
    ("added to a request that can not be reused", "pass_through", "added_p50_ms", "{} ms"),
    (
        "CPU time of such a request, over that of a proxy that does nothing",
        "pass_through",
        "cpu_per_request_over_plain_proxy",
        "{} times",
    ),
    (
        "CPU time of a streamed token, over the same proxy's",
        "pass_through",
        "cpu_per_token_over_plain_proxy",
        "{} times",
    ),
    (
        "added between two tokens for 99 of 100, 32 streams of 50 a second",
        "pass_through",
        "inter_token_added_p99_ms",
        "{} ms",
    ),
    (
        "added for 99 of 100 while the store is dead or hangs",
        "pass_through",
        "csl_down_added_p99_ms",
        "{} ms",
    ),
    ("the longest request while the store hangs", "pass_through", "csl_down_longest_ms", "{} ms"),
)


def costs(passed: Mapping[str, Any], hits: Mapping[str, Any]) -> tuple[Row, ...]:
    """Each figure with its 95 % interval."""
    results = {"pass_through": passed["figures"], "hit_path": hits["figures"]}
    rows: list[Row] = [("what", "value", "95 % interval", "benchmark")]
    for what, bench, key, unit in _COSTS:
        figure = results[bench][key]
        low, high = _short(figure["ci_low"]), _short(figure["ci_high"])
        rows.append((what, unit.format(_short(figure["value"])), f"{low}–{high}", f"`{bench}`"))
    return tuple(rows)


def _short(number: float) -> str:
    return f"{number:,.0f}" if number >= 100 else f"{number:.1f}" if number >= 10 else f"{number:.2f}"


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
    text = page_with(page.read_text(encoding="utf-8"), COSTS_PLACE, costs(passed, hits))
    page.write_text(page_with(text, PLACE, table(passed, hits)), encoding="utf-8")


if __name__ == "__main__":
    main()
