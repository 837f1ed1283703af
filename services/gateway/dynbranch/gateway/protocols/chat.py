"""Chat Completions: the form that engines take and give."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from dynbranch.gateway.protocols.chunk_relay import KEEP_ALIVE, ChunkRelay, ResponseIdentity, event
from dynbranch.gateway.protocols.completion_assembly import assemble
from dynbranch.gateway.protocols.dialect import Response
from dynbranch.gateway.protocols.errors import ErrorResponse
from dynbranch.naming.document import Document, parse_body


@dataclass(frozen=True, slots=True)
class ChatForm:
    identity: ResponseIdentity
    include_usage: bool

    @property
    def keep_alive(self) -> bytes:
        return KEEP_ALIVE

    @property
    def headers(self) -> list[tuple[bytes, bytes]]:
        return []

    async def kept(self, end: bytes) -> bytes:
        return end

    def relay(self, *, cached: bool) -> ChunkRelay:
        return ChunkRelay(self.identity, include_usage=self.include_usage, cached=cached)

    def whole(self, items: Iterable[bytes], *, cached: bool) -> bytes:
        return assemble(items, self.identity, cached=cached)

    def error_event(self, body: bytes) -> bytes:
        return event(body)

    def error(self, error: ErrorResponse) -> ErrorResponse:
        return error


class ChatDialect:
    kind = "chat"
    of_engines = True

    def goes_on_from(self, body: bytes) -> str:
        return ""

    def read(self, body: bytes, earlier: bytes = b"") -> Document:
        return parse_body(body)

    def headers(self, headers: Mapping[str, str]) -> Mapping[str, str]:
        return headers

    def form(self, response: Response) -> ChatForm:
        identity = ResponseIdentity(
            id=f"chatcmpl-{response.request_id.removeprefix('req_')}",
            created_s=response.created_s,
            model=response.model,
            model_names=response.model_names,
        )
        return ChatForm(identity, response.include_usage)
