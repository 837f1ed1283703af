"""A menu is offered: its items by how often they, or those in their place, were picked before."""

from __future__ import annotations

from collections.abc import Hashable

from dynbranch.controller.core.predictors.history import contexts
from dynbranch.controller.core.predictors.menus import read_menu
from dynbranch.controller.core.predictors.port import Question, Resolution, TextKind
from dynbranch.controller.core.predictors.recurrence import BackOff, Bounds, Recurrence, ranked
from dynbranch.domain.ids import Instant


class Offer:
    """Where nothing is known of an item, its place speaks: people mostly take what is offered first."""

    def __init__(self, *, window: float = Bounds().window) -> None:
        bounds = Bounds(window=window)
        self._picked = BackOff(bounds)
        self._places = Recurrence(bounds)

    def propose(self, question: Question, now: Instant) -> tuple[str, ...]:
        items = menu(question)
        if not items:
            return ()
        by_place = self._by_place(question, items)
        of_item = self._picked.shares(question.coordinate, contexts(question), by_place)
        return ranked({item: of_item[item] for item in items}, question.at_most)

    def learn(self, resolution: Resolution, now: Instant) -> None:
        question = resolution.question
        items = menu(question)
        by_place = self._by_place(question, items)
        for selection in resolution.selections:
            self._picked.learn(question.coordinate, contexts(question), by_place, selection)
            if selection in items:
                self._places.count(_place_contexts(question), str(items.index(selection)))

    def validate_state(self) -> None:
        self._picked.validate_state()
        self._places.validate_state()

    def _by_place(self, question: Question, items: tuple[str, ...]) -> dict[str, float]:
        earlier_first = {str(place): 0.5 ** (place + 1) for place in range(len(items))}
        shares = self._places.shares(_place_contexts(question), earlier_first)
        return {item: shares[str(place)] for place, item in enumerate(items)}


def menu(question: Question) -> tuple[str, ...]:
    """The closed set where it is known; else what the last output offers."""
    if question.candidates is not None:
        return tuple(dict.fromkeys(candidate.selection for candidate in question.candidates))
    outputs = question.of_kind(TextKind.OUTPUT)
    return read_menu(outputs[-1].body) if outputs else ()


def _place_contexts(question: Question) -> tuple[Hashable, ...]:
    return (question.coordinate,)
