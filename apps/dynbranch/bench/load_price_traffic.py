"""Open-loop arrivals of the demo's menus, one turn each, drawn by seed."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from random import Random
from typing import Final

from dynbranch.demo.branch_runs import PAUSE_MEDIAN_S, PAUSE_SIGMA
from dynbranch.demo.records import Turn, dialogues

LEAST: Final = 3
"""Workflows of a segment, however slow the engine is."""
PLACES: Final = (0.7, 0.15, 0.1)
"""How often what will be picked stands first, second and third; else last. Menus have the likely first, and a
predictor that has no history knows no more than places. (In the paper fills serve 73 % of choices.)"""


@dataclass(frozen=True, slots=True)
class Arrival:
    """``at`` counts from the segment's begin, ``pause_s`` is the person's. Whether it ``counts``: what only
    fills the engine does not."""

    number: int
    at: float
    turn: Turn
    pause_s: float
    counts: bool = True


def arrivals(per_s: float, seconds: float, *, seed: str, at_once: int = 0) -> list[Arrival]:
    """A Poisson process of so long, given that as many come as are expected, or ``LEAST``; before them
    ``at_once`` that do not count."""
    chance, known = Random(seed), turns()
    count = max(LEAST, round(per_s * seconds))
    found = []
    due = [0.0] * at_once + sorted(chance.uniform(0.0, seconds) for _ in range(count))
    for number, at in enumerate(due):
        pause_s = chance.lognormvariate(math.log(PAUSE_MEDIAN_S), PAUSE_SIGMA)
        turn = with_pick_at(chance.choice(known), _place(chance))
        found.append(Arrival(number, at, turn, pause_s, counts=number >= at_once))
    return found


def turns() -> tuple[Turn, ...]:
    """Of all shipped dialogues."""
    return tuple(turn for dialogue in dialogues() for turn in dialogue.turns)


def with_pick_at(turn: Turn, place: int) -> Turn:
    """The same menu with what is picked at that place, or last."""
    others = [option for option in turn.options if option != turn.pick]
    others.insert(min(place, len(others)), turn.pick)
    return replace(turn, options=tuple(others))


def _place(chance: Random) -> int:
    drawn = chance.random()
    for place, share in enumerate(PLACES):
        if drawn < share:
            return place
        drawn -= share
    return 1_000
