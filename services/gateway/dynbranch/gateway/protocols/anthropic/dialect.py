"""Anthropic Messages beside Chat Completions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from dynbranch.gateway.protocols.anthropic.errors import as_messages_error, error_event, request_id_header
from dynbranch.gateway.protocols.anthropic.rendering import PING, MessageHead, MessageRelay, whole_message
from dynbranch.gateway.protocols.anthropic.request import hides_thinking, read_messages
from dynbranch.gateway.protocols.dialect import Response
from dynbranch.gateway.protocols.errors import ErrorResponse
from dynbranch.naming.document import Document, Json


@dataclass(frozen=True, slots=True)
class MessagesForm:
    head: MessageHead
    request_id: str

    @property
    def keep_alive(self) -> bytes:
        return PING

    @property
    def headers(self) -> list[tuple[bytes, bytes]]:
        return [request_id_header(self.request_id)]

    async def kept(self, end: bytes) -> bytes:
        return end

    def relay(self, *, cached: bool) -> MessageRelay:
        return MessageRelay(self.head, cached=cached)

    def whole(self, items: Iterable[bytes], *, cached: bool) -> bytes:
        return whole_message(items, self.head, cached=cached)

    def error_event(self, body: bytes) -> bytes:
        return error_event(body, self.request_id)

    def error(self, error: ErrorResponse) -> ErrorResponse:
        return as_messages_error(error, self.request_id)


class MessagesDialect:
    kind = "messages"
    of_engines = False

    def goes_on_from(self, body: bytes) -> str:
        return ""

    def read(self, body: bytes, earlier: bytes = b"") -> Document:
        return read_messages(body)

    def headers(self, headers: Mapping[str, str]) -> Mapping[str, str]:
        """A key under this protocol's own name is the key that engines know as a bearer's."""
        key = headers.get("x-api-key")
        if key is None or "authorization" in headers:
            return headers
        return {**headers, "authorization": f"Bearer {key}"}

    def form(self, response: Response) -> MessagesForm:
        """Ids of calls are the same whenever the same result is served, so that a second run of a task asks
        what the first one asked."""
        head = MessageHead(
            id=f"msg_{response.request_id.removeprefix('req_')}",
            model=response.model,
            seed=response.name or response.request_id.encode(),
            stops=_stops(response.document.value),
            hides_thinking=hides_thinking(response.document.value),
        )
        return MessagesForm(head, response.request_id)


def _stops(request: Json) -> frozenset[str]:
    match request:
        case {"stop": list() as stops}:
            return frozenset(stop for stop in stops if isinstance(stop, str))
        case _:
            return frozenset()
