"""Many demands and commits on one stream: whatever was answered at one moment travels in one message.

A large answer travels alone, and none waits for more than one of them. The largest do not travel here at all:
see ``apart``.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import grpc
from dynbranch.domain.errors import DomainError, NotReady
from dynbranch.runtime.error_status import call_error_of
from dynbranch.runtime.tasks import Tasks
from dynbranch.v1 import csl_pb2 as pb

_log = logging.getLogger(__name__)

Serve = Callable[[pb.StoreAsk], Awaitable[pb.StoreAnswer]]
"""Answers one ask. Raises DomainError."""

MAX_MESSAGE_BYTES = 2**20
LARGE_BYTES = 2**16
MAX_UNSENT_BYTES = 2**26
"""Of large answers. A caller that reads so slowly has ceased to wait for most of them."""

MAX_WAITING = 10_000


class Conversation:
    """One caller's stream, from its opening to its end. ``write`` sends one message."""

    def __init__(
        self, serve: Serve, write: Callable[[pb.CslServiceConverseResponse], Any], tasks: Tasks
    ) -> None:
        self._serve = serve
        self._write = write
        self._tasks = tasks
        self._answers: list[pb.StoreAnswer] = []
        self._large: deque[pb.StoreAnswer] = deque()
        self._large_bytes = 0
        self._some = asyncio.Event()

    async def listen(self, messages: AsyncIterator[pb.CslServiceConverseRequest]) -> None:
        """Returns when the caller says no more."""
        async for message in messages:
            for ask in message.asks:
                self._tasks.hasten(self._answer(ask), name="answer")

    async def _answer(self, ask: pb.StoreAsk) -> None:
        try:
            if len(self._tasks) > MAX_WAITING:
                raise OverflowError(f"{MAX_WAITING} calls of one caller wait already")
            answer = await self._serve(ask)
        except DomainError as error:
            answer = pb.StoreAnswer(error=call_error_of(error))
        except Exception:  # noqa: BLE001  # the boundary of one call: a bug there must not end the others
            _log.exception("a bug ended a call")
            answer = pb.StoreAnswer(error=call_error_of(None))
        answer.call = ask.call
        self._put(answer)
        self._some.set()

    def _put(self, answer: pb.StoreAnswer) -> None:
        size = answer.ByteSize()
        if size > LARGE_BYTES:
            if self._large_bytes + size <= MAX_UNSENT_BYTES:
                self._large.append(answer)
                self._large_bytes += size
                return
            answer = pb.StoreAnswer(call=answer.call, error=call_error_of(_not_read()))
        # Of what is beyond these the callers' deadlines tell them.
        if len(self._answers) < MAX_WAITING:
            self._answers.append(answer)

    async def speak(self) -> None:
        """Runs until cancelled, or until the caller is gone."""
        try:
            await self._speak()
        except grpc.aio.BaseError as lost:
            _log.info("a caller is gone: %s", lost)

    async def _speak(self) -> None:
        while True:
            await self._some.wait()
            self._some.clear()
            while self._answers or self._large:
                if self._answers:
                    await self._write(pb.CslServiceConverseResponse(answers=self._next_answers()))
                if self._large:
                    large = self._large.popleft()
                    self._large_bytes -= large.ByteSize()
                    await self._write(pb.CslServiceConverseResponse(answers=[large]))

    def _next_answers(self) -> list[pb.StoreAnswer]:
        """As many as one message should hold."""
        answers, self._answers = self._answers, []
        size = 0
        for count, answer in enumerate(answers):
            size += answer.ByteSize()
            if count and size > MAX_MESSAGE_BYTES:
                self._answers = answers[count:]
                return answers[:count]
        return answers


def _not_read() -> NotReady:
    return NotReady(
        "answers_not_read", f"{MAX_UNSENT_BYTES} bytes of answers wait to be read", advice="execute instead"
    )


async def converse(
    serve: Serve,
    messages: AsyncIterator[pb.CslServiceConverseRequest],
    context: grpc.aio.ServicerContext[Any, Any],
) -> None:
    """Serves one stream to its end."""
    async with Tasks() as tasks:
        conversation = Conversation(serve, context.write, tasks)
        speaking = tasks.spawn(conversation.speak(), name="conversation said")
        listening = tasks.spawn(conversation.listen(messages), name="conversation heard")
        await asyncio.wait((speaking, listening), return_when=asyncio.FIRST_COMPLETED)
