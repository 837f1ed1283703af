"""Several candidates of one branch beside worlds that have one of them each, every step taken in all that it
concerns.

Candidates of one branch meet nobody but those who speak to all of them: the decision, a write, and time. So a
world of three is nothing but three worlds of one that hear of these together; each of the latter is small
enough to be explored in every interleaving. ``Together`` holds it against the world of three, step by step:
whatever that can do, they can do, and all that is under way, held, told and served is the same.

Two things are not of this kind and have scenarios of their own: requests that candidates share, and a
write that looks in steps for what it fells.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from dynbranch.controller.core.branches.book import BranchBook
from dynbranch.domain.fills import Settlement
from dynbranch.sim import branch_judge
from dynbranch.sim.branch_cast import BranchCores, Scenario, Step
from dynbranch.sim.branch_steps import deliveries_of, steps_of
from dynbranch.sim.branch_world import BranchWorld

REQUESTS = frozenset({"demand", "asking", "attaching", "served"})
UNION = ("work", "begins", "orders", "commits", "made", "ends", "adopters")
SETS = ("let_go", "lefts", "aborts", "releases", "discarded", "demanded", "reserved")


class Together:
    def __init__(self, scenario: Scenario, cores: BranchCores | None = None) -> None:
        assert not scenario.shared and not scenario.sliced and scenario.acknowledges
        self.whole = BranchWorld(scenario, cores)
        self.alone = {
            candidate: BranchWorld(replace(scenario, candidates=(candidate,), eager=frozenset()), cores)
            for candidate in scenario.candidates
        }

    def copy(self) -> Together:
        twin = Together.__new__(Together)
        twin.whole = self.whole.copy()
        twin.alone = {candidate: world.copy() for candidate, world in self.alone.items()}
        return twin

    def steps(self) -> list[Step]:
        return steps_of(self.whole)

    def take(self, step: Step) -> None:
        """Raises AssertionError where a world of one can not do, or comes to something else."""
        unresolved = _is_unresolved(self.whole)
        own = {candidate: self._own(step, candidate) for candidate in self.alone}
        assert any(found is not None for found in own.values()), f"{step} is of no candidate"
        branch_judge.take(self.whole, step)
        branch_judge.look(self.whole)
        for candidate, found in own.items():
            if found is not None:
                branch_judge.take(self.alone[candidate], found)
        if unresolved and not _is_unresolved(self.whole):
            self._resolve()
        self._compare()

    def _resolve(self) -> None:
        """Where one candidate's demand has told the selection, the others hear it as told."""
        (selection,) = self.whole.book.look("selections", _selections)
        for world in self.alone.values():
            if _is_unresolved(world):
                branch_judge.take(world, ("decide", selection))

    def _own(self, step: Step, candidate: str) -> Step | None:
        """The same step in the world of that candidate alone; None: it does not concern it."""
        world, (kind, *whom) = self.alone[candidate], step
        if kind in REQUESTS:
            return step if self.whole.requests[int(whom[0])].wanted.selection == candidate else None
        if kind == "settle":
            return self._settlement(int(whom[0]), world)
        if kind in ("discard", "discarded"):
            return self._discard(kind, whom[0], world)
        if kind == "decide" and world.decided:
            return None
        return step if step in _possible(world) else None

    def _discard(self, kind: str, number: str, world: BranchWorld) -> Step | None:
        """One of several candidates is one of each here."""
        whole = self.whole.discards[number].ask
        same = [
            number
            for number, one in world.discards.items()
            if one.ask.reason is whole.reason and set(one.ask.fills) <= set(whole.fills)
        ]
        return (kind, same[0]) if same else None

    def _settlement(self, number: int, world: BranchWorld) -> Step | None:
        (row,) = (one for one in self.whole.settlements() if one.number == number)
        same = [one for one in world.settlements() if _what(one) == _what(row)]
        if not same:
            return None
        step = ("settle", str(same[0].number))
        assert step in deliveries_of(world), "what is told of one candidate comes in another order"
        return step

    def _compare(self) -> None:
        whole, alone = self.whole, list(self.alone.values())
        for name in UNION:
            mine = sorted(_keys(name, whole))
            others = sorted(pair for world in alone for pair in _keys(name, world))
            assert mine == others, f"{name}: {mine} and {others}"
        for name in SETS:
            assert set(getattr(whole, name)) == {one for world in alone for one in getattr(world, name)}, name
        moved: Counter[Any] = Counter()
        for world in alone:
            moved += world.moved
        assert moved == whole.moved
        states = dict(pair for world in alone for pair in world.book.look("states", _states).items())
        assert whole.book.look("states", _states) == states
        for number, request in enumerate(whole.requests):
            same = self.alone[request.wanted.selection].requests[number]
            assert (request.at, request.served) == (same.at, same.served)


def _possible(world: BranchWorld) -> list[Step]:
    return [*deliveries_of(world), *steps_of(world)]


def _what(row: Settlement) -> tuple[object, ...]:
    return row.origin, row.kind


def _is_unresolved(world: BranchWorld) -> bool:
    return world.book.look("unresolved", lambda book: book.branches.unresolved) > 0


def _selections(book: BranchBook) -> tuple[str, ...]:
    (branch,) = book.branches.listed("", 2)
    return branch.selections or ("",)


def _states(book: BranchBook) -> dict[bytes, tuple[str, ...]]:
    (branch,) = book.branches.listed("", 2)
    return {
        fill.fill_id: tuple(f"{stage.state.value} {stage.active}" for stage in fill.stages)
        for fill in branch.fills.values()
    }


def _keys(name: str, world: BranchWorld) -> Iterator[str]:
    """With what of each counts: how long an execution took is for people alone."""
    for key, value in getattr(world, name).items():
        match name:
            case "work":
                shown = value.phase.value
            case "made":
                shown = value.decode()
            case "ends":
                shown = type(value).__name__
            case _:
                shown = ""
        yield f"{key!r} {shown}"
