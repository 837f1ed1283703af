"""The checkers bite: a bug planted in a production core is found, within a few seeds."""

from __future__ import annotations

from pathlib import Path

import pytest
from dynbranch.sim.races import show
from dynbranch.sim.weather import Weather
from dynbranch.sim.world import Plan, simulate
from simulation.mutants import MUTANTS

STEPS = 3000
MOST_SEEDS = 12

POWER_GOES = Weather(
    csl_crash_every_s=0.3, power_loss_share=1.0, down_s=0.02, execution_ms=20, write_every_s=0.02,
    delay_ms=0.5, unversioned_reads=False, names=2, clients=10, flush_ms=50,
)  # fmt: skip
POWER_GOES_IN_LONG_EXECUTIONS = Weather(
    csl_crash_every_s=0.3, power_loss_share=1.0, down_s=0.01, delay_ms=0.5, lease_ttl_ms=200, flush_ms=100,
    write_every_s=0.04, whole_write=0.0, execution_ms=150, unversioned_reads=False, names=1, clients=12,
)  # fmt: skip
POWER_GOES_AFTER_ARRIVALS = Weather(
    csl_crash_every_s=0.3, power_loss_share=1.0, down_s=0.02, write_every_s=0.05, delay_ms=0.5, flush_ms=50,
    names=2, clients=10,
)  # fmt: skip
COPIES_COME_LATE = Weather(
    duplicate=0.4, slow_share=0.3, slow_ms=600, execution_ms=5, names=1, resend=0.5, delay_ms=0.5,
    max_entries=3,
)  # fmt: skip
SMALL_STEPS = Weather(
    plan_nodes=1, slice_nodes=1, execution_ms=5, write_every_s=0.02, names=4, clients=12, delay_ms=0.3,
)  # fmt: skip
STREAMS_BREAK = Weather(break_stream=0.05)

CLIMATES = {
    "writes answered before durable": (POWER_GOES, 1, MOST_SEEDS),
    "no gap at opening": (POWER_GOES_IN_LONG_EXECUTIONS, 15, 80),
    "first arrivals in memory": (POWER_GOES_AFTER_ARRIVALS, 1, 60),
    "generations named by callers": (COPIES_COME_LATE, 1, MOST_SEEDS),
    "commits not told to the plan": (SMALL_STEPS, 1, MOST_SEEDS),
    "half answers": (STREAMS_BREAK, 1, MOST_SEEDS),
}
"""Where the weather must be of a kind: it, the first seed, and how many. The others are found in any."""


@pytest.mark.parametrize("bug", MUTANTS)
def test_a_planted_bug_is_found(bug: str) -> None:
    cores, promises = MUTANTS[bug]
    weather, first, most = CLIMATES.get(bug, (None, 1, MOST_SEEDS))
    for seed in range(first, first + most):
        outcome = simulate(Plan(seed, STEPS, weather=weather, cores=cores))
        if outcome.violation:
            assert outcome.promise in promises, outcome.violation
            assert f"--seed {seed} " in show(outcome, STEPS)
            return
    pytest.fail(f"{most} seeds did not find it")


@pytest.mark.parametrize("weather", {climate for climate, *_ in CLIMATES.values()})
def test_the_same_weather_without_the_bug_breaks_nothing(weather: Weather) -> None:
    for seed in (1, 2):
        assert not simulate(Plan(seed, STEPS, weather=weather)).violation


def test_every_mutant_is_a_subclass_of_a_production_core() -> None:
    source = (Path(__file__).parent / "mutants.py").read_text()
    cores = ("(Library)", "(Memory)", "(LeaseTable)", "(Registry)", "(RequestLife)")
    assert source.count("\nclass ") == sum(map(source.count, cores))
