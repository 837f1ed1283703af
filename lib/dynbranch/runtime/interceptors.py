"""What every call passes on its way into a service: trace context, a deadline, and the mapping of errors."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from typing import Any

import grpc
from dynbranch.domain.errors import DomainError
from dynbranch.runtime import telemetry
from dynbranch.runtime.error_status import status_of
from grpc_status import rpc_status
from opentelemetry import context as otel_context

Continuation = Callable[[grpc.HandlerCallDetails], Awaitable[Any]]


class ContextPropagation(grpc.aio.ServerInterceptor):
    """Makes the caller's span current for the handler.

    Nothing is detached: gRPC handles each call in a task of its own, whose context ends with it.
    """

    async def intercept_service(self, continuation: Continuation, details: grpc.HandlerCallDetails) -> Any:
        context = telemetry.extract(details.invocation_metadata or ())
        if context:
            otel_context.attach(context)
        return await continuation(details)


class Boundary(grpc.aio.ServerInterceptor):
    """Turns domain errors into a status with an ErrorDetail, and bounds unary calls without a deadline."""

    def __init__(self, default_deadline_s: float) -> None:
        self._default_deadline_s = default_deadline_s

    async def intercept_service(self, continuation: Continuation, details: grpc.HandlerCallDetails) -> Any:
        handler = await continuation(details)
        if handler is None:
            return None
        codec = (handler.request_deserializer, handler.response_serializer)
        if handler.unary_unary is not None:
            return grpc.unary_unary_rpc_method_handler(self._unary(handler.unary_unary), *codec)
        if handler.unary_stream is not None and inspect.isasyncgenfunction(handler.unary_stream):
            return grpc.unary_stream_rpc_method_handler(_stream(handler.unary_stream), *codec)
        return handler

    def _unary(self, behaviour: Callable[[Any, Any], Awaitable[Any]]) -> Callable[[Any, Any], Awaitable[Any]]:
        async def call(request: Any, context: grpc.aio.ServicerContext[Any, Any]) -> Any:
            try:
                if context.time_remaining() is not None:
                    return await behaviour(request, context)
                async with asyncio.timeout(self._default_deadline_s) as limit:
                    return await behaviour(request, context)
            except DomainError as error:
                await _abort(context, error)
            except TimeoutError:
                if context.time_remaining() is None and limit.expired():
                    await context.abort(
                        grpc.StatusCode.DEADLINE_EXCEEDED, "the service's own deadline passed"
                    )
                raise

        return call


def _stream(
    behaviour: Callable[[Any, Any], Any],
) -> Callable[[Any, Any], AsyncIterator[Any]]:
    async def call(request: Any, context: grpc.aio.ServicerContext[Any, Any]) -> AsyncIterator[Any]:
        try:
            async with aclosing(behaviour(request, context)) as messages:
                async for message in messages:
                    yield message
        except DomainError as error:
            await _abort(context, error)

    return call


async def _abort(context: grpc.aio.ServicerContext[Any, Any], error: DomainError) -> None:
    status = rpc_status.to_status(status_of(error))
    await context.abort(status.code, status.details, status.trailing_metadata)
