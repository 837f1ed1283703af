from __future__ import annotations

from itertools import pairwise

import pytest
from dynbranch.engine_agent.engines.sse import MalformedStream, SseEvent, SseParser
from hypothesis import given
from hypothesis import strategies as st

STREAM = (
    b"\xef\xbb\xbf: a comment\r\n"
    b'data: {"a":1}\r\n\r\n'
    b"data: two\ndata:  lines\n\n"
    b"event: error\rdata:no blank\r\r"
    b": keep-alive\n\n"
    b"id: 7\nretry: 10\nunknown: x\ndata\n\n"
    b"data: [DONE]\n\n"
    b"data: cut off"
)
EVENTS = [
    SseEvent(b'{"a":1}'),
    SseEvent(b"two\n lines"),
    SseEvent(b"no blank", "error"),
    SseEvent(b""),
    SseEvent(b"[DONE]"),
]


def fed(chunks: list[bytes]) -> list[SseEvent]:
    parser = SseParser()
    return [event for chunk in chunks for event in parser.feed(chunk)]


def test_a_whole_stream() -> None:
    assert fed([STREAM]) == EVENTS


def test_byte_by_byte() -> None:
    assert fed([STREAM[i : i + 1] for i in range(len(STREAM))]) == EVENTS


@given(st.lists(st.integers(0, len(STREAM)), max_size=12))
def test_cut_anywhere(cuts: list[int]) -> None:
    places = [0, *sorted(cuts), len(STREAM)]
    assert fed([STREAM[a:b] for a, b in pairwise(places)]) == EVENTS


@given(st.binary(max_size=300), st.lists(st.integers(0, 300), max_size=5))
def test_any_bytes_cut_anywhere_read_alike(data: bytes, cuts: list[int]) -> None:
    places = [0, *sorted(min(cut, len(data)) for cut in cuts), len(data)]
    assert fed([data[a:b] for a, b in pairwise(places)]) == fed([data])


def test_lines_and_events_are_bounded() -> None:
    with pytest.raises(MalformedStream):
        SseParser(max_line_bytes=10).feed(b"data: 12345678")
    with pytest.raises(MalformedStream):
        SseParser(max_line_bytes=10).feed(b"data: 12345678\n\n")
    with pytest.raises(MalformedStream):
        SseParser(max_event_bytes=10).feed(b"data: 12345\ndata: 12345\n\n")


@given(st.binary(max_size=60), st.booleans())
def test_a_lone_event_is_what_feeding_it_gives(data: bytes, framed: bool) -> None:
    chunk = b"data: " + data + b"\n\n" if framed else data
    lone = SseParser().lone(chunk)
    if lone is not None and b"\n" not in lone and b"\r" not in lone:
        assert fed([chunk]) == [SseEvent(lone)]


def test_nothing_is_lone_in_the_middle_of_an_event() -> None:
    parser = SseParser()
    parser.feed(b"data: a\n")
    assert parser.lone(b"data: b\n\n") is None
    assert parser.feed(b"data: b\n\n") == [SseEvent(b"a\nb")]
