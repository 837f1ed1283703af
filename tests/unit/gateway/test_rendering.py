"""One log, every form: a stream put together is the plain answer, and a recorded log renders like the live
one."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import Any

import pytest
from dynbranch.gateway.protocols.chunk_relay import DONE, ChunkRelay, MalformedItem, ResponseIdentity
from dynbranch.gateway.protocols.completion_assembly import assemble
from dynbranch.naming.chunks import compact, decode_payload, encode_payload
from hypothesis import given
from hypothesis import strategies as st

MINE = ResponseIdentity("chatcmpl-mine", 1_800_000_000)

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
TRICKY = st.sampled_from(['"id":"chatcmpl-engine"', '","created":1,"', "\\", "\u2028", "é\n", '"usage":null'])
PIECE = st.one_of(TEXT, TRICKY)


def spelled_like_vllm(body: dict[str, Any]) -> bytes:
    head = {
        "id": "chatcmpl-engine",
        "object": "chat.completion.chunk",
        "created": 1_700_000_000,
        "model": "m",
    }
    return json.dumps(head | body, separators=(",", ":"), ensure_ascii=False).encode()


def spelled_like_llama(body: dict[str, Any]) -> bytes:
    tail = {
        "created": 1_700_000_000,
        "id": "chatcmpl-engine",
        "model": "m",
        "object": "chat.completion.chunk",
    }
    return json.dumps(body | tail, separators=(",", ":"), ensure_ascii=False).encode()


def spelled_with_blanks(body: dict[str, Any]) -> bytes:
    return json.dumps(body | {"model": "m", "created": 5, "x": 1, "id": "chatcmpl-engine"}, indent=1).encode()


SPELLINGS = st.sampled_from([spelled_like_vllm, spelled_like_llama, spelled_with_blanks])


@st.composite
def deltas_of_choice(draw: st.DrawFn, index: int) -> list[dict[str, Any]]:
    """The deltas of one choice as an engine would cut them: reasoning, content, calls, finish."""
    deltas: list[dict[str, Any]] = [{"role": "assistant", "content": draw(st.sampled_from(["", None]))}]
    deltas += [{"reasoning_content": piece} for piece in draw(st.lists(PIECE, max_size=2))]
    deltas += [{"content": piece} for piece in draw(st.lists(PIECE, max_size=4))]
    for call in range(draw(st.integers(0, 2))):
        named = {"name": draw(st.sampled_from(["get", "put"])), "arguments": ""}
        deltas.append(
            {"tool_calls": [{"index": call, "id": f"c{call}", "type": "function", "function": named}]}
        )
        deltas += [
            {"tool_calls": [{"index": call, "function": {"arguments": piece}}]}
            for piece in draw(st.lists(PIECE, max_size=2))
        ]
    choices = [{"index": index, "delta": delta, "finish_reason": None} for delta in deltas]
    if draw(st.booleans()):
        for choice in choices[1:2]:
            choice["logprobs"] = {"content": [{"token": "t", "logprob": -0.25}]}
    choices.append({"index": index, "delta": {}, "finish_reason": draw(st.sampled_from(["stop", "length"]))})
    return choices


@st.composite
def logs(draw: st.DrawFn) -> tuple[bytes, ...]:
    """A whole generation: one to three interleaved choices and a usage."""
    spelling = draw(SPELLINGS)
    per_choice = [draw(deltas_of_choice(index)) for index in range(draw(st.integers(1, 3)))]
    bodies: list[dict[str, Any]] = []
    waiting = [list(choices) for choices in per_choice]
    while any(waiting):
        turn = draw(st.sampled_from([place for place, left in enumerate(waiting) if left]))
        bodies.append({"choices": [waiting[turn].pop(0)]})
    if draw(st.booleans()):
        bodies = [{**body, "usage": None} for body in bodies]
    bodies.append({"choices": [], "usage": {"prompt_tokens": 9, "completion_tokens": 4, "total_tokens": 13}})
    return tuple(spelling(body) for body in bodies)


def relayed(items: Iterable[bytes], *, include_usage: bool = True, cached: bool = False) -> bytes:
    relay = ChunkRelay(MINE, include_usage=include_usage, cached=cached)
    return b"".join(relay.events((item,)) for item in items)


def chunks_of(stream: bytes) -> Iterator[dict[str, Any]]:
    for part in stream.split(b"\n\n"):
        if part and part != b"data: [DONE]":
            assert part.startswith(b"data: ") and b"\n" not in part
            yield json.loads(part[6:])


def plain(items: Iterable[bytes], *, cached: bool = False) -> dict[str, Any]:
    body: dict[str, Any] = json.loads(assemble(items, MINE, cached=cached))
    return body


@given(logs())
def test_the_stream_put_together_is_the_plain_answer(items: tuple[bytes, ...]) -> None:
    streamed = [json.dumps(chunk).encode() for chunk in chunks_of(relayed(items))]
    assert plain(streamed) == plain(items)


@pytest.mark.promise("I1")
@given(logs())
def test_a_recorded_log_renders_like_the_live_one(items: tuple[bytes, ...]) -> None:
    recorded = decode_payload(encode_payload(compact(items)))
    assert plain(recorded) == plain(items)
    streamed = [json.dumps(chunk).encode() for chunk in chunks_of(relayed(recorded))]
    assert plain(streamed) == plain(items)


@given(logs(), st.booleans())
def test_only_id_created_and_unwanted_usage_change(items: tuple[bytes, ...], include_usage: bool) -> None:
    expected = []
    for item in items:
        chunk = json.loads(item)
        if not include_usage:
            if chunk["choices"] == [] and chunk["usage"]:
                continue
            chunk.pop("usage", None)
        expected.append({**chunk, "id": MINE.id, "created": MINE.created_s})
    assert list(chunks_of(relayed(items, include_usage=include_usage))) == expected


@given(logs())
def test_every_chunk_of_a_recorded_stream_says_its_model(items: tuple[bytes, ...]) -> None:
    stream = list(chunks_of(relayed(compact(items), cached=True)))
    assert {chunk["model"] for chunk in stream} == {"m"}
    assert {chunk["id"] for chunk in stream} == {MINE.id}
    assert stream[-1]["usage"]["prompt_tokens_details"] == {"cached_tokens": 9}


@given(logs(), st.data())
def test_how_items_are_grouped_does_not_matter(items: tuple[bytes, ...], data: st.DataObject) -> None:
    cut = data.draw(st.integers(0, len(items)))
    relay = ChunkRelay(MINE, include_usage=True, cached=False)
    assert relay.events(items[:cut]) + relay.events(items[cut:]) == relayed(items)


def test_numbers_and_unknown_members_keep_their_bytes() -> None:
    item = (
        b'{"id":"x","created":1,"choices":[{"index":0,"delta":{"content":"a"},'
        b'"logprobs":{"content":[{"logprob":-1.50e-3}]}}],"vendor":{"z":1.0,"a":2}}'
    )
    for stream in (relayed([item]), relayed([item, item])[len(relayed([item])) :]):
        assert b'"logprob":-1.50e-3' in stream and b'"vendor":{"z":1.0,"a":2}' in stream


def test_later_chunks_take_the_short_way() -> None:
    relay = ChunkRelay(MINE, include_usage=True, cached=False)
    item = spelled_like_vllm({"choices": [{"index": 0, "delta": {"content": "a"}}]})
    relay.events((item,))
    assert relay._learned and item.count(relay._learned) == 1


def test_an_engine_that_changes_its_created_time_is_still_rewritten() -> None:
    items = [
        b'{"choices":[],"created":%d,"id":"e","object":"chat.completion.chunk"}' % second
        for second in (1, 2, 2, 3)
    ]
    assert {chunk["created"] for chunk in chunks_of(relayed(items))} == {MINE.created_s}


def test_cached_usage_is_marked_in_the_plain_answer() -> None:
    usage = {"prompt_tokens": 5, "completion_tokens": 1, "prompt_tokens_details": {"audio_tokens": 0}}
    items = [
        spelled_like_vllm({"choices": [{"index": 0, "delta": {"content": "a"}, "finish_reason": "stop"}]}),
        spelled_like_vllm({"choices": [], "usage": usage}),
    ]
    marked = plain(items, cached=True)["usage"]
    assert marked["prompt_tokens_details"] == {"audio_tokens": 0, "cached_tokens": 5}
    assert plain(items)["usage"] == usage


def test_unknown_fields_of_deltas_and_choices_survive_in_the_plain_answer() -> None:
    items = [
        spelled_like_vllm(
            {"choices": [{"index": 0, "delta": {"audio": {"data": "ab"}}}], "service_tier": "x"}
        ),
        spelled_like_vllm(
            {
                "choices": [
                    {
                        "index": 0,
                        "delta": {"audio": {"data": "cd"}},
                        "stop_reason": 7,
                        "finish_reason": "stop",
                    }
                ]
            }
        ),
    ]
    body = plain(items)
    assert body["choices"][0]["message"]["audio"] == {"data": "abcd"}
    assert body["choices"][0]["stop_reason"] == 7
    assert body["service_tier"] == "x"


def test_calls_without_text_have_null_content() -> None:
    call = {"index": 0, "id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    items = [spelled_like_vllm({"choices": [{"index": 0, "delta": {"content": "", "tool_calls": [call]}}]})]
    message = plain(items)["choices"][0]["message"]
    assert message["content"] is None
    assert message["tool_calls"] == [{k: v for k, v in call.items() if k != "index"}]


@pytest.mark.parametrize("item", [b"", b"[]", b"nonsense", b'{"choices":[1]}', b"\xff", b'{"choices":[]}'])
def test_what_is_no_chunk_is_reported(item: bytes) -> None:
    with pytest.raises(MalformedItem):
        assemble([item], MINE, cached=False)


@pytest.mark.parametrize("item", [b"", b"[]", b"nonsense", b"\xff", b'{"a":1'])
def test_what_is_no_object_is_not_relayed(item: bytes) -> None:
    with pytest.raises(MalformedItem):
        ChunkRelay(MINE, include_usage=True, cached=False).events((item,))


def test_half_a_surrogate_pair_in_a_member_s_name_stays_escaped() -> None:
    item = b'{"\\udc00":1,"id":"e","created":1,"choices":[]}'
    told = ChunkRelay(MINE, include_usage=True, cached=False).events((item,))
    assert json.loads(told.removeprefix(b"data: "))["\udc00"] == 1


def test_done_is_a_whole_event() -> None:
    assert DONE == b"data: [DONE]\n\n"
