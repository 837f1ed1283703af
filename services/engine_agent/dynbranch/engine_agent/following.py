"""A follower of one generation: a cursor into its log.

The log is the buffer, so a slow follower slows nobody.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable

from dynbranch.domain.engine import GenerationEvents
from dynbranch.engine_agent.core.messages import FollowerId
from dynbranch.engine_agent.core.registry import Generation

MAX_MESSAGE_BYTES = 2**20
MAX_MESSAGE_ITEMS = 512


class Follower:
    """``wake`` is called, and must not wait, whenever there may be more; ``left`` once, by ``leave``.

    A ``quiet`` one is given nothing before the end.
    """

    __slots__ = ("_cursor", "_left", "_quiet", "_traceparent", "generation", "id", "is_over", "wake")

    def __init__(
        self,
        generation: Generation,
        follower: FollowerId,
        cursor: int,
        wake: Callable[[], None],
        left: Callable[[Follower], None],
        traceparent: str = "",
        *,
        quiet: bool = False,
    ) -> None:
        self.generation = generation
        self.id = follower
        self.wake = wake if not quiet else lambda: None if generation.end is None else wake()
        self.is_over = False
        """Whether it was given the end."""
        self._cursor = cursor
        self._quiet = quiet
        self._left: Callable[[Follower], None] | None = left
        self._traceparent = traceparent

    @property
    def is_urgent(self) -> bool:
        """Whether a person may be waiting for what is there: the first item, or the end."""
        return self._cursor == 0 or self.generation.end is not None

    @property
    def has_more(self) -> bool:
        return self._cursor < len(self.generation.items) or self.generation.end is not None

    def next(self) -> GenerationEvents | None:
        """What is there and was not given yet, in one message's bounds; None when there is nothing."""
        generation, cursor = self.generation, self._cursor
        if self._quiet and generation.end is None:
            return None
        items = _next_items(generation.items, cursor)
        at_end = cursor + len(items) >= len(generation.items)
        end = generation.end if at_end else None
        if not items and end is None:
            return None
        self._cursor = cursor + len(items)
        self.is_over = end is not None
        traceparent, self._traceparent = self._traceparent, ""
        return GenerationEvents(cursor, items, end, traceparent)

    def leave(self) -> None:
        left, self._left = self._left, None
        if left is not None:
            left(self)


async def events_of(
    follower: Follower, wake: asyncio.Event, next_of: Callable[[Follower], GenerationEvents | None]
) -> AsyncGenerator[GenerationEvents]:
    """What it is given, as it comes. It leaves when this ends; ``wake`` is set by the follower's own."""
    try:
        while not follower.is_over:
            wake.clear()
            if (message := next_of(follower)) is None:
                await wake.wait()
            else:
                yield message
    finally:
        follower.leave()


def _next_items(items: list[bytes], cursor: int) -> tuple[bytes, ...]:
    there = items[cursor : cursor + MAX_MESSAGE_ITEMS]
    size = 0
    for count, item in enumerate(there):
        size += len(item)
        if count and size > MAX_MESSAGE_BYTES:
            return tuple(there[:count])
    return tuple(there)
