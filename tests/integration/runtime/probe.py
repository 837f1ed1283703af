"""A small service for the tests of the runtime: it answers, fails, waits and streams on demand.

It speaks the engine agent's contract, which has unary and streaming calls. As a program it is a service
process.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator

import grpc
from dynbranch.domain.errors import Conflict, NotFound
from dynbranch.runtime import telemetry
from dynbranch.runtime.clock import SystemClock
from dynbranch.runtime.run import Started, run_service
from dynbranch.runtime.server import GrpcServer
from dynbranch.runtime.tasks import Tasks
from dynbranch.v1 import engine_agent_pb2 as pb
from dynbranch.v1.engine_agent_pb2_grpc import (
    EngineAgentServiceServicer,
    add_EngineAgentServiceServicer_to_server,
)
from opentelemetry import trace

SERVICE = "dynbranch.v1.EngineAgentService"


def trace_seen() -> str:
    return trace.format_trace_id(trace.get_current_span().get_span_context().trace_id)


class Probe(EngineAgentServiceServicer):
    def __init__(self) -> None:
        self.entered = asyncio.Event()
        self.release = asyncio.Event()
        self.stream_ended = asyncio.Event()

    async def Describe(self, request: object, context: object) -> pb.DescribeResponse:
        with telemetry.tracer("probe").start_as_current_span("csl.demand", kind=telemetry.SpanKind.SERVER):
            waiting = int(self.entered.is_set())
            return pb.DescribeResponse(kind="tool", bypass_url=trace_seen(), slots=waiting)

    async def Abort(self, request: pb.AbortRequest, context: grpc.aio.ServicerContext) -> pb.AbortResponse:
        match request.reason:
            case "wait":
                self.entered.set()
                await self.release.wait()
            case "conflict":
                raise Conflict("moved_on", "it moved on", advice="ask again", facts={"now": "2.1"})
            case "bug":
                raise ZeroDivisionError("a bug")
            case "cancel":
                await context.abort(grpc.StatusCode.CANCELLED, "the service gave up")
            case "big":
                return pb.AbortResponse(aborted=len(request.generation_id) > 2**23)
        return pb.AbortResponse(aborted=True)

    async def Drain(self, request: object, context: object) -> pb.DrainResponse:
        return pb.DrainResponse(still_running=2**31)

    async def Generate(self, request: object, context: object) -> AsyncIterator[pb.GenerateResponse]:
        yield pb.GenerateResponse(events=pb.GenerationEvents(items=[trace_seen().encode()]))

    async def Attach(self, request: pb.AttachRequest, context: object) -> AsyncIterator[pb.AttachResponse]:
        if request.from_item == 404:
            raise NotFound("unknown_generation", "never heard of it")
        try:
            yield pb.AttachResponse(events=pb.GenerationEvents(from_item=request.from_item, items=[b"{}"]))
            if request.from_item == 500:
                raise Conflict("late", "after the first message")
            if request.from_item == 501:
                yield pb.AttachResponse(events=pb.GenerationEvents(end=pb.GenerationEnd()))
            while request.from_item == 700:
                yield pb.AttachResponse(events=pb.GenerationEvents(items=[bytes(2**20)]))
            await self.release.wait()
        finally:
            self.stream_ended.set()

    async def WatchOccupancy(
        self, request: object, context: object
    ) -> AsyncIterator[pb.WatchOccupancyResponse]:
        yield pb.WatchOccupancyResponse(slots=4)


def server_of(probe: Probe, listen: str = "127.0.0.1:0", **options: float) -> GrpcServer:
    services = [(add_EngineAgentServiceServicer_to_server, probe, SERVICE)]
    return GrpcServer(listen, services, SystemClock(), **options)  # type: ignore[arg-type]


async def main(started: Started) -> None:
    probe = Probe()
    server = server_of(probe)
    async with Tasks() as tasks:
        if "crash" in sys.argv:
            tasks.spawn(crash(), name="bomb")
        started.ready(await server.start())
        await started.until_stopped(tasks)
        if "stuck" not in sys.argv:
            # The call that waits may end only now: whoever gets its answer was not cut off by the signal.
            probe.release.set()
        await server.stop(30)


async def crash() -> None:
    raise ZeroDivisionError("boom")


if __name__ == "__main__":
    run_service("probe", main)
