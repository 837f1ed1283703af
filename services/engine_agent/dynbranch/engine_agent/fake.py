"""An in-memory engine agent: the production core and shell over a scripted engine, on any clock.

It passes the contract suite of the real one. Gateways test against it: outputs are scripted, and engine and
agent die on command.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from types import TracebackType
from typing import Self

from dynbranch.clients.ports import Csl, Take, Unreachable, take_nothing
from dynbranch.domain.engine import (
    AbortResult,
    AgentDescription,
    AgentKind,
    AttachOrder,
    Failed,
    GenerationEvents,
    GenerationOrder,
    ModelDescription,
    Occupancy,
    ToolDescription,
)
from dynbranch.domain.ids import GenerationId, RecordId
from dynbranch.domain.reuse import Fingerprint, Level
from dynbranch.engine_agent.core.registry import Limits
from dynbranch.engine_agent.engines.port import (
    CleanEnd,
    EngineCounts,
    EngineError,
    EngineFacts,
    EngineUnavailable,
    Heard,
)
from dynbranch.engine_agent.shell import Agent, Timings
from dynbranch.runtime.clock import Clock, SystemClock

FAKE_MODEL = ModelDescription(
    id="fake-model",
    fingerprint=Fingerprint((("engine", "fake"), ("model", "fake-model")), Level.GREEDY),
    aliases=("fake-alias",),
    context_tokens=4096,
    equivalences=frozenset({"single_text_block_is_string"}),
)


def text_chunks(
    words: Iterable[str], *, finish: str = "stop", model: str = "fake-model"
) -> tuple[bytes, ...]:
    """The chunks of one answer, as an engine would stream them."""
    words = tuple(words)
    deltas: list[tuple[dict[str, str], str | None]] = [({"role": "assistant", "content": ""}, None)]
    deltas += [({"content": word}, None) for word in words]
    deltas.append(({}, finish))
    base = {
        "id": "chatcmpl-fake",
        "object": "chat.completion.chunk",
        "created": 1_700_000_000,
        "model": model,
    }
    chunks: list[dict[str, object]] = [
        {**base, "choices": [{"index": 0, "delta": delta, "finish_reason": reason}]}
        for delta, reason in deltas
    ]
    count = len(words)
    usage = {"prompt_tokens": 7, "completion_tokens": count, "total_tokens": 7 + count}
    chunks.append({**base, "choices": [], "usage": usage})
    return tuple(json.dumps(chunk, separators=(",", ":")).encode() for chunk in chunks)


@dataclass(frozen=True, slots=True)
class Script:
    """What the engine does with one order. Delays are seconds on the agent's clock."""

    items: tuple[bytes, ...] = field(default_factory=lambda: text_chunks(("Hello", " there")))
    first_s: float = 0.0
    between_s: float = 0.0
    fail_after: int | None = None
    """Fail when so many items have been sent: 0 is before the first, ``len(items)`` after the last."""
    failure: Failed = field(
        default_factory=lambda: Failed(
            0, b'{"error":{"message":"the engine died","type":"engine_error"}}', True
        )
    )
    unstorable: str = ""
    reads: tuple[RecordId, ...] | None = None
    gate: asyncio.Event | None = None
    """When given, nothing is sent before it is set."""


Writer = Callable[[GenerationOrder], Script]


class ScriptedEngine:
    """An engine that does what its scripts say. ``orders`` are what it was asked to run, in order."""

    def __init__(
        self,
        clock: Clock,
        writer: Writer | None = None,
        *,
        models: tuple[ModelDescription, ...] = (FAKE_MODEL,),
        tools: tuple[ToolDescription, ...] = (),
        slots: int = 4,
        kind: AgentKind = AgentKind.EMBEDDED,
        bypass_url: str = "",
    ) -> None:
        self.kind = kind
        self.facts = EngineFacts(slots, bypass_url, models, tools)
        self.writer: Writer = writer or (lambda order: Script())
        self.orders: list[GenerationOrder] = []
        self.running: set[GenerationId] = set()
        self.aborted: list[GenerationId] = []
        self.alive = True
        self._clock = clock
        self._died = asyncio.Event()

    async def start(self) -> EngineFacts:
        if not self.alive:
            raise EngineUnavailable("the engine is dead")
        self._died.clear()
        return self.facts

    async def lost(self) -> str:
        await self._died.wait()
        return "the engine died"

    async def run(self, order: GenerationOrder, heard: Heard) -> CleanEnd:
        script = self.writer(order)
        self.orders.append(order)
        self.running.add(order.generation_id)
        finished = False
        try:
            if script.gate is not None:
                await script.gate.wait()
            for number, item in enumerate(script.items):
                await self._clock.sleep(script.between_s if number else script.first_s)
                self._maybe_fail(script, number)
                heard((item,))
            self._maybe_fail(script, len(script.items))
            finished = True
            return CleanEnd(script.unstorable, script.reads)
        except EngineError:
            finished = True
            raise
        finally:
            self.running.discard(order.generation_id)
            if not finished:
                self.aborted.append(order.generation_id)

    def _maybe_fail(self, script: Script, sent: int) -> None:
        if not self.alive or script.fail_after == sent:
            failure = script.failure
            raise EngineError(replace(failure, may_retry=failure.may_retry and not sent))

    async def unchanged(self) -> bool:
        return self.alive

    async def counts(self) -> EngineCounts:
        if not self.alive:
            raise EngineUnavailable("the engine is dead")
        return EngineCounts(running=len(self.running), waiting=0)

    async def restart(self) -> None:
        self._died.set()

    async def close(self) -> None:
        """Nothing is held."""

    def die(self) -> None:
        """Runs fail at their next step, and the agent learns of it."""
        self.alive = False
        self._died.set()

    def revive(self) -> None:
        self.alive = True


class FakeEngineAgent:
    """The twin of ``clients.ports.EngineAgent``. Use as an async context manager."""

    def __init__(
        self,
        *,
        csl: Csl | None = None,
        clock: Clock | None = None,
        engine: ScriptedEngine | None = None,
        limits: Limits | None = None,
        timings: Timings | None = None,
    ) -> None:
        self.clock = clock or SystemClock()
        self.engine = engine or ScriptedEngine(self.clock)
        self.agent = Agent(self.engine, csl, self.clock, limits=limits, timings=timings)
        self._lost = asyncio.Event()

    async def __aenter__(self) -> Self:
        await self.agent.__aenter__()
        await self.agent.until_ready()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.agent.__aexit__(kind, error, trace)

    def lose(self) -> None:
        """The agent can not be reached any more: calls and open streams raise Unreachable."""
        self._lost.set()

    def find(self) -> None:
        """The agent can be reached again."""
        self._lost.clear()

    async def describe(self, *, timeout_s: float) -> AgentDescription:
        self._check()
        return await self.agent.describe()

    def generate(
        self, order: GenerationOrder, *, idle_s: float, take: Take = take_nothing
    ) -> AsyncGenerator[GenerationEvents]:
        return self._reachable(self.agent.generate(order))

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
        order = AttachOrder(generation, from_item, wait_ms, adopts, quiet)
        return self._reachable(self.agent.attach(order))

    async def abort(
        self, generation: GenerationId, *, reason: str, timeout_s: float, only_speculative: bool = False
    ) -> AbortResult:
        self._check()
        return await self.agent.abort(generation, reason=reason, only_speculative=only_speculative)

    async def drain(self, *, deadline_s: float) -> int:
        self._check()
        return await self.agent.drain(deadline_s=deadline_s)

    async def watch_occupancy(self, *, interval_ms: int) -> AsyncGenerator[Occupancy]:
        async with aclosing(self.agent.watch_occupancy(interval_ms=interval_ms)) as reports:
            async for report in reports:
                self._check()
                yield report

    async def close(self) -> None:
        """A handle; the agent ends with its context manager."""

    def _check(self) -> None:
        if self._lost.is_set():
            raise Unreachable("the agent is gone")

    async def _reachable(self, events: AsyncGenerator[GenerationEvents]) -> AsyncGenerator[GenerationEvents]:
        """Raises Unreachable the moment that the agent is lost, even while nothing arrives."""
        async with aclosing(events):
            while True:
                self._check()
                step = asyncio.ensure_future(anext(events, None))
                gone = asyncio.ensure_future(self._lost.wait())
                try:
                    await asyncio.wait((step, gone), return_when=asyncio.FIRST_COMPLETED)
                finally:
                    gone.cancel()
                    if not step.done():
                        step.cancel()
                    await asyncio.gather(gone, step, return_exceptions=True)
                self._check()
                message = step.result()
                if message is None:
                    return
                yield message


def scripts(by_target: Mapping[str, Script]) -> Writer:
    """One script per model or tool."""
    return lambda order: by_target[order.target]
