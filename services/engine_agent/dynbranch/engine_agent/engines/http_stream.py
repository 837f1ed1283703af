"""One request to an engine and its answer as it comes, with as little work per piece as can be.

A connection that gave a whole answer is used again for a moment, where the engine's server can do that; every
other one is closed. Closing one early is how an engine is told to stop.
"""

from __future__ import annotations

import asyncio
import ssl
from collections import deque
from collections.abc import AsyncGenerator, Callable, Mapping
from typing import Any
from urllib.parse import urlsplit

import httptools
from dynbranch.engine_agent.engines.http import MAX_HEADER_BYTES, Timeouts

KEPT_S = 2.0
"""How long an idle connection may be used again: servers close theirs after five seconds or more."""

ENDING_S = 0.5
"""How long an answer may take to end whose last word has come."""

TOGETHER_S = 0.008
"""Pieces of many answers that come within this time are looked at together, and go on as one message, which
is what costs. It is the most that a piece in the middle of an answer waits."""

GATHERING_S = 0.001
"""How long the first of them waits: an engine's step gives a piece to each of its answers."""

MAX_HELD_BYTES = 4096
"""Of one answer; what comes beyond it is looked at when it comes."""

_ALIKE_BYTES = 24

MAX_KEPT = 64
MAX_UNREAD_BYTES = 2**20


class BrokenAnswer(ConnectionError):
    """The answer is not HTTP, or ended early."""


class EngineStreams:
    """``kept``: connections serve more than one request."""

    def __init__(self, base_url: str, timeouts: Timeouts) -> None:
        parts = urlsplit(base_url)
        self._secure = ssl.create_default_context() if parts.scheme == "https" else None
        self._host = parts.hostname or ""
        self._port = parts.port or (443 if self._secure else 80)
        self._prefix = parts.path.rstrip("/")
        self._head = f" HTTP/1.1\r\nhost: {parts.netloc.rpartition('@')[2]}\r\n"
        self._timeouts = timeouts
        self._idle: deque[_Connection] = deque()
        self._together = _Together()
        self._ending: set[Answer] = set()
        self.kept = False

    async def post(self, path: str, headers: Mapping[str, str], body: bytes) -> Answer:
        """The answer once its head is there. Raises OSError and TimeoutError."""
        lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        head = f"POST {self._prefix}{path}{self._head}{lines}content-length: {len(body)}\r\n\r\n"
        request = head.encode("latin-1") + body
        while (connection := self._take()) is not None:
            answer = connection.ask(request, self)
            try:
                await answer.begun()
            except BrokenAnswer:
                if answer.heard_anything:
                    raise
                # It was closed while idle: nothing of the request was seen.
                continue
            except BaseException:
                answer.close()
                raise
            return answer
        answer = (await self._connect()).ask(request, self)
        try:
            await answer.begun()
        except BaseException:
            answer.close()
            raise
        return answer

    def give_back(self, connection: _Connection) -> None:
        if not self.kept or len(self._idle) >= MAX_KEPT:
            connection.close()
            return
        connection.idle_since = asyncio.get_running_loop().time()
        self._idle.append(connection)

    def ends(self, answer: Answer) -> None:
        """It is closed in a moment, or with all others."""
        self._ending.add(answer)
        asyncio.get_running_loop().call_later(ENDING_S, answer.close)

    def has_ended(self, answer: Answer) -> None:
        self._ending.discard(answer)

    def close(self) -> None:
        for answer in tuple(self._ending):
            answer.close()
        while self._idle:
            self._idle.pop().close()

    def _take(self) -> _Connection | None:
        """The one used last, if it is fresh."""
        oldest = asyncio.get_running_loop().time() - KEPT_S
        while self._idle and (self._idle[0].idle_since < oldest or self._idle[0].is_closed):
            self._idle.popleft().close()
        while self._idle:
            connection = self._idle.pop()
            if not connection.is_closed:
                return connection
        return None

    async def _connect(self) -> _Connection:
        loop = asyncio.get_running_loop()
        async with asyncio.timeout(self._timeouts.connect_s):
            _, connection = await loop.create_connection(
                lambda: _Connection(loop, self._timeouts.idle_s, self._together),
                self._host,
                self._port,
                ssl=self._secure,
            )
        return connection


class Answer:
    """``status`` and lower-case ``headers`` are there; the body comes by ``parts``."""

    def __init__(self, connection: _Connection, streams: EngineStreams) -> None:
        self.status = 0
        self.headers: dict[str, str] = {}
        self.is_whole = False
        self.keeps_alive = False
        self.failure: Exception | None = None
        self.heard_anything = False
        self._connection: _Connection | None = connection
        self._streams = streams
        self._unread: list[bytes] = []
        self._unread_bytes = 0
        self._waiter: asyncio.Future[None] | None = None
        self._ending = False
        self._take: Callable[[bytes], bool] | None = None
        self._has_enough = False

    async def begun(self) -> None:
        while not self.status and not self.is_whole:
            await self._something()

    async def parts(self) -> AsyncGenerator[bytes]:
        """What came since the last part. Raises OSError and TimeoutError."""
        while True:
            if self._unread:
                unread, self._unread = self._unread, []
                self._unread_bytes = 0
                if self._connection is not None:
                    self._connection.resume()
                yield unread[0] if len(unread) == 1 else b"".join(unread)
            elif self.is_whole:
                return
            else:
                await self._something()

    async def taken_by(self, take: Callable[[bytes], bool]) -> None:
        """``take`` gets each part the moment that it comes, until it says that it has enough or the answer is
        whole. Raises OSError, TimeoutError, and what ``take`` raises."""
        self._take = take
        self.flow()
        while not (self._has_enough or self.is_whole):
            await self._something()
        if self.failure is not None:
            raise self.failure

    def flow(self) -> None:
        """What came goes to whoever takes it."""
        if self._take is None or self._has_enough or self.failure is not None:
            self.wake()
            return
        if self._unread:
            data = self._unread[0] if len(self._unread) == 1 else b"".join(self._unread)
            self._unread.clear()
            self._unread_bytes = 0
            try:
                self._has_enough = self._take(data)
            except Exception as failure:  # noqa: BLE001  # it is raised where the answer is awaited
                self.failure = failure
        if self._has_enough or self.is_whole or self.failure is not None:
            self.wake()

    def close(self) -> None:
        """The connection is used again if the answer is whole, else closed at once."""
        connection, self._connection = self._connection, None
        if connection is None:
            return
        connection.answer = None
        self._streams.has_ended(self)
        if self.is_whole and self.keeps_alive and self.failure is None:
            self._streams.give_back(connection)
        else:
            connection.close()

    def let_end(self) -> None:
        """All that matters has come: what the server still says to end the answer is awaited beside."""
        connection = self._connection
        if connection is None or self.is_whole or self.failure is not None or not self._streams.kept:
            self.close()
            return
        self._ending = True
        self._streams.ends(self)

    async def _something(self) -> None:
        if self.failure is not None:
            raise self.failure
        self._waiter = asyncio.get_running_loop().create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None
        if self.failure is not None and not self._unread:
            raise self.failure

    def add(self, body: bytes) -> bool:
        """Whether more may come."""
        if self._ending:
            return True
        self._unread.append(body)
        self._unread_bytes += len(body)
        return self._unread_bytes < MAX_UNREAD_BYTES

    def wake(self) -> None:
        if self._ending and self.is_whole:
            self.close()
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def fail(self, failure: Exception) -> None:
        if not self.is_whole:
            self.failure = self.failure or failure
        self.wake()


class _Together:
    """Connections of which each holds a piece, until the time for all of them has come."""

    def __init__(self) -> None:
        self._holding: list[_Connection] = []
        self._looked_at = float("-inf")

    def add(self, connection: _Connection, loop: asyncio.AbstractEventLoop) -> None:
        if not self._holding:
            left_s = self._looked_at + TOGETHER_S - loop.time()
            loop.call_later(max(GATHERING_S, left_s), self._look, loop)
        self._holding.append(connection)

    def _look(self, loop: asyncio.AbstractEventLoop) -> None:
        self._looked_at = loop.time()
        holding, self._holding = self._holding, []
        for connection in holding:
            connection.look()


class _Connection(asyncio.Protocol):
    """``idle_s`` bounds the silence of an answer that is awaited."""

    def __init__(self, loop: asyncio.AbstractEventLoop, idle_s: float, together: _Together) -> None:
        self.answer: Answer | None = None
        self.idle_since = 0.0
        self.is_closed = False
        self._loop = loop
        self._idle_s = idle_s
        self._transport: Any = None
        self._parser: Any = None
        self._heard_at = 0.0
        self._head_bytes = 0
        self._paused = False
        self._watch: asyncio.TimerHandle | None = None
        self._together = together
        self._held = self._ends_alike = b""
        self._is_more = False

    def ask(self, request: bytes, streams: EngineStreams) -> Answer:
        self._parser = httptools.HttpResponseParser(self)
        self._head_bytes = 0
        self._held = self._ends_alike = b""
        self._heard_at = self._loop.time()
        if self._watch is None:
            # One timer per connection that looks again, not one per piece.
            self._watch = self._loop.call_later(self._idle_s, self._look)
        answer = self.answer = Answer(self, streams)
        self._transport.write(request)
        return answer

    def close(self) -> None:
        self.is_closed = True
        self.answer = None
        if self._watch is not None:
            self._watch.cancel()
        if self._transport is not None:
            self._transport.abort()

    def resume(self) -> None:
        if self._paused:
            self._paused = False
            self._transport.resume_reading()

    def _look(self) -> None:
        left_s = self._heard_at + self._idle_s - self._loop.time()
        if self.answer is None or left_s > 0:
            self._watch = self._loop.call_later(max(left_s, self._idle_s / 2), self._look)
        else:
            self.answer.fail(TimeoutError(f"no byte for {self._idle_s} s"))

    # -- what the transport tells --------------------------------------------------------------------------

    def connection_made(self, transport: Any) -> None:
        self._transport = transport

    def connection_lost(self, exc: Exception | None) -> None:
        self.look()
        self.is_closed = True
        if self._watch is not None:
            self._watch.cancel()
        answer = self.answer
        if answer is None or answer.is_whole:
            return
        if answer.status and "content-length" not in answer.headers and not self._is_chunked(answer):
            # Such a body ends with its connection.
            answer.is_whole = exc is None
        answer.fail(BrokenAnswer(f"the connection was lost: {exc or 'closed by the server'}"))

    def eof_received(self) -> bool:
        return False

    def data_received(self, data: bytes) -> None:
        if self._ends_alike and data.endswith(self._ends_alike):
            # As the one before it, so not the end, which somebody may wait for; the first is not held.
            may_wait, self._is_more = self._is_more, True
            if may_wait and self.answer is not None and len(self._held) + len(data) <= MAX_HELD_BYTES:
                if not self._held:
                    self._together.add(self, self._loop)
                self._held += data
                return
        else:
            self._ends_alike, self._is_more = data[-_ALIKE_BYTES:], False
        held, self._held = self._held, b""
        self._hear(held + data if held else data)

    def look(self) -> None:
        """At what is held."""
        held, self._held = self._held, b""
        if held:
            self._hear(held)

    def _hear(self, data: bytes) -> None:
        answer = self.answer
        if answer is None:
            # Nobody asked: not a connection to be used again.
            self.close()
            return
        self._heard_at = self._loop.time()
        answer.heard_anything = True
        if not answer.status:
            self._head_bytes += len(data)
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            answer.fail(BrokenAnswer(f"the answer is not HTTP: {error}"))
            return
        if self._head_bytes > MAX_HEADER_BYTES and not answer.status:
            answer.fail(BrokenAnswer("the answer's head is too large"))
        answer.flow()

    # -- what the parser tells -----------------------------------------------------------------------------

    def on_header(self, name: bytes, value: bytes) -> None:
        if self.answer is not None and not self.answer.status:
            self.answer.headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        if self.answer is not None:
            status = self._parser.get_status_code()
            if status >= 200:
                self.answer.status = status
            else:
                self.answer.headers.clear()

    def on_body(self, body: bytes) -> None:
        if self.answer is not None and not self.answer.add(body) and not self._paused:
            self._paused = True
            self._transport.pause_reading()

    def on_message_complete(self) -> None:
        answer = self.answer
        if answer is not None and answer.status:
            answer.is_whole = True
            answer.keeps_alive = self._parser.should_keep_alive() and not self._paused

    @staticmethod
    def _is_chunked(answer: Answer) -> bool:
        return "chunked" in answer.headers.get("transfer-encoding", "").lower()
