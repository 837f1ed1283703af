"""The names benchmark at its full size."""

from __future__ import annotations

from dynbranch.bench import names
from dynbranch.bench.result import Measured, Tell
from dynbranch.demo.measures import Figure

PAIRS = 30_000
"""Enough that the pairs with equal names alone are more than 10,000."""

SEED = 1


def measure(tell: Tell, *, pairs: int = PAIRS) -> Measured:
    found = names.run(pairs, SEED, lambda done, total: tell("pairs", done, total))
    figures = {key: Figure(**figure) for key, figure in found["figures"].items()}
    failures = tuple(f"{key} is {figure.value:g}, not 0" for key, figure in figures.items() if figure.value)
    return Measured(figures, found["raw"], failures)
