"""The log of a generation: one recorded form however the engine cut it."""

from __future__ import annotations

import contextlib
import hashlib
import json
from random import Random
from typing import Any

import pytest
from dynbranch.naming.chunks import (
    MalformedLog,
    compact,
    decode_payload,
    encode_payload,
    error_of,
    finish_reasons,
    origin_of,
    output_digests,
    result_digest,
    usage,
)
from hypothesis import given
from hypothesis import strategies as st

pytestmark = pytest.mark.promise("C1.serve_a_hit")

Piece = tuple[str, Any]


def chunk(choices: list[dict[str, Any]], **beside: Any) -> bytes:
    stamp = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 7, "model": "m"}
    return json.dumps({**stamp, "choices": choices, **beside}).encode()


def delta(
    index: int = 0, /, finish: str | None = None, beside: dict[str, Any] | None = None, **fields: Any
) -> bytes:
    return chunk([{"index": index, "delta": fields, "finish_reason": finish, **(beside or {})}])


def call(index: int, arguments: str, **head: Any) -> dict[str, Any]:
    name = {"name": head.pop("name")} if "name" in head else {}
    return {"index": index, **head, "function": {**name, "arguments": arguments}}


def plain(items: tuple[bytes, ...]) -> list[dict[str, Any]]:
    return [json.loads(item) for item in items]


def deltas(items: tuple[bytes, ...]) -> list[dict[str, Any]]:
    return [choice["delta"] for item in plain(items) for choice in item["choices"]]


TEXT = st.text(st.characters(codec="utf-8"), max_size=12)
SEGMENT = st.one_of(
    st.tuples(st.sampled_from(["content", "reasoning_content", "refusal"]), TEXT),
    st.tuples(st.just("calls"), st.lists(st.tuples(TEXT.filter(bool), TEXT), min_size=1, max_size=3)),
    st.tuples(st.just("unknown"), st.integers(0, 3)),
)
OUTPUT = st.tuples(st.lists(SEGMENT, max_size=5), st.sampled_from(["stop", "length", "tool_calls", None]))


def cut(chance: Random, text: str) -> list[str]:
    pieces = []
    while text:
        at = chance.randint(1, len(text))
        pieces.append(text[:at])
        text = text[at:]
        if chance.random() < 0.2:
            pieces.append("")
    return pieces


def streamed(chance: Random, index: int, output: tuple[list[Piece], str | None]) -> list[dict[str, Any]]:
    """One choice's output as an engine may stream it."""
    segments, finish = output
    stream: list[dict[str, Any]] = [{"index": index, "delta": {"role": "assistant", "content": None}}]
    first_call = 0
    for kind, value in segments:
        if kind == "calls":
            heads = [
                call(first_call + i, "", id=f"i{i}", type="function", name=n)
                for i, (n, _) in enumerate(value)
            ]
            rest = [[call(first_call + i, p) for p in cut(chance, a)] for i, (_, a) in enumerate(value)]
            stream += [{"index": index, "delta": {"tool_calls": [head]}} for head in heads]
            while any(rest):
                pieces = [r.pop(0) for r in rest if r and chance.random() < 0.6]
                stream.append({"index": index, "delta": {"tool_calls": pieces or None}})
            first_call += len(value)
        elif kind == "unknown":
            stream.append({"index": index, "delta": {"annotations": [value]}})
        else:
            stream += [
                {"index": index, "delta": {kind: piece, "tool_calls": None}} for piece in cut(chance, value)
            ]
    if finish is not None:
        stream.append({"index": index, "delta": {}, "finish_reason": finish, "stop_reason": 3})
    return stream


def interleaved(chance: Random, streams: list[list[dict[str, Any]]]) -> list[bytes]:
    waiting, items = [list(stream) for stream in streams], []
    while any(waiting):
        ready = [stream for stream in waiting if stream]
        taken = [stream.pop(0) for stream in (ready if chance.random() < 0.2 else [chance.choice(ready)])]
        items.append(chunk(taken, id=str(chance.random()), created=chance.randint(0, 9), usage=None))
    items.append(
        chunk([], usage={"prompt_tokens": 3, "completion_tokens": 4}, timings={"ms": chance.random()})
    )
    return items


@given(st.lists(OUTPUT, min_size=1, max_size=3), st.randoms(use_true_random=False))
def test_any_cutting_of_an_output_has_one_recorded_form(outputs: list[Any], chance: Random) -> None:
    first, second = (
        interleaved(chance, [streamed(chance, i, output) for i, output in enumerate(outputs)])
        for _ in range(2)
    )
    recorded = compact(first)
    assert recorded == compact(second)
    assert recorded == compact(recorded)
    for digest in (result_digest, output_digests, finish_reasons, usage):
        assert digest(first) == digest(second) == digest(recorded)
    assert finish_reasons(recorded) == tuple(finish for _, finish in outputs)


@given(st.lists(OUTPUT, min_size=1, max_size=2), st.randoms(use_true_random=False))
def test_nothing_is_lost(outputs: list[Any], chance: Random) -> None:
    recorded = compact(interleaved(chance, [streamed(chance, i, output) for i, output in enumerate(outputs)]))
    for index, (segments, _) in enumerate(outputs):
        mine = [c["delta"] for item in plain(recorded) for c in item["choices"] if c["index"] == index]
        for kind in ("content", "reasoning_content", "refusal"):
            said = "".join(value for k, value in segments if k == kind)
            assert "".join(d.get(kind) or "" for d in mine) == said
        called = [c["function"] for d in mine for c in d.get("tool_calls", ())]
        expected = [{"name": n, "arguments": a} for k, calls in segments if k == "calls" for n, a in calls]
        assert called == expected
        unknown = [d["annotations"] for d in mine if "annotations" in d]
        assert unknown == [[value] for k, value in segments if k == "unknown"]


@given(st.lists(st.dictionaries(st.sampled_from("abcdef"), st.none() | st.integers() | TEXT), max_size=4))
def test_unknown_fields_beside_the_choices_are_kept_once(fields: list[dict[str, Any]]) -> None:
    items = [chunk([{"index": 0, "delta": {"content": "x"}}], **beside) for beside in fields]
    recorded = compact(items)
    assert compact(recorded) == recorded
    for key in "abcdef":
        values = [beside[key] for beside in fields if beside.get(key) is not None]
        kept = [item[key] for item in plain(recorded) if key in item]
        assert kept == list(dict.fromkeys(values))


def test_a_recorded_log_looks_like_this() -> None:
    recorded = compact(
        [
            delta(role="assistant", content=None),
            delta(reasoning_content="hm"),
            delta(content="Hel"),
            delta(content="lo", finish="stop"),
            chunk([], usage={"prompt_tokens": 1, "completion_tokens": 2}, timings={"ms": 3}),
        ]
    )
    stamp = {"object": "chat.completion.chunk"}
    assert plain(recorded) == [
        {
            **stamp,
            "model": "m",
            "choices": [{"index": 0, "delta": {"role": "assistant"}, "finish_reason": None}],
        },
        {**stamp, "choices": [{"index": 0, "delta": {"reasoning_content": "hm"}, "finish_reason": None}]},
        {**stamp, "choices": [{"index": 0, "delta": {"content": "Hello"}, "finish_reason": None}]},
        {**stamp, "choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]},
        {**stamp, "choices": [], "usage": {"prompt_tokens": 1, "completion_tokens": 2}},
    ]


def test_log_probabilities_stay_with_their_text_and_keep_their_digits() -> None:
    def entry(token: str, logprob: str) -> str:
        return f'{{"token":"{token}","logprob":{logprob}}}'

    items = [
        b'{"choices":[{"index":0,"delta":{"content":"a"},"logprobs":{"content":[%s],"refusal":null}}]}'
        % entry("a", "-0.10").encode(),
        b'{"choices":[{"index":0,"delta":{"content":""},"logprobs":{"content":[%s]}}]}'
        % entry("", "-1e-3").encode(),
        b'{"choices":[{"index":0,"delta":{"content":"b"},"logprobs":{"content":[%s]}}]}'
        % entry("b", "0").encode(),
    ]
    recorded = compact(items)
    assert len(recorded) == 1
    probabilities = ",".join((entry("a", "-0.10"), entry("", "-1e-3"), entry("b", "0")))
    assert f'"delta":{{"content":"ab"}},"logprobs":{{"content":[{probabilities}]}}'.encode() in recorded[0]
    assert compact(recorded) == recorded


def test_log_probabilities_without_text_and_of_other_shapes_are_kept() -> None:
    for logprobs in ({"content": [1]}, [1, 2], {"mean": 0.5}):
        recorded = compact([chunk([{"index": 0, "delta": {}, "logprobs": logprobs}])])
        assert plain(recorded)[0]["choices"][0]["logprobs"] == logprobs
        assert compact(recorded) == recorded


def test_both_names_of_reasoning_advance_together() -> None:
    recorded = compact(
        [delta(reasoning="a", reasoning_content="a"), delta(reasoning="b", reasoning_content="b")]
    )
    assert deltas(recorded) == [{"reasoning_content": "ab", "reasoning": "ab"}]
    assert result_digest(recorded) == result_digest([delta(reasoning="ab")])


def test_reasoning_under_one_name_after_the_other_is_all_of_it() -> None:
    items = (
        delta(reasoning="a"),
        delta(reasoning="b", reasoning_content="b"),
        delta(reasoning_content="c"),
        delta(reasoning_content="d"),
    )
    record = compact(items)
    assert deltas(record) == [
        {"reasoning": "a"},
        {"reasoning_content": "b", "reasoning": "b"},
        {"reasoning_content": "cd"},
    ]
    assert compact(record) == record and result_digest(record) == result_digest(items)
    assert result_digest(items) != result_digest(items[1:])


def test_calls_stay_in_the_order_in_which_they_began() -> None:
    items = tuple(delta(tool_calls=[call(index, text)]) for index, text in ((1, "{"), (0, "{}"), (1, "}")))
    (told,) = deltas(compact(items))
    assert [one["index"] for one in told["tool_calls"]] == [1, 0]
    assert compact(compact(items)) == compact(items)


def test_an_empty_text_is_not_no_text() -> None:
    assert deltas(compact([delta(role="assistant", content="", finish="stop")]))[0] == {
        "role": "assistant",
        "content": "",
    }
    assert deltas(compact([delta(role="assistant", content=None)])) == [{"role": "assistant"}]
    assert deltas(compact([delta(content=""), delta(content="x")])) == [{"content": "x"}]


def test_calls_engines_repeat_names_for_and_legacy_and_custom_calls() -> None:
    items = [
        delta(
            tool_calls=[call(0, "{", id="a", name="f"), {"index": 1, "custom": {"name": "g", "input": "i"}}]
        ),
        delta(
            tool_calls=[call(0, "}", id="a", name="f"), {"index": 1, "custom": {"input": "n"}, "mark": "m"}]
        ),
        delta(1, function_call={"name": "old", "arguments": "1"}),
        delta(1, function_call={"arguments": "2"}),
    ]
    assert deltas(compact(items)) == [
        {
            "tool_calls": [
                {"index": 0, "id": "a", "function": {"name": "f", "arguments": "{}"}},
                {"index": 1, "custom": {"name": "g", "input": "in"}},
                {"index": 1, "mark": "m"},
            ]
        },
        {"function_call": {"name": "old", "arguments": "12"}},
    ]
    expected = tuple(hashlib.sha256(text).digest() for text in (b"f\0{}", b"g\0in", b"old\x0012"))
    assert output_digests(items) == output_digests(compact(items)) == expected


def test_output_digests_are_of_content_and_calls() -> None:
    items = [
        delta(content="he", reasoning_content="secret"),
        delta(1, content="other"),
        delta(content="llo"),
        delta(tool_calls=[call(0, "{}", id="x", name="f")]),
    ]
    expected = tuple(hashlib.sha256(text).digest() for text in (b"hello", b"f\0{}", b"other"))
    assert output_digests(items) == expected


def test_the_result_digest_ignores_ids_and_sees_everything_else() -> None:
    def log(
        call_id: str = "a", arguments: str = "{}", finish: str = "stop", tokens: int = 1, **texts: str
    ) -> list[bytes]:
        said = {"content": "c", "reasoning_content": "r", "refusal": "n", **texts}
        return [
            delta(**said),
            delta(tool_calls=[call(0, arguments, id=call_id, name="f")], finish=finish),
            chunk(
                [],
                usage={
                    "prompt_tokens": 1,
                    "completion_tokens": tokens,
                    "prompt_tokens_details": {"cached": 1},
                },
            ),
        ]

    assert result_digest(log()) == result_digest(log(call_id="b"))
    others = [log(arguments="{ }"), log(finish="length"), log(tokens=2), log(content="C"), log(refusal="")]
    others.append(log(reasoning_content="R"))
    assert len({result_digest(other) for other in (*others, log())}) == 7


def test_usage_is_the_last_one_told() -> None:
    items = [chunk([], usage={"prompt_tokens": 1}), delta(content="x"), chunk([], usage={"prompt_tokens": 2})]
    assert usage(items) == {"prompt_tokens": 2}
    assert usage([delta(content="x")]) is None
    assert sum(b"usage" in item for item in compact(items)) == 1


def test_errors_are_seen() -> None:
    error = {"message": "boom", "code": 500}
    assert error_of([delta(content="an error?")]) is None
    assert error_of([delta(content="x"), json.dumps({"error": error}).encode()]) == error
    assert error_of([b'{"error":"boom"}']) == {"message": "boom"}
    old = {"object": "error", "message": "boom"}
    assert error_of([json.dumps(old).encode()]) == old
    for item in (json.dumps({"error": error}).encode(), json.dumps(old).encode()):
        recorded = compact([delta(content="x"), item])
        assert error_of(recorded) == error_of([item])
        assert compact(recorded) == recorded


@pytest.mark.parametrize(
    "item",
    [
        b"",
        b"[DONE]",
        b"{",
        b"[]",
        b"\xff",
        b'{"choices":[1]}',
        b'{"choices":[{"index":-1}]}',
        b'{"a":1,"a":1}',
    ],
)
def test_what_is_not_a_chunk_is_refused(item: bytes) -> None:
    with pytest.raises(MalformedLog):
        compact([item])


@given(st.lists(st.binary(max_size=40), max_size=6))
def test_a_payload_gives_its_items_back(items: list[bytes]) -> None:
    payload = encode_payload(items)
    assert decode_payload(payload) == tuple(items)
    for end in range(len(payload)):
        with contextlib.suppress(MalformedLog):
            assert len(decode_payload(payload[:end])) < len(items)


@pytest.mark.parametrize(
    "payload", [b"", b"\x00", b"\x02\x00", b"\x01", b"\x01\x05ab", b"\x01\x00\x00\x00\x00\x05abc"]
)
def test_other_payloads_are_refused(payload: bytes) -> None:
    with pytest.raises(MalformedLog):
        decode_payload(payload)


def test_no_items_are_no_items() -> None:
    assert compact([]) == ()
    assert finish_reasons([]) == ()
    assert output_digests([]) == ()


@given(st.lists(st.binary(max_size=40), max_size=6), st.text("0123456789abcdef-", max_size=55))
def test_a_payload_remembers_where_it_was_executed(items: list[bytes], origin: str) -> None:
    payload = encode_payload(items, origin)
    assert decode_payload(payload) == tuple(items)
    assert origin_of(payload) == origin
