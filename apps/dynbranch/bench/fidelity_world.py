"""The gateway over HTTP, an engine agent over gRPC, the stub engine behind it, and a store in memory."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from dataclasses import dataclass
from typing import Any, Final

import aiohttp
from dynbranch.bench.result import BenchFailed
from dynbranch.clients.engine_agent import GrpcEngineAgent
from dynbranch.csl.fake import FakeCsl
from dynbranch.domain.engine import GenerationOrder, WireProtocol, WorkClass
from dynbranch.domain.fills import BeginFill, FillGranted
from dynbranch.domain.ids import BranchId, Digest, FillId, GenerationId, Name, TrialId
from dynbranch.domain.reuse import PURE, FillOrigin, GenerationRef, Identity
from dynbranch.engine_agent.engines.openai import OpenAiEngine, OpenAiSettings
from dynbranch.engine_agent.server import service
from dynbranch.engine_agent.shell import Agent
from dynbranch.enginemodel.parameters import FixedParameters
from dynbranch.gateway.assembly import Gateway, Peers
from dynbranch.gateway.config import GatewaySettings
from dynbranch.gateway.server import HttpServer, connection_policy
from dynbranch.gateway.tenants import Tenants
from dynbranch.naming.document import Document
from dynbranch.naming.normalise import normalise_chat
from dynbranch.runtime.chance import new_id
from dynbranch.runtime.clock import SystemClock
from dynbranch.runtime.server import GrpcServer
from dynbranch.runtime.tasks import Tasks
from dynbranch.stub_engine.engine import StubEngine
from dynbranch.stub_engine.script import Reply
from dynbranch.stub_engine.settings import StubSettings
from prometheus_client import CollectorRegistry

_START_S: Final = 60.0
_ANSWER_S: Final = 60.0
_CALL_S: Final = 20.0
_FACTS: Final = {"chat_template": "toy", "weights": "none"}


@dataclass(frozen=True, slots=True)
class Answer:
    status: int
    outcome: str
    body: bytes


class World:
    """``says`` puts the next answers of the engine in place: the chunks that it streams."""

    def __init__(
        self, url: str, http: aiohttp.ClientSession, stub: StubEngine, store: FakeCsl, agent: GrpcEngineAgent
    ) -> None:
        self._url = url
        self._http = http
        self._stub = stub
        self._store = store
        self._agent = agent
        self.address = ""

    def says(self, chunks: Sequence[bytes]) -> None:
        events = tuple(chunks)
        self._stub.writer = lambda _: Reply(events=events)

    async def ask(
        self, path: str, body: Mapping[str, Any], headers: Mapping[str, str] | None = None
    ) -> Answer:
        timeout = aiohttp.ClientTimeout(total=_ANSWER_S)
        async with self._http.post(
            self._url + path, data=json.dumps(body).encode(), headers=headers, timeout=timeout
        ) as response:
            outcome = response.headers.get("x-dynbranch-outcome", "")
            return Answer(response.status, outcome, await response.read())

    async def run_ahead(self, path: str, body: Mapping[str, Any], document: Document) -> None:
        """As a controller has it run: the result of this request waits as a shadow for its demand.
        ``document`` is the request as the gateway reads it. Raises BenchFailed."""
        explained = await self.ask(f"/dynbranch/v1/explain{path}", body)
        if explained.status != 200:
            raise BenchFailed(f"{path} can not be explained: {explained.body[:200]!r}")
        told = json.loads(explained.body)
        number = new_id()
        asked = BeginFill(
            origin=FillOrigin(BranchId(number), TrialId(number), FillId(number)),
            name=Name(bytes.fromhex(told["name"])),
            identity=Identity(),
            scope=PURE,
            intended=GenerationRef(GenerationId(new_id()), self.address),
        )
        granted = await self._store.begin_fill(asked, timeout_s=_CALL_S)
        if not isinstance(granted, FillGranted):
            raise BenchFailed(f"the store grants no fill: {granted}")
        order = GenerationOrder(
            generation_id=granted.lease.generation.generation_id,
            protocol=WireProtocol.CHAT_COMPLETIONS,
            target=told["model"],
            body=normalise_chat(document).engine_body,
            fingerprint_digest=Digest(bytes.fromhex(told["fingerprint"]["digest"])),
            identity=Identity(),
            lease=granted.lease,
            work=WorkClass.FILL,
            quiet=True,
        )
        async with aclosing(self._agent.generate(order, idle_s=_ANSWER_S)) as events:
            async for _ in events:
                continue


@asynccontextmanager
async def running() -> AsyncIterator[World]:
    clock = SystemClock()
    store = FakeCsl(clock=clock, new_id=new_id)
    async with AsyncExitStack() as stack:
        stub = await stack.enter_async_context(StubEngine(StubSettings(latency=FixedParameters(0, 0))))
        engine = OpenAiEngine(OpenAiSettings(stub.url, slots=8, facts=_FACTS), clock)
        agent = await stack.enter_async_context(Agent(engine, store, clock))
        grpc = GrpcServer("127.0.0.1:0", [service(agent)], clock)
        address = await grpc.start()
        stack.push_async_callback(grpc.stop, grace_s=1.0)
        client = GrpcEngineAgent(address)
        stack.push_async_callback(client.close)
        url = await stack.enter_async_context(_gateway(address, store, clock))
        http = await stack.enter_async_context(aiohttp.ClientSession())
        world = World(url, http, stub, store, client)
        world.address = address
        yield world


@asynccontextmanager
async def _gateway(address: str, store: FakeCsl, clock: SystemClock) -> AsyncIterator[str]:
    settings = GatewaySettings(agents=(address,), stop_grace_s=1)
    peers = Peers(store, None, GrpcEngineAgent)
    gateway = Gateway(settings, peers, Tenants(), clock=clock, new_id=new_id, registry=CollectorRegistry())
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
            async with asyncio.timeout(_START_S):
                while gateway.readiness.missing() or not gateway.directory.served_models():
                    await asyncio.sleep(0.01)
            yield f"http://{server.address}"
        finally:
            server.should_exit = True
            await asyncio.wait((serving,))
