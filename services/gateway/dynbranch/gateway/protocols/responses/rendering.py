"""A response as its harness gets it: as a stream of events, or as one JSON object.

One page writes both. What a stream tells piece by piece stands at its end once more, whole.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from dynbranch.gateway.protocols.answer import AnswerReader, Block, BlockKind, Counts, Ending, Finish
from dynbranch.gateway.protocols.members import dump
from dynbranch.gateway.protocols.signatures import GrowingSignature

END: Final = b"data: [DONE]\n\n"
_KEPT, _NOT_KEPT = b'"store":true}', b'"store":false}'
"""How every response ends."""

_DELTAS: Final = {
    BlockKind.TEXT: "response.output_text",
    BlockKind.REFUSAL: "response.refusal",
    BlockKind.THINKING: "response.reasoning_text",
    BlockKind.CALL: "response.function_call_arguments",
}
_PREFIXES: Final = {
    BlockKind.TEXT: "msg",
    BlockKind.REFUSAL: "msg",
    BlockKind.THINKING: "rs",
    BlockKind.CALL: "fc",
}


@dataclass(frozen=True, slots=True)
class ResponseHead:
    """What is this response's own. Equal ``seed`` gives equal ids of calls. ``repeated`` are the members that
    say what was asked; ``namespaced`` tells the namespace and the name of tools by the engine's name;
    ``seals``: reasoning is also given in a form that comes back; ``keeps``: it can be asked for later."""

    id: str
    created_s: int
    model: str
    seed: bytes
    repeated: bytes
    namespaced: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    seals: bool = False
    keeps: bool = False

    def call_id(self, block: Block) -> str:
        digest = hashlib.sha256(b"dynbranch/call/1" + self.seed + block.call.to_bytes(8, "big"))
        return f"call_{digest.hexdigest()[:24]}"

    def item_id(self, block: Block) -> str:
        return f"{_PREFIXES[block.kind]}_{self.id.removeprefix('resp_')}{block.place:04x}"

    def response(
        self, status: str, items: list[bytes], counts: Counts | None = None, **beside: object
    ) -> bytes:
        """``beside`` are members that tell why it is not complete."""
        first = {
            "id": self.id,
            "object": "response",
            "created_at": self.created_s,
            "status": status,
            "error": None,
            "incomplete_details": None,
            "model": self.model,
            **beside,
        }
        return b'%b,"output":[%b],"usage":%b,%b,%b' % (
            dump(first)[:-1],
            b",".join(items),
            dump(_usage(counts)),
            self.repeated,
            _KEPT if self.keeps else _NOT_KEPT,
        )

    def unkept(self, whole: bytes) -> bytes:
        """The response, which could not be kept after all."""
        return whole.removesuffix(_KEPT) + _NOT_KEPT if self.keeps else whole


class ResponsePage:
    """``events`` None: nothing is told before the end."""

    def __init__(self, head: ResponseHead, events: Events | None) -> None:
        self._head = head
        self._events = events
        self._items: list[bytes] = []
        self._texts: list[str] = []
        self._started = False
        self._whole = b""

    def opened(self, block: Block) -> None:
        self._start()
        self._texts = []
        if self._events is None:
            return
        item = self._item(block, None)
        self._events.say("response.output_item.added", b'"output_index":%d,"item":%b' % (block.place, item))
        if block.kind is not BlockKind.CALL:
            self._events.say(
                "response.content_part.added", b'%b,"part":%b' % (self._place(block), _part(block, ""))
            )

    def grew(self, block: Block, text: str) -> None:
        self._texts.append(text)
        if self._events is not None:
            logprobs = b',"logprobs":[]' if block.kind is BlockKind.TEXT else b""
            self._events.say(
                f"{_DELTAS[block.kind]}.delta",
                b'%b,"delta":%b%b' % (self._place(block), dump(text), logprobs),
            )

    def closed(self, block: Block, *, cut: bool) -> None:
        if block.kind is BlockKind.CALL and not self._texts and not cut:
            # Harnesses read it as JSON.
            self.grew(block, "{}")
        text = "".join(self._texts)
        item = self._item(block, text, "incomplete" if cut else "completed")
        self._items.append(item)
        if self._events is not None:
            self._events.say(f"{_DELTAS[block.kind]}.done", self._done(block, text))
            if block.kind is not BlockKind.CALL:
                part = b'%b,"part":%b' % (self._place(block), _part(block, text))
                self._events.say("response.content_part.done", part)
            self._events.say(
                "response.output_item.done", b'"output_index":%d,"item":%b' % (block.place, item)
            )

    def ended(self, ending: Ending) -> None:
        self._start()
        match ending.finish:
            case Finish.LENGTH:
                status, beside = "incomplete", {"incomplete_details": {"reason": "max_output_tokens"}}
            case Finish.FILTERED:
                status, beside = "incomplete", {"incomplete_details": {"reason": "content_filter"}}
            case Finish.DONE | Finish.CALLS | Finish.REFUSED:
                status, beside = "completed", {}
        self._whole = self._head.response(status, self._items, ending.counts, **beside)
        if self._events is not None:
            self._events.say(f"response.{status}", b'"response":%b' % self._whole)

    def whole(self) -> bytes:
        """Once it has ended."""
        assert self._whole
        return self._whole

    def _start(self) -> None:
        if self._started:
            return
        self._started = True
        if self._events is not None:
            begun = b'"response":%b' % self._head.response("in_progress", [])
            self._events.say("response.created", begun)
            self._events.say("response.in_progress", begun)

    # -- spelling ------------------------------------------------------------------------------------------

    def _place(self, block: Block) -> bytes:
        place = b'"item_id":"%b","output_index":%d' % (self._head.item_id(block).encode(), block.place)
        return place if block.kind is BlockKind.CALL else place + b',"content_index":0'

    def _done(self, block: Block, text: str) -> bytes:
        match block.kind:
            case BlockKind.TEXT:
                said = b'"text":%b,"logprobs":[]' % dump(text)
            case BlockKind.THINKING:
                said = b'"text":%b' % dump(text)
            case BlockKind.REFUSAL:
                said = b'"refusal":%b' % dump(text)
            case BlockKind.CALL:
                _, name = self._names(block)
                said = b'"name":%b,"arguments":%b' % (dump(name), dump(text))
        return b"%b,%b" % (self._place(block), said)

    def _item(self, block: Block, text: str | None, status: str = "in_progress") -> bytes:
        """``text`` None: nothing of it is there yet."""
        item: dict[str, object] = {"id": self._head.item_id(block)}
        content = b"" if text is None else _part(block, text)
        match block.kind:
            case BlockKind.TEXT | BlockKind.REFUSAL:
                item |= {"type": "message", "status": status, "role": "assistant"}
            case BlockKind.THINKING:
                item |= {"type": "reasoning", "status": status, "summary": []}
                if self._head.seals and text is not None:
                    item["encrypted_content"] = _sealed(text)
            case BlockKind.CALL:
                space, name = self._names(block)
                item |= {"type": "function_call", "status": status, "call_id": self._head.call_id(block)}
                item |= {"name": name, **({"namespace": space} if space else {}), "arguments": text or ""}
                return dump(item)
        return b'%b,"content":[%b]}' % (dump(item)[:-1], content)

    def _names(self, block: Block) -> tuple[str, str]:
        return self._head.namespaced.get(block.name, ("", block.name))


def _part(block: Block, text: str) -> bytes:
    match block.kind:
        case BlockKind.TEXT | BlockKind.CALL:
            return dump({"type": "output_text", "annotations": [], "logprobs": [], "text": text})
        case BlockKind.THINKING:
            return dump({"type": "reasoning_text", "text": text})
        case BlockKind.REFUSAL:
            return dump({"type": "refusal", "refusal": text})


def _sealed(text: str) -> str:
    seal = GrowingSignature(holds_text=True)
    seal.add(text)
    return seal.text()


def _usage(counts: Counts | None) -> dict[str, object] | None:
    if counts is None:
        return None
    return {
        "input_tokens": counts.prompt,
        "input_tokens_details": {"cached_tokens": counts.cached, "cache_write_tokens": 0},
        "output_tokens": counts.output,
        "output_tokens_details": {"reasoning_tokens": counts.reasoning},
        "total_tokens": counts.prompt + counts.output,
    }


class Events:
    """Events, numbered as they are sent: collected until they are taken."""

    def __init__(self) -> None:
        self._events: list[bytes] = []
        self._number = 0

    def say(self, kind: str, members: bytes) -> None:
        """``members`` without the braces around them."""
        name = kind.encode()
        self._events.append(
            b'event: %b\ndata: {"type":"%b","sequence_number":%d,%b}\n\n'
            % (name, name, self._number, members)
        )
        self._number += 1

    def taken(self) -> bytes:
        events, self._events = self._events, []
        return events[0] if len(events) == 1 else b"".join(events)

    def forget(self) -> None:
        """What was not taken is never sent."""
        self._number -= len(self._events)
        self._events = []


class ResponseRelay:
    """Turns the items of one generation into events."""

    def __init__(self, head: ResponseHead, events: Events, *, cached: bool) -> None:
        self._events = events
        self._page = ResponsePage(head, events)
        self._reader = AnswerReader(self._page, cached=cached)

    def events(self, items: tuple[bytes, ...]) -> bytes:
        """Whole events for these items; empty while nothing of them is for the client. Raises
        MalformedItem."""
        self._reader.read(items)
        return self._events.taken()

    def end(self) -> bytes:
        """What follows the last item. Raises MalformedItem."""
        self._reader.end()
        return self._events.taken() + END

    def whole(self) -> bytes:
        """The response that the last event holds. Once it has ended."""
        return self._page.whole()


def whole_response(items: Iterable[bytes], head: ResponseHead, *, cached: bool) -> bytes:
    """The body of a plain response. Raises MalformedItem."""
    page = ResponsePage(head, None)
    reader = AnswerReader(page, cached=cached)
    reader.read(items)
    reader.end()
    return page.whole()
