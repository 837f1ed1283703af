"""The controller's branches over the twins of store and agent: each workflow meets one fault of its own."""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Generator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, TypeVar

from dynbranch.clients.ports import EngineAgent, Take, Unreachable, take_nothing
from dynbranch.controller.core.branches.messages import RunStage, StageBegan, StageEnded
from dynbranch.controller.running import Runner, Store
from dynbranch.domain.engine import (
    AbortResult,
    AgentDescription,
    GenerationEvents,
    GenerationOrder,
    Occupancy,
)
from dynbranch.domain.fills import BeginFill, DiscardFills, DiscardResult, FillOutcome, Settlement
from dynbranch.domain.ids import FillId, GenerationId, LeaseId

T = TypeVar("T")

AGAIN = ("before begin_fill", "after begin_fill", "before generate", "within generate")
"""Passed for every stage."""
ONCE = ("before discard_fills", "after discard_fills", "before abort", "after abort")
STEPS = 8
"""Of the task that runs a stage: as often it gives way, and can fail, before its end."""


class Fault(Enum):
    RAISE = "raise"
    CANCEL = "cancel"
    HANG = "hang"


@dataclass(slots=True)
class Chaos:
    """One fault, at the ``time``-th passing of a place of the ports or at a step of the task. Place "":
    nowhere."""

    fault: Fault
    place: str = ""
    time: int = 1
    passed: Counter[str] = field(default_factory=Counter)
    struck: bool = False

    def strikes(self, where: str) -> bool:
        self.passed[where] += 1
        if self.struck or where != self.place or self.passed[where] != self.time:
            return False
        self.struck = True
        return True

    async def point(self, where: str, timeout_s: float) -> None:
        if not self.strikes(where):
            return
        match self.fault:
            case Fault.RAISE:
                raise Unreachable(f"a fault {where}")
            case Fault.CANCEL:
                task = asyncio.current_task()
                assert task is not None
                task.cancel()
                await asyncio.sleep(0)
            case Fault.HANG:
                await asyncio.sleep(timeout_s)
                raise Unreachable(f"nothing came {where}")


def plans() -> list[Callable[[], Chaos]]:
    """Every place with every fault, at its first, second and third passing; every step of the task."""

    def plan(fault: Fault, place: str, time: int) -> Callable[[], Chaos]:
        return lambda: Chaos(fault, place, time)

    stages = itertools.product(Fault, AGAIN, (1, 2, 3))
    losses = itertools.product(Fault, ONCE, (1,))
    in_tasks = itertools.product((Fault.RAISE, Fault.CANCEL), ("step",), range(1, STEPS + 1))
    return [plan(*one) for one in itertools.chain(stages, losses, in_tasks)]


class Faults:
    """Which workflow a call is for. Who has no fault of its own meets ``others``, or none."""

    def __init__(self, others: Chaos | None = None) -> None:
        self.others = others
        self.by_workflow: dict[str, Chaos] = {}
        self.fills: dict[FillId, str] = {}
        self.generations: dict[GenerationId, str] = {}

    async def point(self, workflow: str, where: str, timeout_s: float) -> None:
        chaos = self.by_workflow.get(workflow, self.others)
        if chaos is not None:
            await chaos.point(where, timeout_s)

    async def around(
        self, workflow: str, where: str, call: Callable[[], Awaitable[T]], timeout_s: float
    ) -> T:
        await self.point(workflow, f"before {where}", timeout_s)
        result = await call()
        await self.point(workflow, f"after {where}", timeout_s)
        return result


class FaultyStore:
    def __init__(self, inner: Store, faults: Faults) -> None:
        self._inner = inner
        self._faults = faults

    async def begin_fill(self, fill: BeginFill, *, timeout_s: float) -> FillOutcome:
        workflow = fill.identity.workflow_id
        self._faults.fills[fill.origin.fill_id] = workflow
        return await self._faults.around(
            workflow, "begin_fill", lambda: self._inner.begin_fill(fill, timeout_s=timeout_s), timeout_s
        )

    async def discard_fills(self, discard: DiscardFills, *, timeout_s: float) -> DiscardResult:
        workflow = self._faults.fills.get(discard.fill_ids[0], "") if discard.fill_ids else ""
        return await self._faults.around(
            workflow,
            "discard_fills",
            lambda: self._inner.discard_fills(discard, timeout_s=timeout_s),
            timeout_s,
        )

    async def release_leases(self, leases: Sequence[LeaseId], *, timeout_s: float) -> None:
        await self._inner.release_leases(leases, timeout_s=timeout_s)

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
    def __init__(self, inner: EngineAgent, faults: Faults) -> None:
        self._inner = inner
        self._faults = faults

    async def describe(self, *, timeout_s: float) -> AgentDescription:
        return await self._inner.describe(timeout_s=timeout_s)

    def generate(
        self, order: GenerationOrder, *, idle_s: float, take: Take = take_nothing
    ) -> AsyncGenerator[GenerationEvents]:
        self._faults.generations[order.generation_id] = order.identity.workflow_id
        events = self._inner.generate(order, idle_s=idle_s)
        return self._followed(order.identity.workflow_id, events, idle_s)

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
        return self._inner.attach(
            generation, from_item=from_item, wait_ms=wait_ms, idle_s=idle_s, adopts=adopts, quiet=quiet
        )

    async def abort(
        self, generation: GenerationId, *, reason: str, timeout_s: float, only_speculative: bool = False
    ) -> AbortResult:
        return await self._faults.around(
            self._faults.generations.get(generation, ""),
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
        self, workflow: str, events: AsyncGenerator[GenerationEvents], idle_s: float
    ) -> AsyncGenerator[GenerationEvents]:
        async with aclosing(events):
            await self._faults.point(workflow, "before generate", idle_s)
            async for message in events:
                await self._faults.point(workflow, "within generate", idle_s)
                yield message


class FaultyRunner(Runner):
    """Fails at a step of the stage's own task: each time that it gives way is one."""

    def __init__(self, *parts: Any, faults: Faults, **more: Any) -> None:
        super().__init__(*parts, **more)
        self._faults = faults

    async def run(self, ask: RunStage, began: Callable[[StageBegan], None]) -> StageEnded:
        chaos = self._faults.by_workflow.get(ask.identity.workflow_id)
        work = super().run(ask, began)
        if chaos is None or chaos.place != "step":
            return await work
        try:
            return await _Stepped(work, chaos)
        except Unreachable as failure:
            # As the port raises it: where a task is not in a call of one, it is let go.
            raise asyncio.CancelledError from failure


class _Stepped:
    def __init__(self, work: Coroutine[Any, Any, StageEnded], chaos: Chaos) -> None:
        self._work = work
        self._chaos = chaos

    def __await__(self) -> Generator[Any, Any, StageEnded]:
        inner = self._work.__await__()
        thrown: BaseException | None = None
        try:
            while True:
                waits = next(inner) if thrown is None else inner.throw(thrown)
                thrown = None
                if self._chaos.strikes("step"):
                    raised = self._chaos.fault is Fault.RAISE
                    thrown = Unreachable("a fault at a step") if raised else asyncio.CancelledError()
                    continue
                try:
                    yield waits
                except BaseException as error:  # noqa: BLE001  # handed on to whom it is for
                    thrown = error
        except StopIteration as end:
            ended: StageEnded = end.value
            return ended
