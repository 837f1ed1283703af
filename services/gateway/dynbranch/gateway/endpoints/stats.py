"""What the store and the controller have counted, for people."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from dataclasses import asdict
from typing import Any

from dynbranch.clients.ports import Controller, Csl, Unreachable
from dynbranch.domain.errors import DomainError
from dynbranch.domain.events import ControllerSummary
from dynbranch.domain.reuse import StoreStats
from dynbranch.gateway.edge.exchange import Exchange
from dynbranch.gateway.protocols.errors import JSON, ApiError
from dynbranch.gateway.protocols.members import dump
from dynbranch.gateway.tenants import Tenants

_TIMEOUT_S = 5.0


class StatsEndpoint:
    """``csl`` or ``controller`` None: this gateway has none."""

    def __init__(self, csl: Csl | None, controller: Controller | None, tenants: Tenants) -> None:
        self._csl = csl
        self._controller = controller
        self._tenants = tenants

    async def all(self, exchange: Exchange, _: str) -> None:
        """One member for each that counts: what it counted, null where there is none. 503 where one that
        is configured does not answer."""
        self._tenants.operator(exchange.headers)
        counted, seen = await asyncio.gather(
            _told("store", None if self._csl is None else self._csl.stats(timeout_s=_TIMEOUT_S)),
            _told(
                "controller",
                None if self._controller is None else self._controller.summary(timeout_s=_TIMEOUT_S),
            ),
        )
        value = {"csl": counted and _store(counted), "controller": seen and _controller(seen)}
        request_id = (b"x-request-id", exchange.request_id.encode())
        await exchange.respond(200, JSON, dump(value), [request_id])


async def _told(who: str, asked: Awaitable[Any] | None) -> Any:
    if asked is None:
        return None
    try:
        return await asked
    except (Unreachable, DomainError) as failure:
        message = f"The {who} does not answer: {failure}."
        raise ApiError(503, message, code=f"{who}_unreachable", retry_after_s=1) from None


def _store(stats: StoreStats) -> dict[str, Any]:
    return {**asdict(stats), "version": str(stats.version)}


def _controller(summary: ControllerSummary) -> dict[str, Any]:
    told = asdict(summary)
    return {**told, "outcomes": dict(summary.outcomes), "saved_ms": round(summary.saved_ms, 1)}
