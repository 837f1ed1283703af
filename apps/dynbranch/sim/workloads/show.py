"""What the workloads come to, as a table: ``python -m dynbranch.sim.workloads.show [--data FOLDER]``."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import fmean
from typing import Final

from dynbranch.sim.workloads.description import Description, describe
from dynbranch.sim.workloads.published import read_numbers
from dynbranch.sim.workloads.workload import workload

SHOWN: Final = ("routing", "react", "subagent", "hci", "commands")

ROWS: Final[Sequence[tuple[str, Callable[[Description], float]]]] = (
    ("mean time of what is measured, alone, s", lambda one: one.floor_s),
    ("window, s (median)", lambda one: one.window_s),
    ("what follows a decision, s (median)", lambda one: one.execution_s),
    ("windows over the rest", lambda one: one.window_over_execution),
    ("share that can run ahead", lambda one: one.fillable),
    ("share that an earlier workflow made", lambda one: one.reusable),
    ("exact repetitions", lambda one: one.repeated),
    ("workflows with a part of another", lambda one: one.overlapping),
    ("stages of new workflows that recur by themselves", lambda one: one.recurring),
    ("calls a workflow", lambda one: one.calls),
    ("decisions a workflow", lambda one: one.decisions),
    ("candidates a decision", lambda one: one.candidates),
    ("picked: the first candidate", lambda one: one.top[0]),
    ("picked: one of two", lambda one: one.top[1]),
    ("picked: one of three", lambda one: one.top[2]),
    ("choices that show, or are spoken of, before their decode's end", lambda one: one.shown),
    ("other candidates that are picked later", lambda one: one.later),
)


def table(data: Path | None, count: int, seeds: Sequence[int]) -> str:
    """Means over seeds, as Markdown."""
    found = {
        name: [describe(workload(name, count=count, seed=seed, data=data)) for seed in seeds]
        for name in SHOWN
    }
    lines = ["| | " + " | ".join(SHOWN) + " |", "|---" * (len(SHOWN) + 1) + "|"]
    for title, value in ROWS:
        cells = (f"{fmean(value(one) for one in found[name]):.2f}" for name in SHOWN)
        lines.append(f"| {title} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main() -> None:
    numbers = read_numbers()
    parser = argparse.ArgumentParser(description="What the workloads come to by themselves.")
    parser.add_argument("--data", type=Path, help="a folder of records instead of the package's")
    parser.add_argument("--count", type=int, default=numbers["stream.count"], help="workflows a stream")
    given = parser.parse_args()
    seeds = numbers["stream.seeds"]
    print(f"Means over the seeds {', '.join(map(str, seeds))} of {given.count} workflows each.\n")
    print(table(given.data, given.count, seeds))


if __name__ == "__main__":
    main()
