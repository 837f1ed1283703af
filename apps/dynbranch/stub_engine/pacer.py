"""Runs an engine model on the wall clock."""

from __future__ import annotations

import asyncio
from collections import deque
from math import ceil
from typing import Protocol, assert_never

from dynbranch.domain.ids import Instant
from dynbranch.enginemodel.messages import (
    WAKE,
    Abort,
    Admitted,
    Effect,
    Event,
    Finished,
    Preempted,
    Refused,
    RequestKey,
    Submit,
    Token,
)
from dynbranch.enginemodel.model import EngineModel


class Follower(Protocol):
    """Who is told what becomes of a request. ``has_tokens`` comes for requests that hear about every
    token."""

    def admitted(self, hit_tokens: int) -> None: ...

    def has_tokens(self, count: int) -> None: ...

    def finished(self) -> None: ...

    def refused(self) -> None: ...


class Pacer:
    """One timer for everything that the model will do next.

    Who is told something may submit and abort: that comes after all that the model has said already. A model
    asked in between would tell the others newer things first, and then the older.
    """

    def __init__(self, model: EngineModel, loop: asyncio.AbstractEventLoop) -> None:
        self.model = model
        self._loop = loop
        self._followers: dict[RequestKey, Follower] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = 0.0
        self._events: deque[Event] = deque()
        self._telling = False

    def submit(self, order: Submit, follower: Follower) -> None:
        self._followers[order.request] = follower
        self._handle(order)

    def abort(self, request: RequestKey) -> None:
        if self._followers.pop(request, None) is not None:
            self._handle(Abort(request))

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _handle(self, event: Event) -> None:
        self._events.append(event)
        if self._telling:
            return
        self._telling = True
        try:
            while self._events:
                for effect in self.model.handle(self._events.popleft(), Instant(self._loop.time())):
                    self._tell(effect)
        finally:
            self._telling = False
        self._arm()

    def _tell(self, effect: Effect) -> None:
        follower = self._followers.get(effect.request)
        if follower is None:
            return
        match effect:
            case Token(index=index):
                follower.has_tokens(index + 1)
            case Finished():
                del self._followers[effect.request]
                follower.finished()
            case Admitted():
                follower.admitted(effect.hit_tokens)
            case Refused():
                del self._followers[effect.request]
                follower.refused()
            case Preempted():
                pass
            case _:
                assert_never(effect)

    def _arm(self) -> None:
        at = self.model.next_wake()
        if self._timer is not None:
            if at == self._timer_at:
                return
            self._timer.cancel()
            self._timer = None
        if at is not None:
            # uvloop rounds to milliseconds; a timer that came early would be set again and again.
            delay_s = ceil(max(0.0, at - self._loop.time()) * 1000) / 1000
            self._timer_at = at
            self._timer = self._loop.call_later(delay_s, self._wake)

    def _wake(self) -> None:
        self._timer = None
        self._handle(WAKE)
