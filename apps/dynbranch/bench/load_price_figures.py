"""What is made of the segments: the same workflows in two arms are pairs."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from itertools import pairwise
from typing import Any, Final

from dynbranch.demo.measures import Figure, ratio, share

BLOCK: Final = 4
"""Workflows that follow one another wait for one another: intervals are of means of so many."""


class Load(Enum):
    SATURATED = "saturated"
    LOW = "low"
    FRESH = "fresh"


@dataclass(frozen=True, slots=True)
class Served:
    """One workflow: what was waited for it, how its requests were served, and a digest of what was said."""

    latency_ms: float
    outcomes: tuple[str, ...]
    said: str = ""


@dataclass(frozen=True, slots=True)
class Segment:
    """Arrivals of one load in one arm; ``pair`` counts the repetitions. Its workflows are in their order."""

    load: Load
    arm: str
    pair: int
    served: tuple[Served, ...]


def figures_of(segments: Sequence[Segment]) -> dict[str, Figure]:
    saturated = _latencies(segments, Load.SATURATED)
    low, fresh = _latencies(segments, Load.LOW), _latencies(segments, Load.FRESH)
    return {
        "saturated_priced_mean_over_floor": _mean(saturated, "priced", "floor"),
        "saturated_priced_p99_over_floor": ratio(
            list(zip(_all(saturated["priced"]), _all(saturated["floor"]), strict=True)), p99
        ),
        "saturated_always_mean_over_priced": _mean(saturated, "always", "priced"),
        "low_load_share_of_always_gain": ratio(
            [
                (floor - priced, floor - always)
                for floor, priced, always in zip(
                    *(list(_blocks(low[arm])) for arm in ("floor", "priced", "always")), strict=True
                )
            ]
        ),
        "fresh_mean_over_floor": _mean(fresh, "priced", "floor"),
        "low_priced_mean_over_floor": _mean(low, "priced", "floor"),
        "low_always_mean_over_floor": _mean(low, "always", "floor"),
        "saturated_always_mean_over_floor": _mean(saturated, "always", "floor"),
        "equal_share": _equal(segments),
    }


def _equal(segments: Sequence[Segment]) -> Figure:
    """Of workflows, those that were asked and answered as the floor's. Beside others this engine may write
    otherwise than alone, whatever runs ahead."""
    floor = {(one.load, one.pair): one.served for one in segments if one.arm == "floor"}
    equal = [
        mine.said == its.said
        for one in segments
        if one.arm != "floor"
        for mine, its in zip(one.served, floor[one.load, one.pair], strict=True)
    ]
    return share(sum(equal), len(equal))


def p99(values: Sequence[float]) -> float:
    return sorted(values)[round(0.99 * (len(values) - 1))]


def rows_of(segments: Sequence[Segment]) -> list[dict[str, Any]]:
    return [
        {
            "load": one.load.value,
            "arm": one.arm,
            "pair": one.pair,
            "latencies_ms": [round(each.latency_ms, 1) for each in one.served],
            "outcomes": dict(sorted(Counter(name for each in one.served for name in each.outcomes).items())),
        }
        for one in segments
    ]


def table_of(segments: Sequence[Segment]) -> tuple[tuple[str, ...], ...]:
    rows: list[tuple[str, ...]] = [("load", "arm", "workflows", "mean ms", "p99 ms", "ran ahead")]
    for load in Load:
        for arm, found in _latencies(segments, load).items():
            values = list(_all(found))
            outcomes = [
                name
                for one in segments
                if (one.load, one.arm) == (load, arm)
                for each in one.served
                for name in each.outcomes
            ]
            ahead = sum(name in ("promoted", "adopted") for name in outcomes)
            rows.append(
                (
                    load.value,
                    arm,
                    str(len(values)),
                    f"{statistics.mean(values):.0f}",
                    f"{p99(values):.0f}",
                    f"{ahead / len(outcomes):.0%}",
                )
            )
    return tuple(rows)


def _latencies(segments: Sequence[Segment], load: Load) -> dict[str, list[list[float]]]:
    """By arm, repetition by repetition."""
    found: dict[str, list[list[float]]] = {}
    for one in sorted(segments, key=lambda each: each.pair):
        if one.load is load:
            found.setdefault(one.arm, []).append([each.latency_ms for each in one.served])
    return found


def _mean(found: dict[str, list[list[float]]], above: str, below: str) -> Figure:
    """Blocks have as many workflows in both arms; a last one may have fewer than the others."""
    return ratio(list(zip(_blocks(found[above]), _blocks(found[below]), strict=True)))


def _blocks(repetitions: Sequence[Sequence[float]]) -> Iterator[float]:
    for values in repetitions:
        count = max(1, len(values) // BLOCK)
        cuts = [len(values) * place // count for place in range(count + 1)]
        for begin, end in pairwise(cuts):
            yield statistics.mean(values[begin:end])


def _all(repetitions: Sequence[Sequence[float]]) -> Iterator[float]:
    for values in repetitions:
        yield from values
