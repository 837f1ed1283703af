"""What tells one protocol of harnesses from another. In between all are the same: one request in the form of
Chat Completions, one log of its chunks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Protocol

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
    that of its result if it has one."""

    request_id: str
    created_s: int
    model: str
    model_names: frozenset[str]
    include_usage: bool
    document: Document
    name: bytes | None


class Dialect(Protocol):
    """``kind`` is what spans and metrics call it; ``of_engines``: every engine speaks it."""

    @property
    def kind(self) -> str: ...

    @property
    def of_engines(self) -> bool: ...

    def read(self, body: bytes) -> Document:
        """The request in the form of Chat Completions. Raises InvalidRequest."""

    def headers(self, headers: Mapping[str, str]) -> Mapping[str, str]:
        """The request's headers as Chat Completions has them."""

    def form(self, response: Response) -> AnswerForm: ...
