"""A fault at every await: what runs is run anew with the fault at its first await, at its second, and so on.

Everything runs in one thread, on a loop whose time passes only when nothing is left to do: each run goes the
same way up to its fault, and minutes of waiting cost nothing.
"""

from __future__ import annotations

import asyncio
import selectors
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import aclosing
from enum import Enum
from functools import partial
from itertools import count
from typing import Any

from dynbranch.clients.ports import Unreachable
from dynbranch.domain.ids import Instant, UnixMs


class Fault(Enum):
    """What happens at the await that was chosen."""

    CANCEL = "it is cancelled where it waits"
    CANCEL_LATE = "it is cancelled when what it waited for has come, and it has not gone on"
    LOSE = "the connection is lost"
    MEANWHILE = "something else happens while it waits"


class Awaits:
    """Counts the awaits of what is watched, and strikes at the ``nth``."""

    def __init__(self, watched: str, nth: int, fault: Fault) -> None:
        self.watched = watched
        self.nth = nth
        self.fault = fault
        self.act: Callable[[], None] | None = None
        """What happens meanwhile."""
        self.armed = False
        """Nothing counts before what is watched begins."""
        self.passed = 0
        self.places: Counter[str] = Counter()
        self.struck = ""
        """Where it struck."""

    def strikes(self, who: str, where: str) -> bool:
        if who != self.watched or not self.armed:
            return False
        self.passed += 1
        self.places[where] += 1
        if self.passed != self.nth:
            return False
        self.struck = f"{where}, time {self.places[where]}"
        return True

    async def line(self, where: str) -> None:
        """One way of a message. Raises Unreachable."""
        await asyncio.sleep(0)
        if self.strikes("lines", where):
            if self.fault is Fault.LOSE:
                raise Unreachable(f"lost {where}")
            self._meanwhile()

    def step(self, who: str, waits_for: Any) -> None:
        """A task is about to wait."""
        if not self.strikes(who, who):
            return
        task = asyncio.current_task()
        assert task is not None
        match self.fault:
            case Fault.CANCEL:
                task.cancel()
            case Fault.CANCEL_LATE if isinstance(waits_for, asyncio.Future):
                # Called before the task is woken.
                waits_for.add_done_callback(lambda _: task.cancel())
            case Fault.CANCEL_LATE:
                task.cancel()
            case Fault.LOSE:
                raise AssertionError("only lines are lost")
            case Fault.MEANWHILE:
                self._meanwhile()

    def _meanwhile(self) -> None:
        assert self.act is not None
        self.act()


class Stepped:
    """Awaits some work; each time that it gives way is one of its awaits."""

    def __init__(self, work: Coroutine[Any, Any, Any], who: str, awaits: Awaits) -> None:
        self._work = work
        self._who = who
        self._awaits = awaits

    def __await__(self) -> Generator[Any, Any, Any]:
        inner = self._work.__await__()
        go_on: Callable[[], Any] = partial(next, inner)
        while True:
            try:
                waits_for = go_on()
            except StopIteration as end:
                return end.value
            self._awaits.step(self._who, waits_for)
            try:
                came = yield waits_for
            except BaseException as thrown:  # noqa: BLE001  # handed on to whom it is for
                go_on = partial(inner.throw, thrown)
            else:
                go_on = partial(inner.send, came)


class Line:
    """Before a port: each call goes there and its answer comes back, and each message of a stream comes."""

    STREAMS = frozenset({"attach", "generate"})
    QUIET = frozenset(
        {"close", "describe", "read_settlements", "stats", "watch_occupancy", "watch_templates"}
    )
    """What goes on all the time, and says nothing of one request."""

    def __init__(self, inner: Any, who: str, awaits: Awaits) -> None:
        self.inner = inner
        self._who = who
        self._awaits = awaits

    def __getattr__(self, name: str) -> Any:
        call = getattr(self.inner, name)
        if name in self.QUIET:
            return call
        where = f"{self._who} {name}"
        return partial(self._streamed if name in self.STREAMS else self._called, call, where)

    async def _called(self, call: Any, where: str, *args: Any, **named: Any) -> Any:
        await self._awaits.line(f"before {where}")
        answer = await call(*args, **named)
        await self._awaits.line(f"after {where}")
        return answer

    async def _streamed(self, call: Any, where: str, *args: Any, **named: Any) -> AsyncGenerator[Any]:
        named.pop("take", None)
        async with aclosing(call(*args, **named)) as messages:
            await self._awaits.line(f"before {where}")
            async for message in messages:
                await self._awaits.line(f"within {where}")
                yield message


Run = Callable[[Awaits], Coroutine[Any, Any, None]]


def at_every_await(run: Run, watched: str, fault: Fault) -> Counter[str]:
    """Runs it anew with the fault at the first await of what is watched, at the next, until one run comes to
    its end without. Returns where the faults struck.

    An assertion that fails tells where the fault was.
    """
    struck: Counter[str] = Counter()
    for nth in count(1):
        awaits = Awaits(watched, nth, fault)
        try:
            in_leaping_time(run(awaits))
        except Exception as failure:
            failure.add_note(f"{fault.value}: await {nth} of {watched}, {awaits.struck or 'not reached'}")
            raise
        if not awaits.struck:
            return struck
        struck[awaits.struck.partition(",")[0]] += 1
    raise AssertionError("count never ends")


# Time that leaps


class _Leaping(selectors.SelectSelector):
    """Nobody outside is waited for: where nothing is ready, it is the next timer's time."""

    now = 1000.0

    def select(self, timeout: float | None = None) -> Any:
        ready = super().select(0)
        if not ready:
            assert timeout is not None, "everything waits, and no time is set"
            self.now += max(0.0, timeout)
        return ready


class LeapingLoop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self._leaping = _Leaping()
        super().__init__(self._leaping)
        self.set_default_executor(_Inline())

    def time(self) -> float:
        return self._leaping.now

    async def shutdown_default_executor(self, timeout: float | None = None) -> None:
        """It has no threads, and a thread of its own would have to be waited for."""


class LeapingClock:
    """The loop's own time."""

    def now(self) -> Instant:
        return Instant(asyncio.get_running_loop().time())

    def unix_ms(self) -> UnixMs:
        return UnixMs(1_700_000_000_000 + round(self.now() * 1000))

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


class _Inline(ThreadPoolExecutor):
    """What would run in a thread runs at once."""

    def submit(self, work: Callable[..., Any], /, *args: Any, **named: Any) -> Future[Any]:
        done: Future[Any] = Future()
        try:
            done.set_result(work(*args, **named))
        except Exception as failure:  # noqa: BLE001  # it is the future's
            done.set_exception(failure)
        return done


LONGEST_S = 600.0
"""Of the loop's time. What takes longer does not end."""


def in_leaping_time(work: Coroutine[Any, Any, None]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(LONGEST_S):
            await work

    with asyncio.Runner(loop_factory=LeapingLoop) as runner:
        runner.run(bounded())
