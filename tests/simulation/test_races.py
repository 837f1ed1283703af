"""The races between the services, on a simulated network: every promise is checked after every step."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from dynbranch.sim.races import outcomes, run_steps
from dynbranch.sim.weather import FAIR, Weather
from dynbranch.sim.world import Plan, World, simulate

SEEDS = [
    tuple(map(int, line.partition("#")[0].split()))
    for line in (Path(__file__).parent / "seeds.txt").read_text().splitlines()
    if line.partition("#")[0].strip()
]


@pytest.mark.promise("I1")
@pytest.mark.promise("I3")
@pytest.mark.promise("I4")
@pytest.mark.promise("I5")
@pytest.mark.parametrize(("seed", "steps"), SEEDS)
def test_what_once_failed_holds(seed: int, steps: int) -> None:
    outcome = simulate(Plan(seed, steps))
    assert not outcome.violation, "\n".join([*outcome.tail[-60:], outcome.violation])


def test_new_seeds_hold_and_meet_what_they_are_there_to_meet() -> None:
    tally = run_steps(20_000, 60_000, lambda done, total: None)
    assert not tally.failed, tally.failed[0].violation
    met = {what for what, number in tally.counts.items() if number}
    assert {"served hit", "served joined", "served miss", "committed", "stale_read", "lease_closed"} <= met


def test_a_seed_replays_exactly() -> None:
    first, second = World(Plan(42, 1500)), World(Plan(42, 1500))
    assert first.run() == second.run()
    assert list(first.trace.lines()) == list(second.trace.lines())


def test_every_message_over_the_wire_changes_nothing() -> None:
    """The codecs take no part in any decision: with and without them, one seed is one history."""
    plain, wired = World(Plan(5, 3000, wire=False)), World(Plan(5, 3000, wire=True))
    assert not plain.run().violation
    outcome = wired.run()
    assert not outcome.violation
    assert list(plain.trace.lines()) == list(wired.trace.lines())


@pytest.mark.promise("I5")
def test_without_a_store_every_request_is_served() -> None:
    outcome = simulate(Plan(1, 3000, weather=Weather(csl_dead=True)))
    assert not outcome.violation
    assert outcome.counts["served miss"] == outcome.counts["requests"] > 100
    assert outcome.counts["served hit"] == outcome.counts["served failed"] == 0


@pytest.mark.promise("C1.single_flight")
def test_in_fair_weather_nothing_runs_twice() -> None:
    """Without writes, faults and impatient clients each name is executed once."""
    world = World(Plan(1, 6000, weather=Weather(write_every_s=1e9, unversioned_reads=False)))
    assert not world.run().violation
    executed = {
        key: sum(a.executions.get(key, 0) for a in world.agents) for a in world.agents for key in a.executions
    }
    # A chain has a name per text that it is built from.
    assert {
        key: number for key, number in executed.items() if number > 1 and not key.startswith("chain")
    } == {}


def test_runs_in_fair_weather_fail_nothing() -> None:
    outcome = simulate(Plan(3, 3000, weather=FAIR))
    assert not outcome.violation
    assert outcome.counts["served failed"] == 0


def test_runs_have_seeds_of_their_own() -> None:
    runs = outcomes(7, steps_per_run=50)
    assert [next(runs).seed for _ in range(3)] == [7, 8, 9]


def test_the_program_prints_seeds_and_steps() -> None:
    command = [sys.executable, "-m", "dynbranch.sim.races", "--seed", "7", "--runs", "2", "--steps", "500"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.startswith("seeds 7 to 8: 2 runs, ")
    assert "0 violations" in done.stdout
