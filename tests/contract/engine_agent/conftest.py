"""One suite, two agents: the in-memory twin, and the real one behind gRPC with an engine behind HTTP."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Any

import pytest
from contract.engine_agent.scripted_stub import llama_server, reply_of
from dynbranch.clients.engine_agent import GrpcEngineAgent
from dynbranch.clients.ports import EngineAgent
from dynbranch.domain.engine import GenerationOrder, ModelDescription
from dynbranch.engine_agent.core.registry import Limits
from dynbranch.engine_agent.engines.http import Timeouts
from dynbranch.engine_agent.engines.openai import OpenAiEngine, OpenAiSettings
from dynbranch.engine_agent.fake import FakeEngineAgent, Script, ScriptedEngine
from dynbranch.engine_agent.server import service
from dynbranch.engine_agent.shell import Agent
from dynbranch.runtime.clock import SystemClock
from dynbranch.runtime.server import GrpcServer
from unit.engine_agent.samples import StubCsl, chat_order, fill_order

SLOTS = 2
LIMITS = Limits(waiting=2, retention_s=30.0, fill_kv_tokens=10_000)


@dataclass
class Stage:
    """An agent to test, and what stands around it."""

    agent: EngineAgent
    inner: Agent
    csl: StubCsl
    model: ModelDescription
    play: Callable[[Script], None]
    engine_running: Callable[[], int]

    def order(self, text: str = "hello", *, leased: bool = False, **fields: Any) -> GenerationOrder:
        return chat_order(text, leased=leased, model=self.model, **fields)

    def fill(self, text: str = "hello", **fields: Any) -> GenerationOrder:
        return fill_order(text, model=self.model, **fields)

    def nothing_is_held(self) -> bool:
        registry = self.inner.registry
        registry.validate_state()
        return not (
            registry.slots.held or registry.slots.waiting or registry.leases.held or registry.speculation.held
        )


async def fake_stage(stack: AsyncExitStack) -> Stage:
    clock = SystemClock()
    csl = StubCsl(clock)
    engine = ScriptedEngine(clock, slots=SLOTS)
    fake = await stack.enter_async_context(
        FakeEngineAgent(csl=csl, clock=clock, engine=engine, limits=LIMITS)
    )

    def play(script: Script) -> None:
        engine.writer = lambda order: script

    return Stage(fake, fake.agent, csl, engine.facts.models[0], play, lambda: len(engine.running))


async def grpc_stage(stack: AsyncExitStack) -> Stage:
    clock = SystemClock()
    csl = StubCsl(clock)
    stub = await stack.enter_async_context(llama_server(slots=SLOTS))
    engine = OpenAiEngine(OpenAiSettings(stub.url, timeouts=Timeouts(idle_s=20)), clock)
    agent = await stack.enter_async_context(Agent(engine, csl, clock, limits=LIMITS))
    server = GrpcServer("127.0.0.1:0", [service(agent)], clock)
    client = GrpcEngineAgent(await server.start())
    stack.push_async_callback(server.stop, 0.1)
    stack.push_async_callback(client.close)
    await agent.until_ready()
    model = (await client.describe(timeout_s=5)).models[0]

    def play(script: Script) -> None:
        stub.writer = lambda view: reply_of(script)

    return Stage(client, agent, csl, model, play, lambda: stub.running)


@pytest.fixture(params=["fake", "grpc"])
async def stage(request: pytest.FixtureRequest) -> AsyncIterator[Stage]:
    async with AsyncExitStack() as stack:
        make = fake_stage if request.param == "fake" else grpc_stage
        yield await make(stack)
