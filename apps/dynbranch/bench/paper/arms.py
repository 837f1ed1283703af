"""One run: the arm by its name, before the workload that a run names."""

from __future__ import annotations

from pathlib import Path

from dynbranch.bench.paper.runs import Seen, Size, Spec


def run(spec: Spec, size: Size, data: Path | None) -> Seen:
    """In a process of its own."""
    raise NotImplementedError(spec.arm)
