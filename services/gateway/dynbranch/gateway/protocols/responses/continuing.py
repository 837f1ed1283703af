"""Requests that go on from a kept response: the items of its conversation come before their own."""

from __future__ import annotations

from typing import Final

from dynbranch.domain.errors import InvalidRequest
from dynbranch.gateway.core.kept_response import KeptResponse
from dynbranch.naming.document import Json, emit, parse_body

_FIELD: Final = b"previous_response_id"
_SHOWN_CHARACTERS: Final = 80


def previous_in(body: bytes) -> str:
    """The id of the response that a request goes on from; empty: of none. Raises InvalidRequest."""
    if _FIELD not in body:
        return ""
    match parse_body(body).value:
        case {"previous_response_id": str() as previous}:
            return previous
        case _:
            return ""


def conversation_in(kept: KeptResponse) -> bytes:
    """All items up to the end of the response, as one JSON array. Instructions are not of the conversation:
    each request gives its own."""
    items: list[Json] = []
    match parse_body(kept.earlier).value:
        case [*before]:
            items += before
    match parse_body(kept.asked).value:
        case {"input": asked}:
            items += items_of(asked)
    match parse_body(kept.answered).value:
        case {"output": [*said]}:
            items += said
    return emit(items).encode()


def items_of(given: Json) -> list[Json]:
    """The items of an input, which as a plain string is one message."""
    match given:
        case str():
            return [{"type": "message", "role": "user", "content": given}]
        case [*items]:
            return items
        case _:
            return []


def unknown_response(previous: Json) -> InvalidRequest:
    shown = f"{previous[:_SHOWN_CHARACTERS]!r}" if isinstance(previous, str) else "of this id"
    return InvalidRequest(
        "previous_response_not_found",
        f"'previous_response_id': the response {shown} is not kept here, or not any more. "
        "Send the items of the earlier turns in 'input'.",
        facts={"param": "previous_response_id"},
    )
