"""A whole branch over real gRPC: store on RocksDB, agent, gateway, and a controller as its own process."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from dynbranch.clients.controller import GrpcController
from dynbranch.clients.csl import GrpcCsl
from dynbranch.clients.engine_agent import GrpcEngineAgent
from dynbranch.csl.core.limits import Limits
from dynbranch.csl.fill_server import FILL_SERVICE, FillServicer
from dynbranch.csl.rocks import DataDirectory, Sizes
from dynbranch.csl.server import SERVICE, CslServicer
from dynbranch.csl.service import opened_shell
from dynbranch.domain.engine import GenerationOrder
from dynbranch.engine_agent.fake import Script, ScriptedEngine, text_chunks
from dynbranch.engine_agent.server import service as agent_service
from dynbranch.engine_agent.shell import Agent
from dynbranch.gateway.assembly import Gateway, Peers
from dynbranch.gateway.config import GatewaySettings
from dynbranch.gateway.tenants import Tenants
from dynbranch.runtime.chance import new_id
from dynbranch.runtime.clock import SystemClock
from dynbranch.runtime.server import GrpcServer
from dynbranch.v1.csl_pb2_grpc import add_CslServiceServicer_to_server, add_FillServiceServicer_to_server
from integration.gateway.fills import ACT, DECIDE, TEMPLATE, WORKFLOW, request
from integration.gateway.world import Answer, eventually, serving_gateway

DECISION = text_chunks(('{"pick":"', "red", '"}'))
PARTS = ("decide", "Do red", "Do blue")


def part_of(order: GenerationOrder) -> str:
    content = str(json.loads(order.body)["messages"][0]["content"])
    return "decide" if content.startswith("Pick") else content


@dataclass
class Stack:
    """``gates``: what the engine waits for before it answers. ``begun`` and ``ended``: what it was asked."""

    url: str
    http: aiohttp.ClientSession
    gateway: Gateway
    engine: ScriptedEngine
    agent: Agent
    store: GrpcCsl
    controller: Process
    gates: dict[str, asyncio.Event] = field(default_factory=dict)

    def begun(self, part: str) -> bool:
        return any(part_of(order) == part for order in self.engine.orders)

    def runs(self, part: str) -> bool:
        return any(
            part_of(order) == part and order.generation_id in self.engine.running
            for order in self.engine.orders
        )

    async def post(self, body: bytes, workflow: str = "w1", **headers: str) -> Answer:
        sent = {**WORKFLOW, "x-dynbranch-workflow": workflow, **headers}
        async with self.http.post(self.url + "/v1/chat/completions", data=body, headers=sent) as response:
            return Answer(response.status, response.headers.copy(), await response.read())

    def asked(self, body: bytes) -> asyncio.Task[Answer]:
        return asyncio.get_running_loop().create_task(self.post(body))

    async def get(self, path: str) -> Any:
        async with self.http.get(self.url + path) as response:
            assert response.status == 200, await response.text()
            return await response.json()

    async def branch(self) -> Any:
        [branch] = (await self.get("/dynbranch/v1/branches?workflow=w1"))["data"]
        return await self.get(f"/dynbranch/v1/branches/{branch['branch']}")

    async def is_quiet(self) -> bool:
        leases = (await self.store.stats(timeout_s=20)).leases
        registry = self.agent.registry
        return not leases and not self.engine.running and not registry.slots.held and not registry.leases.held

    async def kill_controller(self) -> None:
        self.controller.kill()
        await self.controller.wait()


def clean(**environ: str) -> dict[str, str]:
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("DYNBRANCH_", "OTEL_"))}
    return {**kept, **environ}


def put_template(folder: Path) -> None:
    """What is done reads a record, as its harness declares or not."""
    folder.mkdir()
    read = TEMPLATE.replace("speculable: yes", "speculable: yes\n    reads: ['passages/1']", 1)
    (folder / "picks.yaml").write_text(read)


async def _served_store(folder: Path, clock: SystemClock, stack: AsyncExitStack) -> str:
    sizes = Sizes(block_cache=1 << 20, write_buffer=1 << 20)
    opened = opened_shell(DataDirectory(folder), limits=Limits(), sizes=sizes, clock=clock, new_id=new_id)
    shell, _ = await stack.enter_async_context(opened)
    server = GrpcServer(
        "127.0.0.1:0",
        [
            (add_CslServiceServicer_to_server, CslServicer(shell), SERVICE),
            (add_FillServiceServicer_to_server, FillServicer(shell), FILL_SERVICE),
        ],
        clock,
    )
    address = await server.start()
    stack.push_async_callback(server.stop, 0)
    return address


async def _controller(csl: str, agent: str, folder: Path, stack: AsyncExitStack) -> tuple[Process, str]:
    environ = clean(
        DYNBRANCH_CONTROLLER_CSL=csl,
        DYNBRANCH_CONTROLLER_AGENTS=agent,
        DYNBRANCH_CONTROLLER_TEMPLATES=str(folder),
        DYNBRANCH_CONTROLLER_POLICY="always",
    )
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "dynbranch.controller", env=environ, stdout=PIPE, stderr=DEVNULL
    )

    async def end() -> None:
        if process.returncode is None:
            process.terminate()
            await process.wait()

    stack.push_async_callback(end)
    assert process.stdout is not None
    address = json.loads(await process.stdout.readline())["address"]
    return process, address


@asynccontextmanager
async def running_stack(folder: Path, **settings: Any) -> AsyncIterator[Stack]:
    clock = SystemClock()
    async with AsyncExitStack() as stack:
        csl = await _served_store(folder / "data", clock, stack)
        gates = {part: asyncio.Event() for part in PARTS}

        def script(order: GenerationOrder) -> Script:
            part = part_of(order)
            items = DECISION if part == "decide" else text_chunks(("did", " it"))
            return Script(items=items, gate=gates.get(part))

        engine = ScriptedEngine(clock, script, slots=8)
        store = GrpcCsl(csl)
        stack.push_async_callback(store.close)
        agent = await stack.enter_async_context(Agent(engine, store, clock))
        put_template(folder / "templates")
        server = GrpcServer("127.0.0.1:0", [agent_service(agent)], clock)
        address = await server.start()
        stack.push_async_callback(server.stop, 0.1)
        await agent.until_ready()
        process, controller_address = await _controller(csl, address, folder / "templates", stack)
        controller = GrpcController(controller_address)
        stack.push_async_callback(controller.close)
        chosen = GatewaySettings(**{"agents": (address,), "stop_grace_s": 1, **settings})
        peers = Peers(store, controller, GrpcEngineAgent, controller)
        gateway, url = await stack.enter_async_context(serving_gateway(chosen, peers, Tenants()))
        http = await stack.enter_async_context(aiohttp.ClientSession())
        await eventually(lambda: not gateway.readiness.missing())
        templates = gateway.templates
        assert templates is not None
        await eventually(lambda: templates.of("picks"))
        yield Stack(url, http, gateway, engine, agent, store, process, gates)


async def opened(stack: Stack) -> asyncio.Task[Answer]:
    """The decision is being written, and both of what it may lead to run ahead of it."""
    decision = stack.asked(DECIDE)
    await eventually(lambda: stack.runs("Do red") and stack.runs("Do blue"))
    assert not decision.done()
    return decision


@pytest.mark.promise("C2.promotion_atomic_once")
@pytest.mark.promise("I2")
async def test_what_was_prepared_is_promoted_and_the_loser_ends(tmp_path: Path) -> None:
    async with running_stack(tmp_path) as stack:
        decision = await opened(stack)
        stack.gates["Do red"].set()
        await eventually(lambda: not stack.runs("Do red"))
        stack.gates["decide"].set()
        assert (await decision).outcome == "miss"
        answer = await stack.post(ACT)
        assert answer.outcome == "promoted" and answer.text == "did it"
        await eventually(lambda: not stack.runs("Do blue"))
        await eventually(stack.is_quiet)
        branch = await stack.branch()
        assert branch["branch"] == answer.headers["x-dynbranch-branch"]
        assert branch["resolution"]["selections"] == ["red"]
        assert {one["selection"] for one in branch["candidates"]} == {"red", "blue"}
        assert (await stack.post(ACT)).outcome == "hit"
        assert sum(part_of(order) == "Do red" for order in stack.engine.orders) == 1


@pytest.mark.promise("C2.adoption")
async def test_what_still_runs_is_taken_over(tmp_path: Path) -> None:
    async with running_stack(tmp_path) as stack:
        decision = await opened(stack)
        stack.gates["decide"].set()
        await decision
        demands = [stack.asked(ACT), stack.asked(request("Do red", stream=True))]
        await eventually(lambda: sum(one.adopted for one in stack.agent.registry.generations.values()) == 1)
        await asyncio.sleep(0.05)
        stack.gates["Do red"].set()
        answers = await asyncio.gather(*demands)
        assert sorted(str(answer.outcome) for answer in answers) == ["adopted", "joined"]
        assert all(answer.status == 200 for answer in answers)
        await eventually(stack.is_quiet)
        assert sum(part_of(order) == "Do red" for order in stack.engine.orders) == 1


@pytest.mark.promise("C2.never_in_the_way")
@pytest.mark.parametrize("moment", ["before it opens", "while fills run", "while one is adopted"])
async def test_a_controller_that_is_killed_costs_no_request_anything(tmp_path: Path, moment: str) -> None:
    async with running_stack(tmp_path, adopt_stall_ms=60_000) as stack:
        if moment == "before it opens":
            await stack.kill_controller()
            decision = stack.asked(DECIDE)
        else:
            decision = await opened(stack)
        if moment == "while fills run":
            await stack.kill_controller()
        stack.gates["decide"].set()
        assert (await decision).status == 200
        demand = stack.asked(ACT)
        if moment == "while one is adopted":
            await eventually(lambda: any(one.adopted for one in stack.agent.registry.generations.values()))
            await stack.kill_controller()
        await eventually(lambda: stack.runs("Do red"))
        stack.gates["Do red"].set()
        answer = await demand
        expected = {"before it opens": "miss"}.get(moment, "adopted")
        assert (answer.status, answer.outcome) == (200, expected)
        assert (await stack.post(ACT)).outcome == "hit"
        # Nobody follows the loser any more: its engine ends it when its grace is over.
        await eventually(stack.is_quiet)


@pytest.mark.promise("I3")
async def test_a_write_after_the_fill_makes_its_demand_execute(tmp_path: Path) -> None:
    async with running_stack(tmp_path) as stack:
        decision = await opened(stack)
        stack.gates["Do red"].set()
        await eventually(lambda: not stack.runs("Do red"))
        body = {"records": ["passages/1"]}
        async with stack.http.post(stack.url + "/dynbranch/v1/writes", json=body) as response:
            assert response.status == 200
        stack.gates["decide"].set()
        await decision
        assert (await stack.post(ACT, **{"x-dynbranch-reads": "passages/1"})).outcome == "miss"
        assert sum(part_of(order) == "Do red" for order in stack.engine.orders) == 2
        await eventually(stack.is_quiet)


@pytest.mark.promise("I4")
async def test_a_client_that_leaves_an_adopted_fill_leaves_its_result_behind(tmp_path: Path) -> None:
    async with running_stack(tmp_path) as stack:
        decision = await opened(stack)
        stack.gates["decide"].set()
        await decision
        demand = stack.asked(ACT)
        await eventually(lambda: any(one.adopted for one in stack.agent.registry.generations.values()))
        demand.cancel()
        await asyncio.gather(demand, return_exceptions=True)
        await eventually(lambda: not len(stack.gateway.in_flight))
        stack.gates["Do red"].set()
        await eventually(stack.is_quiet)
        assert (await stack.post(ACT)).outcome == "hit"
