"""Load on an HTTP server, as a process of its own: one job in on stdin, what was seen out on stdout.

``python -m dynbranch.bench.load`` imports little and does little per request, because it shares a core with
the engine. Times are of the monotonic clock, which all processes of one machine share.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from typing import Any, cast
from urllib.parse import urlsplit

import httptools
import uvloop

_OUTCOME = b"x-dynbranch-outcome"
_LITELLM_CACHED = b"x-litellm-cache-key"
"""LiteLLM names the key of an answer from its cache, and of no other."""
_SPREAD_S = 1.0
_HEAD_EVENTS, _TAIL_EVENTS = 2, 3
"""Events of a stream that announce or end it: their distance says nothing about tokens."""


@dataclass(frozen=True, slots=True)
class ClosedLoop:
    """``concurrency`` clients, each asks again as soon as it has its answer, for ``seconds`` or until there
    were ``most`` requests.

    ``body`` has ``{n}`` where the number of the request goes: ``first``, ``first + 1``, …, or with ``cycle``
    only so many different ones.
    """

    url: str
    body: str
    seconds: float
    concurrency: int
    first: int = 0
    cycle: int = 0
    most: int = sys.maxsize
    headers: tuple[tuple[str, str], ...] = ()
    cores: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Streams:
    """``streams`` streams that begin spread over a second, whether or not the server keeps up."""

    url: str
    body: str
    streams: int
    first: int = 0
    headers: tuple[tuple[str, str], ...] = ()
    cores: tuple[int, ...] = ()


Job = ClosedLoop | Streams


@dataclass(slots=True)
class Seen:
    """One number per answer, in the order in which they ended; ``gaps_ms`` one per token but the first.

    ``errors`` counts answers other than 200 by status, and connections that were lost; ``outcomes`` counts
    what DynBranch or LiteLLM said of its answers.
    """

    seconds: float = 0.0
    begin_s: list[float] = field(default_factory=list)
    first_byte_ms: list[float] = field(default_factory=list)
    whole_ms: list[float] = field(default_factory=list)
    gaps_ms: list[float] = field(default_factory=list)
    body_bytes: int = 0
    errors: dict[str, int] = field(default_factory=dict)
    outcomes: dict[str, int] = field(default_factory=dict)

    @property
    def requests(self) -> int:
        return len(self.whole_ms)


@dataclass(slots=True)
class Answer:
    status: int = 0
    outcome: str = ""
    first_byte: float = 0.0
    body_bytes: int = 0
    events: list[float] = field(default_factory=list)
    open_line: bool = False
    """The body so far ends in one newline: the next may end an event."""


class Connection(asyncio.Protocol):
    """One request at a time over one connection, which is opened again when the server closes it."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._transport: asyncio.Transport | None = None
        self._parser = httptools.HttpResponseParser(self)
        self._answer = Answer()
        self._done: asyncio.Future[None] | None = None
        self._now = 0.0

    @property
    def is_open(self) -> bool:
        return self._transport is not None and not self._transport.is_closing()

    def ask(self, request: bytes) -> tuple[Answer, asyncio.Future[None]]:
        """The future ends when the answer is whole, or with ConnectionError."""
        assert self._transport is not None
        self._answer = Answer()
        self._done = self._loop.create_future()
        self._transport.write(request)
        return self._answer, self._done

    def close(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    # asyncio

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self._now = time.monotonic()
        self._parser.feed_data(data)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._done is not None and not self._done.done():
            self._done.set_exception(ConnectionError("the server closed the connection"))

    # httptools

    def on_header(self, name: bytes, value: bytes) -> None:
        if name == _OUTCOME:
            self._answer.outcome = value.decode("ascii")
        elif name == _LITELLM_CACHED:
            self._answer.outcome = "hit"

    def on_headers_complete(self) -> None:
        self._answer.status = self._parser.get_status_code()

    def on_body(self, body: bytes) -> None:
        answer = self._answer
        if not answer.first_byte:
            answer.first_byte = self._now
        answer.body_bytes += len(body)
        ends = body.count(b"\n\n") + (answer.open_line and body.startswith(b"\n"))
        if ends:
            answer.events.extend([self._now] * ends)
        answer.open_line = body.endswith(b"\n") and not body.endswith(b"\n\n")

    def on_message_complete(self) -> None:
        if self._done is not None and not self._done.done():
            self._done.set_result(None)
        if not self._parser.should_keep_alive():
            self.close()


class Requests:
    """The bytes of each request, prepared as far as they are always the same."""

    def __init__(self, job: Job) -> None:
        parts = urlsplit(job.url)
        assert parts.hostname and parts.port, job.url
        self.host, self.port = parts.hostname, parts.port
        lines = [f"POST {parts.path} HTTP/1.1", f"host: {parts.netloc}", "content-type: application/json"]
        lines += [f"{name}: {value}" for name, value in job.headers]
        self._head = "\r\n".join(lines).encode() + b"\r\ncontent-length: "
        before, _, after = job.body.partition("{n}")
        self._before, self._after = before.encode(), after.encode()
        self._numbers = iter(_numbers(job))

    def take(self) -> bytes | None:
        """The next request, or none when there are no more."""
        number = next(self._numbers, None)
        if number is None:
            return None
        body = self._before + b"%d" % number + self._after
        return self._head + b"%d\r\n\r\n" % len(body) + body


def _numbers(job: Job) -> Iterator[int]:
    if isinstance(job, Streams):
        return iter(range(job.first, job.first + job.streams))
    if job.cycle:
        return (job.first + number % job.cycle for number in range(job.most))
    return (job.first + number for number in range(job.most))


async def perform(job: Job) -> Seen:
    seen, errors = Seen(), Counter[str]()
    requests = Requests(job)
    begin = time.monotonic()
    if isinstance(job, ClosedLoop):
        until = begin + job.seconds
        clients = [_client(requests, until, seen, errors) for _ in range(job.concurrency)]
    else:
        starts = (begin + _SPREAD_S * number / job.streams for number in range(job.streams))
        clients = [_stream(requests, at, seen, errors) for at in starts]
    await asyncio.gather(*clients)
    seen.seconds = time.monotonic() - begin
    seen.errors = dict(errors)
    return seen


async def _client(requests: Requests, until: float, seen: Seen, errors: Counter[str]) -> None:
    connection: Connection | None = None
    while time.monotonic() < until and (request := requests.take()) is not None:
        if connection is None or not connection.is_open:
            connection = await _connect(requests)
        await _one(connection, request, seen, errors)
    if connection is not None:
        connection.close()


async def _stream(requests: Requests, at: float, seen: Seen, errors: Counter[str]) -> None:
    await asyncio.sleep(at - time.monotonic())
    connection = await _connect(requests)
    request = requests.take()
    assert request is not None
    await _one(connection, request, seen, errors)
    connection.close()


async def _connect(requests: Requests) -> Connection:
    loop = asyncio.get_running_loop()
    _, connection = await loop.create_connection(lambda: Connection(loop), requests.host, requests.port)
    return connection


async def _one(connection: Connection, request: bytes, seen: Seen, errors: Counter[str]) -> None:
    begin = time.monotonic()
    answer, done = connection.ask(request)
    try:
        await done
    except ConnectionError:
        errors["connection lost"] += 1
        return
    end = time.monotonic()
    if answer.status != 200:
        errors[str(answer.status)] += 1
        return
    if answer.outcome:
        seen.outcomes[answer.outcome] = seen.outcomes.get(answer.outcome, 0) + 1
    seen.begin_s.append(begin)
    seen.first_byte_ms.append((answer.first_byte - begin) * 1000)
    seen.whole_ms.append((end - begin) * 1000)
    seen.body_bytes += answer.body_bytes
    tokens = answer.events[_HEAD_EVENTS:-_TAIL_EVENTS]
    seen.gaps_ms.extend((later - before) * 1000 for before, later in pairwise(tokens))


def job_as_json(job: Job) -> str:
    return json.dumps({"kind": type(job).__name__, **asdict(job)})


def job_from_json(text: str) -> Job:
    fields: dict[str, Any] = json.loads(text)
    kind = fields.pop("kind")
    fields["headers"] = tuple((name, value) for name, value in fields["headers"])
    fields["cores"] = tuple(fields["cores"])
    return ClosedLoop(**fields) if kind == "ClosedLoop" else Streams(**fields)


def main() -> None:
    job = job_from_json(sys.stdin.read())
    if job.cores:
        os.sched_setaffinity(0, job.cores)
    seen = uvloop.run(perform(job))
    json.dump(asdict(seen), sys.stdout)


if __name__ == "__main__":
    main()
