"""The controller over gRPC."""

from __future__ import annotations

from collections.abc import AsyncGenerator

from dynbranch.clients.calls import answer, decoded, follow
from dynbranch.domain.branches import BranchSummary, TemplateSet
from dynbranch.domain.events import ControllerSummary, EventBatch
from dynbranch.domain.ids import BranchId
from dynbranch.runtime.channel import channel
from dynbranch.v1 import controller_pb2 as pb
from dynbranch.v1.controller_pb2_grpc import BranchServiceStub, ControllerServiceStub
from dynbranch.wire import controller as wire

WATCH_IDLE_S = 30.0
"""The controller repeats what it says at least every ten seconds."""


class GrpcController:
    """Implements ``ports.Controller`` and ``ports.Branches``. ``target`` is any gRPC target name."""

    def __init__(self, target: str) -> None:
        self._channel = channel(target)
        self._stub = ControllerServiceStub(self._channel)
        self._branches = BranchServiceStub(self._channel)

    async def report_events(self, batch: EventBatch, *, timeout_s: float) -> int:
        response: pb.ReportEventsResponse = await answer(
            self._stub.ReportEvents, wire.batch_out(batch), timeout_s
        )
        return response.accepted

    async def summary(self, *, timeout_s: float) -> ControllerSummary:
        return decoded(wire.summary_in, await answer(self._stub.Summary, pb.SummaryRequest(), timeout_s))

    def watch_templates(self) -> AsyncGenerator[TemplateSet]:
        last: TemplateSet | None = None

        def read(message: pb.WatchTemplatesResponse) -> TemplateSet:
            nonlocal last
            last = wire.templates_in(message, last)
            return last

        request = pb.WatchTemplatesRequest(takes_unchanged=True)
        return follow(self._branches.WatchTemplates, request, read, WATCH_IDLE_S)

    async def inspect_branch(self, branch: BranchId, *, timeout_s: float) -> str:
        request = pb.InspectBranchRequest(branch_id=branch)
        response: pb.InspectBranchResponse = await answer(
            self._branches.InspectBranch, request, timeout_s, patient=True
        )
        return response.branch_json

    async def list_branches(
        self, *, workflow_id: str, at_most: int, timeout_s: float
    ) -> tuple[BranchSummary, ...]:
        request = pb.ListBranchesRequest(workflow_id=workflow_id, at_most=at_most)
        response = await answer(self._branches.ListBranches, request, timeout_s, patient=True)
        return decoded(wire.branches_in, response)

    async def close(self) -> None:
        await self._channel.close()
