"""A whole-request exact map (InstCache): it holds what was predicted offline and what was answered since.

No eviction, no freshness. A request is what a person or a program asks for: a turn, known by the content of
its first call; the answer is that of every call that it takes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from dynbranch.sim.fleet.playing import Records
from dynbranch.sim.fleet.workflows import Turn, Workflow

Answer = tuple[str, ...]


@dataclass(slots=True)
class WholeRequests:
    answers: dict[str, Answer] = field(default_factory=dict)

    def find(self, opening: str) -> Answer | None:
        return self.answers.get(opening)

    def insert(self, opening: str, answer: Answer) -> None:
        """On a miss; what is there stays."""
        self.answers.setdefault(opening, answer)


def predicted(history: Iterable[Workflow], most: int) -> Mapping[str, Answer]:
    """The ``most`` requests that were asked most often in another stream, and among those the first, with
    the answers that they have before anything is written."""
    before = Records()
    turns: dict[str, Turn] = {}
    asked: Counter[str] = Counter()
    for workflow in history:
        for turn in workflow.turns:
            opening = turn.steps[0].call.content
            turns.setdefault(opening, turn)
            asked[opening] += 1
    # Equal counts stay in the order in which they came.
    return {
        opening: tuple(before.value_of(step) for step in turns[opening].steps)
        for opening, _ in asked.most_common(most)
    }
