"""The canonical decode while it is written: candidates by what can be read of the choice so far."""

from __future__ import annotations

from dataclasses import dataclass

from dynbranch.controller.core.predictors.port import Question, Resolution
from dynbranch.domain.ids import Instant
from dynbranch.domain.template import Choice
from dynbranch.wording.words import name_words

MOST_CHARACTERS = 32_768
"""Of a long decode the end is read: that is where it decides."""


class Stream:
    """Three strengths of evidence: the choice is there whole; its beginning is; a candidate is spoken of.

    Without evidence it says nothing. It keeps nothing between two readings: ``question.partial`` is the whole
    decode so far, and ``question.visible`` what the decision point's selector sees in it.
    """

    def propose(self, question: Question, now: Instant) -> tuple[str, ...]:
        names = _names(question)
        closed = [choice.value for choice in question.visible if choice.closed]
        begun = [choice.value for choice in question.visible if not choice.closed and choice.value]
        if begun:
            last = begun[-1]
            fitting = [name for name in names if name.startswith(last)]
            # An open set's choice is not known before it ends.
            order = [*closed, *(fitting if names else ())]
        elif closed:
            order = closed
        else:
            order = _spoken_of(names, question.partial)
        return tuple(dict.fromkeys(order))[: question.at_most]

    def learn(self, resolution: Resolution, now: Instant) -> None:
        """What is written decides, not what was written before."""


def resolved(visible: tuple[Choice, ...]) -> tuple[str, ...] | None:
    """The selection, before the decode has ended: None unless every choice is closed and nothing that may
    follow adds another or takes one back."""
    if not visible or not all(choice.closed and choice.final for choice in visible):
        return None
    return tuple(dict.fromkeys(choice.value for choice in visible))


@dataclass(frozen=True, slots=True)
class Visibility:
    """After which share of a decode its choice could be told, counted in pieces as they were streamed.

    ``told``: from here on the ranking had the selection on top and kept it there. ``certain``: from here on
    the choice stood there whole. 1.0: only the end told.
    """

    told: float
    certain: float


def visibility(tops: tuple[str | None, ...], closed: tuple[bool, ...], selection: str) -> Visibility:
    """``tops`` and ``closed`` say for each piece what was on top, and whether the choice stood there whole,
    after it."""
    assert len(tops) == len(closed)
    return Visibility(_from_where([top == selection for top in tops]), _from_where(list(closed)))


def _from_where(held: list[bool]) -> float:
    """The share of pieces read at the first of the last unbroken run that reaches the end."""
    place = len(held)
    while place and held[place - 1]:
        place -= 1
    return min(1.0, (place + 1) / len(held)) if held else 1.0


def _names(question: Question) -> tuple[str, ...]:
    return tuple(candidate.selection for candidate in question.candidates or ())


def _spoken_of(names: tuple[str, ...], partial: str) -> list[str]:
    """The one spoken of last comes first; of those not spoken of, none."""
    said = name_words(partial[-MOST_CHARACTERS:].replace("_", " "))
    latest: dict[str, int] = {}
    for name in names:
        told = name_words(name.replace("_", " "))
        place = _last_place(said, told)
        if place is not None:
            latest[name] = place
    return sorted(latest, key=lambda name: -latest[name])


def _last_place(said: tuple[str, ...], told: tuple[str, ...]) -> int | None:
    size = len(told)
    if not size:
        return None
    for place in range(len(said) - size, -1, -1):
        if said[place : place + size] == told:
            return place + size
    return None
