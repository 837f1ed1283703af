"""The channel to a service: balanced, kept alive, and carrying the trace context of each call.

The context goes in by wrapping the calls, not by a client interceptor: gRPC runs each intercepted call in a
task of its own, which costs more than the call's own work and blurs whose cancellation it was.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import grpc
from dynbranch.runtime import telemetry
from dynbranch.runtime.transport import CLIENT_OPTIONS


def channel(target: str) -> grpc.aio.Channel:
    """A channel to "host:port", or to any gRPC target name. It connects when first used."""
    return _TracedChannel(grpc.aio.insecure_channel(target, options=CLIENT_OPTIONS))


def _traced(start: Callable[..., Any]) -> Callable[..., Any]:
    def call(request: Any, *, metadata: Any = None, **options: Any) -> Any:
        context = telemetry.inject()
        if context:
            metadata = (*(metadata or ()), *context)
        return start(request, metadata=metadata, **options)

    return call


class _TracedChannel(grpc.aio.Channel):
    def __init__(self, inner: grpc.aio.Channel) -> None:
        self._inner = inner

    async def __aenter__(self) -> _TracedChannel:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.close()

    async def close(self, grace: float | None = None) -> None:
        await self._inner.close(grace)

    def get_state(self, try_to_connect: bool = False) -> grpc.ChannelConnectivity:
        return self._inner.get_state(try_to_connect)

    async def wait_for_state_change(self, last_observed_state: grpc.ChannelConnectivity) -> None:
        await self._inner.wait_for_state_change(last_observed_state)

    async def channel_ready(self) -> None:
        await self._inner.channel_ready()

    def unary_unary(self, *args: Any, **options: Any) -> Any:
        return _traced(self._inner.unary_unary(*args, **options))

    def unary_stream(self, *args: Any, **options: Any) -> Any:
        return _traced(self._inner.unary_stream(*args, **options))

    def stream_unary(self, *args: Any, **options: Any) -> Any:
        return self._inner.stream_unary(*args, **options)

    def stream_stream(self, *args: Any, **options: Any) -> Any:
        return self._inner.stream_stream(*args, **options)
