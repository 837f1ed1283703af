"""The gRPC servicer for the controller: fills, before any demand."""

from __future__ import annotations

from typing import Any

from dynbranch.csl.shell import Shell
from dynbranch.v1 import csl_pb2 as pb
from dynbranch.v1.csl_pb2_grpc import FillServiceServicer
from dynbranch.wire import fills as wire

FILL_SERVICE = "dynbranch.v1.FillService"


class FillServicer(FillServiceServicer):
    def __init__(self, shell: Shell) -> None:
        self._shell = shell

    async def BeginFill(self, request: pb.BeginFillRequest, context: Any) -> pb.BeginFillResponse:
        return wire.outcome_out(await self._shell.begin_fill(wire.begin_in(request)))

    async def DiscardFills(self, request: pb.DiscardFillsRequest, context: Any) -> pb.DiscardFillsResponse:
        return wire.discarded_out(await self._shell.discard_fills(wire.discard_in(request)))

    async def ReadSettlements(
        self, request: pb.ReadSettlementsRequest, context: Any
    ) -> pb.ReadSettlementsResponse:
        found = await self._shell.read_settlements(
            acknowledged_through=request.acknowledged_through,
            after=request.after,
            at_most=request.at_most,
            wait_ms=request.wait_ms,
            reader_epoch=request.reader_epoch,
        )
        return wire.settlements_out(found)
