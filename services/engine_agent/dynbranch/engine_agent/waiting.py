"""Waiting for something or for time to pass, on the clock that the caller was given."""

from __future__ import annotations

import asyncio

from dynbranch.runtime.clock import Clock


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
