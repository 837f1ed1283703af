"""The engine model as its users see it: events and a clock in, effects out."""

from __future__ import annotations

from typing import Protocol, assert_never

from dynbranch.domain.ids import Instant
from dynbranch.enginemodel.batch import BatchEngine
from dynbranch.enginemodel.fixed import FixedEngine
from dynbranch.enginemodel.messages import Effect, Event, Gauges, RequestKey
from dynbranch.enginemodel.parameters import BatchParameters, FixedParameters, Parameters


class EngineModel(Protocol):
    """``now`` never goes back. A request's key is used once.

    An effect tells what has happened at its own instant, at or before ``now``. Whoever waits calls ``handle``
    with a Wake at ``next_wake``; calling it earlier or more often changes no instant.
    """

    def handle(self, event: Event, now: Instant) -> list[Effect]: ...

    def next_wake(self) -> Instant | None: ...

    def produced(self, request: RequestKey) -> int: ...

    @property
    def gauges(self) -> Gauges: ...

    def flush_cache(self) -> None: ...

    def validate_state(self) -> None: ...


def engine_model(parameters: Parameters) -> EngineModel:
    match parameters:
        case BatchParameters():
            return BatchEngine(parameters)
        case FixedParameters():
            return FixedEngine(parameters)
        case _:
            assert_never(parameters)
