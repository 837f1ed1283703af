"""Wrappers of the store's and the agent's ports that fail at one chosen await."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import aclosing
from enum import Enum
from typing import TypeVar

from dynbranch.clients.ports import EngineAgent, Take, Unreachable, take_nothing
from dynbranch.controller.running import Store
from dynbranch.domain.engine import (
    AbortResult,
    AgentDescription,
    GenerationEvents,
    GenerationOrder,
    Occupancy,
)
from dynbranch.domain.fills import BeginFill, DiscardFills, DiscardResult, FillOutcome, Settlement
from dynbranch.domain.ids import GenerationId, LeaseId

T = TypeVar("T")


class Fault(Enum):
    RAISE = "raise"
    CANCEL = "cancel"
    HANG = "hang"


class Chaos:
    """Counts the awaits of calls, before each and after it, and fails at one place when it is passed for the
    ``time``-th time. Place "": nowhere."""

    def __init__(self, fault: Fault, place: str = "", time: int = 1) -> None:
        self.fault = fault
        self.place = place
        self.time = time
        self.passed: Counter[str] = Counter()
        self.struck = False

    async def point(self, where: str, timeout_s: float) -> None:
        self.passed[where] += 1
        if where != self.place or self.passed[where] != self.time:
            return
        self.struck = True
        match self.fault:
            case Fault.RAISE:
                raise Unreachable(f"chaos {where}")
            case Fault.CANCEL:
                task = asyncio.current_task()
                assert task is not None
                task.cancel()
                await asyncio.sleep(0)
            case Fault.HANG:
                await asyncio.sleep(timeout_s)
                raise Unreachable(f"chaos: nothing came {where}")

    async def around(self, where: str, call: Callable[[], Awaitable[T]], timeout_s: float) -> T:
        await self.point(f"before {where}", timeout_s)
        result = await call()
        await self.point(f"after {where}", timeout_s)
        return result


class FaultyStore:
    def __init__(self, inner: Store, chaos: Chaos) -> None:
        self._inner = inner
        self._chaos = chaos

    async def begin_fill(self, fill: BeginFill, *, timeout_s: float) -> FillOutcome:
        return await self._chaos.around(
            "begin_fill", lambda: self._inner.begin_fill(fill, timeout_s=timeout_s), timeout_s
        )

    async def discard_fills(self, discard: DiscardFills, *, timeout_s: float) -> DiscardResult:
        return await self._chaos.around(
            "discard_fills", lambda: self._inner.discard_fills(discard, timeout_s=timeout_s), timeout_s
        )

    async def release_leases(self, leases: Sequence[LeaseId], *, timeout_s: float) -> None:
        await self._chaos.around(
            "release_leases", lambda: self._inner.release_leases(leases, timeout_s=timeout_s), timeout_s
        )

    async def read_settlements(
        self,
        *,
        acknowledged_through: int,
        after: int,
        at_most: int,
        wait_ms: int,
        timeout_s: float,
        reader_epoch: int = 0,
    ) -> tuple[Settlement, ...]:
        return await self._inner.read_settlements(
            acknowledged_through=acknowledged_through,
            after=after,
            at_most=at_most,
            wait_ms=wait_ms,
            timeout_s=timeout_s,
            reader_epoch=reader_epoch,
        )


class FaultyAgent:
    def __init__(self, inner: EngineAgent, chaos: Chaos) -> None:
        self._inner = inner
        self._chaos = chaos

    async def describe(self, *, timeout_s: float) -> AgentDescription:
        return await self._inner.describe(timeout_s=timeout_s)

    def generate(
        self, order: GenerationOrder, *, idle_s: float, take: Take = take_nothing
    ) -> AsyncGenerator[GenerationEvents]:
        return self._followed("generate", self._inner.generate(order, idle_s=idle_s), idle_s)

    def attach(
        self,
        generation: GenerationId,
        *,
        from_item: int,
        wait_ms: int,
        idle_s: float,
        take: Take = take_nothing,
        adopts: bool = False,
        quiet: bool = False,
    ) -> AsyncGenerator[GenerationEvents]:
        events = self._inner.attach(
            generation, from_item=from_item, wait_ms=wait_ms, idle_s=idle_s, adopts=adopts, quiet=quiet
        )
        return self._followed("attach", events, idle_s)

    async def abort(
        self, generation: GenerationId, *, reason: str, timeout_s: float, only_speculative: bool = False
    ) -> AbortResult:
        return await self._chaos.around(
            "abort",
            lambda: self._inner.abort(
                generation, reason=reason, timeout_s=timeout_s, only_speculative=only_speculative
            ),
            timeout_s,
        )

    async def drain(self, *, deadline_s: float) -> int:
        return await self._inner.drain(deadline_s=deadline_s)

    def watch_occupancy(self, *, interval_ms: int) -> AsyncGenerator[Occupancy]:
        return self._inner.watch_occupancy(interval_ms=interval_ms)

    async def close(self) -> None:
        await self._inner.close()

    async def _followed(
        self, where: str, events: AsyncGenerator[GenerationEvents], idle_s: float
    ) -> AsyncGenerator[GenerationEvents]:
        async with aclosing(events):
            await self._chaos.point(f"before {where}", idle_s)
            async for message in events:
                await self._chaos.point(f"within {where}", idle_s)
                yield message
