"""Many runs, each from a seed of its own: ``python -m dynbranch.sim.races --seed 1 --steps 1000000``.

A failure names the seed of its run. ``--seed N --runs 1 --steps S`` replays exactly that run.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from dynbranch.sim.cores import Cores
from dynbranch.sim.world import Outcome, Plan, simulate

STEPS_PER_RUN = 4000
SHOWN_LINES = 60


@dataclass(slots=True)
class Tally:
    """Of many runs. ``seeds``: the first and the last; all between were run too."""

    steps: int = 0
    runs: int = 0
    counts: Counter[str] = field(default_factory=Counter)
    failed: list[Outcome] = field(default_factory=list)

    def add(self, outcome: Outcome) -> None:
        self.steps += outcome.steps
        self.runs += 1
        self.counts.update(outcome.counts)
        if outcome.violation:
            self.failed.append(outcome)


def outcomes(
    first_seed: int,
    *,
    steps_per_run: int = STEPS_PER_RUN,
    cores: Cores | None = None,
    wire: bool | None = None,
) -> Iterator[Outcome]:
    """Endless: one run per seed, from ``first_seed`` on."""
    seed = first_seed
    while True:
        yield simulate(Plan(seed, steps_per_run, cores=cores or Cores(), wire=wire))
        seed += 1


def run_steps(
    first_seed: int, steps: int, progress: Callable[[int, int], None], *, steps_per_run: int = STEPS_PER_RUN
) -> Tally:
    """Runs until so many steps were made. ``progress`` is told how many are done, and of how many."""
    tally = Tally()
    for outcome in outcomes(first_seed, steps_per_run=steps_per_run):
        tally.add(outcome)
        progress(min(tally.steps, steps), steps)
        if tally.steps >= steps:
            return tally
    raise AssertionError("there is always one more seed")


def replay_command(outcome: Outcome, steps_per_run: int) -> str:
    return f"python -m dynbranch.sim.races --seed {outcome.seed} --runs 1 --steps {steps_per_run}"


def show(outcome: Outcome, steps_per_run: int) -> str:
    lines = outcome.tail[-SHOWN_LINES:]
    head = f"seed {outcome.seed}, step {outcome.steps}: {outcome.violation}"
    return "\n".join([*lines, head, f"replay: {replay_command(outcome, steps_per_run)}"])


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m dynbranch.sim.races", description=__doc__)
    parser.add_argument("--seed", type=int, default=1, help="of the first run; each further run adds one")
    parser.add_argument("--runs", type=int, default=0, help="how many runs; 0: until the steps are made")
    parser.add_argument(
        "--steps", type=int, default=100_000, help="in all; with --runs, of each run before it calms down"
    )
    parser.add_argument("--keep-going", action="store_true", help="do not stop at the first violation")
    asked = parser.parse_args()
    steps_per_run = asked.steps if asked.runs else STEPS_PER_RUN
    tally = Tally()
    for outcome in outcomes(asked.seed, steps_per_run=steps_per_run):
        tally.add(outcome)
        if outcome.violation:
            print(show(outcome, steps_per_run), flush=True)
            if not asked.keep_going:
                break
        if tally.runs == asked.runs or (not asked.runs and tally.steps >= asked.steps):
            break
    last = asked.seed + tally.runs - 1
    print(
        f"seeds {asked.seed} to {last}: {tally.runs} runs, {tally.steps} steps, "
        f"{len(tally.failed)} violations"
    )
    print(", ".join(f"{what}: {number}" for what, number in sorted(tally.counts.items())))
    sys.exit(1 if tally.failed else 0)


if __name__ == "__main__":
    main()
