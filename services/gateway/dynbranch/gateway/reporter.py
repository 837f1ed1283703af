"""Arrivals and outcomes on their way to the controller: batched, fire and forget.

Nothing canonical waits here. Events are gathered for a moment, except those that a decision may hang on: they
go at once, with whatever waits. When the controller is slow or gone, events pile up to a bound and are then
dropped and counted; their numbers are skipped, so that the controller can tell how many it never saw.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import assert_never

from dynbranch.clients.ports import Controller, Unreachable
from dynbranch.domain.errors import DomainError
from dynbranch.domain.events import ArrivalSeen, ChoiceSeen, EventBatch, GatewayEvent, OutcomeSeen
from dynbranch.runtime.clock import Clock

MAX_QUEUED = 4096
MAX_QUEUED_BYTES = 32 * 2**20
MAX_BATCH = 256
MAX_BATCH_BYTES = 4 * 2**20
_GATHER_S = 0.1
_TIMEOUT_S = 2.0
_FIRST_BACK_OFF_S = 0.1
_LAST_BACK_OFF_S = 5.0


class Reporter:
    """``name`` identifies this run of this gateway."""

    def __init__(
        self, controller: Controller, *, name: str, clock: Clock, max_queued: int = MAX_QUEUED
    ) -> None:
        self._controller = controller
        self._name = name
        self._clock = clock
        self._max_queued = max_queued
        self._queue: deque[GatewayEvent] = deque()
        self._queued_bytes = 0
        self._some = asyncio.Event()
        self._urgent = asyncio.Event()
        self._next_number = 0
        self._skipped = 0
        self._unsent: EventBatch | None = None
        self.dropped = 0
        self.reached = False

    def report(self, event: GatewayEvent, *, at_once: bool = False) -> None:
        """Never waits, never fails."""
        size = _told_bytes(event)
        if len(self._queue) >= self._max_queued or self._queued_bytes + size > MAX_QUEUED_BYTES:
            self.dropped += 1
            self._skipped += 1
            return
        self._queue.append(event)
        self._queued_bytes += size
        self._some.set()
        if at_once:
            self._urgent.set()

    async def run(self) -> None:
        """Runs for ever."""
        while True:
            await self._some.wait()
            await self._gather()
            await self._deliver()

    async def _gather(self) -> None:
        if self._urgent.is_set():
            return
        gathered = asyncio.ensure_future(self._clock.sleep(_GATHER_S))
        hurried = asyncio.ensure_future(self._urgent.wait())
        try:
            await asyncio.wait((gathered, hurried), return_when=asyncio.FIRST_COMPLETED)
        finally:
            gathered.cancel()
            hurried.cancel()
            await asyncio.gather(gathered, hurried, return_exceptions=True)

    async def flush(self) -> None:
        """One last attempt, at shutdown."""
        while (self._queue or self._unsent) and await self._sent():
            pass

    def _next_batch(self) -> EventBatch:
        """The batch that was not delivered yet, or a new one."""
        if self._unsent is not None:
            return self._unsent
        events: list[GatewayEvent] = []
        size = 0
        while self._queue and len(events) < MAX_BATCH:
            size += (next_bytes := _told_bytes(self._queue[0]))
            if events and size > MAX_BATCH_BYTES:
                break
            self._queued_bytes -= next_bytes
            events.append(self._queue.popleft())
        batch = EventBatch(self._name, self._next_number, tuple(events))
        self._next_number += len(events)
        if not self._queue:
            self._some.clear()
            self._urgent.clear()
            # What was dropped came after everything that was queued.
            self._next_number += self._skipped
            self._skipped = 0
        self._unsent = batch
        return batch

    async def _deliver(self) -> None:
        back_off_s = _FIRST_BACK_OFF_S
        while not await self._sent():
            await self._clock.sleep(back_off_s)
            back_off_s = min(_LAST_BACK_OFF_S, 2 * back_off_s)

    async def _sent(self) -> bool:
        try:
            await self._controller.report_events(self._next_batch(), timeout_s=_TIMEOUT_S)
            self.reached, self._unsent = True, None
        except (Unreachable, DomainError):
            self.reached = False
        return self.reached


def _told_bytes(event: GatewayEvent) -> int:
    """What an event holds beyond a few fields: prompts and outputs, of which a few fill a memory."""
    match event:
        case ArrivalSeen(told=told):
            return 0 if told is None else sum(len(text) for _, text in told.values)
        case OutcomeSeen(told=told):
            return 0 if told is None else len(told.output_json)
        case ChoiceSeen():
            return 0
        case _:
            assert_never(event)
