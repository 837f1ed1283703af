from __future__ import annotations

import asyncio
import logging
from contextvars import ContextVar

import pytest
from dynbranch.runtime.chance import new_id
from dynbranch.runtime.run import Started
from dynbranch.runtime.tasks import Tasks


async def forever(ended: list[str] | None = None) -> None:
    try:
        await asyncio.Event().wait()
    finally:
        if ended is not None:
            ended.append("ended")


async def boom() -> None:
    raise ZeroDivisionError("boom")


async def test_leaving_the_block_cancels_and_awaits_every_task() -> None:
    ended: list[str] = []
    async with Tasks() as tasks:
        tasks.spawn(forever(ended), name="one")
        tasks.spawn(forever(ended), name="two")
        await asyncio.sleep(0)
        assert len(tasks) == 2
    assert ended == ["ended", "ended"]
    assert len(tasks) == 0


async def test_a_finished_task_is_forgotten_and_its_result_kept() -> None:
    async def three() -> int:
        return 3

    async with Tasks() as tasks:
        assert await tasks.spawn(three(), name="three") == 3
        await asyncio.sleep(0)
        assert len(tasks) == 0


async def test_a_crash_is_logged_and_raised_to_whoever_waits(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.ERROR), pytest.raises(ZeroDivisionError):
        async with Tasks() as tasks:
            tasks.spawn(boom(), name="bomb")
            await tasks.crashed
    assert "bomb" in caplog.text


async def test_a_crash_that_nobody_awaited_surfaces_when_the_block_ends() -> None:
    with pytest.raises(ZeroDivisionError):
        async with Tasks() as tasks:
            tasks.spawn(boom(), name="bomb")
            await asyncio.sleep(0)


async def test_the_body_s_own_error_wins_over_a_crash() -> None:
    with pytest.raises(KeyError):
        async with Tasks() as tasks:
            tasks.spawn(boom(), name="bomb")
            await asyncio.sleep(0)
            raise KeyError("body")


async def test_nothing_starts_after_the_end() -> None:
    async with Tasks() as tasks:
        pass
    with pytest.raises(RuntimeError, match="late"):
        tasks.spawn(forever(), name="late")


async def test_until_stopped_returns_at_the_signal_and_raises_at_a_crash() -> None:
    started = Started("probe")
    async with Tasks() as tasks:
        tasks.spawn(forever(), name="works")
        waiting = asyncio.create_task(started.until_stopped(tasks))
        await asyncio.sleep(0)
        assert not waiting.done()
        started.request_stop()
        await waiting
        assert started.stopping
    started = Started("probe")
    with pytest.raises(ZeroDivisionError):
        async with Tasks() as tasks:
            tasks.spawn(boom(), name="bomb")
            await started.until_stopped(tasks)


async def test_until_stopped_leaves_no_task_behind_when_it_is_cancelled() -> None:
    async with Tasks() as tasks:
        waiting = asyncio.create_task(Started("probe").until_stopped(tasks))
        await asyncio.sleep(0)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        assert len(asyncio.all_tasks()) == 1


def test_ids_are_long_and_differ() -> None:
    assert len({new_id() for _ in range(100)}) == 100
    assert {len(new_id()), len(new_id(32))} == {16, 32}


async def test_what_need_not_wait_is_done_at_once() -> None:
    done: list[str] = []

    async def quick() -> None:
        done.append("quick")

    async with Tasks() as tasks:
        tasks.hasten(quick(), name="quick")
        assert done == ["quick"] and not len(tasks)


async def test_what_waits_goes_on_as_a_task_in_one_context() -> None:
    where: ContextVar[str] = ContextVar("where", default="outside")
    gate, seen = asyncio.Event(), []

    async def slow() -> None:
        token = where.set("inside")
        try:
            async with asyncio.timeout(20):
                await gate.wait()
            seen.append(where.get())
        finally:
            where.reset(token)

    async with Tasks() as tasks:
        tasks.hasten(slow(), name="slow")
        assert len(tasks) == 1 and where.get() == "outside"
        gate.set()
        while not seen:
            await asyncio.sleep(0)
    assert seen == ["inside"]


@pytest.mark.parametrize("turns", [0, 2])
async def test_what_waits_ends_with_its_owner(turns: int) -> None:
    ended: list[str] = []
    async with Tasks() as tasks:
        tasks.hasten(forever(ended), name="for ever")
        for _ in range(turns):
            await asyncio.sleep(0)
    assert ended == ["ended"]
