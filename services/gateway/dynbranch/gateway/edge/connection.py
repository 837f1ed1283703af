"""One client's connection: uvicorn's HTTP/1.1, and the bounds that it leaves open.

uvicorn gives a request its body's flow control and a response its keep-alive. What is added here: a head and
a response must move within a time, what comes between bodies is bounded, a refusal has the API's shape and
never lands inside another answer, trailers are not headers, and a client that leaves is noticed by the
request that runs, whatever was sent behind it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, cast

import httptools
from dynbranch.gateway.edge.exchange import ClientSide, HeaderPairs
from dynbranch.gateway.protocols.errors import JSON, error_body
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle

_VERSIONS = frozenset({"1.0", "1.1"})

Refused = Callable[[str], None]
"""Told the code of every refusal that is made here, before there is a request."""


@dataclass(frozen=True, slots=True)
class ConnectionPolicy:
    """``head_timeout_s``: from a head's first byte to its last, and the silence before the first request.
    ``linger_s``: how long what nobody wants is still read, so that the client gets to see the answer.
    ``stall_s``: how long a client may read nothing of what was written. ``max_quiet_bytes``: what may come
    without a head or a part of a body in it: a head, trailers, the extensions of chunks."""

    max_connections: int = 4096
    head_timeout_s: float = 20.0
    keep_alive_s: float = 75.0
    linger_s: float = 5.0
    stall_s: float = 120.0
    max_quiet_bytes: int = 128 * 1024


class Connection(HttpToolsProtocol):
    """``look`` is called about once a second for every connection, which costs less than timers."""

    def __init__(self, *, policy: ConnectionPolicy, refused: Refused, **rest: Any) -> None:
        super().__init__(**rest)
        self._policy = policy
        self._told = refused
        self._running: RequestResponseCycle | None = None
        self._side = ClientSide(self._write_now, self._respond_now)
        self._head_since: float | None = None
        self._linger_since: float | None = None
        self._refusal: bytes | None = None
        """Why nothing more is read. Sent when the answers before it are complete."""
        self._in_head = True
        self._in_message = False
        self._quiet_bytes = 0
        self._progress = 0
        self._unread = (0, 0.0)
        """What the client has not taken yet, and since when it is so much."""

    @property
    def _is_in_body(self) -> bool:
        return self._in_message and not self._in_head

    @property
    def waiting_since(self) -> float | None:
        """Since when this connection has nothing to do; None while it has."""
        busy = self._running is not None and not self._running.response_complete
        return None if busy or self.transport.is_closing() else self._head_since

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._head_since = self.loop.time()
        if sum(not other.transport.is_closing() for other in self._others()) >= self._policy.max_connections:
            self._make_room()

    def connection_lost(self, exc: Exception | None) -> None:
        running, self._running = self._running, None
        self.pipeline.clear()
        super().connection_lost(exc)
        self._unset_keepalive_if_required()
        if running is not None and not running.response_complete:
            running.disconnected = True
            running.message_event.set()
            self._side.tell_left()

    def data_received(self, data: bytes) -> None:
        if self._refusal is not None:
            return
        if self._in_head and self.timeout_keep_alive_task is not None:
            self._head_since = self.loop.time()
        before = self._progress
        self._unset_keepalive_if_required()
        self._feed(data)
        self._quiet_bytes = self._quiet_bytes + len(data) if before == self._progress else 0
        if self._quiet_bytes > self._policy.max_quiet_bytes and self._refusal is None:
            self._refuse(431, "The headers are too large.", "headers_too_large")

    def _feed(self, data: bytes) -> None:
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade as offer:
            self._decline(data[offer.args[0] :])
        except httptools.HttpParserError:
            self.send_400_response("")

    def _decline(self, rest: bytes) -> None:
        """Some clients offer another protocol with every first request, its body behind it. The parser would
        skip that body, so it gets the head again without the offer."""
        method, version = self.parser.get_method(), self.parser.get_http_version().encode()
        if method == b"CONNECT":
            self.send_400_response("")
            return
        kept = [(name, value) for name, value in self.headers if name not in (b"upgrade", b"connection")]
        lines = [b"%s %s HTTP/%s" % (method, self.url, version), *(b"%s: %s" % header for header in kept)]
        self._new_parser()
        self._feed(b"\r\n".join(lines) + b"\r\n\r\n" + rest)

    def _new_parser(self) -> None:
        self.parser = httptools.HttpRequestParser(self)
        self.parser.set_dangerous_leniencies(lenient_data_after_close=True)

    # -- what the parser tells -----------------------------------------------------------------------------

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._in_message = True

    def on_header(self, name: bytes, value: bytes) -> None:
        # A trailer comes after the request was judged by its headers: it must not become one.
        if self._in_head:
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        if self.parser.should_upgrade():
            return
        if self.parser.get_http_version() not in _VERSIONS:
            raise ValueError("a version of HTTP that is not spoken here")
        super().on_headers_complete()
        self._progress += 1
        self._in_head = False
        self._head_since = None

    def on_body(self, body: bytes) -> None:
        self._progress += 1
        super().on_body(body)

    def on_message_complete(self) -> None:
        if self.parser.should_upgrade():
            return
        self._progress += 1
        super().on_message_complete()
        self._in_head, self._in_message = True, False
        self._linger_since = None
        if self.cycle.response_complete:
            self._head_since = self.loop.time()

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        self._running, self._side = cycle, ClientSide(self._write_now, self._respond_now)
        cast(dict[str, Any], cycle.scope)[ClientSide.KEY] = self._side
        super()._start_asgi_task(cycle, app)

    def _write_now(self, part: bytes) -> bool:
        """A part of the running response, of a length that was not told before."""
        cycle = self._running
        if (
            cycle is None
            or not cycle.chunked_encoding
            or cycle.response_complete
            or cycle.disconnected
            or self.flow.write_paused
            or cycle.scope["method"] == "HEAD"
        ):
            return False
        self.transport.write(b"%x\r\n%b\r\n" % (len(part), part))
        return True

    def _respond_now(self, status: int, headers: HeaderPairs, body: bytes) -> bool:
        """The whole response in one piece, as uvicorn would send it in two."""
        cycle = self._running
        if (
            cycle is None
            or cycle.response_started
            or cycle.disconnected
            or self.flow.write_paused
            or cycle.scope["method"] == "HEAD"
        ):
            return False
        lines = [STATUS_LINE[status]]
        for name, value in headers:
            lines += (name, b": ", value, b"\r\n")
        head = b"".join(lines)
        if head.count(b"\n") != len(headers) + 1:
            # A value that would be two headers: uvicorn says what is wrong with it.
            return False
        end = b"\r\n" if cycle.keep_alive else b"connection: close\r\n\r\n"
        self.transport.write(b"".join((head, end, body)))
        cycle.response_started = cycle.response_complete = True
        cycle.waiting_for_100_continue = False
        cycle.message_event.set()
        if not cycle.keep_alive:
            self.transport.close()
        cycle.on_response()
        return True

    def on_response_complete(self) -> None:
        if self._refusal is not None and not self.pipeline:
            self._say_refusal()
            return
        super().on_response_complete()
        if self.cycle.response_complete:
            now = self.loop.time()
            if self._is_in_body:
                # The rest is read and dropped, so that the client sees the answer and not a reset.
                self._unset_keepalive_if_required()
                self._linger_since = now
            else:
                self._head_since = now

    # -- refusals ------------------------------------------------------------------------------------------

    def send_400_response(self, msg: str) -> None:
        self._refuse(400, "The request is not valid HTTP/1.1.", "invalid_http")

    def _refuse(self, status: int, message: str, code: str) -> None:
        """Nothing more is read. The refusal is said once the requests before it have their answers."""
        self._told(code)
        self._refusal = _response(status, message, code)
        cycle = self._running
        if cycle is None or cycle.response_complete:
            if self._is_in_body:
                # Its answer has been given.
                self.transport.close()
            else:
                self._say_refusal()
        elif cycle is self.cycle and cycle.more_body:
            # The fault lies in the body of the very request that is being served.
            started = cycle.response_started
            cycle.disconnected = True
            cycle.message_event.set()
            if started:
                self.transport.close()
            else:
                self._say_refusal()
        elif self.pipeline and self.cycle.more_body:
            # The fault lies in the body of the last one that waits.
            self.pipeline.popleft()

    def _say_refusal(self) -> None:
        if self.transport.is_closing():
            return
        self._unset_keepalive_if_required()
        self.flow.resume_reading()
        self._head_since = None
        self._linger_since = self.loop.time()
        assert self._refusal is not None
        self.transport.write(self._refusal)
        if self.transport.can_write_eof():
            self.transport.write_eof()

    # -- bounds --------------------------------------------------------------------------------------------

    def look(self, now: float) -> None:
        if self.transport is None or self._is_stalled(now):
            return
        if self.transport.is_closing():
            return
        head, linger = self._head_since, self._linger_since
        if linger is not None and now - linger > self._policy.linger_s:
            self.transport.close()
        elif head is None or self.timeout_keep_alive_task is not None:
            return
        elif not self._quiet_bytes:
            if now - head > self._policy.keep_alive_s:
                self.transport.close()
        elif now - head > self._policy.head_timeout_s:
            self._refuse(408, "The request's head did not come in time.", "head_timeout")

    def _is_stalled(self, now: float) -> bool:
        """Also of a closing connection, which waits for its client to read the rest."""
        size = self.transport.get_write_buffer_size()
        if size != self._unread[0]:
            self._unread = (size, now)
        if size and now - self._unread[1] > self._policy.stall_s:
            self.transport.abort()
            return True
        return False

    def _others(self) -> list[Connection]:
        return [other for other in self.connections if isinstance(other, Connection) and other is not self]

    def _make_room(self) -> None:
        """A connection that has waited longest for its next request gives way; if none has, this one does."""
        waiting = [(since, other) for other in self._others() if (since := other.waiting_since) is not None]
        if waiting:
            min(waiting, key=lambda item: item[0])[1].transport.close()
        else:
            self._refuse(503, "Too many connections are open.", "too_many_connections")


def _response(status: int, message: str, code: str) -> bytes:
    body = error_body(status, message, code=code)
    head = f"HTTP/1.1 {status} {HTTPStatus(status).phrase}\r\n"
    retry = "retry-after: 1\r\n" if status == HTTPStatus.SERVICE_UNAVAILABLE else ""
    framing = (
        f"content-type: {JSON.decode()}\r\ncontent-length: {len(body)}\r\nconnection: close\r\n{retry}\r\n"
    )
    return (head + framing).encode() + body
