"""Group commit: one flush of the log makes everything applied before it durable, for all who wait."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from dynbranch.csl.key_value import StoreFull
from dynbranch.domain.errors import StoreFailed

RunBlocking = Callable[[Callable[[], None]], Awaitable[None]]
"""Runs a blocking call somewhere it does not hold up the event loop."""


async def run_inline(call: Callable[[], None]) -> None:
    """For a store whose flush costs nothing."""
    call()


class GroupCommit:
    """Whoever waits first leads and flushes; who comes during a flush shares the next one.

    After one failed flush nothing is known of what is on disk, so every later wait fails too (fail-stop). A
    full disk on which no flush was tried fails those who wait, and no one later.
    """

    def __init__(self, sync: Callable[[], None], run_blocking: RunBlocking) -> None:
        self._sync = sync
        self._run_blocking = run_blocking
        self._flushing = asyncio.Lock()
        self._wanted = 0
        self._reached = 0
        self._failed: StoreFailed | None = None
        self.flushes = 0

    async def durable(self) -> None:
        """Return when everything applied before this call would survive a power loss. Raises StoreFailed."""
        self._wanted += 1
        ticket = self._wanted
        while self._reached < ticket:
            async with self._flushing:
                if self._reached < ticket:
                    await self._flush()

    async def _flush(self) -> None:
        if self._failed is not None:
            raise self._failed
        covered = self._wanted
        # Shielded: a leader that is cancelled must not leave the others with a flush of unknown outcome.
        flush = asyncio.ensure_future(self._run_blocking(self._sync))
        try:
            await asyncio.shield(flush)
        except asyncio.CancelledError:
            await asyncio.wait({flush})
            self._settle(flush, covered)
            raise
        except StoreFull:
            raise
        except Exception as error:
            self._settle(flush, covered)
            assert self._failed is not None
            raise self._failed from error
        self._settle(flush, covered)

    def _settle(self, flush: asyncio.Future[None], covered: int) -> None:
        error = flush.exception()
        self.flushes += 1
        if error is None:
            self._reached = max(self._reached, covered)
        elif isinstance(error, StoreFull):
            return
        elif isinstance(error, StoreFailed):
            self._failed = error
        else:
            self._failed = StoreFailed("flush_failed", f"{type(error).__name__}: {error}")
