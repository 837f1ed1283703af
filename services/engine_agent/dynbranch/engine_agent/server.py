"""gRPC in front of the agent: pb2 becomes domain in the first line and nothing is decided here."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Any

import grpc
from dynbranch.engine_agent.conversing import converse
from dynbranch.engine_agent.shell import Agent
from dynbranch.runtime.server import Service
from dynbranch.v1 import engine_agent_pb2 as pb
from dynbranch.v1.engine_agent_pb2_grpc import (
    EngineAgentServiceServicer,
    add_EngineAgentServiceServicer_to_server,
)
from dynbranch.wire import engine_agent as wire

SERVICE_NAME = "dynbranch.v1.EngineAgentService"
DEFAULT_OCCUPANCY_INTERVAL_MS = 250

Context = grpc.aio.ServicerContext[Any, Any]


class EngineAgentServicer(EngineAgentServiceServicer):
    def __init__(self, agent: Agent) -> None:
        self._agent = agent

    async def Describe(self, request: pb.DescribeRequest, context: Context) -> pb.DescribeResponse:
        return wire.description_out(await self._agent.describe())

    async def Generate(
        self, request: pb.GenerateRequest, context: Context
    ) -> AsyncIterator[pb.GenerateResponse]:
        order = wire.order_in(request)
        async with aclosing(self._agent.generate(order)) as events:
            async for message in events:
                yield wire.generated_out(message)

    async def Attach(self, request: pb.AttachRequest, context: Context) -> AsyncIterator[pb.AttachResponse]:
        order = wire.attach_in(request)
        async with aclosing(self._agent.attach(order)) as events:
            async for message in events:
                yield wire.attached_out(message)

    async def Converse(  # type: ignore[override]  # gRPC takes a coroutine that writes by itself, too
        self, messages: AsyncIterator[pb.EngineAgentServiceConverseRequest], context: Context
    ) -> None:
        await converse(self._agent, messages, context)

    async def Abort(self, request: pb.AbortRequest, context: Context) -> pb.AbortResponse:
        order = wire.abort_in(request)
        result = await self._agent.abort(
            order.generation_id, reason=order.reason, only_speculative=order.only_speculative
        )
        return wire.aborted_out(result)

    async def Drain(self, request: pb.DrainRequest, context: Context) -> pb.DrainResponse:
        running = await self._agent.drain(deadline_s=wire.drain_in(request))
        return pb.DrainResponse(still_running=running)

    async def WatchOccupancy(
        self, request: pb.WatchOccupancyRequest, context: Context
    ) -> AsyncIterator[pb.WatchOccupancyResponse]:
        interval_ms = request.interval_ms or DEFAULT_OCCUPANCY_INTERVAL_MS
        async with aclosing(self._agent.watch_occupancy(interval_ms=interval_ms)) as reports:
            async for report in reports:
                yield wire.occupancy_out(report)


def service(agent: Agent) -> Service:
    """For ``GrpcServer``."""
    return add_EngineAgentServiceServicer_to_server, EngineAgentServicer(agent), SERVICE_NAME
