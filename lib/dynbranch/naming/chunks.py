"""The log of a generation: the engine's Chat Completions chunks, one JSON text per item, in the order they
came.

An engine cuts its output into chunks as its batches fall, and stamps them with ids and times. ``compact``
removes both, so that one result has one recorded form: it merges what belongs together and drops what is only
of that run. Compact items are chunks like any other, so a live log and a recorded one are rendered by the
same code. The digests are equal before and after; over a compact log they are far cheaper.

What a generation is made of, per choice: texts (content, reasoning, refusal), calls, and anything this file
does not know, which is kept where it stood. JSON null in a chunk means "nothing here" and is dropped.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any, Final

from dynbranch.domain.ids import Digest
from dynbranch.naming.assembly import MalformedLog, error_in, parse_chunk, read_log
from dynbranch.naming.content import call_digest, text_digest
from dynbranch.naming.document import Json, emit
from dynbranch.naming.fingerprint import joined_digest

__all__ = [
    "MalformedLog",
    "compact",
    "decode_payload",
    "encode_payload",
    "error_of",
    "finish_reasons",
    "origin_of",
    "output_digests",
    "result_digest",
    "usage",
]

PAYLOAD_VERSION: Final = 1
_LENGTH_BYTES: Final = 4


def compact(items: Iterable[bytes]) -> tuple[bytes, ...]:
    """The one recorded form of a result, however it was cut into chunks. Idempotent.

    Choices follow one another by index, each with its role, its segments in the order they began, and its
    finish reason; the usage comes last. Log probabilities stay with the text they belong to. Raises
    MalformedLog.
    """
    log = read_log(items)
    chunks = [chunk for choice in log.in_order() for chunk in choice.chunks()]
    if log.usage is not None:
        chunks.append({"choices": [], "usage": log.usage})
    return tuple(emit(chunk).encode() for chunk in log.stamped(chunks))


def result_digest(items: Iterable[bytes]) -> Digest:
    """What two executions must share to count as the same result: texts, calls without their ids, finish
    reasons, token counts. Raises MalformedLog."""
    log = read_log(items)
    form: list[Json] = [choice.result() for choice in log.in_order()]
    counts = log.usage if isinstance(log.usage, dict) else {}
    form.append([counts.get("prompt_tokens"), counts.get("completion_tokens")])
    return Digest(joined_digest(b"dynbranch/result/1", (emit(form).encode(),)))


def output_digests(items: Iterable[bytes]) -> tuple[Digest, ...]:
    """One digest per choice's content and per call, as later requests of the workflow will quote them."""
    digests: dict[Digest, None] = {}
    for choice in read_log(items).in_order():
        if text := choice.text("content"):
            digests[text_digest(text)] = None
        for call in choice.calls():
            digests[call_digest(call.name, call.arguments)] = None
    return tuple(digests)


def finish_reasons(items: Iterable[bytes]) -> tuple[str | None, ...]:
    """One per choice, by index. None: that choice never finished."""
    reasons = (choice.finish_reason for choice in read_log(items).in_order())
    return tuple(reason if isinstance(reason, str) else None for reason in reasons)


def usage(items: Sequence[bytes]) -> dict[str, Any] | None:
    """The last usage that the engine reported, as plain JSON values."""
    for item in reversed(items):
        # Asked at the end of every request, so nothing is parsed that does not hold it.
        if b'"usage"' not in item:
            continue
        try:
            chunk = json.loads(item.decode())
        except (ValueError, RecursionError) as error:
            raise MalformedLog(f"an item is not JSON: {error}") from None
        found = chunk.get("usage") if isinstance(chunk, dict) else None
        if isinstance(found, dict):
            return found
    return None


def error_of(items: Iterable[bytes]) -> dict[str, Any] | None:
    """The first error that the engine sent in place of a chunk, as plain JSON; a bare text becomes its
    message."""
    for item in items:
        # Most items hold no such word, and this is asked of every item while it streams.
        if b"error" not in item:
            continue
        error = error_in(parse_chunk(item))
        if error is not None:
            plain = json.loads(emit(error))
            return plain if isinstance(plain, dict) else {"message": str(plain)}
    return None


def encode_payload(items: Sequence[bytes], origin: str = "") -> bytes:
    """Items as one byte string: a version byte, the origin and each item after its length.

    ``origin`` is the W3C traceparent of the execution, at most 255 bytes: whoever serves the record links to
    it.
    """
    mark = origin.encode()
    parts = [bytes((PAYLOAD_VERSION, len(mark))), mark]
    for item in items:
        parts += (len(item).to_bytes(_LENGTH_BYTES, "big"), item)
    return b"".join(parts)


def decode_payload(payload: bytes) -> tuple[bytes, ...]:
    """The items that ``encode_payload`` was given. Raises MalformedLog."""
    items: list[bytes] = []
    place = _end_of_origin(payload)
    while place < len(payload):
        start = place + _LENGTH_BYTES
        end = start + int.from_bytes(payload[place:start], "big")
        if end > len(payload) or start > len(payload):
            raise MalformedLog(f"the payload ends inside item {len(items)}")
        items.append(payload[start:end])
        place = end
    return tuple(items)


def origin_of(payload: bytes) -> str:
    """Where the record was executed, as ``encode_payload`` was told; empty when nobody traced it. Raises
    MalformedLog."""
    return payload[2 : _end_of_origin(payload)].decode("utf-8", "replace")


def _end_of_origin(payload: bytes) -> int:
    if len(payload) < 2 or payload[0] != PAYLOAD_VERSION:
        raise MalformedLog("the payload is not of a known version")
    end = 2 + payload[1]
    if end > len(payload):
        raise MalformedLog("the payload ends inside its origin")
    return end
