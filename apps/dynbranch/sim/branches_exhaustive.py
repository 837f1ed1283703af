"""Every interleaving of a small branch's life: ``python -m dynbranch.sim.branches_exhaustive --size quick``.

States are visited once, told apart by their fingerprints; what an event makes of one core is worked out
once for all states that share it. A failure prints the steps that led to it.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from dynbranch.domain.template import Branching
from dynbranch.sim import branch_judge
from dynbranch.sim.branch_acts import Broken
from dynbranch.sim.branch_cast import BranchCores, Scenario, Step, Wanted
from dynbranch.sim.branch_steps import deliveries_of, steps_of
from dynbranch.sim.branch_world import BranchWorld


@dataclass(slots=True)
class Explored:
    """``complete``: every state was visited. ``steps`` led to ``violation``, where there is one."""

    states: int = 0
    transitions: int = 0
    at_rest: int = 0
    ends: int = 0
    complete: bool = False
    violation: str = ""
    promise: str = ""
    steps: list[Step] = field(default_factory=list)


@dataclass(slots=True)
class _Place:
    """A state on the way down: how it was left, and the steps from it that are still to be tried."""

    world: BranchWorld
    steps: Iterator[Step]
    came_by: Step | None = None


class Explorer:
    """Depth first. ``most_states`` bounds it; beyond, it is not complete."""

    def __init__(
        self, scenario: Scenario, cores: BranchCores | None = None, *, most_states: int = 10_000_000
    ) -> None:
        self._scenario = scenario
        self._cores = cores
        self._most_states = most_states
        self._known: set[bytes] = set()
        self._way: list[_Place] = []
        self.explored = Explored()

    def run(self) -> Explored:
        explored = self.explored
        step: Step | None = None
        try:
            self._enter(BranchWorld(self._scenario, self._cores), None)
            while self._way and explored.states < self._most_states:
                place = self._way[-1]
                step = next(place.steps, None)
                if step is None:
                    self._way.pop()
                    continue
                world = place.world.copy()
                branch_judge.take(world, step)
                explored.transitions += 1
                self._enter(world, step)
            explored.complete = not self._way
        except AssertionError as fault:
            explored.violation = str(fault) or repr(fault)
            explored.promise = fault.promise if isinstance(fault, Broken) else "core"
            explored.steps = [place.came_by for place in self._way if place.came_by is not None]
            explored.steps += [step] if step is not None else []
        return explored

    def _enter(self, world: BranchWorld, came_by: Step | None) -> None:
        mark = world.mark()
        if mark in self._known:
            return
        self._known.add(mark)
        self.explored.states += 1
        steps = steps_of(world)
        branch_judge.look(world)
        branch_judge.told_again(world)
        if not deliveries_of(world):
            self.explored.at_rest += 1
            branch_judge.at_rest(world)
        if not steps:
            self.explored.ends += 1
            branch_judge.at_the_end(world.copy())
        self._way.append(_Place(world, iter(steps), came_by))


# As a program


RENDERING = frozenset({"propose", "prepare", "order", "let go", "left", "release"})
"""Steps within one service, taken at once: what is left are messages between services that race."""

TELLING = RENDERING | {"granted", "ended"}
SHORT = TELLING | {"begin", "commit", "asking", "served"}
PROMPT = SHORT | {"settle", "discard", "discarded", "abort"}
"""Nothing is late between services: what is left is when engines end, people ask, records change and are
told, and decisions fall. Of fewer candidates every lateness is tried too."""

QUICK: Mapping[str, Scenario] = {
    "one fill, every step of it": Scenario(candidates=("a",)),
    "lost, with a demand that came first or last": Scenario(
        candidates=("a",), selections=("b",), wanted=(Wanted("a", foreign=True),), eager=RENDERING
    ),
    "a write": Scenario(candidates=("a",), writes=1, eager=TELLING),
    "a write that looks in steps for what it fells": Scenario(
        candidates=("a",), writes=1, sliced=True, eager=TELLING
    ),
    "a sampled stage, wanted by two": Scenario(
        candidates=("a",), once=True, wanted=(Wanted("a"), Wanted("a", foreign=True)), eager=TELLING
    ),
    "a sampled stage that is lost": Scenario(
        candidates=("a",), once=True, wanted=(Wanted("a", foreign=True),), selections=("b",), eager=TELLING
    ),
    "the controller restarts": Scenario(candidates=("a",), restarts=1, selections=("b",), eager=TELLING),
    "the controller restarts, a sampled stage": Scenario(
        candidates=("a",), restarts=1, once=True, eager=SHORT
    ),
    "offers that share one request": Scenario(
        candidates=("a", "b"), shared=True, wanted=(Wanted("a"),), reads=False, eager=TELLING - {"ended"}
    ),
}

THREE: Mapping[str, Scenario] = {
    "of three, one that its own workflow may demand": Scenario(
        candidates=("a",), wanted=(Wanted("a"),), selections=("a", "b"), writes=1
    ),
    "of three, one that another workflow may demand": Scenario(
        candidates=("b",), wanted=(Wanted("b", foreign=True),), selections=("b", "a"), writes=1
    ),
    "of three, one that nobody demands": Scenario(
        candidates=("c",), wanted=(), selections=("c", "a"), writes=1
    ),
}
"""Three candidates, a demand by the own workflow and one by another, a write, a decision for any of them:
every step of all in every order. What candidates do apart from one another is explored apart; that they are,
``branch_alone`` shows."""

LARGE: Mapping[str, Scenario] = {
    **THREE,
    "a write in slices, every step of a fill": Scenario(candidates=("a",), writes=1, sliced=True),
    "time is over, and the engine fails": Scenario(
        candidates=("a",), selections=("",), expires=True, failures=1, eager=TELLING
    ),
    "one of two, demanded by two workflows": Scenario(
        candidates=("a", "b"),
        wanted=(Wanted("a"), Wanted("b", foreign=True)),
        eager=SHORT,
    ),
    "a chain of two": Scenario(
        candidates=("a",),
        chain=2,
        wanted=(Wanted("a"), Wanted("a", after=0)),
        selections=("b",),
        eager=SHORT,
    ),
    "one of two, every step of both": Scenario(),
    "three candidates, two workflows, a write": Scenario(
        candidates=("a", "b", "c"), wanted=(Wanted("a"), Wanted("b", foreign=True)), writes=1, eager=PROMPT
    ),
    "two candidates, a write, time, ambiguous or not": Scenario(
        wanted=(Wanted("a"), Wanted("b", foreign=True)), writes=1, selections=("a", ""), expires=True,
        eager=RENDERING,
    ),
    "a chain of two, a write": Scenario(
        candidates=("a",), chain=2, wanted=(Wanted("a"), Wanted("a", after=0)), writes=1, eager=RENDERING
    ),
    "the controller restarts, one of two, a write": Scenario(
        restarts=1, wanted=(Wanted("a"), Wanted("b", foreign=True)), writes=1, eager=SHORT
    ),
    "sampled stages, one of two, a write": Scenario(
        once=True, wanted=(Wanted("a"), Wanted("b", foreign=True)), writes=1, eager=SHORT
    ),
    "independent offers, time": Scenario(
        branching=Branching.INDEPENDENT, wanted=(Wanted("a"), Wanted("b")), expires=True, eager=TELLING
    ),
    # The last: some million states.
    "three candidates, two workflows, a write, losses and settlements late": Scenario(
        candidates=("a", "b", "c"), wanted=(Wanted("a"), Wanted("b", foreign=True)), writes=1, eager=SHORT
    ),
}  # fmt: skip

SIZES = {"quick": QUICK, "three": THREE, "large": LARGE}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m dynbranch.sim.branches_exhaustive", description=__doc__)
    parser.add_argument("--size", choices=SIZES, default="quick")
    parser.add_argument("--most-states", type=int, default=10_000_000, help="of each scenario")
    asked = parser.parse_args()
    states = transitions = 0
    failed = False
    for title, scenario in SIZES[asked.size].items():
        explored = Explorer(scenario, most_states=asked.most_states).run()
        states, transitions = states + explored.states, transitions + explored.transitions
        print(f"{title}: {told(explored)}", flush=True)
        failed = failed or bool(explored.violation)
    print(f"{states} states, {transitions} transitions")
    sys.exit(1 if failed else 0)


def told(explored: Explored) -> str:
    counts = f"{explored.states} states, {explored.transitions} transitions, {explored.ends} ends"
    if explored.violation:
        return "\n  ".join([f"{counts}: {explored.violation}", *map(" ".join, explored.steps)])
    return counts if explored.complete else f"{counts}, not complete"


if __name__ == "__main__":
    main()
