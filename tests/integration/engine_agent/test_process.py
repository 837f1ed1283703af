"""The agent as a process of its own: settings, ready line, health, spans, stop."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager

import grpc
import pytest
from contract.engine_agent.scripted_stub import reply_of
from dynbranch.clients.engine_agent import GrpcEngineAgent
from dynbranch.domain.engine import Completed, GenerationEnd, GenerationOrder
from dynbranch.engine_agent.fake import Script, text_chunks
from dynbranch.stub_engine.engine import StubEngine
from grpc_health.v1 import health_pb2, health_pb2_grpc
from unit.engine_agent.samples import chat_order

P = "DYNBRANCH_ENGINE_AGENT_"


@asynccontextmanager
async def process(**settings: str) -> AsyncIterator[asyncio.subprocess.Process]:
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("DYNBRANCH_", "OTEL_"))}
    environ = {**kept, P + "LISTEN": "127.0.0.1:0", **{P + key: value for key, value in settings.items()}}
    child = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "dynbranch.engine_agent",
        env=environ,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        yield child
    finally:
        if child.returncode is None:
            child.kill()
        await child.communicate()


async def address_of(child: asyncio.subprocess.Process) -> str:
    assert child.stdout is not None
    line = json.loads(await asyncio.wait_for(child.stdout.readline(), 60))
    assert line["service"] == "engine_agent"
    return str(line["address"])


async def ready(client: GrpcEngineAgent) -> None:
    async with asyncio.timeout(60), aclosing(client.watch_occupancy(interval_ms=50)) as reports:
        async for report in reports:
            if report.ready:
                return


async def ended(client: GrpcEngineAgent, order: GenerationOrder) -> GenerationEnd | None:
    end = None
    async with aclosing(client.generate(order, idle_s=20)) as events:
        async for message in events:
            end = message.end
    return end


async def test_a_process_serves_and_drains_when_told_to_stop(stub: StubEngine) -> None:
    gate = asyncio.Event()
    stub.writer = lambda view: reply_of(Script(text_chunks(("a",)), gate=gate))
    async with process(KIND="openai", ENGINE_URL=stub.url) as child:
        address = await address_of(child)
        client = GrpcEngineAgent(address)
        await ready(client)
        async with grpc.aio.insecure_channel(address) as channel:
            health = health_pb2_grpc.HealthStub(channel)
            answer = await health.Check(health_pb2.HealthCheckRequest())
            assert answer.status == health_pb2.HealthCheckResponse.SERVING
        model = (await client.describe(timeout_s=5)).models[0]
        task = asyncio.create_task(ended(client, chat_order(model=model)))
        async with asyncio.timeout(20):
            while not stub.running:
                await asyncio.sleep(0.005)
        child.send_signal(signal.SIGTERM)
        await asyncio.sleep(0.1)
        assert not task.done(), "what runs may end"
        gate.set()
        end = await asyncio.wait_for(task, 20)
        assert isinstance(end, Completed)
        await client.close()
        assert await asyncio.wait_for(child.wait(), 20) == 0


async def test_an_engine_that_is_not_there_yet_is_waited_for(stub: StubEngine) -> None:
    await stub.stop()
    async with process(KIND="openai", ENGINE_URL=stub.url) as child:
        client = GrpcEngineAgent(await address_of(child))
        description = await client.describe(timeout_s=5)
        assert not description.ready and description.not_ready_reason
        await stub.start()
        await ready(client)
        await client.close()


@pytest.mark.parametrize(
    ("settings", "complaint"),
    [({"KIND": "openai"}, "engine_url"), ({"KIND": "tool", "TOOLS_FILE": "/nowhere.yaml"}, "nowhere")],
)
async def test_wrong_settings_end_the_process_with_a_reason(settings: dict[str, str], complaint: str) -> None:
    async with process(**settings) as child:
        _, errors = await asyncio.wait_for(child.communicate(), 60)
        assert child.returncode == 2 and complaint in errors.decode()
