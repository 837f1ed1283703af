"""controller.proto served: wire → value → shell."""

from __future__ import annotations

from dynbranch.controller.shell import ControllerShell
from dynbranch.runtime.server import Service
from dynbranch.v1 import controller_pb2 as pb
from dynbranch.v1.controller_pb2_grpc import (
    ControllerServiceServicer,
    add_ControllerServiceServicer_to_server,
)
from dynbranch.wire import controller as wire

SERVICE_NAME = "dynbranch.v1.ControllerService"


class ControllerServicer(ControllerServiceServicer):
    def __init__(self, shell: ControllerShell) -> None:
        self._shell = shell

    async def ReportEvents(self, request: pb.ReportEventsRequest, context: object) -> pb.ReportEventsResponse:
        return pb.ReportEventsResponse(accepted=self._shell.report_events(wire.batch_in(request)))

    async def Summary(self, request: pb.SummaryRequest, context: object) -> pb.SummaryResponse:
        return wire.summary_out(self._shell.summary())


def service(shell: ControllerShell) -> Service:
    """What a GrpcServer needs to serve the controller."""
    return add_ControllerServiceServicer_to_server, ControllerServicer(shell), SERVICE_NAME
