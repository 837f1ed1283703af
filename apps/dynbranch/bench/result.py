"""A benchmark's result: the figures, and what a reader needs to judge or repeat them."""

from __future__ import annotations

import json
import os
import platform
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from dynbranch.demo.measures import Figure
from dynbranch.runtime.scheduling import usable_cores

Tell = Callable[[str, int, int], None]
"""Progress: what is going on, how many steps are done, and how many there are (0: not known)."""


class BenchFailed(Exception):
    """A benchmark could not measure what it is for. The message is for a person."""


@dataclass(frozen=True, slots=True)
class Measured:
    """What one benchmark found. ``failures`` says what did not hold, for a person; ``table``, the figures as
    a person compares them: a row of headings, then the others; ``tables``: more such, each with its title."""

    figures: Mapping[str, Figure]
    raw: Any
    failures: tuple[str, ...] = ()
    table: tuple[tuple[str, ...], ...] = ()
    table_title: str = "Medians"
    tables: tuple[tuple[str, tuple[tuple[str, ...], ...]], ...] = ()


@dataclass(frozen=True, slots=True)
class Surroundings:
    """The machine and the moment, taken before the benchmark starts."""

    commit: str
    machine: Mapping[str, Any]
    when: str
    load_average: float

    @classmethod
    def now(cls) -> Surroundings:
        return cls(
            commit=_commit(),
            machine={
                "cpu": _cpu(),
                "cores": usable_cores(),
                "memory_gib": _memory_gib(),
                "os": platform.system(),
            },
            when=datetime.now(UTC).isoformat(timespec="seconds"),
            load_average=round(os.getloadavg()[0], 2),
        )

    def took_s(self) -> int:
        """Whole seconds from then to now."""
        return round((datetime.now(UTC) - datetime.fromisoformat(self.when)).total_seconds())


def result_json(bench: str, measured: Measured, around: Surroundings) -> dict[str, Any]:
    return {
        "bench": bench,
        "command": f"dynbranch bench {bench} --json bench/results/{bench}.json",
        "commit": around.commit,
        "machine": dict(around.machine),
        "when": around.when,
        "load_average": around.load_average,
        "took_s": around.took_s(),
        "figures": {key: figure.as_json() for key, figure in measured.figures.items()},
        "raw": measured.raw,
    }


def write_result(path: Path, document: Mapping[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(document, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def _commit() -> str:
    """The checkout's commit, marked where its sources differ from it; empty outside a checkout."""
    folder = Path(__file__).parent
    try:
        commit = _git(folder, "rev-parse", "HEAD")
        changed = _git(
            folder, "status", "--porcelain", "--untracked-files=no", "--", ":(top)*.py", ":(top)*.lock"
        )
    except (OSError, subprocess.CalledProcessError):
        return ""
    return f"{commit}-modified" if changed else commit


def _git(folder: Path, *arguments: str) -> str:
    done = subprocess.run(
        ("git", *arguments), cwd=folder, capture_output=True, text=True, check=True, timeout=30
    )
    return done.stdout.strip()


def _cpu() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.machine()


def _memory_gib() -> float:
    pages, page = os.sysconf("SC_PHYS_PAGES"), os.sysconf("SC_PAGE_SIZE")
    return round(pages * page / 2**30, 1)
