"""uvicorn inside a service that already has its loop, its signals and its logging."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import resource
import socket
from collections.abc import Generator
from functools import partial
from typing import Any, cast

import uvicorn
from dynbranch.gateway.app import App
from dynbranch.gateway.config import GatewaySettings
from dynbranch.gateway.edge.connection import Connection, ConnectionPolicy, Refused

_BACKLOG = 2048
_TICKS_PER_LOOK = 10
_SPARE_FILES = 256

_log = logging.getLogger(__name__)


class HttpServer(uvicorn.Server):
    """Serves until ``should_exit`` is set; then in-flight requests have ``grace_s`` to end."""

    def __init__(
        self,
        app: App,
        *,
        listen: str,
        grace_s: float,
        policy: ConnectionPolicy | None = None,
        refused: Refused = lambda code: None,
    ) -> None:
        policy = policy or ConnectionPolicy()
        # uvicorn reports a deliberately cut response as an error; failures are logged by the app itself.
        logging.getLogger("uvicorn").setLevel(logging.CRITICAL)
        super().__init__(
            uvicorn.Config(
                app,
                loop="none",
                http=cast(Any, partial(Connection, policy=policy, refused=refused)),
                ws="none",
                lifespan="off",
                interface="asgi3",
                log_config=None,
                access_log=False,
                proxy_headers=False,
                server_header=False,
                date_header=False,
                timeout_keep_alive=cast(Any, policy.keep_alive_s),
                timeout_graceful_shutdown=max(1, round(grace_s)),
            )
        )
        host, _, port = listen.rpartition(":")
        self._socket = socket.create_server(
            (host.strip("[]"), int(port)),
            family=socket.AF_INET6 if ":" in host else socket.AF_INET,
            backlog=_BACKLOG,
        )
        bound = self._socket.getsockname()
        self.address = f"{host}:{bound[1]}"

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        """The process around it handles signals."""
        yield

    async def on_tick(self, counter: int) -> bool:
        if counter % _TICKS_PER_LOOK == 0:
            now = asyncio.get_running_loop().time()
            for connection in tuple(self.server_state.connections):
                if isinstance(connection, Connection):
                    connection.look(now)
        return await super().on_tick(counter)

    async def serve_until_told(self) -> None:
        await self.serve(sockets=[self._socket])


def connection_policy(settings: GatewaySettings) -> ConnectionPolicy:
    return ConnectionPolicy(
        max_connections=settings.max_connections,
        head_timeout_s=settings.head_timeout_s,
        keep_alive_s=settings.connection_idle_s,
        linger_s=settings.linger_s,
        stall_s=settings.stall_s,
    )


def allow_open_files(connections: int) -> None:
    """Raise this process's own limit on open files, as far as it may, to what so many connections need."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = connections + _SPARE_FILES
    unlimited = hard == resource.RLIM_INFINITY
    if soft != resource.RLIM_INFINITY and soft < wanted:
        allowed = wanted if unlimited else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))
        if allowed < wanted:
            _log.warning(
                "%d open files are allowed, %d may be wanted: lower max_connections", allowed, wanted
            )
