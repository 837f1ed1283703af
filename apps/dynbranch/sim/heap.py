"""Virtual time: a heap of things that will happen. Nothing waits, nothing sleeps."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from dataclasses import dataclass

from dynbranch.domain.ids import Instant

Action = Callable[[], None]


@dataclass(slots=True)
class Timer:
    """``action`` None: it was cancelled, or has happened."""

    action: Action | None

    def cancel(self) -> None:
        self.action = None


class EventHeap:
    """Events of one moment happen in the order in which they were planned, so that a seed replays."""

    def __init__(self) -> None:
        self.now = Instant(0.0)
        self.steps = 0
        self._planned = 0
        self._events: list[tuple[float, int, Timer]] = []

    def after(self, seconds: float, action: Action) -> Timer:
        return self.at(self.now + seconds, action)

    def at(self, moment: float, action: Action) -> Timer:
        assert moment >= self.now
        self._planned += 1
        timer = Timer(action)
        heapq.heappush(self._events, (moment, self._planned, timer))
        return timer

    def step(self) -> bool:
        """Let the next thing happen. False: nothing is planned."""
        while self._events:
            at, _, timer = heapq.heappop(self._events)
            if timer.action is None:
                continue
            action, timer.action = timer.action, None
            self.now = Instant(at)
            self.steps += 1
            action()
            return True
        return False
