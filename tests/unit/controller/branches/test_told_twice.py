"""What admission learns of branches whose events come again, late, or in another order: each fact once."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from random import Random

import pytest
from dynbranch.controller.core.branches.book import BranchBook
from dynbranch.controller.core.branches.messages import (
    ChoiceShown,
    EngineSeen,
    Event,
    Propose,
    Settled,
    StageAnswered,
    StageArrived,
    StageEnded,
)
from dynbranch.controller.core.branches.priced import LoadPriced
from dynbranch.controller.core.branches.reservations import Quota
from dynbranch.controller.core.pricing.gate import Gate
from dynbranch.controller.core.pricing.snapshot import snapshot_of
from dynbranch.domain.ids import Instant
from unit.controller.branches.scenes import WORKFLOW, Scene, of, routed

WAYS = ("a", "b", "c")

OTHERS = (StageArrived, StageAnswered, ChoiceShown, Settled)
"""What gateways and the store tell, and may tell again. The rest is the controller's own shell's."""

Told = list[tuple[float, Event]]


@dataclass
class Written(Scene):
    """Keeps what the book was told, and when."""

    told: Told = field(default_factory=list)

    def do(self, event: Event) -> list:  # type: ignore[type-arg]
        self.told.append((self.now, event))
        return super().do(event)


def written(seed: int, branches: int) -> tuple[Told, Gate]:
    """Branches that go as they like, each to its end."""
    random, gate = Random(seed), Gate(seed=seed)
    scene = Written(routed(then=("work",)), admission=LoadPriced(gate, width=2))
    for number in range(branches):
        scene.now += random.choice((2.0, 20.0))
        scene.do(EngineSeen("e1", 8, random.randrange(9), 0, fill_slots=8))
        who, demand = replace(WORKFLOW, workflow_id=f"w{number}"), f"r{number}"
        asked = of(Propose, scene.arrive("route", demand, identity=who))
        branch, chosen = scene.branch, random.choice(WAYS)
        if asked:
            scene.propose(branch, *random.sample(WAYS, 2))
        scene.run_ahead(branch, took_s=0.2)
        scene.now += 1.0
        scene.decide(branch, demand, chosen, who)
    return scene.told, gate


def learned_of(told: Told, seed: int) -> Gate:
    gate = Gate(seed=seed)
    book = BranchBook(LoadPriced(gate, width=2), quota=Quota(slots=8))
    for now, event in told:
        book.handle(event, Instant(now))
    book.validate_state()
    return gate


def again_later(told: Told, random: Random) -> Told:
    """Half of what others tell once more, any time after it came."""
    found = list(told)
    for at in range(len(told) - 1, -1, -1):
        if isinstance(told[at][1], OTHERS) and random.random() < 0.5:
            later = random.randrange(at + 1, len(found) + 1)
            found.insert(later, (found[later - 1][0], told[at][1]))
    return found


def in_another_order(told: Told) -> Told:
    """What the store settles overtakes what the shell says of the same moment, and the other way round."""
    found = list(told)
    for at in range(len(found) - 1):
        (now, one), (then, other) = found[at : at + 2]
        pair = {type(one), type(other)}
        if now == then and pair == {Settled, StageEnded}:
            found[at], found[at + 1] = found[at + 1], found[at]
    return found


@pytest.mark.promise("C3.settled_once")
@pytest.mark.parametrize("seed", range(4))
def test_what_is_told_again_at_once_or_late_is_learned_once(seed: int) -> None:
    told, before = written(seed, 14)
    expected = snapshot_of(before)
    assert expected["ranks"] and snapshot_of(learned_of(told, seed)) == expected
    twice = [one for one in told for _ in range(1 + isinstance(one[1], OTHERS))]
    assert snapshot_of(learned_of(twice, seed)) == expected
    assert snapshot_of(learned_of(again_later(told, Random(seed)), seed)) == expected


@pytest.mark.promise("C3.settled_once")
@pytest.mark.parametrize("seed", range(4))
def test_another_order_counts_the_same_branches_and_fills(seed: int) -> None:
    told, before = written(seed, 14)
    swapped = in_another_order(told)
    after = learned_of(swapped, seed)
    assert swapped != told and after.trials.pending == 0
    assert snapshot_of(after) == snapshot_of(before)
