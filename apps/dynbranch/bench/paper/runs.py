"""The runs of the evaluation: one arm before one workload on one machine, each in a process of its own."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Final

from dynbranch.runtime.scheduling import usable_cores

WORKLOADS: Final = ("routing", "react", "sub-agent", "hci")
H200: Final = "h200-qwen3-32b"
RTX4090: Final = "rtx4090-qwen3-8b"
MACHINES: Final = {"32B": H200, "8B": RTX4090}
BASELINES: Final = ("instcache", "helium", "parrot", "dsp", "spagent")
"""What is compared with; ``c1`` is a part of DynBranch."""


@dataclass(frozen=True, slots=True)
class Spec:
    """One run. ``rate`` of Poisson arrivals a second, or ``clients`` in a closed loop, or ``phased``; what is
    None is as the workload's file says. ``mix``: which of the workload's mixes. ``slots``: of each engine."""

    workload: str
    arm: str
    machine: str = H200
    engines: int = 4
    rate: float | None = None
    clients: int = 0
    phased: bool = False
    count: int = 0
    seed: int = 1
    mix: str = ""
    replay: float | None = None
    width: int | None = None
    slowness: float = 1.0
    """Of a step, against the machine's: smaller and larger models."""
    drafter: tuple[float, float, float] | None = None
    """Another predictor instead of the workload's: how often it is right with its first candidate and with
    one of three, and the seconds it takes."""


@dataclass(frozen=True, slots=True)
class Seen:
    """Of every measured turn that counts, in the workflows' order: its latency. The rest of all workflows
    that count: ``kinds``: of which kind each turn's workflow is; ``phases``: in which phase it began."""

    latencies_s: tuple[float, ...]
    kinds: tuple[str, ...] = ()
    phases: tuple[str, ...] = ()
    workflows: int = 0
    wrong: int = 0
    calls: int = 0
    ended_s: float = 0.0
    """When the last workflow had ended."""
    outcomes: Mapping[str, int] = field(default_factory=dict)
    fills: int = 0
    consumed: int = 0
    consumed_s: float = 0.0
    discarded_s: float = 0.0
    predictions: int = 0
    opened: int = 0
    refused: int = 0
    utilisation: float = 0.0
    """Running requests of canonical work over slots, over time."""
    stretch: float = 0.0
    by_phase: Mapping[str, Mapping[str, float]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Size:
    """``unseen``: the first workflows of a run do not count, as nothing is known yet. Serial runs have
    ``serial`` workflows. The load curve's runs last ``curve_s``, those at its knee ``knee_s`` at least.
    ``data``: a folder of records instead of the package's."""

    seeds: tuple[int, ...] = (1, 2, 3)
    count: int = 700
    unseen: int = 70
    serial: int = 300
    serial_unseen: int = 50
    curve_s: float = 240.0
    knee_s: float = 120.0
    data: Path | None = None


QUICK: Final = Size((1,), count=120, unseen=30, serial=60, serial_unseen=15, curve_s=20.0, knee_s=20.0)

Run = Callable[[Spec, Size], Seen]


def perform(
    specs: Sequence[Spec],
    run: Run,
    size: Size,
    told: Callable[[int], None],
) -> dict[Spec, Seen]:
    """All of them, on all cores; ``told`` how many are done. The longest first, so that no core is left with
    one at the end."""
    order = sorted(specs, key=lambda spec: (-spec.count, spec.rate or 0.0))
    found: dict[Spec, Seen] = {}
    with ProcessPoolExecutor(usable_cores(), mp_context=multiprocessing.get_context("spawn")) as pool:
        seen: Iterable[Seen] = pool.map(partial(_one, run=run, size=size), order)
        for number, (spec, one) in enumerate(zip(order, seen, strict=True), 1):
            found[spec] = one
            told(number)
    return found


def _one(spec: Spec, run: Run, size: Size) -> Seen:
    return run(spec, size)
