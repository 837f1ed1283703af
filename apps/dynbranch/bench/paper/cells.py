"""Figure 8: four workloads, two loads and two machines, all arms; and the same at the knee of the load.

The paper's rates are 0.12 (HCI 0.3) and 0.80 a second. On engines of this model 0.80 is far from load, so
that each cell says how busy its engines were, and there is a third load: the rate at which throughput over
mean latency is largest without reuse or anything ahead (Kleinrock's power).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from dynbranch.bench.paper.parts import (
    Found,
    Line,
    Made,
    Panel,
    Rows,
    Table,
    deviation_s,
    greatest,
    least,
    mean_s,
    p99_ratio,
    p99_s,
    reduction,
    told,
)
from dynbranch.bench.paper.runs import BASELINES, MACHINES, WORKLOADS, Seen, Size, Spec
from dynbranch.demo.measures import Figure, exact, share
from dynbranch.sim.workloads.published import read_numbers
from dynbranch.sim.workloads.workload import load_rate, low_rate

KNEE: Final = "knee"
LOADS: Final = ("low", "load", KNEE)
ARMS: Final = ("floor", *BASELINES, "c1", "dynbranch")
CURVE: Final = (1.0, 2.0, 3.0, 4.0, 6.0, 8.0, 12.0, 16.0)
"""Rates at which the knee is looked for, a second."""
PAPER: Final[Mapping[tuple[str, str], str]] = {
    ("32B", "floor"): "-46 to -66",
    ("8B", "floor"): "-30 to -55",
    ("32B", "best low"): "-14 to -32",
    ("32B", "best load"): "-15 to -31, ReAct -6.2",
    ("8B", "best"): "-7 to -38",
}


@dataclass(frozen=True, slots=True)
class Cell:
    workload: str
    load: str
    machine: str

    @property
    def title(self) -> str:
        return f"{self.workload}, {self.load}, {self.machine}"


CELLS: Final = tuple(
    Cell(workload, load, machine) for machine in MACHINES for load in LOADS for workload in WORKLOADS
)


class EndToEnd:
    name = "figure 8"

    def wants(self, size: Size, found: Found) -> Sequence[Spec]:
        curve = [
            spec
            for workload in WORKLOADS
            for machine in MACHINES
            for rate in CURVE
            for spec in [_curve(workload, machine, rate, size)]
        ]
        cells = [cell for cell in CELLS if cell.load != KNEE]
        if all(spec in found for spec in curve):
            cells += [cell for cell in CELLS if cell.load == KNEE]
        return curve + [
            _spec(cell, arm, seed, size, found) for cell in cells for arm in ARMS for seed in size.seeds
        ]

    def make(self, size: Size, found: Found) -> Made:
        seen = {
            (cell, arm): tuple(found[_spec(cell, arm, seed, size, found)] for seed in size.seeds)
            for cell in CELLS
            for arm in ARMS
        }
        rates = {cell: rate_of(cell, size, found) for cell in CELLS}
        return Made(
            figures_of(seen),
            {"rates": {cell.title: rates[cell] for cell in CELLS}, "cells": _data(seen)},
            (_latencies(seen), _reductions(seen), _tails(seen, rates)),
            _panels(seen),
        )


By = Mapping[tuple[Cell, str], Sequence[Seen]]


def figures_of(seen: By) -> dict[str, Figure]:
    paper = [cell for cell in CELLS if cell.load != KNEE]
    lowest = [cell for cell in paper if is_lowest(cell, seen)]
    ahead = {cell: reduction(seen[cell, "dynbranch"], seen[cell, strongest(cell, seen)]) for cell in CELLS}
    low_32b = [ahead[cell] for cell in paper if (cell.load, cell.machine) == ("low", "32B")]
    knee_32b = [cell for cell in CELLS if (cell.load, cell.machine) == (KNEE, "32B")]
    return {
        "cells_dynbranch_lowest": exact(len(lowest), len(paper)),
        "vs_floor_min_32b": least([_sooner(cell, seen) for cell in paper if cell.machine == "32B"]),
        "vs_floor_min_8b": least([_sooner(cell, seen) for cell in paper if cell.machine == "8B"]),
        "vs_best_baseline_min_low_32b": least(low_32b),
        "vs_best_baseline_react_load_32b": ahead[Cell("react", "load", "32B")],
        "vs_best_baseline_react_knee_32b": ahead[Cell("react", KNEE, "32B")],
        "vs_floor_min_knee_32b": least([_sooner(cell, seen) for cell in knee_32b]),
        "cells_dynbranch_lowest_with_knee": exact(sum(is_lowest(cell, seen) for cell in CELLS), len(CELLS)),
        "p99_over_floor_max_ci_high": greatest(
            [p99_ratio(seen[cell, "dynbranch"], seen[cell, "floor"]) for cell in CELLS]
        ),
        "task_results_identical_share": identical_share(seen),
    }


def identical_share(seen: By) -> Figure:
    """Of all workflows of all arms, those of runs in which every call was answered as an execution would have
    answered it."""
    every = [one for runs in seen.values() for one in runs]
    return share(sum(one.workflows for one in every if not one.wrong), sum(one.workflows for one in every))


def is_lowest(cell: Cell, seen: By) -> bool:
    mine = mean_s(seen[cell, "dynbranch"])
    return all(mine < mean_s(seen[cell, arm]) for arm in ARMS if arm != "dynbranch")


def strongest(cell: Cell, seen: By) -> str:
    """The baseline with the lowest mean."""
    return min(BASELINES, key=lambda arm: mean_s(seen[cell, arm]))


def rate_of(cell: Cell, size: Size, found: Found) -> float:
    if cell.load != KNEE:
        return published_rate(cell.workload, cell.load, cell.machine)
    return max(CURVE, key=lambda rate: power(found[_curve(cell.workload, cell.machine, rate, size)]))


def power(seen: Seen) -> float:
    """Throughput over mean latency."""
    return seen.workflows / seen.ended_s / mean_s([seen])


def published_rate(workload: str, load: str, machine: str = "32B") -> float:
    """A second, as the workload's file says."""
    numbers = read_numbers()
    kind = workload.replace("sub-agent", "subagent")
    if machine == "8B":
        own = f"rates.small_{load}_{kind}"
        return float(numbers[own if own in numbers.found else f"rates.small_{load}"])
    return low_rate(kind, numbers) if load == "low" else load_rate(kind, numbers)


def _curve(workload: str, machine: str, rate: float, size: Size) -> Spec:
    count, seed = round(size.curve_s * rate), size.seeds[0]
    return Spec(workload, "floor", MACHINES[machine], rate=rate, count=count, seed=seed, mix="fresh")


def _spec(cell: Cell, arm: str, seed: int, size: Size, found: Found) -> Spec:
    rate = rate_of(cell, size, found)
    count = max(size.count, round(size.knee_s * rate)) if cell.load == KNEE else size.count
    return Spec(cell.workload, arm, MACHINES[cell.machine], rate=rate, count=count, seed=seed)


def _sooner(cell: Cell, seen: By) -> Figure:
    return reduction(seen[cell, "dynbranch"], seen[cell, "floor"])


def _data(seen: By) -> dict[str, Any]:
    return {
        f"{cell.title}, {arm}": {
            "mean_s": round(mean_s(runs), 4),
            "deviation_s": round(deviation_s(runs), 4),
            "over_floor": told(reduction(runs, seen[cell, "floor"])),
            "p99_s": round(p99_s([latency for one in runs for latency in one.latencies_s]), 3),
            "utilisation": round(sum(one.utilisation for one in runs) / len(runs), 4),
            "fills_per_workflow": round(
                sum(one.fills for one in runs) / sum(one.workflows for one in runs), 3
            ),
            "discarded_s_per_workflow": round(
                sum(one.discarded_s for one in runs) / sum(one.workflows for one in runs), 3
            ),
            "wrong": sum(one.wrong for one in runs),
        }
        for (cell, arm), runs in seen.items()
    }


def _latencies(seen: By) -> Table:
    rows: Rows = [("mean latency, s", *ARMS)]
    for cell in CELLS:
        rows.append((cell.title, *(f"{mean_s(seen[cell, arm]):.2f}" for arm in ARMS)))
    return Table("Figure 8: mean latency", tuple(rows))


def _reductions(seen: By) -> Table:
    rows: Rows = [("reduction, %", "against the floor", "paper", "strongest baseline", "against it", "paper")]
    for cell in CELLS:
        best = strongest(cell, seen)
        key = f"best {cell.load}" if cell.machine == "32B" else "best"
        at_knee = cell.load == KNEE
        rows.append(
            (
                cell.title,
                told(_sooner(cell, seen)),
                "" if at_knee else PAPER[cell.machine, "floor"],
                best,
                told(reduction(seen[cell, "dynbranch"], seen[cell, best])),
                "" if at_knee else PAPER[cell.machine, key],
            )
        )
    return Table("Figure 8: DynBranch against the floor and the strongest baseline", tuple(rows))


def _tails(seen: By, rates: Mapping[Cell, float]) -> Table:
    rows: Rows = [
        (
            "cell",
            "rate a second",
            "slots busy, floor %",
            "p99 over the floor's",
            "fills a workflow",
            "their time discarded %",
        )
    ]
    for cell in CELLS:
        floor, mine = seen[cell, "floor"], seen[cell, "dynbranch"]
        busy = sum(one.utilisation for one in floor) / len(floor)
        fills = sum(one.fills for one in mine) / sum(one.workflows for one in mine)
        rows.append(
            (
                cell.title,
                f"{rates[cell]:g}",
                f"{100 * busy:.1f}",
                told(p99_ratio(mine, floor), percent=False),
                f"{fills:.2f}",
                f"{100 * discarded_share(mine):.0f}",
            )
        )
    return Table("Figure 8: load and tails (paper's p99 at 32B: -11 to -36 %, HCI equal)", tuple(rows))


def discarded_share(runs: Sequence[Seen]) -> float:
    """Of the engine time of what ran ahead."""
    consumed_s, discarded_s = sum(one.consumed_s for one in runs), sum(one.discarded_s for one in runs)
    return discarded_s / (consumed_s + discarded_s) if discarded_s else 0.0


def _panels(seen: By) -> tuple[Panel, ...]:
    return tuple(
        Panel(
            f"{machine}, {load}",
            "",
            "mean latency, s",
            tuple(
                Line(
                    arm,
                    WORKLOADS,
                    tuple(mean_s(seen[Cell(workload, load, machine), arm]) for workload in WORKLOADS),
                    tuple(deviation_s(seen[Cell(workload, load, machine), arm]) for workload in WORKLOADS),
                )
                for arm in ARMS
            ),
            bars=True,
        )
        for machine in MACHINES
        for load in LOADS
    )
