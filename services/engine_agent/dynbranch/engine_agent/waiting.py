"""Waiting for something or for time to pass, on the clock that the caller was given."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from dynbranch.runtime.clock import Clock

T = TypeVar("T")


async def dead_or_silent(
    dead: Coroutine[Any, Any, T], silent: Coroutine[Any, Any, str]
) -> tuple[T | None, str]:
    """What the first to end says: how a process ended, or, with None, why its server does not answer."""
    died = asyncio.ensure_future(dead)
    mute = asyncio.ensure_future(silent)
    try:
        await asyncio.wait((died, mute), return_when=asyncio.FIRST_COMPLETED)
        return (died.result(), "") if died.done() else (None, mute.result())
    finally:
        died.cancel()
        mute.cancel()
        await asyncio.gather(died, mute, return_exceptions=True)


async def set_within(event: asyncio.Event, seconds: float, clock: Clock) -> bool:
    """Whether ``event`` was set before ``seconds`` had passed."""
    if event.is_set() or seconds <= 0:
        return event.is_set()
    late = asyncio.ensure_future(clock.sleep(seconds))
    came = asyncio.ensure_future(event.wait())
    try:
        await asyncio.wait((late, came), return_when=asyncio.FIRST_COMPLETED)
    finally:
        late.cancel()
        came.cancel()
        await asyncio.gather(late, came, return_exceptions=True)
    return event.is_set()
