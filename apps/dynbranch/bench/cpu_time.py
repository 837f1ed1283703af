"""CPU time of other processes, and the cores they may use."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

_WHOLE_PROCESS = 2
"""Which clock of a process: user and system time of all its threads, those that ended included."""


@dataclass(frozen=True, slots=True)
class Cores:
    """What is measured has cores of its own, away from load and engine. Empty: there is no choice."""

    measured: tuple[int, ...]
    load: tuple[int, ...]

    @classmethod
    def choose(cls) -> Cores:
        """The machine's first usable core for what is measured, the second for the rest."""
        usable = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
        return cls((usable[0],), (usable[1],)) if len(usable) > 1 else cls((), ())

    @property
    def both(self) -> tuple[int, ...]:
        return self.measured + self.load


def pin(pids: Iterable[int], cores: tuple[int, ...]) -> None:
    """Every thread there is; threads that begin later take it over from the one that starts them."""
    if not cores:
        return
    for pid in pids:
        for thread in Path(f"/proc/{pid}/task").iterdir():
            try:
                os.sched_setaffinity(int(thread.name), cores)
            except ProcessLookupError:
                continue


def cpu_s(pids: Iterable[int]) -> float:
    """User and system time of whole processes since they began: /proc/PID/stat's, in nanosecond steps.

    Linux has a clock for each process, numbered by its id (clock_getcpuclockid(3)).
    """
    return sum(time.clock_gettime((~pid << 3) | _WHOLE_PROCESS) for pid in pids)
