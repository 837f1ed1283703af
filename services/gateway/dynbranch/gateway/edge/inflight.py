"""The exchanges in flight: how many there may be, and a watch over those in which nothing moves."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from dynbranch.domain.ids import Instant
from dynbranch.gateway.edge.exchange import Exchange
from dynbranch.gateway.protocols.errors import ApiError
from dynbranch.runtime.clock import Clock
from dynbranch.runtime.tasks import Tasks

_WATCH_INTERVAL_S = 1.0


class BodyRoom:
    """How many bytes of bodies may be held at once. The first ``FREE_BYTES`` of each are not counted, so that
    large bodies never keep small ones out."""

    FREE_BYTES = 64 * 1024

    def __init__(self, limit_bytes: int) -> None:
        self._left_bytes = limit_bytes

    def take(self, counted_bytes: int) -> None:
        """Raises ApiError (503) when there is no room."""
        if counted_bytes > self._left_bytes:
            message = "Too many large bodies are being read."
            raise ApiError(503, message, code="overloaded", retry_after_s=1)
        self._left_bytes -= counted_bytes

    def give(self, counted_bytes: int) -> None:
        self._left_bytes += counted_bytes


class InFlight:
    """``keep_alive_s``: silence after which a stream gets a keep-alive. ``stall_s``: how long a client may
    take to read what was sent before it counts as gone."""

    def __init__(
        self, *, limit: int, keep_alive_s: float, stall_s: float, clock: Clock, tasks: Tasks
    ) -> None:
        self._limit = limit
        self._keep_alive_s = keep_alive_s
        self._stall_s = stall_s
        self._clock = clock
        self._tasks = tasks
        self._exchanges: set[Exchange] = set()
        self._nudged: set[Exchange] = set()

    def __len__(self) -> int:
        return len(self._exchanges)

    @contextmanager
    def admitted(self, exchange: Exchange) -> Iterator[None]:
        """Raises ApiError (503) when there are too many already."""
        if len(self._exchanges) >= self._limit:
            raise ApiError(503, "Too many requests are in flight.", code="overloaded", retry_after_s=1)
        self._exchanges.add(exchange)
        try:
            yield
        finally:
            self._exchanges.discard(exchange)

    async def watch(self) -> None:
        """Runs for ever: one look a second costs less than a timer per chunk."""
        while True:
            await self._clock.sleep(_WATCH_INTERVAL_S)
            self.look(self._clock.now())

    def look(self, now: Instant) -> None:
        for exchange in tuple(self._exchanges):
            if exchange.sending_since is not None:
                if now - exchange.sending_since > self._stall_s:
                    exchange.drop()
            elif exchange.silence_s is not None and now - exchange.last_said >= exchange.silence_s:
                exchange.fall_silent()
            elif exchange.when_idle is not None and now - exchange.last_sent >= self._keep_alive_s:
                self._nudge(exchange)

    def _nudge(self, exchange: Exchange) -> None:
        if exchange not in self._nudged:
            self._nudged.add(exchange)
            self._tasks.spawn(self._keep_alive(exchange), name="keep-alive")

    async def _keep_alive(self, exchange: Exchange) -> None:
        try:
            if exchange.when_idle is not None:
                await exchange.when_idle()
        finally:
            self._nudged.discard(exchange)
