"""One long stream to a peer that carries many calls.

A call of its own costs gRPC several times what it costs to carry one more message. Here whatever is to be
said at one moment travels in one message, and an answer goes to the call whose number it bears. The stream
opens with the first call, and again with the next one after it broke; what was under way then is Unreachable.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Any, Generic, TypeVar

import grpc
from dynbranch.clients.errors import meant
from dynbranch.clients.ports import Unreachable
from dynbranch.domain.errors import DomainError
from dynbranch.domain.ids import Instant
from dynbranch.runtime.tasks import Tasks

Ask = TypeVar("Ask")
Answer = TypeVar("Answer")
Failure = DomainError | Unreachable

MAX_CALLS = 20_000
"""Calls under way; more are refused at once."""

APART_S, APART_PER_CALL_S = 0.01, 0.0003
"""The shortest time between two messages: so much for each call under way, and no more than the first."""

MAX_MESSAGE_BYTES = 2**20
"""Several asks share a message up to this size; a larger one travels alone."""


class Conversation(Generic[Ask, Answer]):
    """``start`` opens the stream, ``pack`` makes one message of asks, ``unpack`` gives the answers of one.

    ``hear`` of a call gets its answers, and one failure if the stream breaks before ``hang_up``.
    """

    def __init__(
        self,
        start: Callable[[], Any],
        pack: Callable[[list[Ask]], Any],
        unpack: Callable[[Any], Iterable[tuple[int, Answer]]],
    ) -> None:
        self._start = start
        self._pack = pack
        self._unpack = unpack
        self._next_call = 0
        self._line: _Line[Ask, Answer] | None = None
        self._tasks = Tasks()
        self._closed = False

    def call(
        self, ask: Callable[[int], Ask], hear: Callable[[Answer], None], fail: Callable[[Failure], None]
    ) -> Call[Ask, Answer]:
        """``ask`` makes the first ask of a call of a number. Raises Unreachable."""
        if self._closed:
            raise Unreachable("this client is closed")
        line = self._line
        if line is None or line.broken:
            with meant():
                line = self._line = _Line(self._start(), self._pack, self._unpack)
            self._tasks.spawn(line.read(), name="conversation heard")
            self._tasks.spawn(line.send(), name="conversation said")
        if len(line.calls) >= MAX_CALLS:
            raise Unreachable(f"{MAX_CALLS} calls are under way already")
        self._next_call += 1
        call = Call(line, self._next_call, hear, fail)
        line.calls[call.number] = call
        line.say(ask(call.number))
        return call

    async def close(self) -> None:
        """Whatever is under way is Unreachable."""
        self._closed = True
        if self._line is not None:
            self._line.give_up(Unreachable("this client was closed"))
        await self._tasks.__aexit__(None, None, None)


class Call(Generic[Ask, Answer]):
    """One call on the stream that it began on."""

    __slots__ = ("_line", "asked_at", "fail", "hear", "number")

    def __init__(
        self,
        line: _Line[Ask, Answer],
        number: int,
        hear: Callable[[Answer], None],
        fail: Callable[[Failure], None],
    ) -> None:
        self._line = line
        self.number = number
        self.hear = hear
        self.fail = fail
        self.asked_at = line.loop.time()

    def say(self, ask: Ask) -> None:
        """More of this call. Nothing on a stream that broke."""
        if self.number in self._line.calls:
            self._line.say(ask)

    def hang_up(self, last: Ask | None = None) -> None:
        """Nothing more is heard. ``last`` is what the peer is told if it may still hold the call."""
        if self._line.calls.pop(self.number, None) is not None and last is not None:
            self._line.say(last)

    def give_up_if_silent(self, failure: Failure) -> None:
        """Ends the stream, and with it all its calls, when nothing at all came since this one was asked."""
        if self._line.heard_at < self.asked_at:
            self._line.give_up(failure)


class _Line(Generic[Ask, Answer]):
    """One stream, from its opening to its break."""

    def __init__(
        self,
        stream: Any,
        pack: Callable[[list[Ask]], Any],
        unpack: Callable[[Any], Iterable[tuple[int, Answer]]],
    ) -> None:
        self.loop = asyncio.get_running_loop()
        self.calls: dict[int, Call[Ask, Answer]] = {}
        self.broken = False
        self.heard_at = Instant(float("-inf"))
        self._stream = stream
        self._pack = pack
        self._unpack = unpack
        self._unsaid: list[Ask] = []
        self._some = asyncio.Event()

    def say(self, ask: Ask) -> None:
        self._unsaid.append(ask)
        self._some.set()

    def give_up(self, failure: Failure) -> None:
        """Break the stream; every call on it fails."""
        if self.broken:
            return
        self.broken = True
        self._some.set()
        self._unsaid.clear()
        self._stream.cancel()
        calls, self.calls = self.calls, {}
        for call in calls.values():
            call.fail(failure)

    async def read(self) -> None:
        failure: Failure = Unreachable("the stream has ended")
        try:
            with meant():
                while (message := await self._stream.read()) is not grpc.aio.EOF:
                    self.heard_at = Instant(self.loop.time())
                    for number, answer in self._unpack(message):
                        call = self.calls.get(number)
                        if call is not None:
                            call.hear(answer)
        except (Unreachable, DomainError) as broken:
            failure = broken
        finally:
            self.give_up(failure)

    async def send(self) -> None:
        said_at = float("-inf")
        while not self.broken:
            await self._some.wait()
            # What others are about to say goes along, for it is the message that costs: one more turn of the
            # loop, and where many are under way a moment after the message before.
            apart_s = min(APART_S, APART_PER_CALL_S * len(self.calls))
            await asyncio.sleep(max(0.0, said_at + apart_s - self.loop.time()))
            said_at = self.loop.time()
            self._some.clear()
            while self._unsaid and not self.broken:
                try:
                    with meant():
                        await self._stream.write(self._pack(self._next_asks()))
                except (Unreachable, DomainError, asyncio.InvalidStateError):
                    # Why it broke is what the reader is told.
                    return

    def _next_asks(self) -> list[Ask]:
        """As many as one message may hold."""
        asks, self._unsaid = self._unsaid, []
        size = 0
        for count, ask in enumerate(asks):
            size += ask.ByteSize()  # type: ignore[attr-defined]
            if count and size > MAX_MESSAGE_BYTES:
                self._unsaid = asks[count:]
                return asks[:count]
        return asks
