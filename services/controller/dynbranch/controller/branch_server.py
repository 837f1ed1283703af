"""The gRPC servicer of templates and branches: wire → value → shell."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import aclosing

from dynbranch.controller.branching import Branching
from dynbranch.controller.templates_in_force import Templates
from dynbranch.domain.errors import NotFound
from dynbranch.runtime.server import Service
from dynbranch.v1 import controller_pb2 as pb
from dynbranch.v1.controller_pb2_grpc import BranchServiceServicer, add_BranchServiceServicer_to_server
from dynbranch.wire import controller as wire
from dynbranch.wire import shared

SERVICE_NAME = "dynbranch.v1.BranchService"
MAX_LISTED = 1000


class BranchServicer(BranchServiceServicer):
    """``branching`` None: this controller runs nothing ahead."""

    def __init__(self, templates: Templates, branching: Branching | None) -> None:
        self._templates = templates
        self._branching = branching

    async def WatchTemplates(
        self, request: pb.WatchTemplatesRequest, context: object
    ) -> AsyncIterator[pb.WatchTemplatesResponse]:
        told: int | None = None
        async with aclosing(self._templates.watch()) as changes:
            async for templates in changes:
                if request.takes_unchanged and templates.revision == told:
                    yield wire.templates_unchanged_out(templates.revision)
                else:
                    yield wire.templates_out(templates)
                told = templates.revision

    async def InspectBranch(
        self, request: pb.InspectBranchRequest, context: object
    ) -> pb.InspectBranchResponse:
        branch_id = shared.branch_id_in(request.branch_id)
        if self._branching is None:
            raise NotFound("unknown_branch", "this controller opens no branches")
        view = self._branching.inspect(branch_id)
        return pb.InspectBranchResponse(branch_json=json.dumps(view, ensure_ascii=False))

    async def ListBranches(self, request: pb.ListBranchesRequest, context: object) -> pb.ListBranchesResponse:
        if self._branching is None:
            return pb.ListBranchesResponse()
        at_most = min(request.at_most or MAX_LISTED, MAX_LISTED)
        return wire.branches_out(self._branching.listed(request.workflow_id, at_most))


def branch_service(templates: Templates, branching: Branching | None) -> Service:
    """What a GrpcServer needs to serve it."""
    return add_BranchServiceServicer_to_server, BranchServicer(templates, branching), SERVICE_NAME
