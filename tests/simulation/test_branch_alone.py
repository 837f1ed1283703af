"""Candidates of a branch meet nobody but those who speak to all: a world of three is three worlds of one."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from random import Random
from typing import Any

import pytest
from dynbranch.csl.core.library import Library
from dynbranch.sim.branch_alone import Together
from dynbranch.sim.branch_cast import BranchCores, Scenario, Wanted
from dynbranch.sim.branches_exhaustive import THREE

ALL = Scenario(
    candidates=("a", "b", "c"),
    wanted=(Wanted("a"), Wanted("b", foreign=True)),
    selections=("a", "b", "c"),
    writes=1,
)
MORE = replace(ALL, selections=("a", ""), expires=True, failures=1)
RARELY = frozenset({"demand", "decide", "change", "expire", "fail"})
"""What others do of themselves: where it always came first, nothing would be under way."""


class DiscardsAreContagious(Library):
    """With one fill, all go."""

    def discard_fills(self, event: Any, view: Any, now: Any) -> Any:
        others = tuple(row.origin.fill_id for row in self.memory.shadows._rows.values())
        return super().discard_fills(replace(event, fill_ids=(*event.fill_ids, *others)), view, now)


def walked(scenario: Scenario, walks: int, cores: BranchCores | None = None) -> Counter[str]:
    """Raises AssertionError where the worlds differ. Returns how often each kind of step was taken."""
    taken: Counter[str] = Counter()
    start = Together(scenario, cores)
    for seed in range(walks):
        rng, together = Random(seed), start.copy()
        while steps := together.steps():
            step = rng.choice(steps)
            if step[0] in RARELY and len(steps) > 1 and rng.random() < 0.8:
                continue
            together.take(step)
            taken[step[0]] += 1
    return taken


@pytest.mark.parametrize("scenario", [ALL, MORE], ids=["all", "time and engines too"])
def test_three_candidates_together_are_what_each_of_them_is_alone(scenario: Scenario) -> None:
    taken = walked(scenario, 60)
    assert taken.total() > 1000
    assert {"discard", "discarded", "abort", "write", "attaching", "settle", "left", "run"} <= taken.keys()


def test_what_each_of_the_three_meets_is_explored() -> None:
    """The scenarios are the parts of one in which all meet."""
    alone = [replace(one, wanted=(), selections=()) for one in THREE.values()]
    assert alone == [replace(ALL, candidates=(c,), wanted=(), selections=()) for c in ALL.candidates]
    assert [one.wanted for one in THREE.values()] == [ALL.wanted[:1], ALL.wanted[1:], ()]
    for one in THREE.values():
        (own,) = one.candidates
        assert own in one.selections and set(one.selections) <= set(ALL.selections)


def test_candidates_that_have_to_do_with_one_another_are_found() -> None:
    with pytest.raises(AssertionError):
        walked(ALL, 60, BranchCores(library=DiscardsAreContagious))
