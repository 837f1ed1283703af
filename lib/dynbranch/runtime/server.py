"""The gRPC server of every service, and the channel that reaches it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import grpc
from dynbranch.runtime.channel import channel
from dynbranch.runtime.clock import Clock
from dynbranch.runtime.interceptors import Boundary, ContextPropagation
from dynbranch.runtime.transport import SERVER_OPTIONS
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_health.v1._async import HealthServicer
from grpc_reflection.v1alpha import reflection

__all__ = ["GrpcServer", "Service", "channel"]

Service = tuple[Callable[[Any, Any], None], object, str]
"""What registers the servicer, the servicer, and the full name of its service ("dynbranch.v1.CslService")."""

DEFAULT_DEADLINE_S = 30.0
MAX_CONCURRENT_RPCS = 10_000
LIVENESS = "liveness"
"""What the health service answers under this name says that the process lives, ready or not."""


class GrpcServer:
    """Serves with health, reflection, deadlines, mapped errors and trace context.

    A unary call without a deadline gets ``default_deadline_s``. Calls beyond ``max_concurrent_rpcs`` are
    refused.
    """

    def __init__(
        self,
        listen: str,
        services: Sequence[Service],
        clock: Clock,
        *,
        default_deadline_s: float = DEFAULT_DEADLINE_S,
        max_concurrent_rpcs: int = MAX_CONCURRENT_RPCS,
    ) -> None:
        self._listen = listen
        self._services = tuple(services)
        self._clock = clock
        self._default_deadline_s = default_deadline_s
        self._max_concurrent_rpcs = max_concurrent_rpcs
        self._health = HealthServicer()
        self._server: grpc.aio.Server | None = None

    async def start(self, *, ready: bool = True) -> str:
        """Listen; returns "host:port" with the real port. Raises OSError when it can not."""
        server = grpc.aio.server(
            interceptors=(ContextPropagation(), Boundary(self._default_deadline_s)),
            options=SERVER_OPTIONS,
            maximum_concurrent_rpcs=self._max_concurrent_rpcs,
        )
        for add_to_server, servicer, _ in self._services:
            add_to_server(servicer, server)
        health_pb2_grpc.add_HealthServicer_to_server(self._health, server)
        names = [name for _, _, name in self._services]
        reflection.enable_server_reflection(
            (*names, "grpc.health.v1.Health", reflection.SERVICE_NAME), server
        )
        try:
            port = server.add_insecure_port(self._listen)
        except RuntimeError:
            reason = "the port is taken, or the host is not this machine's"
            raise OSError(f"can not listen on {self._listen}: {reason}") from None
        self._server = server
        await self.set_ready(ready)
        await self._health.set(LIVENESS, health_pb2.HealthCheckResponse.SERVING)
        await server.start()
        return f"{self._listen.rpartition(':')[0]}:{port}"

    async def set_ready(self, ready: bool) -> None:
        """What the health service says, overall and for each service."""
        states = health_pb2.HealthCheckResponse
        state = states.SERVING if ready else states.NOT_SERVING
        for name in ("", *(name for _, _, name in self._services)):
            await self._health.set(name, state)

    async def stop(self, grace_s: float) -> None:
        """Refuse new calls, let the running ones finish for ``grace_s`` seconds, then cancel them."""
        if self._server is None:
            return
        await self._health.enter_graceful_shutdown()
        await self._server.stop(grace_s)
        self._server = None
