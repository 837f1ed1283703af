"""Runs an engine model on virtual time."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from dynbranch.domain.ids import Instant
from dynbranch.enginemodel.messages import (
    WAKE,
    Effect,
    Event,
    Finished,
    RequestKey,
    Token,
)
from dynbranch.enginemodel.model import EngineModel


@dataclass
class Run:
    """What came out: every effect in its order, and by request."""

    effects: list[Effect] = field(default_factory=list)

    def of(self, kind: type, request: RequestKey | None = None) -> list[Effect]:
        found = [effect for effect in self.effects if isinstance(effect, kind)]
        return [effect for effect in found if request is None or effect.request == request]

    def finished_at(self, request: RequestKey) -> float:
        (end,) = self.of(Finished, request)
        return end.at

    def tokens(self, request: RequestKey) -> dict[int, float]:
        return {one.index: one.at for one in self.of(Token, request) if isinstance(one, Token)}


def drive(
    model: EngineModel, events: Iterable[tuple[float, Event]], *, extra_wakes: Iterable[float] = ()
) -> Run:
    """Handles the events at their instants and whatever happens between and after; validates every state."""
    run = Run()
    pending = sorted(
        [(at, number, event) for number, (at, event) in enumerate(events)]
        + [(at, 10**6, WAKE) for at in extra_wakes],
        key=lambda one: one[:2],
    )
    while True:
        wake = model.next_wake()
        if pending and (wake is None or pending[0][0] <= wake):
            at, _, event = pending.pop(0)
            now = Instant(at)
        elif wake is not None:
            event, now = WAKE, wake
        else:
            return run
        found = model.handle(event, now)
        assert all(effect.at <= now for effect in found), "an effect before its time"
        run.effects += found
        model.validate_state()
