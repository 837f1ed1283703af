"""Client and server of the runtime over a real connection."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing

import grpc
import pytest
from dynbranch.clients.calls import follow
from dynbranch.clients.controller import GrpcController
from dynbranch.clients.engine_agent import GrpcEngineAgent
from dynbranch.clients.ports import Unreachable
from dynbranch.controller.branch_server import branch_service
from dynbranch.controller.templates_in_force import Templates
from dynbranch.demo.processes import free_ports
from dynbranch.domain.engine import GenerationEvents
from dynbranch.domain.errors import Conflict, NotFound
from dynbranch.domain.ids import GenerationId
from dynbranch.runtime import telemetry
from dynbranch.runtime.clock import SystemClock
from dynbranch.runtime.server import LIVENESS, GrpcServer, channel
from dynbranch.v1 import engine_agent_pb2 as pb
from dynbranch.v1.engine_agent_pb2_grpc import EngineAgentServiceStub
from dynbranch.wire import engine_agent as wire
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc
from integration.runtime.probe import SERVICE, Probe, server_of
from opentelemetry import context

ID = GenerationId(b"g" * 16)
TRACE = "0af7651916cd43dd8448eb211c80319c"


def attach(agent: GrpcEngineAgent, *, from_item: int, idle_s: float) -> AsyncGenerator[GenerationEvents]:
    """A call with a stream of its own."""
    request = pb.AttachRequest(generation_id=ID, from_item=from_item)
    return follow(agent._stub.Attach, request, wire.followed_in, idle_s)


async def abort(agent: GrpcEngineAgent, reason: str, timeout_s: float = 20) -> bool:
    return (await agent.abort(ID, reason=reason, timeout_s=timeout_s)).aborted


async def test_a_domain_error_arrives_with_its_detail(agent: GrpcEngineAgent) -> None:
    with pytest.raises(Conflict, match="it moved on") as caught:
        await abort(agent, "conflict")
    error = caught.value
    assert (error.reason, error.advice, error.facts) == ("moved_on", "ask again", {"now": "2.1"})


@pytest.mark.parametrize("reason", ["bug", "cancel"])
async def test_a_bug_or_a_cancel_over_there_is_unreachable(agent: GrpcEngineAgent, reason: str) -> None:
    with pytest.raises(Unreachable):
        await abort(agent, reason)


async def test_a_deadline_that_passes_is_unreachable(agent: GrpcEngineAgent, probe: Probe) -> None:
    with pytest.raises(Unreachable, match="deadline"):
        await abort(agent, "wait", timeout_s=0.05)


async def test_a_local_cancel_stays_a_cancel_and_reaches_the_service(
    agent: GrpcEngineAgent, probe: Probe
) -> None:
    call = asyncio.create_task(abort(agent, "wait"))
    await probe.entered.wait()
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call


async def test_closing_a_client_under_its_calls_is_unreachable(address: str, probe: Probe) -> None:
    client = GrpcEngineAgent(address)
    call = asyncio.create_task(abort(client, "wait"))
    stream = attach(client, from_item=0, idle_s=20)
    await anext(stream)
    following = asyncio.create_task(anext(stream))
    await probe.entered.wait()
    await client.close()
    for broken in (call, following):
        with pytest.raises(Unreachable):
            await broken
    with pytest.raises(Unreachable):
        await anext(attach(client, from_item=0, idle_s=20))


async def test_a_service_that_is_not_there_is_unreachable_at_once() -> None:
    client = GrpcController("127.0.0.1:1")
    with pytest.raises(Unreachable, match="unavailable"):
        await client.summary(timeout_s=60)
    await client.close()


async def test_a_closed_client_and_a_stopped_server_are_unreachable(probe: Probe) -> None:
    server = server_of(probe)
    client = GrpcEngineAgent(await server.start())
    assert (await client.describe(timeout_s=20)).kind.value == "tool"
    await server.stop(0)
    with pytest.raises(Unreachable):
        await client.describe(timeout_s=20)
    await client.close()


async def test_a_restarted_service_is_found_again(probe: Probe) -> None:
    first = server_of(probe)
    address = await first.start()
    client = GrpcEngineAgent(address)
    await client.describe(timeout_s=20)
    await first.stop(0)
    with pytest.raises(Unreachable):
        await client.describe(timeout_s=20)
    second = server_of(probe, listen=address)
    await second.start()
    while True:
        try:
            await client.describe(timeout_s=20)
            break
        except Unreachable:
            await asyncio.sleep(0.05)
    await client.close()
    await second.stop(0)


async def test_a_call_without_a_deadline_gets_the_service_s_own(probe: Probe) -> None:
    server = server_of(probe, default_deadline_s=0.05)
    async with channel(await server.start()) as connection:
        stub = EngineAgentServiceStub(connection)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await stub.Abort(pb.AbortRequest(reason="wait"))
        assert caught.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    await server.stop(0)


async def test_messages_beyond_four_megabytes_travel(agent: GrpcEngineAgent) -> None:
    assert (await agent.abort(GenerationId(b"g" * (9 * 2**20)), reason="big", timeout_s=30)).aborted


async def test_a_stream_ends_at_once_when_its_reader_closes_it(agent: GrpcEngineAgent, probe: Probe) -> None:
    async with aclosing(attach(agent, from_item=3, idle_s=20)) as events:
        assert (await anext(events)).from_item == 3
        assert not probe.stream_ended.is_set()
    await probe.stream_ended.wait()


async def test_a_stream_blocked_on_a_slow_reader_ends_when_that_reader_leaves(
    agent: GrpcEngineAgent, probe: Probe
) -> None:
    async with aclosing(attach(agent, from_item=700, idle_s=20)) as events:
        await anext(events)
        await agent.describe(timeout_s=20)
    await probe.stream_ended.wait()


async def test_a_stream_ends_when_the_task_that_reads_it_is_cancelled(
    agent: GrpcEngineAgent, probe: Probe
) -> None:
    reading = asyncio.Event()

    async def read() -> None:
        async for _ in attach(agent, from_item=0, idle_s=20):
            reading.set()

    task = asyncio.create_task(read())
    await reading.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await probe.stream_ended.wait()


async def test_a_stream_s_error_comes_before_or_after_its_messages(agent: GrpcEngineAgent) -> None:
    with pytest.raises(NotFound, match="never heard"):
        await anext(attach(agent, from_item=404, idle_s=20))
    seen = []
    with pytest.raises(Conflict):
        async for events in attach(agent, from_item=500, idle_s=20):
            seen.append(events.from_item)
    assert seen == [500]


async def test_a_silent_stream_is_unreachable(agent: GrpcEngineAgent) -> None:
    with pytest.raises(Unreachable, match="no message"):
        async for _ in attach(agent, from_item=0, idle_s=0.05):
            pass


async def test_an_answer_that_can_not_be_read_is_unreachable(agent: GrpcEngineAgent) -> None:
    with pytest.raises(Unreachable, match="can not be read"):
        async for _ in attach(agent, from_item=501, idle_s=20):
            pass


async def test_a_stream_ends_normally(agent: GrpcEngineAgent) -> None:
    assert [seen.slots async for seen in agent.watch_occupancy(interval_ms=100)] == [4]


async def test_the_trace_travels_with_unary_calls_and_streams(address: str) -> None:
    parent = telemetry.extract({"traceparent": f"00-{TRACE}-b7ad6b7169203331-01"})
    async with channel(address) as connection:
        stub = EngineAgentServiceStub(connection)
        token = context.attach(parent)
        try:
            unary = await stub.Describe(pb.DescribeRequest(), timeout=20)
            stream = [m.events.items[0] async for m in stub.Generate(pb.GenerateRequest(), timeout=20)]
        finally:
            context.detach(token)
        outside = await stub.Describe(pb.DescribeRequest(), timeout=20)
    assert unary.bypass_url == TRACE
    assert stream == [TRACE.encode()]
    assert outside.bypass_url == "0" * 32


async def test_health_follows_readiness(probe: Probe) -> None:
    server = server_of(probe)
    async with channel(await server.start(ready=False)) as connection:
        health = health_pb2_grpc.HealthStub(connection)

        async def state(service: str) -> int:
            request = health_pb2.HealthCheckRequest(service=service)
            return (await health.Check(request, timeout=20)).status

        states = health_pb2.HealthCheckResponse
        assert [await state(name) for name in ("", SERVICE)] == [states.NOT_SERVING] * 2
        assert await state(LIVENESS) == states.SERVING, "who waits for an engine is not to be restarted"
        await server.set_ready(True)
        assert [await state(name) for name in ("", SERVICE)] == [states.SERVING] * 2
        watch = health.Watch(health_pb2.HealthCheckRequest(service=SERVICE), timeout=20)
        assert (await watch.read()).status == states.SERVING
        await server.set_ready(False)
        assert (await watch.read()).status == states.NOT_SERVING
        watch.cancel()
    await server.stop(0)
    await server.stop(0)


async def test_reflection_names_the_services(address: str) -> None:
    async with channel(address) as connection:
        call = reflection_pb2_grpc.ServerReflectionStub(connection).ServerReflectionInfo(timeout=20)
        await call.write(reflection_pb2.ServerReflectionRequest(list_services=""))
        answer = await call.read()
        await call.done_writing()
        names = {service.name for service in answer.list_services_response.service}
        call.cancel()
    assert {SERVICE, "grpc.health.v1.Health"} <= names


async def test_a_person_s_question_waits_for_a_controller_that_is_starting() -> None:
    [port] = free_ports(1)
    controller = GrpcController(f"127.0.0.1:{port}")
    clock = SystemClock()
    try:
        with pytest.raises(Unreachable):
            await controller.summary(timeout_s=20)
        asked = asyncio.create_task(controller.list_branches(workflow_id="", at_most=1, timeout_s=60))
        await asyncio.sleep(0)
        server = GrpcServer(f"127.0.0.1:{port}", [branch_service(Templates(None, clock), None)], clock)
        await server.start()
        try:
            assert await asked == ()
        finally:
            await server.stop(0)
        with pytest.raises(Unreachable):
            await controller.list_branches(workflow_id="", at_most=1, timeout_s=0.05)
    finally:
        await controller.close()
