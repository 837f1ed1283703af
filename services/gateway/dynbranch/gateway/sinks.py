"""Where the answer to one request goes: a stream of events, one JSON object, or one tool result."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol

from dynbranch.domain.engine import Failed
from dynbranch.gateway.core.outcome import Report, outcome_headers
from dynbranch.gateway.edge.exchange import Exchange, HeaderPairs
from dynbranch.gateway.protocols.chunk_relay import MalformedItem
from dynbranch.gateway.protocols.dialect import AnswerForm
from dynbranch.gateway.protocols.errors import (
    JSON,
    ErrorResponse,
    error_body,
    of_engine_failure,
    stream_error,
)

Reporting = Callable[[], Report]
"""What the response would say of itself if it started now."""

_STREAM_HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
]


class Sink(Protocol):
    """Gets the items of a generation. ``forget`` drops what a generation gave that came to nothing."""

    async def items(self, items: tuple[bytes, ...]) -> bool:
        """Returns whether the client was sent a part of the answer. Raises MalformedItem."""

    def items_now(self, items: tuple[bytes, ...]) -> bool:
        """The same at once, where nothing has to be waited for. Returns whether that was so; it raises
        nothing."""

    def forget(self) -> None: ...

    async def recorded(self, items: tuple[bytes, ...]) -> None:
        """The whole answer from a record. Raises MalformedItem before anything was sent."""

    async def finish(self) -> None:
        """The generation is complete. Raises MalformedItem before anything was sent."""

    async def refuse(self, error: ErrorResponse) -> None:
        """An error, whether or not the response has started."""

    async def break_off(self, failed: Failed | None, reason: str) -> None:
        """An error after a part of the answer."""


class StreamSink:
    """Server-sent events. The response starts with the first item, so that an error before it has a status;
    in a long silence it starts early, with a keep-alive."""

    def __init__(self, exchange: Exchange, form: AnswerForm, report: Reporting) -> None:
        self._exchange = exchange
        self._form = form
        self._report = report
        self._sending = asyncio.Lock()
        self._shows = False
        """Whether the client was sent a part of the answer, and not only a keep-alive."""
        self._unsent: bytes | None = None
        """Events of the items that come next, as these were read already."""
        self._relay = form.relay(cached=False)
        exchange.when_idle = self._keep_alive

    async def items(self, items: tuple[bytes, ...]) -> bool:
        events, self._unsent = self._unsent, None
        if events is None:
            events = self._relay.events(items)
        if not events:
            return False
        async with self._sending:
            await self._start()
            self._shows = True
            await self._exchange.write(events)
        return True

    def items_now(self, items: tuple[bytes, ...]) -> bool:
        # Of the first part the caller must hear: from then on nobody else can give the answer.
        if not self._shows or self._sending.locked():
            return False
        try:
            events = self._relay.events(items)
        except MalformedItem:
            # It is raised, and told, where the items are asked for.
            return False
        if not events or self._exchange.write_now(events):
            return True
        self._unsent = events
        return False

    def forget(self) -> None:
        self._unsent = None
        self._relay = self._form.relay(cached=False)

    async def recorded(self, items: tuple[bytes, ...]) -> None:
        relay = self._form.relay(cached=True)
        await self._end(await self._form.kept(relay.events(items) + relay.end()))

    async def finish(self) -> None:
        await self._end(await self._form.kept(self._relay.end()))

    async def refuse(self, error: ErrorResponse) -> None:
        if self._exchange.started:
            # A keep-alive has gone out: the status can no longer tell.
            await self._end(self._form.error_event(_one_line(error.body)))
            return
        self._exchange.when_idle = None
        await self._exchange.respond_error(self._form.error(error), outcome_headers(self._report()))

    async def break_off(self, failed: Failed | None, reason: str) -> None:
        # No mark of an end: what came before is not a whole answer.
        await self._end(self._form.error_event(stream_error(failed, reason)))

    async def _start(self) -> None:
        if not self._exchange.started:
            told = [*self._form.headers, *outcome_headers(self._report())]
            await self._exchange.start(200, _STREAM_HEADERS + told)

    async def _end(self, events: bytes) -> None:
        self._exchange.when_idle = None
        async with self._sending:
            await self._start()
            await self._exchange.finish(events)

    async def _keep_alive(self) -> None:
        # Every write holds whole events, so this one too falls between two of them.
        async with self._sending:
            if not self._exchange.finished:
                with self._exchange.saying_nothing():
                    await self._start()
                    await self._exchange.write(self._form.keep_alive)


def _one_line(body: bytes) -> bytes:
    return body.replace(b"\n", b" ").replace(b"\r", b" ")


class _WholeAnswer:
    """An answer of which nothing is sent before everything is there."""

    def __init__(self, exchange: Exchange, report: Reporting) -> None:
        self._exchange = exchange
        self._report = report
        self._items: list[bytes] = []

    async def items(self, items: tuple[bytes, ...]) -> bool:
        self._items.extend(items)
        return False

    def items_now(self, items: tuple[bytes, ...]) -> bool:
        self._items.extend(items)
        return True

    def forget(self) -> None:
        self._items.clear()

    async def _answer(self, body: bytes, headers: HeaderPairs) -> None:
        await self._exchange.respond(200, JSON, body, [*headers, *outcome_headers(self._report())])

    async def refuse(self, error: ErrorResponse) -> None:
        await self._exchange.respond_error(error, outcome_headers(self._report()))

    async def break_off(self, failed: Failed | None, reason: str) -> None:
        raise AssertionError("nothing is shown before the end")


class CompletionSink(_WholeAnswer):
    """One JSON object."""

    def __init__(self, exchange: Exchange, form: AnswerForm, report: Reporting) -> None:
        super().__init__(exchange, report)
        self._form = form

    async def recorded(self, items: tuple[bytes, ...]) -> None:
        whole = await self._form.kept(self._form.whole(items, cached=True))
        await self._answer(whole, self._form.headers)

    async def finish(self) -> None:
        whole = await self._form.kept(self._form.whole(self._items, cached=False))
        await self._answer(whole, self._form.headers)

    async def refuse(self, error: ErrorResponse) -> None:
        await super().refuse(self._form.error(error))


class ToolSink(_WholeAnswer):
    """A tool's result, byte for byte."""

    async def recorded(self, items: tuple[bytes, ...]) -> None:
        if len(items) != 1:
            raise MalformedItem(f"a tool result has one item, not {len(items)}")
        await self._answer(items[0], [])

    async def finish(self) -> None:
        await self.recorded(tuple(self._items))


def failure_response(failed: Failed | None, reason: str) -> ErrorResponse:
    """The engine's own error, or one that says why there is no answer."""
    if failed is not None:
        return of_engine_failure(failed)
    body = error_body(503, f"No engine could serve the request: {reason}.", code="no_engine")
    return ErrorResponse(503, body, retry_after_s=1)
