"""Gateways before several stub engines, with a real agent behind gRPC for each."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import aiohttp
from dynbranch.clients.engine_agent import GrpcEngineAgent
from dynbranch.engine_agent.engines.http import Timeouts
from dynbranch.engine_agent.engines.openai import OpenAiEngine, OpenAiSettings
from dynbranch.engine_agent.server import service
from dynbranch.engine_agent.shell import Agent
from dynbranch.gateway.assembly import Gateway, Peers
from dynbranch.gateway.config import GatewaySettings
from dynbranch.gateway.tenants import Tenants
from dynbranch.runtime.clock import SystemClock
from dynbranch.runtime.server import GrpcServer
from dynbranch.stub_engine.engine import StubEngine
from dynbranch.stub_engine.settings import StubSettings
from integration.gateway.world import eventually, serving_gateway

SAME = {"weights": "none", "chat_template": "toy"}


@dataclass
class Door:
    """One gateway."""

    url: str
    gateway: Gateway
    http: aiohttp.ClientSession

    async def chat(self, *messages: str, family: str = "f", **fields: Any) -> dict[str, Any]:
        """Raises on any answer but 200."""
        said = [{"role": "system", "content": f"instructions of {family}. " * 40}]
        said += [
            {"role": "assistant" if turn % 2 else "user", "content": text}
            for turn, text in enumerate(messages)
        ]
        return await self.post(
            "/v1/chat/completions", {"model": "stub-model", "temperature": 1, "messages": said, **fields}
        )

    async def post(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        async with self.http.post(self.url + path, json={"max_tokens": 2, **body}) as response:
            assert response.status == 200, await response.text()
            answer: dict[str, Any] = await response.json()
            return answer

    def available(self) -> int:
        return sum(agent.available for agent in self.gateway.directory.agents)


@dataclass
class Fleet:
    engines: list[StubEngine]
    doors: list[Door] = field(default_factory=list)

    @property
    def door(self) -> Door:
        return self.doors[0]

    def asked(self) -> list[int]:
        """How many generations each engine was asked for."""
        return [len(engine.requests) for engine in self.engines]

    def is_quiet(self) -> bool:
        """Every gateway has heard that nothing runs."""
        agents = (agent for door in self.doors for agent in door.gateway.directory.agents)
        return all(agent.load.in_flight == 0 for agent in agents)

    async def has_reported(self) -> None:
        """Every gateway has heard of every agent twice: the second report was made after this was asked."""
        for _ in range(2):
            agents = [agent for door in self.doors for agent in door.gateway.directory.agents]
            before = [agent.heard_at for agent in agents]
            while any(agent.heard_at <= at for agent, at in zip(agents, before, strict=True)):
                await asyncio.sleep(0.005)

    def forget(self) -> None:
        for engine in self.engines:
            engine.requests.clear()


def cached(answer: dict[str, Any]) -> int:
    details = answer["usage"].get("prompt_tokens_details") or {}
    return int(details.get("cached_tokens") or 0)


@asynccontextmanager
async def running_fleet(
    engines: int = 3, gateways: int = 1, models: tuple[str, ...] = (), **settings: Any
) -> AsyncIterator[Fleet]:
    """``models``: one an engine; else all serve the same."""
    clock = SystemClock()
    async with AsyncExitStack() as stack:
        names = models or ("stub-model",) * engines
        stubs = [await stack.enter_async_context(StubEngine(StubSettings(model=name))) for name in names]
        addresses = tuple([await _agent(stub, stack, clock) for stub in stubs])
        http = await stack.enter_async_context(aiohttp.ClientSession())
        fleet = Fleet(stubs)
        for _ in range(gateways):
            chosen = GatewaySettings(
                **{"agents": addresses, "occupancy_interval_ms": 20, "stop_grace_s": 1, **settings}
            )
            peers = Peers(None, None, GrpcEngineAgent)
            gateway, url = await stack.enter_async_context(serving_gateway(chosen, peers, Tenants()))
            fleet.doors.append(Door(url, gateway, http))
        for door in fleet.doors:
            await eventually(lambda door=door: door.available() == len(names))
        yield fleet


async def _agent(stub: StubEngine, stack: AsyncExitStack, clock: SystemClock) -> str:
    settings = OpenAiSettings(stub.url, slots=8, facts=SAME, timeouts=Timeouts(idle_s=20))
    agent = await stack.enter_async_context(Agent(OpenAiEngine(settings, clock), None, clock))
    server = GrpcServer("127.0.0.1:0", [service(agent)], clock)
    address = await server.start()
    stack.push_async_callback(server.stop, 0.1)
    await agent.until_ready()
    return address
