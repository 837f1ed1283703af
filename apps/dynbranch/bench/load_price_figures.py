"""What is made of the segments: the same workflows in two arms at the same time are pairs."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
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
    """Arrivals of one load in one arm, beside another arm that had the same at the same time; ``pair`` counts
    the repetitions. Its workflows are in their order."""

    load: Load
    arm: str
    beside: str
    pair: int
    served: tuple[Served, ...]


def figures_of(segments: Sequence[Segment]) -> dict[str, Figure]:
    floor, priced, always = "floor", "priced", "always"
    tails = zip(
        _all(_of(segments, Load.SATURATED, priced, floor)),
        _all(_of(segments, Load.SATURATED, floor, priced)),
        strict=True,
    )
    return {
        "saturated_priced_mean_over_floor": _mean(segments, Load.SATURATED, priced, floor),
        "saturated_priced_p99_over_floor": ratio(list(tails), p99),
        "saturated_always_mean_over_priced": _mean(segments, Load.SATURATED, always, priced),
        "low_load_share_of_always_gain": ratio(
            [
                (floor_a - one, floor_b - other)
                for floor_a, one, floor_b, other in zip(
                    _blocks(_of(segments, Load.LOW, floor, priced)),
                    _blocks(_of(segments, Load.LOW, priced, floor)),
                    _blocks(_of(segments, Load.LOW, floor, always)),
                    _blocks(_of(segments, Load.LOW, always, floor)),
                    strict=True,
                )
            ]
        ),
        "fresh_mean_over_floor": _mean(segments, Load.FRESH, priced, floor),
        "low_priced_mean_over_floor": _mean(segments, Load.LOW, priced, floor),
        "low_always_mean_over_floor": _mean(segments, Load.LOW, always, floor),
        "equal_share": _equal(segments),
        "floor_vs_floor_equal_share": _floor_equal(segments),
    }


def _equal(segments: Sequence[Segment]) -> Figure:
    """Of workflows, those that were asked and answered as the floor's beside them. Beside others this engine
    may write otherwise than alone, whatever runs ahead."""
    return _as_said(
        (mine, its)
        for load in Load
        for arm in ("priced", "always")
        for mine, its in zip(
            _of(segments, load, arm, "floor"), _of(segments, load, "floor", arm), strict=True
        )
    )


def _floor_equal(segments: Sequence[Segment]) -> Figure:
    """The same of two floors that had the same workflows at different times: the control."""
    floors: dict[tuple[Load, str, int], list[Segment]] = {}
    for one in segments:
        if one.arm == "floor":
            floors.setdefault((one.load, one.beside, one.pair // 2), []).append(one)
    return _as_said((first, other) for first, *others in floors.values() for other in others)


def _as_said(pairs: Iterable[tuple[Segment, Segment]]) -> Figure:
    equal = [a.said == b.said for one, other in pairs for a, b in zip(one.served, other.served, strict=True)]
    return share(sum(equal), len(equal))


def p99(values: Sequence[float]) -> float:
    return sorted(values)[round(0.99 * (len(values) - 1))]


def rows_of(segments: Sequence[Segment]) -> list[dict[str, Any]]:
    return [
        {
            "load": one.load.value,
            "arm": one.arm,
            "beside": one.beside,
            "pair": one.pair,
            "latencies_ms": [round(each.latency_ms, 1) for each in one.served],
            "outcomes": dict(sorted(Counter(name for each in one.served for name in each.outcomes).items())),
        }
        for one in segments
    ]


def table_of(segments: Sequence[Segment]) -> tuple[tuple[str, ...], ...]:
    rows: list[tuple[str, ...]] = [("load", "arm", "beside", "workflows", "mean ms", "p99 ms", "ran ahead")]
    for load, arm, beside in dict.fromkeys((one.load, one.arm, one.beside) for one in segments):
        found = _of(segments, load, arm, beside)
        values = list(_all(found))
        outcomes = [name for one in found for each in one.served for name in each.outcomes]
        ahead = sum(name in ("promoted", "adopted") for name in outcomes)
        rows.append(
            (
                load.value,
                arm,
                beside,
                str(len(values)),
                f"{statistics.mean(values):.0f}",
                f"{p99(values):.0f}",
                f"{ahead / len(outcomes):.0%}",
            )
        )
    return tuple(rows)


def _of(segments: Sequence[Segment], load: Load, arm: str, beside: str) -> list[Segment]:
    """Repetition by repetition."""
    found = [one for one in segments if (one.load, one.arm, one.beside) == (load, arm, beside)]
    return sorted(found, key=lambda one: one.pair)


def _mean(segments: Sequence[Segment], load: Load, above: str, below: str) -> Figure:
    """Blocks have as many workflows in both arms; a last one may have fewer than the others."""
    one, other = _of(segments, load, above, below), _of(segments, load, below, above)
    return ratio(list(zip(_blocks(one), _blocks(other), strict=True)))


def _blocks(segments: Sequence[Segment]) -> Iterator[float]:
    for segment in segments:
        values = [one.latency_ms for one in segment.served]
        count = max(1, len(values) // BLOCK)
        cuts = [len(values) * place // count for place in range(count + 1)]
        for begin, end in pairwise(cuts):
            yield statistics.mean(values[begin:end])


def _all(segments: Sequence[Segment]) -> Iterator[float]:
    for segment in segments:
        for one in segment.served:
            yield one.latency_ms
