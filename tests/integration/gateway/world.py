"""A whole gateway over real HTTP, with the twins of the services around it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar

import aiohttp
from aiohttp import web
from dynbranch.clients.ports import Csl, Take, Unreachable, take_nothing
from dynbranch.controller.fake import FakeController
from dynbranch.csl.fake import FakeCsl
from dynbranch.domain.engine import (
    AgentDescription,
    AgentKind,
    Freshness,
    GenerationEvents,
    GenerationOrder,
    ModelDescription,
    Occupancy,
    ToolDescription,
)
from dynbranch.domain.ids import GenerationId, LeaseId, Name, RecordId
from dynbranch.domain.reuse import (
    Commit,
    CommitOutcome,
    Demand,
    DemandOutcome,
    Fingerprint,
    Inspection,
    Level,
    StoreStats,
    WriteResult,
)
from dynbranch.engine_agent.fake import FAKE_MODEL, FakeEngineAgent, Script, ScriptedEngine
from dynbranch.gateway.assembly import Gateway, Peers
from dynbranch.gateway.config import GatewaySettings
from dynbranch.gateway.core.routing import RoutingPolicy
from dynbranch.gateway.server import HttpServer, connection_policy
from dynbranch.gateway.tenants import Tenants
from dynbranch.runtime.chance import new_id
from dynbranch.runtime.clock import SystemClock
from dynbranch.runtime.tasks import Tasks
from prometheus_client import CollectorRegistry

Message = TypeVar("Message")
MODEL = FAKE_MODEL.id
GREEDY = {"model": MODEL, "messages": [{"role": "user", "content": "hi"}], "temperature": 0}


class StillAgent(FakeEngineAgent):
    """An agent that can stand still: its connections stay open, and nothing comes."""

    def __init__(self, **parts: Any) -> None:
        super().__init__(**parts)
        self.moves = asyncio.Event()
        self.moves.set()

    async def describe(self, *, timeout_s: float) -> AgentDescription:
        try:
            async with asyncio.timeout(timeout_s):
                await self.moves.wait()
        except TimeoutError:
            raise Unreachable("no answer") from None
        return await super().describe(timeout_s=timeout_s)

    def generate(
        self, order: GenerationOrder, *, idle_s: float, take: Take = take_nothing
    ) -> AsyncGenerator[GenerationEvents]:
        return self._moving(super().generate(order, idle_s=idle_s))

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
        followed = super().attach(
            generation, from_item=from_item, wait_ms=wait_ms, idle_s=idle_s, adopts=adopts, quiet=quiet
        )
        return self._moving(followed)

    def watch_occupancy(self, *, interval_ms: int) -> AsyncGenerator[Occupancy]:
        return self._moving(super().watch_occupancy(interval_ms=interval_ms))

    async def _moving(self, messages: AsyncGenerator[Message]) -> AsyncGenerator[Message]:
        async with aclosing(messages):
            async for message in messages:
                await self.moves.wait()
                yield message


class WatchedCsl:
    """A store that can be down, slow or held, and counts its demands."""

    def __init__(self, inner: FakeCsl) -> None:
        self.inner = inner
        self.down = False
        self.held: asyncio.Event | None = None
        self.demands: list[Demand] = []
        self.turns = 0
        """Turns of the event loop that every answer takes."""

    async def _reach(self) -> None:
        for _ in range(self.turns):
            await asyncio.sleep(0)
        if self.held is not None:
            await self.held.wait()
        if self.down:
            raise Unreachable("down")

    async def demand(self, demand: Demand, *, timeout_s: float) -> DemandOutcome:
        self.demands.append(demand)
        await self._reach()
        return await self.inner.demand(demand, timeout_s=timeout_s)

    async def commit(self, commit: Commit, *, timeout_s: float) -> CommitOutcome:
        await self._reach()
        return await self.inner.commit(commit, timeout_s=timeout_s)

    async def renew_leases(
        self, leases: Sequence[LeaseId], *, ttl_ms: int, timeout_s: float
    ) -> frozenset[LeaseId]:
        return await self.inner.renew_leases(leases, ttl_ms=ttl_ms, timeout_s=timeout_s)

    async def release_leases(self, leases: Sequence[LeaseId], *, timeout_s: float) -> None:
        await self.inner.release_leases(leases, timeout_s=timeout_s)

    async def write(self, records: Sequence[RecordId], *, reporter: str, timeout_s: float) -> WriteResult:
        await self._reach()
        return await self.inner.write(records, reporter=reporter, timeout_s=timeout_s)

    async def inspect(self, name: Name, *, timeout_s: float) -> Inspection:
        await self._reach()
        return await self.inner.inspect(name, timeout_s=timeout_s)

    async def stats(self, *, timeout_s: float) -> StoreStats:
        if self.down:
            raise Unreachable("down")
        return await self.inner.stats(timeout_s=timeout_s)

    async def close(self) -> None:
        return None


@dataclass
class World:
    """``agents`` by address; ``model`` and ``tools`` are the first ones, which most tests use."""

    url: str
    http: aiohttp.ClientSession
    gateway: Gateway
    csl: WatchedCsl
    controller: FakeController
    agents: dict[str, StillAgent]

    @property
    def engine(self) -> ScriptedEngine:
        return self.agents["model-a:1"].engine

    async def chat(
        self, body: dict[str, Any] | bytes | None = None, headers: dict[str, str] | None = None, **fields: Any
    ) -> Answer:
        data = body if isinstance(body, bytes) else json.dumps({**GREEDY, **(body or {}), **fields}).encode()
        return await self.post("/v1/chat/completions", data, headers)

    async def post(
        self, path: str, body: bytes | dict[str, Any], headers: dict[str, str] | None = None
    ) -> Answer:
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        async with self.http.post(self.url + path, data=data, headers=headers) as response:
            return Answer(response.status, response.headers.copy(), await response.read())

    async def get(self, path: str, headers: dict[str, str] | None = None, method: str = "GET") -> Answer:
        async with self.http.request(method, self.url + path, headers=headers) as response:
            return Answer(response.status, response.headers.copy(), await response.read())

    async def leases(self) -> int:
        return (await self.csl.inner.stats(timeout_s=1)).leases

    async def entries(self) -> int:
        return (await self.csl.inner.stats(timeout_s=1)).entries


@dataclass
class Answer:
    status: int
    headers: Any
    body: bytes

    @property
    def outcome(self) -> str | None:
        value = self.headers.get("x-dynbranch-outcome")
        return None if value is None else str(value)

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def text(self) -> str:
        return str(self.json["choices"][0]["message"]["content"])

    @property
    def error(self) -> dict[str, Any]:
        error: dict[str, Any] = self.json["error"]
        assert error.keys() == {"message", "type", "param", "code"}
        return error

    def events(self) -> list[Any]:
        """The data of a stream's events; [DONE] as a text."""
        parts = [part for part in self.body.split(b"\n\n") if part]
        data = [part.removeprefix(b"data: ") for part in parts if not part.startswith(b":")]
        return [part.decode() if part == b"[DONE]" else json.loads(part) for part in data]


TOOLS = (
    ToolDescription(
        "search", Fingerprint((("tool", "search"),), Level.SOURCED), "passages", Freshness.VERSIONED, "finds"
    ),
    ToolDescription("roll", Fingerprint((("tool", "roll"),), Level.SOURCED)),
    ToolDescription(
        "constant", Fingerprint((("tool", "constant"),), Level.SOURCED), "facts", Freshness.IMMUTABLE
    ),
)


@dataclass
class Plan:
    """What a test wants changed before the world starts."""

    settings: dict[str, Any] = field(default_factory=dict)
    models: int = 1
    model: ModelDescription = FAKE_MODEL
    bypass_url: str = ""
    tool_url: str = ""
    tenants: Tenants = field(default_factory=Tenants)
    with_csl: bool = True


NewWorld = Callable[..., Any]


async def eventually(condition: Callable[[], Any], *, within_s: float = 20.0) -> None:
    """Wait until a condition holds, which may be a coroutine's answer. Never a measure of speed."""
    async with asyncio.timeout(within_s):
        while True:
            held = condition()
            if asyncio.iscoroutine(held):
                held = await held
            if held:
                return
            await asyncio.sleep(0.005)


@asynccontextmanager
async def running_world(plan: Plan) -> AsyncIterator[World]:
    clock = SystemClock()
    csl, controller = WatchedCsl(FakeCsl(clock=clock, new_id=new_id)), FakeController()
    async with AsyncExitStack() as stack:
        agents = await _agents(plan, csl, clock, stack)
        settings = GatewaySettings(
            **{
                "agents": tuple(agents),
                "occupancy_interval_ms": 20,
                "stop_grace_s": 1,
                "routing": RoutingPolicy.LEAST_IN_FLIGHT,  # of equals the first: a test can tell which
                **plan.settings,
            }
        )
        peers = Peers(csl if plan.with_csl else None, controller, lambda address: agents[address], controller)
        gateway, url = await stack.enter_async_context(serving_gateway(settings, peers, plan.tenants))
        http = await stack.enter_async_context(aiohttp.ClientSession())
        if plan.settings.get("enabled", True):
            await eventually(lambda: not gateway.readiness.missing())
        else:
            await eventually(lambda: not gateway.directory.undescribed)
        yield World(url, http, gateway, csl, controller, agents)


@asynccontextmanager
async def serving_gateway(
    settings: GatewaySettings, peers: Peers, tenants: Tenants
) -> AsyncIterator[tuple[Gateway, str]]:
    clock = SystemClock()
    gateway = Gateway(settings, peers, tenants, clock=clock, new_id=new_id, registry=CollectorRegistry())
    async with gateway, Tasks() as tasks:
        server = HttpServer(
            gateway.app,
            listen="127.0.0.1:0",
            grace_s=1,
            policy=connection_policy(settings),
            refused=gateway.metrics.refused,
        )
        serving = tasks.spawn(server.serve_until_told(), name="http")
        try:
            yield gateway, f"http://{server.address}"
        finally:
            server.should_exit = True
            await asyncio.wait((serving,))


async def _agents(plan: Plan, csl: Csl, clock: SystemClock, stack: AsyncExitStack) -> dict[str, StillAgent]:
    agents: dict[str, StillAgent] = {}
    for letter in "abc"[: plan.models]:
        engine = ScriptedEngine(clock, models=(plan.model,), bypass_url=plan.bypass_url, slots=8)
        agents[f"model-{letter}:1"] = StillAgent(csl=csl, clock=clock, engine=engine)
    tool_engine = ScriptedEngine(
        clock, tool_script, models=(), tools=TOOLS, kind=AgentKind.TOOL, bypass_url=plan.tool_url, slots=8
    )
    agents["tools:1"] = StillAgent(csl=csl, clock=clock, engine=tool_engine)
    for agent in agents.values():
        await stack.enter_async_context(agent)
    return agents


def tool_script(order: Any) -> Script:
    reads = None if order.target == "constant" else (RecordId("passages/1"), RecordId("passages/*"))
    return Script(items=(b'{"found": ["p1"],  "n": 1.0}',), reads=reads if order.target == "search" else None)


class RawEngine:
    """An HTTP server that answers in its own peculiar spelling, and remembers what it was sent."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, str, dict[str, str], bytes]] = []
        self.url = ""
        self.cut_after: int | None = None
        self.cut_before = False
        self.lacks: frozenset[str] = frozenset()
        self._runner: web.AppRunner | None = None

    async def start(self) -> None:
        app = web.Application(client_max_size=2**28)
        app.router.add_route("*", "/{path:.*}", self._answer)
        self._runner = web.AppRunner(app)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        host, port = self._runner.addresses[0][:2]
        self.url = f"http://{host}:{port}"

    async def stop(self) -> None:
        if self._runner is not None:
            await self._runner.cleanup()

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        body = await request.read()
        self.seen.append(
            (
                request.method,
                request.path_qs,
                {name.lower(): value for name, value in request.headers.items()},
                body,
            )
        )
        if self.cut_before:
            assert request.transport is not None
            request.transport.abort()
        if request.path in self.lacks:
            return web.json_response({"detail": "Not Found"}, status=404)
        if request.path.endswith("/missing"):
            return web.Response(status=418, body=b'{"odd":  1.0}', headers={"x-engine": "yes"})
        response = web.StreamResponse(headers={"content-type": "text/event-stream", "x-engine": "yes"})
        await response.prepare(request)
        for number, part in enumerate(RAW_PARTS):
            if number == self.cut_after:
                assert request.transport is not None
                request.transport.close()
                return response
            await response.write(part)
        await response.write_eof()
        return response


RAW_PARTS = (b'data: {"id" : "raw", "n": 1.50e+3}\n\n', b": a comment\n\n", b"data: [DONE]\n\n")
