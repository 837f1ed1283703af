"""The controller over gRPC."""

from __future__ import annotations

from dynbranch.clients.calls import answer, decoded
from dynbranch.domain.events import ControllerSummary, EventBatch
from dynbranch.runtime.channel import channel
from dynbranch.v1 import controller_pb2 as pb
from dynbranch.v1.controller_pb2_grpc import ControllerServiceStub
from dynbranch.wire import controller as wire


class GrpcController:
    """Implements ``ports.Controller``. ``target`` is host:port or any gRPC target name."""

    def __init__(self, target: str) -> None:
        self._channel = channel(target)
        self._stub = ControllerServiceStub(self._channel)

    async def report_events(self, batch: EventBatch, *, timeout_s: float) -> int:
        response: pb.ReportEventsResponse = await answer(
            self._stub.ReportEvents, wire.batch_out(batch), timeout_s
        )
        return response.accepted

    async def summary(self, *, timeout_s: float) -> ControllerSummary:
        return decoded(wire.summary_in, await answer(self._stub.Summary, pb.SummaryRequest(), timeout_s))

    async def close(self) -> None:
        await self._channel.close()
