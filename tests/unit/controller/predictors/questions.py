"""Questions for tests."""

from __future__ import annotations

from collections.abc import Sequence

from dynbranch.controller.core.predictors.port import (
    Candidate,
    Coordinate,
    Predictor,
    Question,
    Resolution,
    Text,
    TextKind,
)
from dynbranch.domain.ids import Instant

HERE = Coordinate("tenant", "routing", "handler")
NOW = Instant(0.0)


def asked(text: str) -> Text:
    return Text(TextKind.ASKED, text)


def read(text: str, title: str = "") -> Text:
    return Text(TextKind.READ, text, title)


def step(text: str) -> Text:
    return Text(TextKind.STEP, text)


def offered(text: str) -> Text:
    return Text(TextKind.OUTPUT, text)


def among(*names: str) -> tuple[Candidate, ...]:
    return tuple(Candidate(name) for name in names)


def question(
    *texts: Text,
    candidates: tuple[Candidate, ...] | None = None,
    picked: Sequence[str] = (),
    trail: Sequence[str] = (),
    facts: Sequence[str] = (),
    at_most: int = 8,
) -> Question:
    return Question(
        HERE,
        candidates=candidates,
        texts=texts,
        picked=tuple(picked),
        trail=tuple(trail),
        facts=tuple(facts),
        at_most=at_most,
    )


def propose(predictor: Predictor, about: Question) -> tuple[str, ...]:
    return predictor.propose(about, NOW)


def learn(predictor: Predictor, about: Question, *selections: str) -> None:
    predictor.learn(Resolution(about, selections), NOW)
