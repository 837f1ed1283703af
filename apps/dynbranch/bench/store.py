"""Can the store be trusted? Races, crashes, restores and hostile input, each counted, each to be zero."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable
from typing import Any

from dynbranch.bench.result import Measured, Tell
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
    """Every figure is a count of what went wrong."""
    parts: dict[str, Callable[[], Found]] = {
        "histories": lambda: run_histories(tell, SEED, calls),
        "simulation": lambda: run_simulation(tell, SEED, steps),
    }
    crashes = _optional("dynbranch.bench.store_crashes", "run_crashes")
    if crashes is not None:
        parts["crashes"] = lambda: crashes(tell, SEED, kills, cuts)
    hostile = _optional("dynbranch.bench.hostile", "run_hostile")
    if hostile is not None:
        parts["hostile"] = lambda: hostile(tell, SEED, bodies)
    figures: dict[str, Figure] = {}
    raw: dict[str, Any] = {}
    for name, part in parts.items():
        found, raw[name] = part()
        figures |= found
    wrong = tuple(f"{key} is {figure.value:g}, not 0" for key, figure in figures.items() if figure.value)
    return Measured(figures, raw, wrong)


def _optional(module: str, function: str) -> Callable[..., Found] | None:
    if importlib.util.find_spec(module) is None:
        return None
    found: Callable[..., Found] = getattr(importlib.import_module(module), function)
    return found
