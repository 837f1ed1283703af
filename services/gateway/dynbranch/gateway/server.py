"""uvicorn inside a service that already has its loop, its signals and its logging."""

from __future__ import annotations

import contextlib
import logging
import socket
from collections.abc import Generator

import uvicorn
from dynbranch.gateway.app import App

_BACKLOG = 2048


class HttpServer(uvicorn.Server):
    """Serves until ``should_exit`` is set; then in-flight requests have ``grace_s`` to end."""

    def __init__(self, app: App, *, listen: str, grace_s: float) -> None:
        # uvicorn reports a deliberately cut response as an error; failures are logged by the app itself.
        logging.getLogger("uvicorn").setLevel(logging.CRITICAL)
        super().__init__(
            uvicorn.Config(
                app,
                loop="none",
                http="httptools",
                ws="none",
                lifespan="off",
                interface="asgi3",
                log_config=None,
                access_log=False,
                proxy_headers=False,
                server_header=False,
                date_header=False,
                timeout_keep_alive=75,
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

    async def serve_until_told(self) -> None:
        await self.serve(sockets=[self._socket])
