"""OpenAI Responses beside Chat Completions."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any, Final, Protocol

from dynbranch.gateway.core.kept_response import KeptResponse, Owner
from dynbranch.gateway.protocols.chunk_relay import KEEP_ALIVE
from dynbranch.gateway.protocols.dialect import Response
from dynbranch.gateway.protocols.errors import ErrorResponse
from dynbranch.gateway.protocols.responses.continuing import previous_in
from dynbranch.gateway.protocols.responses.rendering import (
    Events,
    ResponseHead,
    ResponseRelay,
    whole_response,
)
from dynbranch.gateway.protocols.responses.request import AskedResponse, read_responses
from dynbranch.naming.document import Document

RESPONSES_PATH: Final = "/v1/responses"
_SHOWN_CHARACTERS: Final = 2000


class Keeper(Protocol):
    """Where responses are put that a later request may name."""

    async def keep(self, owner: Owner, response_id: str, kept: KeptResponse) -> bool: ...


Keep = Callable[[str, bytes], Awaitable[bool]]
"""Puts away a response, given by its id, for who may ask for it later. Returns whether it did."""


class ResponsesForm:
    """Its events are numbered through, up to the error that may end them. ``keep`` None: nobody may ask for
    the response later."""

    def __init__(self, head: ResponseHead, left_out: tuple[str, ...], keep: Keep | None = None) -> None:
        self._head = head
        self._left_out = left_out
        self._keep = keep
        self._events = Events()
        self._relay: ResponseRelay | None = None

    @property
    def keep_alive(self) -> bytes:
        return KEEP_ALIVE

    @property
    def headers(self) -> list[tuple[bytes, bytes]]:
        if not self._left_out:
            return []
        told = ", ".join(self._left_out).encode("ascii", "replace")
        return [(b"x-dynbranch-tools-left-out", told)]

    async def kept(self, end: bytes) -> bytes:
        """Before the client hears of the end: it may ask for the response at once."""
        if self._keep is None:
            return end
        whole = end if self._relay is None else self._relay.whole()
        if await self._keep(self._head.id, whole):
            return end
        before, _, after = end.rpartition(whole)
        return before + self._head.unkept(whole) + after

    def relay(self, *, cached: bool) -> ResponseRelay:
        self._events.forget()
        self._relay = ResponseRelay(self._head, self._events, cached=cached)
        return self._relay

    def whole(self, items: Iterable[bytes], *, cached: bool) -> bytes:
        return whole_response(items, self._head, cached=cached)

    def error_event(self, body: bytes) -> bytes:
        self._events.forget()
        failed = self._head.unkept(self._head.response("failed", [], error=_failure(body)))
        self._events.say("response.failed", b'"response":%b' % failed)
        return self._events.taken()

    def error(self, error: ErrorResponse) -> ErrorResponse:
        return error


class ResponsesDialect:
    """``kept`` None: no response is kept."""

    kind = "responses"
    of_engines = False

    def __init__(self, kept: Keeper | None = None) -> None:
        self._kept = kept

    def goes_on_from(self, body: bytes) -> str:
        return previous_in(body)

    def read(self, body: bytes, earlier: bytes = b"") -> AskedResponse:
        return read_responses(body, earlier)

    def headers(self, headers: Mapping[str, str]) -> Mapping[str, str]:
        return headers

    def form(self, response: Response) -> ResponsesForm:
        """Ids of calls are the same whenever the same result is served, so that a second run of a task asks
        what the first one asked."""
        asked = _asked(response.document)
        repeated, keep = asked.repeated, self._keep(asked, response.owner)
        head = ResponseHead(
            id=f"resp_{response.request_id.removeprefix('req_')}",
            created_s=response.created_s,
            model=response.model,
            seed=response.name or response.request_id.encode(),
            repeated=repeated.fields,
            namespaced=repeated.namespaced,
            seals=repeated.seals,
            keeps=keep is not None,
        )
        return ResponsesForm(head, repeated.left_out, keep)

    def _keep(self, asked: AskedResponse, owner: Owner | None) -> Keep | None:
        if self._kept is None or owner is None or not asked.keeps:
            return None
        kept, earlier, body = self._kept, asked.earlier, asked.asked
        return lambda id, answered: kept.keep(owner, id, KeptResponse(earlier, body, answered))


def _asked(document: Document) -> AskedResponse:
    assert isinstance(document, AskedResponse), "this dialect has read the request"
    return document


def _failure(body: bytes) -> dict[str, Any]:
    """What a response says of its failure, out of a body in the shape of OpenAI's."""
    code, message = "server_error", ""
    match _read(body):
        case {"error": {"message": str() as message, **beside}}:
            kind, status = beside.get("type"), beside.get("code")
            if kind == "rate_limit_error" or status == 429:
                code = "rate_limit_exceeded"
            elif kind == "invalid_request_error" or status == 400:
                code = "invalid_prompt"
        case {"error": str() as message} | {"message": str() as message}:
            pass
        case _:
            message = body.decode("utf-8", "replace").strip()[:_SHOWN_CHARACTERS]
    return {"code": code, "message": message or "The engine gave no reason."}


def _read(body: bytes) -> Any:
    try:
        return json.loads(body)
    except (ValueError, RecursionError):
        return None
