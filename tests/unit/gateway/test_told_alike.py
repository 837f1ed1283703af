"""One generation, told in every protocol: as a stream or as a whole, live or from its record, it is the same
answer. Engines are free in how they cut it into chunks, and in which order its pieces come."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Protocol

import pytest
from dynbranch.gateway.protocols.anthropic.rendering import MessageHead, MessageRelay, whole_message
from dynbranch.gateway.protocols.anthropic.unfinished import completed_object
from dynbranch.gateway.protocols.chunk_relay import ChunkRelay, ResponseIdentity
from dynbranch.gateway.protocols.completion_assembly import assemble
from dynbranch.gateway.protocols.responses.rendering import (
    Events,
    ResponseHead,
    ResponseRelay,
    whole_response,
)
from dynbranch.naming.chunks import compact
from dynbranch.naming.completion import says_the_same
from hypothesis import given
from hypothesis import strategies as st

Log = tuple[bytes, ...]

TEXTS = st.sampled_from(["a", " b", '"', "\\", "\n", "é", "😀", "", "\u2028", '{"content":"x"}', "0"])
OBJECTS = st.sampled_from(["{}", '{"a":1}', '{"a": "}\\"{", "b": [{}, "\\\\"]}', ' {"é":{"a":[]}}'])
AFTERS = st.sampled_from(["", "", "", " ", '{"x":1}', "}", "null"])
TEXT_NAMES: tuple[tuple[str, ...], ...] = (
    ("content",),
    ("reasoning_content",),
    ("reasoning",),
    ("reasoning_content", "reasoning"),
    ("refusal",),
)


@st.composite
def pieces(draw: st.DrawFn, text: str) -> list[str]:
    """The text cut where it likes; a piece may be empty."""
    cuts = sorted(draw(st.lists(st.integers(0, len(text)), max_size=3)))
    return [text[begin:end] for begin, end in zip([0, *cuts], [*cuts, len(text)], strict=True)]


@st.composite
def a_call(draw: st.DrawFn, index: int) -> list[dict[str, Any]]:
    name = draw(st.sampled_from(["f", "read_file"]))
    arguments = draw(OBJECTS) + draw(AFTERS) if draw(st.integers(0, 5)) else ""
    repeats = draw(st.booleans())
    told = []
    for place, piece in enumerate(draw(pieces(arguments))):
        function = {"arguments": piece, **({"name": name} if repeats or place == 0 else {})}
        told.append({"index": index, "id": f"id{index}", "type": "function", "function": function})
    return told


@st.composite
def deltas(draw: st.DrawFn) -> list[dict[str, Any]]:
    """Texts in their order, and the pieces of each call in theirs, shuffled among one another."""
    streams: list[list[dict[str, Any]]] = [[]]
    for names in draw(st.lists(st.sampled_from(TEXT_NAMES), max_size=6)):
        streams[0].append(dict.fromkeys(names, draw(TEXTS)))
    for index in range(draw(st.integers(0, 3))):
        streams.append([{"tool_calls": [piece]} for piece in draw(a_call(index))])
    told: list[dict[str, Any]] = [{"role": "assistant", "content": ""}] if draw(st.booleans()) else []
    while any(streams):
        stream = draw(st.sampled_from([stream for stream in streams if stream]))
        piece = stream.pop(0)
        if told and draw(st.booleans()) and not told[-1].keys() & piece.keys():
            told[-1].update(piece)
        else:
            told.append(piece)
    return told


@st.composite
def logs(draw: st.DrawFn) -> Log:
    base = {"id": "c1", "object": "chat.completion.chunk", "created": 1, "model": "m"}
    finish = draw(st.sampled_from(["stop", "tool_calls", "length"]))
    told = [(delta, None) for delta in draw(deltas())]
    choices: list[Any] = [{"index": 0, "delta": delta, "finish_reason": reason} for delta, reason in told]
    choices.append(
        {"index": 0, "delta": draw(st.sampled_from([{}, {"content": "z"}])), "finish_reason": finish}
    )
    chunks: list[Any] = [{**base, "choices": [choice]} for choice in choices]
    if draw(st.booleans()):
        chunks.append({**base, "choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 5}})
    return tuple(json.dumps(chunk).encode() for chunk in chunks)


class Told(Protocol):
    """One protocol. What a client makes of an answer, but for its usage."""

    def whole(self, log: Log, *, cached: bool) -> Any: ...

    def stream(self, groups: Sequence[Log], *, cached: bool) -> Any: ...


class Chat:
    _identity = ResponseIdentity("chatcmpl-x", 7, "m", frozenset({"m"}))

    def whole(self, log: Log, *, cached: bool) -> Any:
        answer = json.loads(assemble(log, self._identity, cached=cached))
        answer.pop("usage", None)
        return answer

    def stream(self, groups: Sequence[Log], *, cached: bool) -> Any:
        relay = ChunkRelay(self._identity, include_usage=True, cached=cached)
        body = b"".join([*map(relay.events, groups), relay.end()])
        chunks = [line[6:] for line in body.split(b"\n\n") if line.startswith(b"data: {")]
        return self.whole(tuple(chunks), cached=False)


class Messages:
    _head = MessageHead("msg_x", "m", b"seed")

    def whole(self, log: Log, *, cached: bool) -> Any:
        message = json.loads(whole_message(log, self._head, cached=cached))
        return message["content"], message["stop_reason"]

    def stream(self, groups: Sequence[Log], *, cached: bool) -> Any:
        relay = MessageRelay(self._head, cached=cached)
        body = b"".join([*map(relay.events, groups), relay.end()])
        content: list[Any] = []
        reason = None
        for event in (json.loads(part.split(b"data: ", 1)[1]) for part in body.split(b"\n\n")[:-1]):
            match event:
                case {"type": "content_block_start", "index": index, "content_block": block}:
                    assert index == len(content)
                    content.append({**block, **({"input": ""} if "input" in block else {})})
                case {"type": "content_block_delta", "index": index, "delta": {"type": _, **grown}}:
                    assert index == len(content) - 1
                    for key, piece in grown.items():
                        content[index]["input" if key == "partial_json" else key] += piece
                case {"type": "message_delta", "delta": {"stop_reason": reason}}:
                    pass
        for block in content:
            if "input" in block:
                block["input"] = _as_read(block["input"])
        return content, reason


def _as_read(arguments: str) -> Any:
    try:
        return json.loads(arguments or "{}")
    except ValueError:
        return json.loads(completed_object(arguments))


class Responses:
    _head = ResponseHead("resp_1", 17, "m", b"name", b'"repeated":null')

    def whole(self, log: Log, *, cached: bool) -> Any:
        return self._shown(json.loads(whole_response(log, self._head, cached=cached)))

    def stream(self, groups: Sequence[Log], *, cached: bool) -> Any:
        relay = ResponseRelay(self._head, Events(), cached=cached)
        body = b"".join([*map(relay.events, groups), relay.end()])
        events = [json.loads(part.split(b"data: ", 1)[1]) for part in body.split(b"\n\n")[:-2]]
        grown: dict[str, str] = {}
        for event in events:
            if event["type"].endswith(".delta"):
                grown[event["item_id"]] = grown.get(event["item_id"], "") + event["delta"]
        for item in (event["item"] for event in events if event["type"] == "response.output_item.done"):
            said = item["arguments"] if "arguments" in item else next(iter(item["content"]))
            assert grown.get(item["id"], "") in (said if isinstance(said, str) else said.values())
        return self._shown(events[-1]["response"])

    def _shown(self, response: Any) -> Any:
        return response["output"], response["status"], response["incomplete_details"]


PROTOCOLS = [Chat(), Messages(), Responses()]


@pytest.mark.promise("C1.serve_a_hit")
@pytest.mark.parametrize("told", PROTOCOLS, ids=lambda told: type(told).__name__)
@given(data=st.data(), log=logs())
def test_an_answer_is_one_however_it_is_told(told: Told, data: st.DataObject, log: Log) -> None:
    record = compact(log)
    assert says_the_same(log, record)
    wanted = told.whole(log, cached=False)
    assert told.whole(record, cached=True) == wanted
    for items, cached in ((log, False), (record, True)):
        cuts = sorted(data.draw(st.lists(st.integers(0, len(items)), max_size=3)))
        bounds = zip([0, *cuts], [*cuts, len(items)], strict=True)
        groups = [items[begin:end] for begin, end in bounds]
        assert told.stream(groups, cached=cached) == wanted
