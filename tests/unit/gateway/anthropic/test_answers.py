"""What a harness is told: the stream, the whole message and the recorded one are the same message."""

from __future__ import annotations

import json
from typing import Any

import pytest
from anthropic.lib.streaming._messages import accumulate_event
from anthropic.types import Message, RawMessageStreamEvent
from dynbranch.bench.corpus.answers import TOLD, call, items_of
from dynbranch.bench.corpus.shapes import Object, Told, text
from dynbranch.gateway.protocols.anthropic.rendering import MessageHead, MessageRelay, whole_message
from dynbranch.gateway.protocols.anthropic.request import read_messages
from dynbranch.gateway.protocols.anthropic.unfinished import completed_object
from dynbranch.gateway.protocols.chunk_relay import MalformedItem
from dynbranch.naming.chunks import compact
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter

Events: TypeAdapter[RawMessageStreamEvent] = TypeAdapter(RawMessageStreamEvent)


def head(told: Told | None = None, **beside: Any) -> MessageHead:
    stops = frozenset(told.stops) if told is not None else frozenset()
    return MessageHead("msg_1", "m", b"name", stops, **beside)


def streamed(items: tuple[bytes, ...], of: MessageHead, *, cached: bool = False, step: int = 1) -> bytes:
    relay = MessageRelay(of, cached=cached)
    parts = [relay.events(items[at : at + step]) for at in range(0, len(items), step)]
    return b"".join([*parts, relay.end()])


def events_in(body: bytes) -> list[Object]:
    events = []
    for part in body.split(b"\n\n")[:-1]:
        named, _, data = part.partition(b"\n")
        event = json.loads(data.removeprefix(b"data: "))
        assert named == b"event: " + event["type"].encode()
        Events.validate_python(event)
        events.append(event)
    return events


def accumulated(body: bytes) -> Object:
    """The message as the vendor's client puts it together."""
    message: Any = None
    buffers: dict[int, bytes] = {}
    for event in events_in(body):
        message = accumulate_event(
            event=Events.validate_python(event), current_snapshot=message, json_bufs=buffers
        )
    return {key: value for key, value in message.to_dict().items() if value is not None}


def whole(items: tuple[bytes, ...], of: MessageHead, *, cached: bool = False) -> Object:
    message: Object = json.loads(whole_message(items, of, cached=cached))
    Message.model_validate(message)
    return message


def without_nulls(message: Object) -> Object:
    return {key: value for key, value in message.items() if value is not None}


@pytest.mark.parametrize("told", TOLD, ids=lambda told: told.name)
def test_what_the_harness_is_told(told: Told) -> None:
    message = whole(items_of(told), head(told))
    content = [
        {key: value for key, value in block.items() if key not in ("id", "signature")}
        for block in message["content"]
    ]
    assert content == told.content
    assert (message["stop_reason"], message["stop_sequence"]) == (told.stop_reason, told.stop_sequence)
    counts = message["usage"]
    found = (counts["input_tokens"], counts["cache_read_input_tokens"], counts["output_tokens"])
    assert found == told.counts


@pytest.mark.promise("H.messages")
@pytest.mark.parametrize("step", [1, 3, 1000])
@pytest.mark.parametrize("told", TOLD, ids=lambda told: told.name)
def test_the_stream_is_the_whole_message(told: Told, step: int) -> None:
    items, of = items_of(told), head(told)
    assert accumulated(streamed(items, of, step=step)) == without_nulls(whole(items, of))


@pytest.mark.promise("C1.serve_a_hit")
@pytest.mark.parametrize("told", TOLD, ids=lambda told: told.name)
def test_a_record_tells_what_the_engine_told(told: Told) -> None:
    items, of = items_of(told), head(told)
    live, recorded = whole(items, of), whole(compact(items), of, cached=True)
    assert accumulated(streamed(compact(items), of, cached=True)) == without_nulls(recorded)
    counted, cached = live.pop("usage"), recorded.pop("usage")
    assert live == recorded
    assert cached["input_tokens"] == 0
    assert cached["cache_read_input_tokens"] == counted["input_tokens"] + counted["cache_read_input_tokens"]
    assert cached["output_tokens"] == counted["output_tokens"]


@pytest.mark.parametrize("told", TOLD, ids=lambda told: told.name)
def test_blocks_follow_one_another(told: Told) -> None:
    events = events_in(streamed(items_of(told), head(told)))
    opened = -1
    is_open = False
    for event in events[1:-2]:
        match event["type"]:
            case "content_block_start":
                assert not is_open and event["index"] == opened + 1
                opened, is_open = event["index"], True
            case "content_block_delta":
                assert is_open and event["index"] == opened
            case "content_block_stop":
                assert is_open and event["index"] == opened
                is_open = False
            case other:
                raise AssertionError(other)
    assert not is_open
    assert [event["type"] for event in events[-2:]] == ["message_delta", "message_stop"]


def test_no_case_stands_twice() -> None:
    names = [told.name for told in TOLD]
    assert len(names) == len(set(names)) >= 40


def test_nothing_shows_before_the_model_speaks() -> None:
    """Until then another engine may still give the answer."""
    (told,) = [told for told in TOLD if told.name == "a text"]
    relay = MessageRelay(head(), cached=False)
    assert relay.events(items_of(told)[:1]) == b""
    assert b"message_start" in relay.events(items_of(told)[1:2])


def test_ids_of_calls_follow_from_the_name() -> None:
    (told,) = [told for told in TOLD if told.name == "parallel calls"]

    def ids(seed: bytes) -> list[str]:
        message = whole(items_of(told), MessageHead("msg_1", "m", seed))
        return [block["id"] for block in message["content"]]

    assert ids(b"a") == ids(b"a") and not set(ids(b"a")) & set(ids(b"b"))
    assert len(set(ids(b"a"))) == 2


def test_thinking_that_is_not_shown_comes_back_all_the_same() -> None:
    (told,) = [told for told in TOLD if told.name == "reasoning"]
    message = whole(items_of(told), head(hides_thinking=True))
    thinking = message["content"][0]
    assert thinking["thinking"] == "" and thinking["signature"]
    assert accumulated(streamed(items_of(told), head(hides_thinking=True))) == without_nulls(message)
    said = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": message["content"]}]
    asked = {"model": "m", "max_tokens": 1, "messages": said}
    chat: Any = read_messages(json.dumps(asked).encode()).value
    assert chat["messages"][1] == {"role": "assistant", "content": "a", "reasoning_content": "Hm."}


@pytest.mark.parametrize(
    "items",
    [
        (),
        (b"not json",),
        (b"[]",),
        (b'{"choices":[{"index":-1,"delta":{}}]}',),
        (b'{"choices":[{"index":"1","delta":{}}]}',),
        (b'{"choices":[{"index":true,"delta":{}}]}',),
        (b'{"choices":[3]}',),
        (b'{"choices":[],"usage":{}}',),
    ],
)
def test_what_is_no_answer_is_none(items: tuple[bytes, ...]) -> None:
    with pytest.raises(MalformedItem):
        whole_message(items, head(), cached=False)
    with pytest.raises(MalformedItem):
        streamed(items, head())


def test_calls_as_few_engines_tell_them() -> None:
    """Such are never recorded."""

    def told(*calls: Object) -> list[Object]:
        chunks = [{"choices": [{"index": 0, "delta": {"tool_calls": [one]}}]} for one in calls]
        content = whole(tuple(json.dumps(chunk).encode() for chunk in chunks), head())["content"]
        return [{"name": block["name"], "input": block["input"]} for block in content]

    def one(name: str, arguments: Any, **beside: Any) -> Object:
        return {**beside, "function": {"name": name, "arguments": arguments}}

    assert told(one("f", {"x": 1}, index=0)) == [{"name": "f", "input": {"x": 1}}]
    assert told(one("f", None, index=0)) == [{"name": "f", "input": {}}]
    both = [{"name": "f", "input": {}}, {"name": "g", "input": {"x": 1}}]
    assert told(one("f", "{}", id="a"), one("g", '{"x":1}', id="b")) == both


def test_the_choice_that_began_is_the_answer() -> None:
    def says(index: int, said: str) -> bytes:
        return json.dumps({"choices": [{"index": index, "delta": {"content": said}}]}).encode()

    items = (says(1, "a"), says(2, "x"), says(1, "b"), says(2, "y"))
    for log in (items, compact(items)):
        assert whole(log, head())["content"] == [text("ab")]
        assert accumulated(streamed(log, head()))["content"] == [text("ab")]


def test_a_call_shows_while_it_is_written_and_what_comes_in_between_after_it() -> None:
    relay = MessageRelay(head(), cached=False)

    def events(*deltas: Object) -> bytes:
        return b"".join(relay.events((json.dumps(of({"delta": delta})).encode(),)) for delta in deltas)

    def of(choice: Object) -> Object:
        return {"choices": [{"index": 0, **choice}]}

    assert b"partial_json" in events(call(0, '{"a', "read"))
    assert events({"content": "I look."}, call(1, "{}", "read")) == b""
    shown = events(call(0, '":1}'))
    assert shown.index(b'":1}') < shown.index(b"I look.") < shown.index(b'"{}"')
    assert b"partial_json" in events(call(2, "{", "read"))


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=6),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner, max_size=4),
    max_leaves=12,
)


@given(st.dictionaries(st.text(max_size=4), VALUES, max_size=4), st.data())
def test_the_whole_part_of_an_object_that_was_cut_is_a_part_of_it(value: Object, data: st.DataObject) -> None:
    text = json.dumps(value)
    cut = json.loads(completed_object(text[: data.draw(st.integers(0, len(text)))]))
    assert isinstance(cut, dict) and _is_part(cut, value)


def _is_part(part: Any, value: Any) -> bool:
    match part, value:
        case dict(), dict():
            return all(key in value and _is_part(inner, value[key]) for key, inner in part.items())
        case list(), list():
            return len(part) <= len(value) and all(map(_is_part, part, value))
        case _:
            return part == value and type(part) is type(value)
