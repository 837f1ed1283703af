"""The two kinds of call: one answer under a deadline, and a stream under an idle deadline."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from typing import Any, TypeVar

import grpc
from dynbranch.clients.errors import meant, readable
from dynbranch.clients.ports import Unreachable

Message = TypeVar("Message")
Value = TypeVar("Value")


async def answer(
    call: Callable[..., Any], request: object, timeout_s: float, *, patient: bool = False
) -> Any:
    """One unary call. Raises a domain error or Unreachable, at once when the peer is not there.

    ``patient``: a person asks, who would rather wait for a connection that is being made, up to the deadline.
    """
    with meant():
        return await call(request, timeout=timeout_s, wait_for_ready=patient)


def decoded(decode: Callable[[Message], Value], message: Message) -> Value:
    with readable():
        return decode(message)


async def follow(
    start: Callable[..., Any], request: object, decode: Callable[[Any], Value], idle_s: float
) -> AsyncGenerator[Value, None]:
    """Starts a streaming call when first awaited and cancels it the moment that the generator is closed.

    More than ``idle_s`` seconds without a message is Unreachable. There is no deadline for the whole: a long
    decode is not a failure.
    """
    with meant():
        call = start(request, wait_for_ready=False)
    try:
        while (message := await _next(call, idle_s)) is not grpc.aio.EOF:
            yield decoded(decode, message)
    finally:
        call.cancel()


async def _next(call: Any, idle_s: float) -> Any:
    with meant():
        try:
            async with asyncio.timeout(idle_s):
                return await call.read()
        except TimeoutError:
            raise Unreachable(f"no message for {idle_s} s") from None
