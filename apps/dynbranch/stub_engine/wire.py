"""HTTP/1.1 as cheaply as Python speaks it: a parser in C, no task and no timer for a request.

A handler is a plain function that gets a ``Call`` and answers at once or later; a client that leaves is
told to ``Call.when_gone``.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from http import HTTPStatus
from typing import Any, cast

import httptools

_MAX_WAITING_CALLS = 64
_MAX_BODY_BYTES = 64 * 1024 * 1024
JSON = b"application/json"
EVENT_STREAM = b"text/event-stream; charset=utf-8"
_REASONS = {status.value: status.phrase.encode() for status in HTTPStatus}


class Call:
    """One request, and the way to answer it."""

    __slots__ = (
        "_connection",
        "body",
        "complete",
        "headers",
        "keep_alive",
        "method",
        "started",
        "target",
        "when_gone",
    )

    def __init__(
        self,
        connection: Connection,
        method: str,
        target: bytes,
        headers: list[tuple[bytes, bytes]],
        body: bytes,
        keep_alive: bool,
    ) -> None:
        self._connection = connection
        self.method = method
        self.target = target
        self.headers = headers
        self.body = body
        self.keep_alive = keep_alive
        self.started = False
        self.complete = False
        self.when_gone: Callable[[], None] | None = None

    @property
    def path(self) -> str:
        return self.target.partition(b"?")[0].decode("latin-1")

    def header(self, name: bytes) -> bytes:
        """Of the first header of that lower-case name; empty without one."""
        return next((value for key, value in self.headers if key.lower() == name), b"")

    @property
    def gone(self) -> bool:
        return self._connection.closed

    def respond(
        self,
        status: int,
        body: bytes,
        content_type: bytes = JSON,
        headers: tuple[tuple[bytes, bytes], ...] = (),
    ) -> None:
        """The whole answer."""
        extra = b"".join(b"%b: %b\r\n" % header for header in headers)
        if not self.keep_alive:
            extra += b"connection: close\r\n"
        head = b"HTTP/1.1 %d %b\r\ncontent-type: %b\r\ncontent-length: %d\r\n%b\r\n" % (
            status,
            _REASONS.get(status, b"-"),
            content_type,
            len(body),
            extra,
        )
        self.started = True
        self._connection.write(head if self.method == "HEAD" else head + body)
        self._end()

    def stream(self, part: bytes = b"", content_type: bytes = EVENT_STREAM) -> None:
        """Begins a stream."""
        self.started = True
        head = (
            b"HTTP/1.1 200 OK\r\ncontent-type: %b\r\n"
            b"cache-control: no-cache\r\ntransfer-encoding: chunked\r\n\r\n" % content_type
        )
        self._connection.write(head + _framed(part) if part else head)

    def write(self, part: bytes) -> None:
        self._connection.write(_framed(part))

    def finish(self, part: bytes = b"") -> None:
        """Ends a stream."""
        self._connection.write(_framed(part) + b"0\r\n\r\n" if part else b"0\r\n\r\n")
        self._end()

    def cut(self) -> None:
        """As when a process dies: no ending, no goodbye."""
        self.complete = True
        self.when_gone = None
        self._connection.abort()

    def _end(self) -> None:
        self.complete = True
        self.when_gone = None
        self._connection.ended(self)


def _framed(part: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(part), part)


class _TooLarge(Exception):
    """The body is."""


class Connection(asyncio.Protocol):
    """One client. Requests that come before the answer to an earlier one wait."""

    def __init__(self, serve: Callable[[Call], None], members: set[Connection]) -> None:
        self._serve = serve
        self._members = members
        self._transport: asyncio.Transport | None = None
        self._parser = httptools.HttpRequestParser(self)
        self._target = b""
        self._headers: list[tuple[bytes, bytes]] = []
        self._body: list[bytes] = []
        self._size_bytes = 0
        self._running: Call | None = None
        self._waiting: deque[Call] = deque()
        self.closed = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports are none by their class.
        self._transport = cast(asyncio.Transport, transport)
        self._members.add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self.closed = True
        self._members.discard(self)
        self._waiting.clear()
        running, self._running = self._running, None
        if running is not None and running.when_gone is not None:
            running.when_gone()

    def data_received(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            self._refuse(501)
        except httptools.HttpParserCallbackError as error:
            if not isinstance(error.__context__, _TooLarge):
                self.abort()
                raise
            self._refuse(413)
        except httptools.HttpParserError:
            self._refuse(400)

    def _refuse(self, status: int) -> None:
        if self._running is None and self._transport is not None:
            self.write(
                b"HTTP/1.1 %d %b\r\nconnection: close\r\ncontent-length: 0\r\n\r\n"
                % (status, _REASONS[status])
            )
        self.close()

    # -- what the parser tells -----------------------------------------------------------------------------

    def on_url(self, url: bytes) -> None:
        self._target += url

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers.append((name, value))

    def on_headers_complete(self) -> None:
        if any(name.lower() == b"expect" for name, _ in self._headers):
            self.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def on_body(self, body: bytes) -> None:
        self._size_bytes += len(body)
        if self._size_bytes > _MAX_BODY_BYTES:
            raise _TooLarge
        self._body.append(body)

    def on_message_complete(self) -> None:
        body = self._body[0] if len(self._body) == 1 else b"".join(self._body)
        parser = self._parser
        call = Call(
            self, parser.get_method().decode(), self._target, self._headers, body, parser.should_keep_alive()
        )
        self._target, self._headers, self._body, self._size_bytes = b"", [], [], 0
        if self._running is None:
            self._begin(call)
        else:
            self._waiting.append(call)
            if len(self._waiting) >= _MAX_WAITING_CALLS and self._transport is not None:
                self._transport.pause_reading()

    def _begin(self, call: Call) -> None:
        self._running = call
        self._serve(call)

    def ended(self, call: Call) -> None:
        """The answer is complete."""
        if self._running is not call:
            return
        self._running = None
        if not call.keep_alive:
            self.close()
        elif self._waiting:
            if len(self._waiting) >= _MAX_WAITING_CALLS and self._transport is not None:
                self._transport.resume_reading()
            self._begin(self._waiting.popleft())

    # -- the transport -------------------------------------------------------------------------------------

    def write(self, data: bytes) -> None:
        if not self.closed and self._transport is not None:
            self._transport.write(data)

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()


class Listener:
    """A port that can be closed and opened again."""

    def __init__(self, serve: Callable[[Call], None], host: str, port: int) -> None:
        self._serve = serve
        self._host = host
        self.port = port
        self._server: asyncio.Server | None = None
        self._members: set[Connection] = set()

    @property
    def is_open(self) -> bool:
        return self._server is not None

    async def open(self) -> None:
        """Raises OSError."""
        if self._server is None:
            loop = asyncio.get_running_loop()
            self._server = await loop.create_server(
                lambda: Connection(self._serve, self._members), self._host, self.port, backlog=4096
            )
            address: Any = self._server.sockets[0].getsockname()
            self.port = address[1]

    def close(self) -> None:
        """Refuses from now on, and cuts whoever is there."""
        server, self._server = self._server, None
        if server is not None:
            server.close()
        for connection in tuple(self._members):
            connection.abort()
