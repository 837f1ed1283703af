"""A part of the evaluation, one figure or table of the paper: the runs it needs, what it makes of them."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from dynbranch.bench.paper.runs import Seen, Size, Spec
from dynbranch.demo.measures import Figure, bootstrap, ratio

BLOCK = 50
"""Workflows that follow one another share their moment's load: intervals are of blocks of so many turns."""

P99_RESAMPLES = 500
"""Each sorts all turns of a cell."""

Found = Mapping[Spec, Seen]
Rows = list[tuple[str, ...]]


@dataclass(frozen=True, slots=True)
class Table:
    """``rows``: the headings, then the others."""

    title: str
    rows: tuple[tuple[str, ...], ...]


@dataclass(frozen=True, slots=True)
class Line:
    """One curve or one group of bars: ``y`` over ``x``, with ``spread`` to either side where it is known."""

    name: str
    x: tuple[float | str, ...]
    y: tuple[float, ...]
    spread: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class Panel:
    title: str
    across: str
    up: str
    lines: tuple[Line, ...]
    bars: bool = False
    log_x: bool = False


@dataclass(frozen=True, slots=True)
class Made:
    """What a part comes to: ``figures`` for comparison, ``data`` as JSON, ``tables`` beside the paper's
    numbers, ``panels`` of its picture."""

    figures: Mapping[str, Figure] = field(default_factory=dict)
    data: Mapping[str, Any] = field(default_factory=dict)
    tables: tuple[Table, ...] = ()
    panels: tuple[Panel, ...] = ()


class Part(Protocol):
    """``name``: as the paper counts, ``figure 8`` or ``table 2``."""

    @property
    def name(self) -> str: ...

    def wants(self, size: Size, found: Found) -> Sequence[Spec]:
        """The runs it needs, as far as it can tell from those that it has: asked again until it has all."""
        ...

    def make(self, size: Size, found: Found) -> Made: ...


def of_seeds(found: Found, spec: Callable[[int], Spec], size: Size) -> tuple[Seen, ...]:
    return tuple(found[spec(seed)] for seed in size.seeds)


def mean_s(runs: Sequence[Seen]) -> float:
    return statistics.fmean(latency for one in runs for latency in one.latencies_s)


def deviation_s(runs: Sequence[Seen]) -> float:
    """Of the means of the seeds, as the paper's error bars."""
    means = [statistics.fmean(one.latencies_s) for one in runs]
    return statistics.stdev(means) if len(means) > 1 else 0.0


def p99_s(latencies_s: Sequence[float]) -> float:
    return sorted(latencies_s)[round(0.99 * (len(latencies_s) - 1))]


def blocks(latencies_s: Sequence[float]) -> list[float]:
    return [statistics.fmean(latencies_s[at : at + BLOCK]) for at in range(0, len(latencies_s), BLOCK)]


def mean_ratio(above: Sequence[Seen], below: Sequence[Seen]) -> Figure:
    """Means of the same turns of both, block by block."""
    pairs: list[tuple[float, float]] = []
    for one, other in zip(above, below, strict=True):
        pairs += zip(blocks(one.latencies_s), blocks(other.latencies_s), strict=True)
    return ratio(pairs)


def reduction(of: Sequence[Seen], against: Sequence[Seen]) -> Figure:
    """How much sooner, as a share of ``against``."""
    over = mean_ratio(of, against)
    return Figure(1 - over.value, 1 - over.ci_high, 1 - over.ci_low, over.n)


def p99_ratio(above: Sequence[Seen], below: Sequence[Seen]) -> Figure:
    """Of the same turns of both; whole blocks are resampled, as neighbours share their load."""
    pairs: list[tuple[list[float], list[float]]] = []
    for one, other in zip(above, below, strict=True):
        assert len(one.latencies_s) == len(other.latencies_s)
        for at in range(0, len(one.latencies_s), BLOCK):
            pairs.append((list(one.latencies_s[at : at + BLOCK]), list(other.latencies_s[at : at + BLOCK])))

    def of(sample: Sequence[tuple[list[float], list[float]]]) -> float:
        return p99_s([v for a, _ in sample for v in a]) / p99_s([v for _, b in sample for v in b])

    return replace(bootstrap(pairs, of, resamples=P99_RESAMPLES), n=sum(len(a) for a, _ in pairs))


def least(figures: Sequence[Figure]) -> Figure:
    """The smallest over cells, each end of the interval for itself."""
    return _of_each_end(min, figures)


def greatest(figures: Sequence[Figure]) -> Figure:
    return _of_each_end(max, figures)


def _of_each_end(of: Callable[[Iterable[float]], float], figures: Sequence[Figure]) -> Figure:
    value, low, high = (
        of(ends) for ends in zip(*((one.value, one.ci_low, one.ci_high) for one in figures), strict=True)
    )
    return Figure(value, low, high, sum(one.n for one in figures))


def told(figure: Figure, percent: bool = True) -> str:
    scale = 100 if percent else 1
    return f"{figure.value * scale:.1f} ({figure.ci_low * scale:.1f} to {figure.ci_high * scale:.1f})"
