"""A whole-request exact map (InstCache): it holds what was predicted offline and what was answered since.

No eviction, no freshness. A request is what a person or a program asks for: a turn, known by the content of
its first call; the answer is that of every call that it takes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from dynbranch.sim.fleet.playing import Records
from dynbranch.sim.fleet.workflows import Turn, Workflow

Answer = tuple[str, ...]
Request = tuple[str, ...]


@dataclass(slots=True)
class WholeRequests:
    answers: dict[Request, Answer] = field(default_factory=dict)

    def find(self, request: Request) -> Answer | None:
        return self.answers.get(request)

    def insert(self, request: Request, answer: Answer) -> None:
        """On a miss; what is there stays."""
        self.answers.setdefault(request, answer)


def request_of(turns: Sequence[Turn], number: int) -> Request:
    """What is asked with the turn of that number.

    Within a stream its first call's content says it all, for what follows depends on nothing else. Another
    stream may use the same content for something else: so that it is never taken for the same request, all
    calls are compared.
    """
    return tuple(step.call.content for turn in turns[: number + 1] for step in turn.steps)


def predicted(history: Iterable[Workflow], most: int) -> Mapping[Request, Answer]:
    """The ``most`` requests that were asked most often in another stream, and among those the first, with
    the answers that they have before anything is written."""
    before = Records()
    turns: dict[Request, Turn] = {}
    asked: Counter[Request] = Counter()
    for workflow in history:
        for number, turn in enumerate(workflow.turns):
            request = request_of(workflow.turns, number)
            turns.setdefault(request, turn)
            asked[request] += 1
    # Equal counts stay in the order in which they came.
    return {
        request: tuple(before.value_of(step) for step in turns[request].steps)
        for request, _ in asked.most_common(most)
    }
