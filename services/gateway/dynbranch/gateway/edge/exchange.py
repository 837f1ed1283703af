"""One HTTP request and its response over raw ASGI, and the client's leave to walk away at any moment."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, MutableMapping
from contextlib import contextmanager
from typing import Any, Protocol

from dynbranch.domain.ids import Instant
from dynbranch.gateway.protocols.errors import ApiError, ErrorResponse
from dynbranch.runtime.clock import Clock

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
HeaderPairs = list[tuple[bytes, bytes]]

MAX_HEADER_BYTES = 64 * 1024
_LENGTH_DIGITS = 18

_OURS = b"x-dynbranch-"
_ONCE = frozenset(
    {
        b"authorization",
        b"content-length",
        b"content-type",
        b"host",
        b"x-api-key",
        b"x-dynbranch-agent",
        b"x-dynbranch-bypass",
        b"x-dynbranch-parent",
        b"x-dynbranch-stage",
        b"x-dynbranch-workflow",
        b"x-dynbranch-workflow-type",
    }
)
"""Headers that two readers of a repeated one could read differently."""


class Room(Protocol):
    """Where bodies are held. ``take`` raises ApiError when it is full."""

    def take(self, counted_bytes: int, /) -> None: ...

    def give(self, counted_bytes: int, /) -> None: ...


class ClientSide:
    """What a connection lends the request that runs on it, beyond what ASGI can say.

    ``write_now`` sends a part of the response's body at once, ``respond_now`` a whole response (status,
    header pairs with its content-length, body); each returns False where that would have to wait.
    """

    KEY = "dynbranch.client_side"
    """Where it stands in the scope of a request."""

    __slots__ = ("_call", "_has_left", "respond_now", "write_now")

    def __init__(
        self,
        write_now: Callable[[bytes], bool],
        respond_now: Callable[[int, HeaderPairs, bytes], bool],
    ) -> None:
        self.write_now = write_now
        self.respond_now = respond_now
        self._call: Callable[[], None] | None = None
        self._has_left = False

    def tell_left(self) -> None:
        self._has_left = True
        if self._call is not None:
            self._call()

    def forget(self) -> None:
        """Nobody is called any more."""
        self._call = None

    def when_left(self, call: Callable[[], None]) -> None:
        """``call`` is called once, at once if the client has left already."""
        self._call = call
        if self._has_left:
            call()


class ClientGone(Exception):
    """The client closed the connection while its body was being read."""


class Exchange:
    """``headers`` has lower-case names, as ASGI tells them; of a name that came several times the values are
    joined by commas."""

    def __init__(
        self,
        scope: Scope,
        receive: Receive,
        send: Send,
        *,
        clock: Clock,
        request_id: str,
        max_body_bytes: int,
        room: Room,
        free_body_bytes: int,
    ) -> None:
        self.method: str = scope["method"]
        self.path: str = scope["path"]
        self.raw_path: bytes = scope.get("raw_path") or self.path.encode()
        self.query: bytes = scope.get("query_string", b"")
        self.raw_headers: HeaderPairs = list(scope["headers"])
        self.headers = _joined_headers(self.raw_headers)
        self.request_id = request_id
        self.clock = clock
        self.arrived = clock.now()
        self.status = 0
        self.gone = False
        self.finished = False
        self.last_sent = self.arrived
        self.sending_since: Instant | None = None
        self.when_idle: Callable[[], Awaitable[None]] | None = None
        """Called by the watch over exchanges in flight when nothing was sent for long."""
        self.last_said = self.arrived
        """When something was sent that says something."""
        self.silence_s: float | None = None
        """How long nothing may be said before the work is stopped, so that an error can be told; None: for
        ever."""
        self._fell_silent = False
        self._receive = receive
        self._send = send
        self._max_body_bytes = max_body_bytes
        self._room = room
        self._free_body_bytes = free_body_bytes
        self._taken_bytes = 0
        self._body_bytes = 0
        self.body_read = False
        self.body_failure: ApiError | None = None
        self._held = False
        self._side: ClientSide | None = scope.get(ClientSide.KEY)
        self._worker: asyncio.Task[Any] | None = None
        self._watcher: asyncio.Task[None] | None = None

    @property
    def started(self) -> bool:
        return self.status != 0

    def elapsed_ms(self) -> float:
        return (self.clock.now() - self.arrived) * 1000

    # -- the request ---------------------------------------------------------------------------------------

    def check_headers(self) -> None:
        """Raises ApiError for headers that no honest client sends."""
        size, once = 0, []
        for name, value in self.raw_headers:
            size += len(name) + len(value)
            if name in _ONCE:
                once.append(name)
            if name.startswith(_OURS) and not value.isascii():
                raise ApiError(
                    400,
                    f"The header {name.decode('latin-1')} holds bytes that are not ASCII. "
                    "Percent-encode them: é is %C3%A9.",
                    code="header_not_ascii",
                )
        if size > MAX_HEADER_BYTES:
            raise ApiError(431, "The headers are too large.", code="headers_too_large")
        if len(once) != len(set(once)):
            name, times = Counter(once).most_common(1)[0]
            raise ApiError(400, f"The header {name.decode()} came {times} times.", code="repeated_header")
        length = self.headers.get("content-length", "0")
        if not length.isdecimal():
            raise ApiError(400, "The content-length is not a number.", code="invalid_content_length")
        if len(length) > _LENGTH_DIGITS or int(length) > self._max_body_bytes:
            raise self._too_large()
        if self.headers.get("content-encoding", "identity").lower() not in ("identity", ""):
            raise ApiError(415, "Send the body without a content-encoding.", code="unsupported_encoding")

    async def body_parts(self, within_s: float) -> AsyncIterator[bytes]:
        """The body as it comes, each part within a time. Raises ApiError (413 beyond the limit, 408) and
        ClientGone."""
        while not self.body_read:
            try:
                async with asyncio.timeout(within_s):
                    part = await self._next_part()
            except TimeoutError:
                self.body_failure = self._too_slow()
                raise self.body_failure from None
            if part:
                yield part

    async def _next_part(self) -> bytes:
        message = await self._receive()
        if message["type"] == "http.disconnect":
            self.drop()
            raise ClientGone
        part: bytes = message.get("body", b"")
        self._body_bytes += len(part)
        if self._body_bytes > self._max_body_bytes:
            self.body_failure = self._too_large()
            raise self.body_failure
        if not message.get("more_body", False):
            self.body_read = True
            self._start_watch()
        return part

    @property
    def has_body(self) -> bool:
        return "content-length" in self.headers or "transfer-encoding" in self.headers

    async def read_body(self, within_s: float) -> bytes:
        """The whole body, which counts until ``put_down``. Raises ApiError (413, 408, 503) and ClientGone."""
        parts: list[bytes] = []
        try:
            async with asyncio.timeout(within_s):
                while not self.body_read:
                    parts.append(await self._next_part())
                    self._count(self._body_bytes - self._free_body_bytes)
        except TimeoutError:
            raise self._too_slow() from None
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def _count(self, counted_bytes: int) -> None:
        if counted_bytes > self._taken_bytes:
            self._room.take(counted_bytes - self._taken_bytes)
            self._taken_bytes = counted_bytes

    def also_holds(self, held_bytes: int) -> None:
        """What the body brought along counts with it. Raises ApiError (503)."""
        self._count(self._taken_bytes + held_bytes)

    def lets_go(self, held_bytes: int) -> None:
        """Of what ``also_holds`` counted."""
        self._taken_bytes -= held_bytes
        self._room.give(held_bytes)

    def put_down(self) -> None:
        """The body is not held any more, nor does the connection hold this exchange: the two would wait for
        the garbage collector together."""
        if self._side is not None:
            self._side.forget()
        taken, self._taken_bytes = self._taken_bytes, 0
        self._room.give(taken)

    def _too_large(self) -> ApiError:
        return ApiError(413, f"The body is larger than {self._max_body_bytes} bytes.", code="body_too_large")

    def _too_slow(self) -> ApiError:
        return ApiError(408, "The body did not come in time.", code="body_timeout")

    # -- the client's leave --------------------------------------------------------------------------------

    async def attended(self, work: Awaitable[None]) -> None:
        """Does the work, which is cancelled when the client leaves; ``gone`` tells that from a shutdown.

        While the body is still coming, the leave shows there.
        """
        self._worker = asyncio.current_task()
        self._start_watch()
        try:
            await work
        finally:
            self._worker = None
            if self._watcher is not None:
                self._watcher.cancel()
                await asyncio.wait((self._watcher,))

    def _start_watch(self) -> None:
        if not self.body_read or self._worker is None:
            return
        if self._side is not None:
            self._side.when_left(self._client_left)
        elif self._watcher is None:
            # A server that does not tell by itself has to be asked, by a task of its own.
            self._watcher = asyncio.get_running_loop().create_task(self._watch(), name="client-leave")

    @contextmanager
    def held(self) -> Iterator[None]:
        """Within, a leaving client cancels nothing: the caller looks at ``gone`` afterwards."""
        self._held = True
        try:
            yield
        finally:
            self._held = False

    def drop(self) -> None:
        """Treat the client as gone."""
        self.gone = True
        if self._worker is not None and not self._held:
            self._worker.cancel()

    def fall_silent(self) -> None:
        """Nothing was said for too long: the work is to end, and to tell that."""
        if self._worker is not None and not (self._held or self.finished or self._fell_silent):
            self._fell_silent = True
            self._worker.cancel()

    def goes_on_to_tell(self) -> bool:
        """Whether the work was cancelled because it was silent, and the client is still there to be told."""
        if not self._fell_silent or self.gone:
            return False
        self.silence_s = None
        task = asyncio.current_task()
        # Somebody else may have cancelled it, too.
        return task is not None and task.uncancel() <= 0

    @contextmanager
    def saying_nothing(self) -> Iterator[None]:
        """Within, what is sent says nothing."""
        said = self.last_said
        try:
            yield
        finally:
            self.last_said = said

    async def _watch(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
        self._client_left()

    def _client_left(self) -> None:
        if not self.finished:
            self.drop()

    # -- the response --------------------------------------------------------------------------------------

    async def start(self, status: int, headers: HeaderPairs) -> None:
        assert not self.started
        self.status = status
        await self._sent({"type": "http.response.start", "status": status, "headers": headers})

    async def write(self, part: bytes) -> None:
        await self._sent({"type": "http.response.body", "body": part, "more_body": True})

    def write_now(self, part: bytes) -> bool:
        """``write`` where it does not have to wait. Returns whether that was so."""
        if self._side is None or self.sending_since is not None or not self._side.write_now(part):
            return False
        self.last_sent = self.last_said = self.clock.now()
        return True

    async def finish(self, part: bytes = b"") -> None:
        self.finished = True
        await self._sent({"type": "http.response.body", "body": part, "more_body": False})

    async def respond(self, status: int, content_type: bytes, body: bytes, headers: HeaderPairs) -> None:
        """A whole response at once."""
        framing = [(b"content-type", content_type), (b"content-length", b"%d" % len(body)), *headers]
        if not self.started and self._side is not None and self._side.respond_now(status, framing, body):
            self.status, self.finished, self.last_sent = status, True, self.clock.now()
            return
        await self.start(status, framing)
        await self.finish(body)

    async def respond_error(self, error: ErrorResponse, headers: HeaderPairs) -> None:
        extra = list(error.headers)
        if error.retry_after_s:
            extra.append((b"retry-after", str(error.retry_after_s).encode()))
        await self.respond(error.status, error.content_type, error.body, headers + extra)

    async def _sent(self, message: Message) -> None:
        self.sending_since = self.clock.now()
        await self._send(message)
        self.sending_since = None
        self.last_sent = self.last_said = self.clock.now()


def _joined_headers(pairs: HeaderPairs) -> dict[str, str]:
    joined: dict[str, str] = {}
    for raw_name, raw_value in pairs:
        name, value = raw_name.decode("latin-1"), raw_value.decode("latin-1")
        joined[name] = f"{joined[name]}, {value}" if name in joined else value
    return joined
