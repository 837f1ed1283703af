"""The ASGI application: one table of routes, and the one place where failures become responses."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from dynbranch.domain.errors import DomainError
from dynbranch.gateway.edge.exchange import ClientGone, Exchange, Receive, Scope, Send
from dynbranch.gateway.edge.inflight import BodyRoom, InFlight
from dynbranch.gateway.edge.routes import Guard, Routes
from dynbranch.gateway.observer import Metrics
from dynbranch.gateway.protocols.anthropic.errors import spelled_for
from dynbranch.gateway.protocols.errors import ApiError, ErrorResponse, of_api_error, of_domain_error
from dynbranch.gateway.tenants import Tenants
from dynbranch.runtime.clock import Clock

_log = logging.getLogger(__name__)


class App:
    def __init__(
        self,
        *,
        routes: Routes,
        in_flight: InFlight,
        tenants: Tenants,
        metrics: Metrics,
        clock: Clock,
        new_id: Callable[[], bytes],
        max_body_bytes: int,
        room: BodyRoom,
    ) -> None:
        self._routes = routes
        self._in_flight = in_flight
        self._tenants = tenants
        self._metrics = metrics
        self._clock = clock
        self._new_id = new_id
        self._max_body_bytes = max_body_bytes
        self._room = room

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            raise NotImplementedError(f"{scope['type']} is not served here")
        exchange = Exchange(
            scope,
            receive,
            send,
            clock=self._clock,
            request_id=f"req_{self._new_id().hex()}",
            max_body_bytes=self._max_body_bytes,
            room=self._room,
            free_body_bytes=BodyRoom.FREE_BYTES,
        )
        try:
            await self._dispatch(exchange)
        except ClientGone:
            return
        except asyncio.CancelledError:
            if not exchange.gone:
                raise
            # The cancellation was our own, because the client left: this task goes on to its end.
            task = asyncio.current_task()
            if task is not None:
                task.uncancel()
        finally:
            exchange.put_down()

    async def _dispatch(self, exchange: Exchange) -> None:
        try:
            await self._route(exchange)
        except ClientGone:
            raise
        except ApiError as error:
            await self._failed(exchange, of_api_error(error), error.code)
        except DomainError as error:
            await self._failed(exchange, of_domain_error(error), error.reason)
        except Exception:  # noqa: BLE001  # the one boundary: a bug becomes a logged 500
            _log.exception("a bug answered %s %s", exchange.method, exchange.path)
            bug = ApiError(500, "The gateway failed; its log says why.", code="internal_error")
            await self._failed(exchange, of_api_error(bug), bug.code)

    async def _route(self, exchange: Exchange) -> None:
        route, rest = self._routes.find(exchange.method, exchange.path)
        exchange.check_headers()
        if route.guard is not Guard.OPEN:
            self._tenants.of(exchange.headers)
        if route.guard is Guard.SERVED:
            with self._in_flight.admitted(exchange):
                await exchange.attended(route.handler(exchange, rest))
        else:
            await route.handler(exchange, rest)

    async def _failed(self, exchange: Exchange, error: ErrorResponse, code: str) -> None:
        self._metrics.refused(code)
        if not exchange.started:
            error = spelled_for(exchange.path, exchange.headers, error, exchange.request_id)
            await exchange.respond_error(error, [(b"x-request-id", exchange.request_id.encode())])
        # Else the response stays unfinished and the connection is cut: better than a whole-looking answer.
