"""The context ranker: candidates against the text that the workflow has read already."""

from __future__ import annotations

from dynbranch.controller.core.predictors.entities import Entities
from dynbranch.controller.core.predictors.mentions import Mentions
from dynbranch.controller.core.predictors.port import Question, Resolution, TextKind
from dynbranch.domain.ids import Instant


class ContextRanker:
    """After something was read, the names in it; before, the handlers that the request speaks of."""

    def __init__(self) -> None:
        self._entities = Entities()
        self._mentions = Mentions()

    def propose(self, question: Question, now: Instant) -> tuple[str, ...]:
        return self._ranker(question).propose(question, now)

    def learn(self, resolution: Resolution, now: Instant) -> None:
        self._ranker(resolution.question).learn(resolution, now)

    def _ranker(self, question: Question) -> Entities | Mentions:
        return self._entities if question.of_kind(TextKind.READ) else self._mentions
