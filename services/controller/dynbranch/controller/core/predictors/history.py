"""What the coordinate's own past says: selections by frequency and recency, and what followed what."""

from __future__ import annotations

from collections.abc import Hashable

from dynbranch.controller.core.predictors.port import Question, Resolution
from dynbranch.controller.core.predictors.recurrence import BackOff, Bounds, ranked
from dynbranch.domain.ids import Instant

LAST_SELECTIONS = 2
"""How much of the trail makes a context: more is rarely seen twice."""


def contexts(question: Question) -> tuple[Hashable, ...]:
    """From the coordinate alone through its facts to the last selections; each holds the one before."""
    at = question.coordinate
    found: list[Hashable] = [at]
    found += [(at, question.facts[: n + 1]) for n in range(len(question.facts))]
    for last in range(1, min(LAST_SELECTIONS, len(question.trail)) + 1):
        found.append((at, question.facts, question.trail[-last:]))
    return tuple(found)


class History:
    """A next-stage model with back-off. It proposes only what it has seen here."""

    def __init__(self, *, window: float = Bounds().window) -> None:
        self._seen = BackOff(Bounds(window=window))

    def propose(self, question: Question, now: Instant) -> tuple[str, ...]:
        shares = self._seen.shares(question.coordinate, contexts(question), {})
        if question.candidates is not None:
            offered = {candidate.selection for candidate in question.candidates}
            shares = {name: share for name, share in shares.items() if name in offered}
        names = sorted(shares)
        return ranked({name: shares[name] for name in names}, question.at_most)

    def learn(self, resolution: Resolution, now: Instant) -> None:
        question = resolution.question
        for selection in resolution.selections:
            self._seen.learn(question.coordinate, contexts(question), {}, selection)

    def validate_state(self) -> None:
        self._seen.validate_state()
