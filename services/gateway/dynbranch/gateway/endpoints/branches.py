"""Branches for people: which there are, and one of them from its opening to its settlement."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any
from urllib.parse import parse_qs

from dynbranch.clients.ports import Branches, Unreachable
from dynbranch.domain.branches import BranchSummary
from dynbranch.domain.errors import DomainError, NotFound
from dynbranch.domain.ids import BranchId
from dynbranch.gateway.edge.exchange import Exchange
from dynbranch.gateway.protocols.errors import JSON, ApiError
from dynbranch.gateway.protocols.members import dump
from dynbranch.gateway.tenants import Tenants

_TIMEOUT_S = 5.0
_MOST_LISTED = 100
_BRANCH_ID = re.compile(r"(?:[0-9a-f]{2}){1,64}")


class BranchEndpoints:
    """``branches`` None: there is no controller."""

    def __init__(self, branches: Branches | None, tenants: Tenants) -> None:
        self._branches = branches
        self._tenants = tenants

    async def all(self, exchange: Exchange, _: str) -> None:
        """Newest first; ``?workflow=`` asks for those of one. They may be any tenant's."""
        self._tenants.operator(exchange.headers)
        asked = parse_qs(exchange.query.decode("latin-1"), keep_blank_values=True)
        unknown = sorted(asked.keys() - {"workflow"})
        if unknown:
            message = f"{unknown[0][:80]!r} is not known here; 'workflow' is."
            raise ApiError(400, message, code="unknown_parameter", param=unknown[0][:80])
        workflow = asked.get("workflow", [""])[0]
        found = await self._ask(
            self._controller().list_branches(workflow_id=workflow, at_most=_MOST_LISTED, timeout_s=_TIMEOUT_S)
        )
        await _answer(exchange, {"object": "list", "data": [_summary(branch) for branch in found]})

    async def one(self, exchange: Exchange, id_text: str) -> None:
        self._tenants.operator(exchange.headers)
        if not _BRANCH_ID.fullmatch(id_text.lower()):
            message = (
                "A branch's id is an even number of hexadecimal digits: /dynbranch/v1/branches lists them, "
                "as does 'dynbranch inspect branch'."
            )
            raise ApiError(400, message, code="invalid_branch", param="branch")
        branch = BranchId(bytes.fromhex(id_text))
        told = await self._ask(self._controller().inspect_branch(branch, timeout_s=_TIMEOUT_S))
        await _answer(exchange, json.loads(told))

    def _controller(self) -> Branches:
        if self._branches is None:
            message = (
                "This gateway has no controller, which is who knows of branches: "
                "DYNBRANCH_GATEWAY_CONTROLLER names one."
            )
            raise ApiError(503, message, code="no_controller")
        return self._branches

    async def _ask(self, asked: Any) -> Any:
        try:
            return await asked
        except NotFound:
            message = (
                "The controller knows no such branch, or no longer: /dynbranch/v1/branches lists "
                "those that it does."
            )
            raise ApiError(404, message, code="unknown_branch") from None
        except (Unreachable, DomainError) as failure:
            message = f"The controller does not answer: {failure}."
            raise ApiError(503, message, code="controller_unreachable", retry_after_s=1) from None


def _summary(branch: BranchSummary) -> dict[str, Any]:
    return {
        "branch": branch.branch_id.hex(),
        "workflow_type": branch.workflow_type_id,
        "workflow": branch.workflow_id,
        "decision_point": branch.decision_point,
        "state": branch.state,
        "opened_unix_ms": branch.opened,
        "candidates": branch.candidates,
        "fills": branch.fills,
        "consumed": branch.consumed,
    }


async def _answer(exchange: Exchange, value: Mapping[str, Any]) -> None:
    await exchange.respond(200, JSON, dump(value), [(b"x-request-id", exchange.request_id.encode())])
