"""Four workflows on real records and a real model, arm beside arm, and routing on simulated engines."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

from dynbranch.bench.branch_engines import never_right, two_engines
from dynbranch.bench.result import BenchFailed, Measured, Tell
from dynbranch.demo.branch_runs import (
    PAUSE_MEDIAN_S,
    PAUSE_SIGMA,
    QUICK,
    SEED,
    BranchesFailed,
    Run,
    Size,
    arms_table,
    figures_of,
    problems_of,
    run_branches,
)

TITLE = "Mean time of a workflow, and of the other ways over it (95 % interval)"


def measure(tell: Tell, *, quick: bool = False, size: Size | None = None) -> Measured:
    """Raises BenchFailed."""
    size = size or (QUICK if quick else Size())
    try:
        seen = asyncio.run(run_branches(tell, size))
    except BranchesFailed as failure:
        raise BenchFailed(str(failure)) from failure
    simulated = asyncio.run(two_engines(tell, size.simulated))
    wrong = asyncio.run(never_right(tell, size.wrong, size.wrong_rounds))
    figures = {**figures_of(seen), **simulated.figures, **wrong.figures}
    raw = {
        "model": [_as_json(run) for run in seen.runs],
        "lost": [_branch_as_json(one) for one in seen.lost],
        "after_writes": [one.served.equals(one.right) for one in seen.rewritten],
        "two_engines": simulated.raw,
        "never_right": wrong.raw,
        "settings": {
            "pause_median_s": PAUSE_MEDIAN_S,
            "pause_sigma": PAUSE_SIGMA,
            "seed": SEED,
            "policy": "priced",
            "fills": size.fills,
            "placement": "least_loaded",
            "engines": 2,
            "slots": 3,
            "threads": 1,
        },
    }
    return Measured(figures, raw, tuple(problems_of(figures)), _table(seen.runs), TITLE)


def _table(runs: Sequence[Run]) -> tuple[tuple[str, ...], ...]:
    return tuple(tuple(row) for row in arms_table(runs))


def _as_json(run: Run) -> dict[str, Any]:
    return {
        "arm": run.arm.name,
        "workflow": run.played.workflow_type,
        "record": run.played.record,
        "latency_ms": round(run.played.latency_ms, 1),
        "pauses_ms": round(run.played.pauses_ms, 1),
        "steps": [[step.stage, step.outcome, round(step.latency_ms, 1)] for step in run.played.steps],
        "branches": [_branch_as_json(one) for one in run.branches],
    }


def _branch_as_json(one: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "point": one["decision_point"],
        "gate": one["gate"]["reason"],
        "resolution": one["resolution"],
        "candidates": [[c["admitted"], c["selected"]] for c in one["candidates"]],
        "fills": [
            [
                fill["consumed"],
                [stage["state"] for stage in fill["stages"]],
                fill["used_ms"],
                fill["saved_ms"],
            ]
            for fill in one["fills"]
        ],
        "abort_confirmed_ms": one["abort_confirmed_ms"],
    }
