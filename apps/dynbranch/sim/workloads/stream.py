"""A stream of workflows: which are new, which say an earlier one again, and which share a part with one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import Final

from dynbranch.sim.fleet.workflows import Workflow
from dynbranch.sim.workloads.arrivals import Begin
from dynbranch.sim.workloads.stories import Story, Writer

TENANT: Final = "tenant"


@dataclass(frozen=True, slots=True)
class Mix:
    """Shares of the workflows that are an earlier one's exact repetition, and that share a part with one."""

    replay: float
    overlap: float

    def __post_init__(self) -> None:
        if min(self.replay, self.overlap) < 0 or self.replay + self.overlap > 1:
            raise ValueError("shares of a mix are not negative, and together at most 1")


def kind(workflow: Workflow) -> str:
    """Of Table 1's three."""
    if workflow.repeats is not None:
        return "repeat"
    return "partial" if workflow.shares is not None else "fresh"


def workflows(
    writer: Writer, mix: Mix, begins: Sequence[Begin], seed: int, tenants: int = 1
) -> tuple[Workflow, ...]:
    """Originals are drawn evenly from all that came before. Of two streams that differ in their shares only,
    whatever is repeated in the one with less is in the other.

    New workflows go to ``tenants`` in turn, what repeats or shares to that of its original.
    """
    chance = Random(f"mix {seed}")
    stories: list[Story] = []
    found: list[Workflow] = []
    for number, begin in enumerate(begins):
        drawn, place = chance.random(), int(chance.random() * number)
        replay = mix.replay if begin.replay is None else begin.replay
        repeats: int | None = None
        shares: int | None = None
        if number and drawn < replay:
            repeats = place
            story = writer.again(number, stories[place])
        elif number and drawn >= 1 - mix.overlap:
            shares = place
            story = writer.write(number, stories[place])
        else:
            story = writer.write(number)
        stories.append(story)
        original = repeats if repeats is not None else shares
        tenant = f"{TENANT} {number % tenants}" if original is None else found[original].tenant
        found.append(Workflow(number, begin.at_s, tenant, story.turns, repeats, shares))
    return tuple(found)
