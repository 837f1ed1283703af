"""A message as its harness gets it: as a stream of events, or as one JSON object."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from dynbranch.gateway.protocols.answer import AnswerReader, Block, BlockKind, Counts, Ending, Finish
from dynbranch.gateway.protocols.anthropic.unfinished import completed_object
from dynbranch.gateway.protocols.chunk_relay import MalformedItem
from dynbranch.gateway.protocols.members import dump
from dynbranch.gateway.protocols.signatures import GrowingSignature

PING: Final = b'event: ping\ndata: {"type": "ping"}\n\n'
_NOTHING_COUNTED: Final = {
    "input_tokens": 0,
    "cache_creation_input_tokens": 0,
    "cache_read_input_tokens": 0,
    "output_tokens": 0,
}
"""Engines count at the end, so that the beginning of a stream can not tell yet."""


@dataclass(frozen=True, slots=True)
class MessageHead:
    """What is this response's own. Equal ``seed`` gives equal ids of calls."""

    id: str
    model: str
    seed: bytes
    stops: frozenset[str] = field(default=frozenset())
    hides_thinking: bool = False

    def call_id(self, block: Block) -> str:
        digest = hashlib.sha256(b"dynbranch/call/1" + self.seed + block.call.to_bytes(8, "big"))
        return f"toolu_{digest.hexdigest()[:24]}"

    def reader(self, page: StreamPage | WholePage, *, cached: bool) -> AnswerReader:
        return AnswerReader(page, stops=self.stops, cached=cached)

    def signature(self, block: Block) -> GrowingSignature | None:
        """Of thinking alone."""
        return GrowingSignature(holds_text=self.hides_thinking) if block.kind is BlockKind.THINKING else None


class MessageRelay:
    """Turns the items of one generation into events."""

    def __init__(self, head: MessageHead, *, cached: bool) -> None:
        self._page = StreamPage(head)
        self._reader = head.reader(self._page, cached=cached)

    def events(self, items: tuple[bytes, ...]) -> bytes:
        """Whole events for these items; empty while nothing of them is for the client. Raises
        MalformedItem."""
        self._reader.read(items)
        return self._page.taken()

    def end(self) -> bytes:
        """What follows the last item. Raises MalformedItem."""
        self._reader.end()
        return self._page.taken()


def whole_message(items: Iterable[bytes], head: MessageHead, *, cached: bool) -> bytes:
    """The body of a plain response. Raises MalformedItem."""
    page = WholePage(head)
    reader = head.reader(page, cached=cached)
    reader.read(items)
    reader.end()
    return page.body()


class StreamPage:
    """Collects events until they are taken."""

    def __init__(self, head: MessageHead) -> None:
        self._head = head
        self._events: list[bytes] = []
        self._started = False
        self._signature: GrowingSignature | None = None

    def taken(self) -> bytes:
        events, self._events = self._events, []
        return events[0] if len(events) == 1 else b"".join(events)

    def opened(self, block: Block) -> None:
        self._start()
        opening = _opening(block, self._head)
        if block.kind is BlockKind.CALL:
            opening["input"] = {}
        self._signature = self._head.signature(block)
        self._say("content_block_start", {"index": block.place, "content_block": opening})

    def grew(self, block: Block, text: str) -> None:
        if self._signature is not None:
            self._signature.add(text)
            if self._head.hides_thinking:
                return
        match block.kind:
            case BlockKind.TEXT | BlockKind.REFUSAL:
                delta = b'"text_delta","text":'
            case BlockKind.THINKING:
                delta = b'"thinking_delta","thinking":'
            case BlockKind.CALL:
                delta = b'"input_json_delta","partial_json":'
        self._events.append(
            b'event: content_block_delta\ndata: {"type":"content_block_delta","index":%d,"delta":{"type":'
            b"%b%b}}\n\n" % (block.place, delta, dump(text))
        )

    def closed(self, block: Block, *, cut: bool) -> None:
        if self._signature is not None:
            delta = {"type": "signature_delta", "signature": self._signature.text()}
            self._say("content_block_delta", {"index": block.place, "delta": delta})
        self._say("content_block_stop", {"index": block.place})

    def ended(self, ending: Ending) -> None:
        self._start()
        delta = {"stop_reason": _stop_reason(ending), "stop_sequence": ending.stop_sequence}
        self._say("message_delta", {"delta": delta, "usage": _usage(ending.counts)})
        self._say("message_stop", {})

    def _start(self) -> None:
        if not self._started:
            self._started = True
            self._say("message_start", {"message": _message(self._head, [], None, None, _NOTHING_COUNTED)})

    def _say(self, kind: str, members: dict[str, object]) -> None:
        self._events.append(event(kind, {"type": kind, **members}))


class WholePage:
    def __init__(self, head: MessageHead) -> None:
        self._head = head
        self._blocks: list[bytes] = []
        self._texts: list[str] = []
        self._ending: Ending | None = None

    def opened(self, block: Block) -> None:
        self._texts = []

    def grew(self, block: Block, text: str) -> None:
        self._texts.append(text)

    def closed(self, block: Block, *, cut: bool) -> None:
        said, opening = "".join(self._texts), _opening(block, self._head)
        match block.kind:
            case BlockKind.TEXT | BlockKind.REFUSAL:
                self._blocks.append(dump({**opening, "text": said}))
            case BlockKind.THINKING:
                signature = GrowingSignature(holds_text=self._head.hides_thinking)
                signature.add(said)
                shown = "" if self._head.hides_thinking else said
                self._blocks.append(dump({**opening, "thinking": shown, "signature": signature.text()}))
            case BlockKind.CALL:
                # The input stays as the model spelled it.
                self._blocks.append(dump(opening)[:-1] + b',"input":' + _input(said) + b"}")

    def ended(self, ending: Ending) -> None:
        self._ending = ending

    def body(self) -> bytes:
        assert self._ending is not None
        ending = self._ending
        usage = _usage(ending.counts)
        message = _message(self._head, [], _stop_reason(ending), ending.stop_sequence, usage)
        before, after = dump(message).split(b'"content":[]', 1)
        return before + b'"content":[' + b",".join(self._blocks) + b"]" + after


def event(kind: str, value: dict[str, object]) -> bytes:
    return b"event: %b\ndata: %b\n\n" % (kind.encode(), dump(value))


def _message(
    head: MessageHead,
    content: list[object],
    stop_reason: str | None,
    stop_sequence: str | None,
    usage: dict[str, int],
) -> dict[str, object]:
    return {
        "id": head.id,
        "type": "message",
        "role": "assistant",
        "content": content,
        "model": head.model,
        "stop_reason": stop_reason,
        "stop_sequence": stop_sequence,
        "usage": usage,
    }


def _opening(block: Block, head: MessageHead) -> dict[str, object]:
    match block.kind:
        case BlockKind.TEXT | BlockKind.REFUSAL:
            return {"type": "text", "text": ""}
        case BlockKind.THINKING:
            return {"type": "thinking", "thinking": "", "signature": ""}
        case BlockKind.CALL:
            return {"type": "tool_use", "id": head.call_id(block), "name": block.name}


def _stop_reason(ending: Ending) -> str:
    match ending.finish:
        case Finish.LENGTH:
            return "max_tokens"
        case Finish.FILTERED | Finish.REFUSED:
            return "refusal"
        case Finish.CALLS:
            return "tool_use"
        case Finish.DONE:
            return "end_turn" if ending.stop_sequence is None else "stop_sequence"


def _usage(counts: Counts) -> dict[str, int]:
    return {
        "input_tokens": counts.prompt - counts.cached,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": counts.cached,
        "output_tokens": counts.output,
    }


def _input(arguments: str) -> bytes:
    """A call's input. Where the model was cut short, as much of it as is whole."""
    text = arguments.strip() or "{}"
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        text = completed_object(text)
    try:
        return text.encode()
    except UnicodeEncodeError:
        raise MalformedItem("a call's input holds half of a surrogate pair") from None
