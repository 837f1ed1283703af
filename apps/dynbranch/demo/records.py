"""The records that ship with the package: real requests, questions, passages, dialogues.

The NOTICE.md beside each file says whose they are.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

DATA = Path(__file__).parent / "data"


@dataclass(frozen=True, slots=True)
class Function:
    """One offered function. ``parameters`` is JSON Schema."""

    name: str
    description: str
    parameters: dict[str, Any]

    def as_json(self) -> dict[str, Any]:
        return {"name": self.name, "description": self.description, "parameters": self.parameters}


@dataclass(frozen=True, slots=True)
class RoutingRequest:
    """A user's request and the functions that it may be routed to."""

    id: str
    user: str
    functions: tuple[Function, ...]
    expected_handlers: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Question:
    """A question whose answer takes the passages ``gold``; ``pool`` names the passages that it came with."""

    id: str
    question: str
    answer: str
    gold: tuple[str, ...]
    pool: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Passage:
    id: str
    title: str
    text: str


@dataclass(frozen=True, slots=True)
class Turn:
    """An offer to a person, the buttons under it, and the one that was pressed."""

    service: str
    kind: str
    situation: str
    options: tuple[str, ...]
    pick: str


@dataclass(frozen=True, slots=True)
class Dialogue:
    id: str
    turns: tuple[Turn, ...]


def routing_requests(data: Path = DATA) -> tuple[RoutingRequest, ...]:
    return tuple(
        RoutingRequest(
            id=record["id"],
            user=record["user"],
            functions=tuple(Function(**function) for function in record["functions"]),
            expected_handlers=tuple(step["handler"] for step in record["expected"]),
        )
        for record in _lines(data / "routing.jsonl")
    )


def questions(data: Path = DATA) -> tuple[Question, ...]:
    return tuple(
        Question(
            id=record["id"],
            question=record["question"],
            answer=record["answer"],
            gold=tuple(record["gold"]),
            pool=tuple(record["pool"]),
        )
        for record in _lines(data / "questions.jsonl")
    )


def passages(data: Path = DATA) -> tuple[Passage, ...]:
    return tuple(Passage(**record) for record in _lines(data / "passages.jsonl"))


def dialogues(data: Path = DATA) -> tuple[Dialogue, ...]:
    """From a folder of their own: they came with another licence."""
    return tuple(
        Dialogue(
            id=record["id"],
            turns=tuple(
                Turn(t["service"], t["kind"], t["situation"], tuple(t["options"]), t["pick"])
                for t in record["turns"]
            ),
        )
        for record in _lines(data / "sgd" / "dialogues.jsonl")
    )


def _lines(path: Path) -> Iterator[dict[str, Any]]:
    with path.open(encoding="utf-8") as file:
        for line in file:
            yield json.loads(line)
