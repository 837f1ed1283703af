"""What a branch costs depends on itself, not on how many others there are."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from types import FrameType

import pytest
from dynbranch.controller.core.branches.admission import Admission, Always
from dynbranch.controller.core.branches.instances import Bounds
from dynbranch.controller.core.branches.messages import (
    CandidatesProposed,
    Ending,
    StageBegan,
    StageEnded,
    StagePrepared,
)
from dynbranch.controller.core.branches.priced import LoadPriced
from dynbranch.controller.core.branches.reservations import Quota
from dynbranch.controller.core.pricing.constants import Constants
from dynbranch.controller.core.pricing.gate import Gate
from dynbranch.domain.fills import SettlementKind
from dynbranch.domain.ids import GenerationId, Instant
from dynbranch.domain.reuse import GenerationRef
from unit.controller.branches.scenes import WORKFLOW, Scene, prepared_for, routed


@contextmanager
def counted() -> Iterator[Callable[[], int]]:
    """Calls of Python functions within."""
    calls = 0

    def count(frame: FrameType, event: str, argument: object) -> None:
        nonlocal calls
        calls += event == "call"

    # What others left to the garbage collector would be counted along with this.
    gc.collect()
    gc.disable()
    sys.setprofile(count)
    try:
        yield lambda: calls
    finally:
        sys.setprofile(None)
        gc.enable()


def priced() -> Admission:
    """With room for all the cold trials."""
    return LoadPriced(Gate(constants=Constants(cold_trials=5000)), width=3)


def calls_beside(others: int, admission: Admission) -> int:
    """A branch from its opening to its settlement, beside so many open ones with a running fill each."""
    scene = Scene(routed(then=("work",)), admission, bounds=Bounds(branches=5000), slots=5000, quota=Quota())
    # Checking the whole book is what costs: here it is left out.
    scene.book.validate_state = lambda: None  # type: ignore[method-assign]
    for number in range(others):
        scene.arrive("route", f"o{number}", identity=replace(WORKFLOW, workflow_id=f"other {number}"))
        other = scene.branch if number == 0 else scene.book.branches.listed(f"other {number}", 1)[0]
        scene.book.handle(CandidatesProposed(other.branch_id, ("x",)), Instant(scene.now))
        key = other.fills["x"].stages[0].key
        scene.book.handle(StagePrepared(key, prepared_for(key)), Instant(scene.now))
    with counted() as calls:
        scene.arrive("route", "r1", identity=WORKFLOW)
        (branch,) = scene.book.branches.listed("w1", 1)
        before = calls()
        scene.propose(branch, "a", "b")
        for fill in branch.fills.values():
            key = fill.stages[0].key
            scene.do(StagePrepared(key, prepared_for(key)))
            scene.do(StageBegan(key, GenerationRef(GenerationId(b"g"), "e1")))
            scene.do(StageEnded(key, Ending.STORED, 1.0))
            scene.settle(fill.stages[0], fill, SettlementKind.SHADOWED)
        a = branch.fills["a"]
        scene.settle(a.stages[0], a, SettlementKind.PROMOTED, by=WORKFLOW)
        assert branch.selections == ("a",)
        return calls() - before


@pytest.mark.promise("C2.cost")
@pytest.mark.parametrize("admission", [lambda: Always(3), priced], ids=["always", "priced"])
def test_resolving_and_settling_cost_the_same_beside_a_thousand_branches(
    admission: Callable[[], Admission],
) -> None:
    assert calls_beside(1000, admission()) == calls_beside(1, admission())
