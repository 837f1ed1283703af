"""What a predictor is asked, what it answers, and what it learns from.

A predictor sees a decision before it falls and ranks the selections it expects. Only the order counts: how
often the first, second, … of a ranking comes true is learned elsewhere, and no predictor invents
probabilities.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Protocol, assert_never, runtime_checkable

from dynbranch.domain.ids import Instant
from dynbranch.domain.template import (
    Choice,
    DecisionPoint,
    Origin,
    StageKind,
    Template,
    Where,
    Window,
)


@dataclass(frozen=True, slots=True, order=True)
class Coordinate:
    """A place in a workflow type where what comes next depends on an output or a pick.

    ``sharing_group``: those who share no results learn nothing from one another's choices either.
    """

    tenant: str
    workflow_type_id: str
    decision_point: str
    sharing_group: str = ""


class TextKind(Enum):
    """ASKED: what the user wants. STEP: what the workflow wrote last about its next aim, a thought or a
    sub-question. READ: what it was given to read. OUTPUT: what a person or a model chooses from."""

    ASKED = "asked"
    STEP = "step"
    READ = "read"
    OUTPUT = "output"


@dataclass(frozen=True, slots=True)
class Text:
    kind: TextKind
    body: str
    title: str = ""


def text_kind(where: Where, point: DecisionPoint, template: Template) -> TextKind:
    """What a text that a template points to is to a predictor. An output that a person picks from is what is
    offered; a tool's is read; a model's is the workflow's own step."""
    match where.origin:
        case Origin.INPUT:
            return TextKind.ASKED
        case Origin.REQUEST:
            return TextKind.READ
        case Origin.OUTPUT:
            if point.window is Window.WAIT and where.name == point.stage:
                return TextKind.OUTPUT
            return TextKind.READ if template.stage(where.name).kind is StageKind.TOOL else TextKind.STEP
        case _:
            assert_never(where.origin)


@dataclass(frozen=True, slots=True)
class Candidate:
    """``about`` is what the request says of it: a description, names of parameters."""

    selection: str
    about: str = ""


@dataclass(frozen=True, slots=True)
class Question:
    """Everything known before the decision falls.

    ``candidates`` is None where no closed set is known. ``texts`` stand in the order in which they were read.
    ``picked`` are this workflow's selections at this coordinate, ``trail`` those at any, oldest first.
    ``facts`` are words of context from the most general to the most special, each in the one before.
    ``partial`` is the decode as far as it has come, ``visible`` what the selector sees in it.
    """

    coordinate: Coordinate
    candidates: tuple[Candidate, ...] | None = None
    texts: tuple[Text, ...] = ()
    picked: tuple[str, ...] = ()
    trail: tuple[str, ...] = ()
    facts: tuple[str, ...] = ()
    partial: str = ""
    visible: tuple[Choice, ...] = ()
    at_most: int = 8

    def of_kind(self, *kinds: TextKind) -> tuple[Text, ...]:
        return tuple(text for text in self.texts if text.kind in kinds)


@dataclass(frozen=True, slots=True)
class Resolution:
    """What a question came to: every selection that the resolved branch made."""

    question: Question
    selections: tuple[str, ...]


@runtime_checkable
class Predictor(Protocol):
    """Pure and deterministic: the same questions and resolutions in the same order give the same answers."""

    def propose(self, question: Question, now: Instant) -> tuple[str, ...]:
        """At most ``question.at_most`` distinct selections, the likeliest first. Empty: nothing to say."""
        ...

    def learn(self, resolution: Resolution, now: Instant) -> None: ...
