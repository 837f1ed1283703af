"""What tells one protocol of harnesses from another. In between all are the same: one request in the form of
Chat Completions, one log of its chunks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Protocol

from dynbranch.gateway.core.kept_response import Owner
from dynbranch.gateway.protocols.errors import ErrorResponse
from dynbranch.naming.document import Document


class Relay(Protocol):
    """Turns the items of one generation into events of a stream."""

    def events(self, items: tuple[bytes, ...]) -> bytes:
        """Whole events; empty when nothing of the items is for the client. Raises MalformedItem."""

    def end(self) -> bytes:
        """What follows the last item. Raises MalformedItem."""


class AnswerForm(Protocol):
    """How one response is spelled. ``cached``: the answer is from a record."""

    @property
    def keep_alive(self) -> bytes:
        """An event that says nothing."""

    @property
    def headers(self) -> list[tuple[bytes, bytes]]:
        """Headers of the protocol's own, on every answer."""

    async def kept(self, end: bytes) -> bytes:
        """The end of an answer, or all of it, once what later requests may ask for is put away."""

    def relay(self, *, cached: bool) -> Relay: ...

    def whole(self, items: Iterable[bytes], *, cached: bool) -> bytes:
        """The body of a plain response. Raises MalformedItem."""

    def error_event(self, body: bytes) -> bytes:
        """An error inside a stream. ``body`` is one in the shape of OpenAI's, on one line."""

    def error(self, error: ErrorResponse) -> ErrorResponse:
        """An error in place of an answer. It comes in the shape of OpenAI's."""


@dataclass(frozen=True, slots=True)
class Response:
    """What a response is made with. ``document`` is what the dialect made of the request's body, ``name``
    that of its result if it has one. ``owner``: who may ask for it later; None: nobody."""

    request_id: str
    created_s: int
    model: str
    model_names: frozenset[str]
    include_usage: bool
    document: Document
    name: bytes | None
    owner: Owner | None = None


class Dialect(Protocol):
    """``kind`` is what spans and metrics call it; ``of_engines``: every engine speaks it."""

    @property
    def kind(self) -> str: ...

    @property
    def of_engines(self) -> bool: ...

    def goes_on_from(self, body: bytes) -> str:
        """The id of the kept answer that a request goes on from; empty: of none. Raises InvalidRequest."""

    def read(self, body: bytes, earlier: bytes = b"") -> Document:
        """The request in the form of Chat Completions. ``earlier`` is the conversation that it goes on from,
        empty where that is not known. Raises InvalidRequest."""

    def headers(self, headers: Mapping[str, str]) -> Mapping[str, str]:
        """The request's headers as Chat Completions has them."""

    def form(self, response: Response) -> AnswerForm: ...
