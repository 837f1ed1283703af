"""Can the store be trusted? Races, crashes, restores and hostile input, each counted, each to be zero."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dynbranch.bench.hostile import run_hostile
from dynbranch.bench.result import Measured, Tell
from dynbranch.bench.store_crashes import run_crashes
from dynbranch.bench.store_histories import run_histories
from dynbranch.bench.store_simulation import run_simulation
from dynbranch.demo.measures import Figure

SEED = 1
CALLS = 100_000
STEPS = 1_000_000
KILLS = 200
CUTS = 100
BODIES = 100_000

Found = tuple[dict[str, Figure], dict[str, Any]]
"""Figures by key, and what a reader needs beside them."""


def measure(
    tell: Tell,
    *,
    calls: int = CALLS,
    steps: int = STEPS,
    kills: int = KILLS,
    cuts: int = CUTS,
    bodies: int = BODIES,
) -> Measured:
    """Every figure is a count of what went wrong. A part that saw too little to show anything fails."""
    parts: dict[str, Callable[[], Found]] = {
        "histories": lambda: run_histories(tell, SEED, calls),
        "simulation": lambda: run_simulation(tell, SEED, steps),
        "crashes": lambda: run_crashes(tell, SEED, kills, cuts),
        "hostile": lambda: run_hostile(tell, SEED, bodies),
    }
    figures: dict[str, Figure] = {}
    raw: dict[str, Any] = {}
    for name, part in parts.items():
        found, raw[name] = part()
        figures |= found
    wrong = tuple(f"{key} is {figure.value:g}, not 0" for key, figure in figures.items() if figure.value)
    vacuous = tuple(line for part in raw.values() for line in part.get("too_little", ()))
    return Measured(figures, raw, wrong + vacuous)
