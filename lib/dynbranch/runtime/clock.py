"""Time as an argument: monotonic for deadlines, wall time for people."""

from __future__ import annotations

import asyncio
import heapq
import time
from itertools import count
from typing import Protocol

from dynbranch.domain.ids import Instant, UnixMs


class Clock(Protocol):
    def now(self) -> Instant:
        """Seconds on a monotonic clock."""

    def unix_ms(self) -> UnixMs:
        """Milliseconds since 1970, for people; never used to order events."""

    async def sleep(self, seconds: float) -> None: ...


class SystemClock:
    """The machine's own clocks."""

    def now(self) -> Instant:
        return Instant(time.monotonic())

    def unix_ms(self) -> UnixMs:
        return UnixMs(time.time_ns() // 1_000_000)

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


class ManualClock:
    """Stands still until a test advances it. Sleepers wake in the order of their due times."""

    def __init__(self, start: float = 0.0, *, unix_ms: int = 1_700_000_000_000) -> None:
        self._now = start
        self._unix_ms_at_zero = unix_ms - start * 1000
        self._order = count()
        self._sleepers: list[tuple[float, int, asyncio.Future[None]]] = []

    def now(self) -> Instant:
        return Instant(self._now)

    def unix_ms(self) -> UnixMs:
        return UnixMs(round(self._unix_ms_at_zero + self._now * 1000))

    async def sleep(self, seconds: float) -> None:
        if seconds <= 0:
            await asyncio.sleep(0)
            return
        wake: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        heapq.heappush(self._sleepers, (self._now + seconds, next(self._order), wake))
        await wake

    def advance(self, seconds: float) -> None:
        """Move time on and wake who is due; they run when the caller next awaits."""
        if seconds < 0:
            raise ValueError("time does not run backwards")
        self._now += seconds
        while self._sleepers and self._sleepers[0][0] <= self._now:
            _, _, wake = heapq.heappop(self._sleepers)
            if not wake.done():
                wake.set_result(None)

    @property
    def sleeping(self) -> int:
        """How many sleepers wait, for tests that must not advance too early."""
        return sum(not wake.done() for _, _, wake in self._sleepers)
