from __future__ import annotations

import json

import pytest
from dynbranch.engine_agent.engines.chat_stream import ChatStream, ErrorChunk
from dynbranch.engine_agent.engines.sse import MalformedStream, SseEvent, SseParser

DONE = SseEvent(b"[DONE]")


def chunk(*choices: tuple[int, str | None]) -> SseEvent:
    listed = [{"index": i, "delta": {"content": "x"}, "finish_reason": finish} for i, finish in choices]
    return SseEvent(json.dumps({"choices": listed}).encode())


def end_of(*events: SseEvent) -> str:
    stream = ChatStream()
    _, flaw = stream.take_all(events)
    if flaw is not None:
        raise flaw
    return stream.check_end()


@pytest.mark.parametrize("finish", ["stop", "length", "tool_calls", "function_call"])
def test_a_good_end_may_be_stored(finish: str) -> None:
    assert end_of(chunk((0, None)), chunk((0, finish)), SseEvent(b'{"choices":[],"usage":{}}'), DONE) == ""


@pytest.mark.promise("C1.failures_are_not_stored")
def test_content_filter_and_unknown_ends_are_served_but_not_stored() -> None:
    assert end_of(chunk((0, "content_filter")), DONE) == "content_filter"
    assert end_of(chunk((0, "stop"), (1, "content_filter")), DONE) == "content_filter"
    assert end_of(chunk((0, "insufficient_resources")), DONE) == "unknown_finish_reason"


@pytest.mark.promise("C1.failures_are_not_stored")
@pytest.mark.parametrize(
    "events",
    [
        (),
        (DONE,),
        (chunk((0, "stop")),),
        (chunk((0, None)), DONE),
        (chunk((0, None), (1, "stop")), DONE),
        (chunk((0, "abort")), DONE),
        (chunk((0, "error")), DONE),
    ],
    ids=["empty", "only the end mark", "no end mark", "no finish", "one of two", "abort", "error"],
)
def test_a_cut_off_stream_is_no_result(events: tuple[SseEvent, ...]) -> None:
    with pytest.raises(MalformedStream):
        end_of(*events)


@pytest.mark.parametrize(
    "data",
    [b'{"choices": [', b"[]", b"7", b'{"choices": 3}', b'{"choices": [1]}', b'{"choices": [{"index": "0"}]}'],
)
def test_what_is_not_a_chunk(data: bytes) -> None:
    with pytest.raises(MalformedStream):
        end_of(SseEvent(data))


@pytest.mark.parametrize(
    ("event", "status"),
    [
        (SseEvent(b'{"error": {"code": 503, "message": "busy"}}'), 503),
        (SseEvent(b'{"error": "text"}'), 0),
        (SseEvent(b'{"object": "error", "message": "old spelling", "code": 400}'), 400),
        (SseEvent(b'{"message": "named by its event"}', "error"), 0),
        (SseEvent(b'{"error": {"code": "invalid"}}'), 0),
        (SseEvent(b'{"error": {"code": 7}}'), 0),
    ],
)
def test_errors_inside_the_stream(event: SseEvent, status: int) -> None:
    with pytest.raises(ErrorChunk) as error:
        end_of(chunk((0, None)), event)
    assert (error.value.status, error.value.body) == (status, event.data)


def test_items_are_the_raw_bytes_and_nothing_follows_the_end_mark() -> None:
    raw = b'{"choices": [ {"index":0,"finish_reason":"stop"} ],  "usage": null}'
    stream = ChatStream()
    assert stream.take_all([SseEvent(b" " + raw + b" "), DONE, SseEvent(b"rubbish")]) == ((raw,), None)


def test_a_line_break_between_tokens_is_not_learned() -> None:
    parser, stream = SseParser(), ChatStream()
    choice = b'"choices":[{"index":0,"delta":{"content":"%b"},"finish_reason":null}]}'
    items, flaw = stream.take_all(parser.feed(b'data: {"id":"1",\ndata: ' + choice % b"a" + b"\n\n"))
    assert len(items) == 1 and flaw is None
    broken = b'data: {"id":"1",\n' + choice % b"b" + b"\n\n"
    lone = parser.lone(broken)
    assert lone is None or not stream.is_another_piece(lone)
    assert isinstance(stream.take_all(parser.feed(broken))[1], MalformedStream)
