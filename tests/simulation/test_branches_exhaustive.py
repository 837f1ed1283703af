"""Every interleaving of a branch's life, of the controller's, the store's and the engine's own cores."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from random import Random

import pytest
from dynbranch.sim.branch_cast import Scenario, Wanted
from dynbranch.sim.branch_steps import steps_of
from dynbranch.sim.branch_world import BranchWorld
from dynbranch.sim.branches_exhaustive import QUICK, SHORT, Explorer, told
from dynbranch.sim.fingerprint import digest_of
from simulation.branch_mutants import BRANCH_MUTANTS

LOST = Scenario(
    candidates=("a",), selections=("b",), wanted=(Wanted("a", foreign=True),), eager=SHORT - {"begin"}
)
WRITTEN = Scenario(candidates=("a",), selections=("a",), writes=1, eager=SHORT - {"asking"})
DRAWN = QUICK["a sampled stage, wanted by two"]


@pytest.mark.promise("I2", "I3", "I4", "C2.once")
@pytest.mark.parametrize("title", QUICK)
def test_whatever_overtakes_what_the_promises_hold(title: str) -> None:
    explored = Explorer(QUICK[title]).run()
    assert not explored.violation, told(explored)
    assert explored.complete and explored.states > 300
    assert explored.transitions >= explored.states - 1 and explored.ends and explored.at_rest
    print(f"{title}: {told(explored)}")


@pytest.mark.parametrize("bug", BRANCH_MUTANTS)
def test_a_planted_bug_is_found(bug: str) -> None:
    cores, promises = BRANCH_MUTANTS[bug]
    scenario = DRAWN if "C2.once" in promises else WRITTEN if "I3" in promises else LOST
    if bug.startswith("plans"):
        scenario = QUICK["a write that looks in steps for what it fells"]
    explored = Explorer(scenario, cores).run()
    assert explored.violation and explored.promise in promises, told(explored)
    assert explored.steps


def test_every_mutant_is_a_subclass_of_a_production_core() -> None:
    source = (Path(__file__).parent / "branch_mutants.py").read_text()
    cores = ("(Library)", "(Memory)", "(Shadows)", "(Filling)", "(BranchBook)", "(_Rebuilt)", "(Planning)")
    assert source.count("\nclass ") == sum(map(source.count, cores))


def test_a_bounded_run_says_that_it_is_not_complete() -> None:
    explored = Explorer(LOST, most_states=20).run()
    assert explored.states == 20 and not explored.complete
    assert told(explored).endswith("not complete")


def test_what_was_worked_out_before_is_what_a_world_of_its_own_comes_to() -> None:
    shared = BranchWorld(WRITTEN)
    for seed in range(30):
        rng, one, fresh = Random(seed), shared.copy(), BranchWorld(WRITTEN)
        while steps := steps_of(one):
            assert steps == steps_of(fresh)
            step = rng.choice(steps)
            one.take(step)
            fresh.take(step)
        for part, other in ((one.book, fresh.book), (one.store, fresh.store), (one.registry, fresh.registry)):
            assert digest_of(part.core) == digest_of(other.core)
        assert [request.served for request in one.requests] == [request.served for request in fresh.requests]


def test_the_program_prints_states_and_transitions() -> None:
    command = [sys.executable, "-m", "dynbranch.sim.branches_exhaustive", "--most-states", "30"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    last = done.stdout.splitlines()[-1]
    assert last.startswith(f"{30 * len(QUICK)} states, ") and last.endswith(" transitions")
