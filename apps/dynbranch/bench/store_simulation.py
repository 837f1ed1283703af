"""The simulated races at their full size."""

from __future__ import annotations

from typing import Any

from dynbranch.bench.result import Tell
from dynbranch.demo.measures import Figure, exact
from dynbranch.sim.races import STEPS_PER_RUN, replay_command, run_steps


def run_simulation(tell: Tell, seed: int, steps: int) -> tuple[dict[str, Figure], dict[str, Any]]:
    """Figure ``simulated_steps_violations`` over at least so many steps; every run has the next seed."""
    tally = run_steps(seed, steps, lambda done, total: tell("simulated races", done, total))
    raw = {
        "first_seed": seed,
        "last_seed": seed + tally.runs - 1,
        "runs": tally.runs,
        "steps": tally.steps,
        "steps_per_run_before_calm": STEPS_PER_RUN,
        "counts": dict(sorted(tally.counts.items())),
        "violations": [
            {"what": one.violation, "replay": replay_command(one, STEPS_PER_RUN)} for one in tally.failed[:20]
        ],
    }
    return {"simulated_steps_violations": exact(len(tally.failed), tally.steps)}, raw
