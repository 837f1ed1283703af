"""Owned tasks: each has a name, an owner and an end."""

from __future__ import annotations

import asyncio
import logging
import types
from collections.abc import Coroutine, Generator
from contextvars import copy_context
from functools import partial
from types import TracebackType
from typing import Any, NoReturn, Self, TypeVar

_log = logging.getLogger(__name__)

T = TypeVar("T")


class Tasks:
    """Owns the tasks spawned within its ``async with`` block; leaving the block cancels and awaits them all.

    A task that raises has crashed: the error is logged, ``await tasks.crashed`` raises it, and so does
    leaving the block, so that a service stops instead of limping on without the task.
    """

    def __init__(self) -> None:
        self._running: set[asyncio.Task[Any]] = set()
        self._closed = False
        self._crash: BaseException | None = None
        self._has_crashed = asyncio.Event()

    def spawn(self, coro: Coroutine[Any, Any, T], *, name: str) -> asyncio.Task[T]:
        if self._closed:
            coro.close()
            raise RuntimeError(f"no task {name!r} can start: its owner has ended")
        return self._own(asyncio.get_running_loop().create_task(coro, name=name))

    def _own(self, task: asyncio.Task[T]) -> asyncio.Task[T]:
        self._running.add(task)
        task.add_done_callback(self._ended)
        return task

    def hasten(self, coro: Coroutine[Any, Any, None], *, name: str) -> None:
        """Run it at once, up to where it first waits; only what waits becomes a task. Raises what it raises
        before that.

        Most answers need no waiting, and a task costs more than they do.
        """
        context = copy_context()
        try:
            first = context.run(coro.send, None)
        except StopIteration:
            return
        task = asyncio.get_running_loop().create_task(_rest(coro, first), name=name, context=context)
        # One that was cancelled before its first turn has not told the coroutine.
        self._own(task).add_done_callback(lambda _: coro.close())

    @property
    def crashed(self) -> Coroutine[Any, Any, NoReturn]:
        """Await it to get the first crash raised; it never returns."""
        return self._raise_crash()

    def __len__(self) -> int:
        return len(self._running)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._closed = True
        while self._running:
            for task in self._running:
                task.cancel()
            await asyncio.wait(self._running)
            # Their done callbacks run one turn of the loop later.
            await asyncio.sleep(0)
        if error is None and self._crash is not None:
            raise self._crash

    async def _raise_crash(self) -> NoReturn:
        await self._has_crashed.wait()
        assert self._crash is not None
        raise self._crash

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._running.discard(task)
        if task.cancelled():
            return
        error = task.exception()
        if error is None:
            return
        _log.error("task %s crashed", task.get_name(), exc_info=error)
        if self._crash is None:
            self._crash = error
            self._has_crashed.set()


@types.coroutine
def _rest(coro: Coroutine[Any, Any, None], waits_for: Any) -> Generator[Any, Any, None]:
    """What is left of a coroutine that has begun and waits."""
    while True:
        try:
            came = yield waits_for
        except BaseException as failure:  # noqa: BLE001  # whatever a task throws in is the coroutine's
            resume = partial(coro.throw, failure)
        else:
            resume = partial(coro.send, came)
        try:
            waits_for = resume()
        except StopIteration:
            return
