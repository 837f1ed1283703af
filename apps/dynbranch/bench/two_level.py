"""Both gates on and off, and fixed thresholds instead of the second, on simulated engines: the paper's cells.

The knee of the load is where throughput over mean latency is largest without anything running ahead
(Kleinrock's power). All cells of a seed are asked the same questions at the same times. Engines are four of
the preset; their times are virtual, so that a seed gives the same numbers everywhere.
"""

from __future__ import annotations

import multiprocessing
import statistics
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from typing import Final

from dynbranch.bench.result import Measured, Tell
from dynbranch.bench.two_level_traffic import Traffic, questions
from dynbranch.bench.two_level_world import ENGINES, READING_S, World
from dynbranch.controller.core.branches.priced import LoadPriced
from dynbranch.controller.core.pricing.gate import Gate
from dynbranch.demo.measures import Figure, ratio
from dynbranch.enginemodel.parameters import BatchParameters, preset
from dynbranch.runtime.scheduling import usable_cores

PRESET: Final = "h200-qwen3-32b"
WIDTH: Final = 3
LOOSEST: Final = 0.1
"""What stands in for the price in the two cells that fix it: the least of the sweep."""
STRICTEST: Final = 0.999
THRESHOLDS: Final = (LOOSEST, 0.3, 0.5, 0.7, 0.9, STRICTEST)
LOW: Final = 0.15
"""Of the knee: the paper's two loads are 0.12 and 0.80 a second."""
BLOCK: Final = 50
"""Questions that follow one another share their moment's load: intervals are of blocks of so many."""


@dataclass(frozen=True, slots=True)
class Cell:
    """``action0``: whether branches are refused. ``threshold`` stands in for p*; None: the price does.
    ``ahead``: whether anything runs ahead at all."""

    name: str
    action0: bool = True
    threshold: float | None = None
    ahead: bool = True


NOTHING: Final = Cell("nothing ahead", ahead=False)
PRICED: Final = Cell("both priced")
LOOSE: Final = Cell("A0 off, A1 fixed", action0=False, threshold=LOOSEST)
CONTROL: Final = Cell(f"p* = {STRICTEST}", action0=False, threshold=STRICTEST)
CELLS: Final = (
    PRICED,
    Cell("A0 on, A1 fixed", threshold=LOOSEST),
    Cell("A0 off, A1 priced", action0=False),
    LOOSE,
    *(Cell(f"p* = {p}", action0=False, threshold=p) for p in THRESHOLDS if p not in (LOOSEST, STRICTEST)),
    CONTROL,
)


@dataclass(frozen=True, slots=True)
class Size:
    """``rates`` of the load curve, a second. At the knee the cells run with ``more_seeds``, too: there, what
    is close to a bound is to be told from chance. The first ``unseen`` questions of a run are not counted:
    classes learn, and the engines fill."""

    rates: tuple[float, ...] = tuple(round(0.2 * step, 1) for step in range(1, 16))
    seeds: tuple[int, ...] = (1, 2, 3)
    more_seeds: tuple[int, ...] = tuple(range(4, 13))
    count: int = 1250
    unseen: int = 250


QUICK: Final = Size((0.4, 1.2, 2.0, 2.8), seeds=(1,), more_seeds=(), count=150, unseen=50)


@dataclass(frozen=True, slots=True)
class Run:
    """One cell, one seed, one rate. Of each question that counts: latency, fills, predictions, and whose it
    is."""

    cell: Cell
    rate: float
    seed: int
    latencies_s: tuple[float, ...]
    fills: tuple[int, ...]
    drafts: tuple[int, ...]
    tenants: tuple[int, ...]
    outcomes: Mapping[str, int]

    @property
    def mean_s(self) -> float:
        return statistics.mean(self.latencies_s)


@dataclass(frozen=True, slots=True)
class Job:
    cell: Cell
    rate: float
    seed: int
    size: Size


def measure(tell: Tell, *, quick: bool = False, size: Size | None = None) -> Measured:
    size = size or (QUICK if quick else Size())
    with ProcessPoolExecutor(min(usable_cores(), 8), mp_context=multiprocessing.get_context("spawn")) as pool:
        curve_jobs = [Job(NOTHING, rate, seed, size) for rate in size.rates for seed in size.seeds]
        curve = list(_told(pool.map(run, curve_jobs), "load curve", len(curve_jobs), tell))
        knee = knee_of(curve)
        loads = {knee: (*size.seeds, *size.more_seeds), LOW * knee: size.seeds}
        jobs = [
            Job(cell, rate, seed, size) for rate, seeds in loads.items() for cell in CELLS for seed in seeds
        ]
        runs = list(_told(pool.map(run, jobs), "cells", len(jobs), tell))
    at_knee = [one for one in runs if one.rate == knee]
    at_low = [one for one in runs if one.rate != knee]
    return Measured(
        figures_of(at_knee, at_low),
        {
            "preset": PRESET,
            "engines": ENGINES,
            "reading_s": READING_S,
            "traffic": asdict(Traffic()),
            "size": asdict(size),
            "fixed": LOOSEST,
            "knee_rate": knee,
            "low_rate": LOW * knee,
            "load_curve": {str(rate): _row(_of(curve, NOTHING, rate)) for rate in size.rates},
            "knee": {cell.name: _row(_of(at_knee, cell)) for cell in CELLS},
            "low": {cell.name: _row(_of(at_low, cell)) for cell in CELLS},
        },
        (),
        _table(at_knee, at_low),
        f"At the knee ({knee:g}/s) and at {LOW:g} of it",
    )


def run(job: Job) -> Run:
    """In a process of its own."""
    size, traffic = job.size, Traffic()
    parameters = preset(PRESET)
    assert isinstance(parameters, BatchParameters)
    policy = None
    if job.cell.ahead:
        gate = Gate(seed=job.seed, judges=job.cell.action0, fixed_threshold=job.cell.threshold)
        policy = LoadPriced(gate, width=WIDTH)
    world = World(policy, parameters, traffic)
    asked = questions(traffic, rate=job.rate, count=size.count, seed=job.seed)
    finished = {one.number: one for one in world.run(asked)}
    counted = range(size.unseen, size.count)
    fills, drafts = Counter(world.fills), Counter(world.drafts)
    outcomes = Counter(outcome for number in counted for outcome in finished[number].outcomes)
    return Run(
        job.cell,
        job.rate,
        job.seed,
        tuple(finished[number].latency_s for number in counted),
        tuple(fills[number] for number in counted),
        tuple(drafts[number] for number in counted),
        tuple(asked[number].tenant for number in counted),
        dict(outcomes),
    )


def knee_of(curve: Sequence[Run]) -> float:
    """The rate at which throughput over mean latency is largest."""
    rates = sorted({one.rate for one in curve})
    return max(
        rates, key=lambda rate: rate / statistics.mean(one.mean_s for one in _of(curve, NOTHING, rate))
    )


def figures_of(at_knee: Sequence[Run], at_low: Sequence[Run]) -> dict[str, Figure]:
    return {
        "fills_a0off_a1fixed_over_both_priced": ratio(_pairs(at_knee, LOOSE, PRICED, "fills")),
        "priced_fills_per_request": per_request(_of(at_knee, PRICED), "fills"),
        "priced_mean_over_p999": ratio(_pairs(at_knee, PRICED, CONTROL, "latencies_s")),
        "priced_mean_over_a0off_a1fixed": ratio(_pairs(at_knee, PRICED, LOOSE, "latencies_s")),
        "low_priced_mean_over_p999": ratio(_pairs(at_low, PRICED, CONTROL, "latencies_s")),
        "low_priced_mean_over_a0off_a1fixed": ratio(_pairs(at_low, PRICED, LOOSE, "latencies_s")),
        "low_priced_fills_per_request": per_request(_of(at_low, PRICED), "fills"),
    }


def per_request(runs: Sequence[Run], what: str) -> Figure:
    return ratio([(value, 1.0) for one in runs for value in _blocks(getattr(one, what))])


def _pairs(runs: Sequence[Run], above: Cell, below: Cell, what: str) -> list[tuple[float, float]]:
    """Of both cells the means of the same questions, block by block."""
    found: list[tuple[float, float]] = []
    for one, other in zip(_of(runs, above), _of(runs, below), strict=True):
        assert one.seed == other.seed
        found += zip(_blocks(getattr(one, what)), _blocks(getattr(other, what)), strict=True)
    return found


def _blocks(values: Sequence[float]) -> list[float]:
    return [statistics.mean(values[at : at + BLOCK]) for at in range(0, len(values), BLOCK)]


def _of(runs: Sequence[Run], cell: Cell, rate: float | None = None) -> list[Run]:
    found = [one for one in runs if one.cell == cell and rate in (None, one.rate)]
    return sorted(found, key=lambda one: one.seed)


def _row(runs: Sequence[Run]) -> dict[str, object]:
    """Of all seeds of one cell at one rate."""
    outcomes: Counter[str] = Counter()
    for one in runs:
        outcomes.update(one.outcomes)
    requests = sum(len(one.latencies_s) for one in runs)
    return {
        "mean_s": round(statistics.mean(one.mean_s for one in runs), 3),
        "mean_s_by_seed": [round(one.mean_s, 3) for one in runs],
        "p99_s": round(_p99([value for one in runs for value in one.latencies_s]), 3),
        "fills_per_request": round(sum(sum(one.fills) for one in runs) / requests, 3),
        "predictions_per_request": round(sum(sum(one.drafts) for one in runs) / requests, 3),
        "outcomes_per_request": {name: round(n / requests, 3) for name, n in sorted(outcomes.items())},
        "by_tenant": _by_tenant(runs),
    }


def _by_tenant(runs: Sequence[Run]) -> dict[str, dict[str, float]]:
    """Who gains and who waits for it: tenants differ in how often the first of a ranking is right."""
    found = {}
    for tenant, rate in enumerate(Traffic().first):
        mine = [
            (latency_s, fills)
            for one in runs
            for latency_s, fills, whose in zip(one.latencies_s, one.fills, one.tenants, strict=True)
            if whose == tenant
        ]
        if mine:
            latencies_s = [latency_s for latency_s, _ in mine]
            found[str(rate)] = {
                "mean_s": round(statistics.mean(latencies_s), 3),
                "p99_s": round(_p99(latencies_s), 3),
                "fills_per_request": round(sum(fills for _, fills in mine) / len(mine), 3),
            }
    return found


def _p99(values: Sequence[float]) -> float:
    return sorted(values)[round(0.99 * (len(values) - 1))]


def _told(found: Iterable[Run], what: str, count: int, tell: Tell) -> Iterator[Run]:
    tell(what, 0, count)
    for number, one in enumerate(found, 1):
        tell(what, number, count)
        yield one


def _table(at_knee: Sequence[Run], at_low: Sequence[Run]) -> tuple[tuple[str, ...], ...]:
    heads = ("mean s", "over p*=.999", "fills", "predictions")
    rows: list[tuple[str, ...]] = [("cell", *(f"{load}{head}" for load in ("", "low: ") for head in heads))]
    for cell in CELLS:
        row = [cell.name]
        for runs in (at_knee, at_low):
            mine = _of(runs, cell)
            row += [
                f"{statistics.mean(one.mean_s for one in mine):.1f}",
                f"{ratio(_pairs(runs, cell, CONTROL, 'latencies_s')).value:.3f}",
                f"{per_request(mine, 'fills').value:.2f}",
                f"{per_request(mine, 'drafts').value:.2f}",
            ]
        rows.append(tuple(row))
    return tuple(rows)
