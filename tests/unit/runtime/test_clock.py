from __future__ import annotations

import asyncio

import pytest
from dynbranch.runtime.clock import Clock, ManualClock, SystemClock


async def settle() -> None:
    for _ in range(3):
        await asyncio.sleep(0)


async def test_manual_clock_wakes_sleepers_in_the_order_of_their_due_times() -> None:
    clock = ManualClock(100.0)
    woken: list[str] = []

    async def nap(name: str, seconds: float) -> None:
        await clock.sleep(seconds)
        woken.append(name)

    naps = [asyncio.create_task(nap(n, s)) for n, s in (("late", 5), ("early", 1), ("never", 50))]
    await settle()
    assert clock.sleeping == 3

    clock.advance(0.5)
    await settle()
    assert woken == []
    clock.advance(4.5)
    await settle()
    assert woken == ["early", "late"]
    assert clock.now() == 105.0

    naps[2].cancel()
    await asyncio.gather(*naps, return_exceptions=True)
    assert clock.sleeping == 0
    clock.advance(100)


async def test_manual_clock_moves_wall_time_with_it_and_never_back() -> None:
    clock = ManualClock(3.0, unix_ms=1_000)
    clock.advance(0.25)
    assert clock.unix_ms() == 1_250
    with pytest.raises(ValueError, match="backwards"):
        clock.advance(-1)
    await clock.sleep(0)


async def test_system_clock_is_monotonic() -> None:
    clock: Clock = SystemClock()
    before = clock.now()
    await clock.sleep(0)
    assert clock.now() >= before
    assert clock.unix_ms() > 1_700_000_000_000
