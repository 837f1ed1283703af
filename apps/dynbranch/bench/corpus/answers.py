"""Answers as engines stream them, each with what a harness of Messages is to be told."""

from __future__ import annotations

import json

from dynbranch.bench.corpus.shapes import Object, Told, text


def call(index: int, arguments: str, name: str | None = None) -> Object:
    function = {"arguments": arguments, **({"name": name} if name is not None else {})}
    return {"tool_calls": [{"index": index, "id": f"x{index}", "type": "function", "function": function}]}


def wanted(given: Object, name: str = "read") -> Object:
    return {"type": "tool_use", "name": name, "input": given}


def thought(said: str) -> Object:
    return {"type": "thinking", "thinking": said}


def says_text(*pieces: str) -> list[Object]:
    return [{"role": "assistant", "content": ""}, *({"content": piece} for piece in pieces)]


TOLD = [
    Told("one piece", [{"role": "assistant", "content": "Hello"}], [text("Hello")]),
    Told("lines", says_text("# a\n", "\r\n", "\tb"), [text("# a\n\r\n\tb")]),
    Told("what looks like an event", says_text("data: x\n\n", "event: y"), [text("data: x\n\nevent: y")]),
    Told("an escape in two pieces", says_text("a\\", 'n"'), [text('a\\n"')]),
    Told(
        "long reasoning",
        [{"reasoning_content": f"{number} "} for number in range(40)],
        [thought("".join(f"{number} " for number in range(40)))],
        "max_tokens",
        "length",
    ),
    Told(
        "a call that the token limit did not cut",
        [call(0, '{"a": [1, {"b": null}]}', "read")],
        [wanted({"a": [1, {"b": None}]})],
        "max_tokens",
        "length",
    ),
    Told(
        "five calls",
        [call(index, json.dumps({"n": index}), "read") for index in range(5)],
        [wanted({"n": index}) for index in range(5)],
        "tool_use",
        "tool_calls",
    ),
    Told(
        "a call whose input was never begun",
        [{"content": "I look."}, call(0, "", "read")],
        [text("I look."), wanted({})],
        "max_tokens",
        "length",
    ),
    Told("a text", says_text("Hello", " there"), [text("Hello there")]),
    Told("nothing", says_text(), []),
    Told("escapes", says_text('a"b\\', "\n\u2028é", "😀"), [text('a"b\\\n\u2028é😀')]),
    Told("many pieces", says_text(*"abcdefghij" * 5), [text("abcdefghij" * 5)]),
    Told("the token limit", says_text("a"), [text("a")], "max_tokens", "length"),
    Told("a filter", says_text("a"), [text("a")], "refusal", "content_filter"),
    Told("a refusal", [{"refusal": "No."}], [text("No.")], "refusal"),
    Told(
        "a stop sequence",
        says_text("a"),
        [text("a")],
        "stop_sequence",
        beside_finish={"stop_reason": "END"},
        stops=("END",),
        stop_sequence="END",
    ),
    Told(
        "a stop sequence, as another engine says it",
        says_text("a"),
        [text("a")],
        "stop_sequence",
        beside_finish={"matched_stop": "END"},
        stops=("x", "END"),
        stop_sequence="END",
    ),
    Told(
        "a stop that is a token",
        says_text("a"),
        [text("a")],
        beside_finish={"stop_reason": 151645},
        stops=("END",),
    ),
    Told("an engine's word of its own", says_text("a"), [text("a")], finish="eos"),
    Told(
        "reasoning",
        [{"role": "assistant"}, {"reasoning_content": "H"}, {"reasoning_content": "m."}, {"content": "a"}],
        [thought("Hm."), text("a")],
    ),
    Told(
        "reasoning under both names",
        [{"reasoning": "H", "reasoning_content": "H"}, {"reasoning": "m", "reasoning_content": "m"}],
        [thought("Hm")],
    ),
    Told(
        "reasoning under its other name", [{"reasoning": "Hm"}, {"content": "a"}], [thought("Hm"), text("a")]
    ),
    Told(
        "reasoning in between",
        [{"content": "a"}, {"reasoning_content": "Hm"}, {"content": "b"}],
        [text("a"), thought("Hm"), text("b")],
    ),
    Told("a call", [call(0, "", "read"), call(0, '{"a":'), call(0, " 1}")], [wanted({"a": 1})], "tool_use"),
    Told("a call in one piece", [call(0, '{"a": 1}', "read")], [wanted({"a": 1})], "tool_use", "tool_calls"),
    Told("a call without input", [call(0, "", "read")], [wanted({})], "tool_use", "tool_calls"),
    Told(
        "a name in every piece",
        [call(0, '{"a"', "read"), call(0, ":1}", "read")],
        [wanted({"a": 1})],
        "tool_use",
        "tool_calls",
    ),
    Told(
        "a name in two pieces",
        [call(0, "", "re"), call(0, "", "ad"), call(0, "{}")],
        [wanted({})],
        "tool_use",
        "tool_calls",
    ),
    Told(
        "a text between the pieces of a call",
        [call(0, '{"a"', "read"), {"content": "I "}, call(0, ":1}"), {"content": "look."}],
        [wanted({"a": 1}), text("I look.")],
        "tool_use",
        "tool_calls",
    ),
    Told(
        "calls that take turns",
        [call(0, '{"a"', "read"), call(1, '{"b"', "write"), call(0, ":1}"), call(1, ":2}")],
        [wanted({"a": 1}), wanted({"b": 2}, "write")],
        "tool_use",
        "tool_calls",
    ),
    Told(
        "a later call first",
        [call(1, '{"b"', "write"), call(0, '{"a":1}', "read"), call(1, ":2}")],
        [wanted({"b": 2}, "write"), wanted({"a": 1})],
        "tool_use",
        "tool_calls",
    ),
    Told(
        "a call without input, words, and another call",
        [call(0, "", "read"), {"content": "I look."}, call(1, "{}", "write")],
        [wanted({}), text("I look."), wanted({}, "write")],
        "tool_use",
        "tool_calls",
    ),
    Told(
        "more than the object of a call",
        [
            call(0, ' {"a":"}\\"', "read"),
            call(0, '"'),
            call(0, '} {"b"'),
            call(1, "{}", "read"),
            call(0, ":1}"),
        ],
        [wanted({"a": '}"'}), wanted({})],
        "tool_use",
        "tool_calls",
    ),
    Told(
        "words in one chunk with a call",
        [{"content": "I look.", **call(0, "{}", "read")}],
        [text("I look."), wanted({})],
        "tool_use",
        "tool_calls",
    ),
    Told(
        "reasoning under one name after the other",
        [{"reasoning": "H"}, {"reasoning_content": "m", "reasoning": "m"}, {"reasoning_content": "."}],
        [thought("Hm.")],
    ),
    Told(
        "parallel calls",
        [call(0, '{"a":1}', "read"), call(1, "", "write"), call(1, '{"b":[2]}')],
        [wanted({"a": 1}), wanted({"b": [2]}, "write")],
        "tool_use",
        "tool_calls",
    ),
    Told(
        "parallel calls in one chunk",
        [{"tool_calls": call(0, "{}", "a")["tool_calls"] + call(1, "{}", "b")["tool_calls"]}],
        [wanted({}, "a"), wanted({}, "b")],
        "tool_use",
        "tool_calls",
    ),
    Told(
        "thinking, words and calls",
        [{"reasoning_content": "Hm"}, {"content": "I look."}, call(0, "{}", "read")],
        [thought("Hm"), text("I look."), wanted({})],
        "tool_use",
        "tool_calls",
    ),
    Told(
        "calls although the engine says stop",
        [call(0, "{}", "read")],
        [wanted({})],
        "tool_use",
        "stop",
    ),
    Told(
        "a call in the old way",
        [{"function_call": {"name": "read", "arguments": '{"a"'}}, {"function_call": {"arguments": ":1}"}}],
        [wanted({"a": 1})],
        "tool_use",
        "function_call",
    ),
    Told(
        "a call that was cut between members",
        [call(0, '{"a": "x", ', "read")],
        [wanted({"a": "x"})],
        "max_tokens",
        "length",
    ),
    Told(
        "a call that was cut within a text",
        [call(0, '{"a": {"b": [1, 2], "c": "half', "read")],
        [wanted({"a": {"b": [1, 2]}})],
        "max_tokens",
        "length",
    ),
    Told(
        "a prompt that was in the engine's cache",
        says_text("a"),
        [text("a")],
        usage={"prompt_tokens": 10, "completion_tokens": 2, "prompt_tokens_details": {"cached_tokens": 8}},
        counts=(2, 8, 2),
    ),
    Told("no counts", says_text("a"), [text("a")], usage={}, counts=(0, 0, 0)),
    Told("blank pieces", says_text(" ", "\n"), [text(" \n")]),
    Told("null members", [{"content": None, "tool_calls": None}, {"content": "a"}], [text("a")]),
    Told(
        "numbers as the model spelled them", [call(0, '{"n":1.50}', "read")], [wanted({"n": 1.5})], "tool_use"
    ),
    Told(
        "an input of another language", [call(0, '{"ä":"\\u00e9"}', "read")], [wanted({"ä": "é"})], "tool_use"
    ),
    Told(
        "words after a call",
        [call(0, "{}", "read"), {"content": "done"}],
        [wanted({}), text("done")],
        "tool_use",
        "tool_calls",
    ),
]


def items_of(told: Told) -> tuple[bytes, ...]:
    """As an engine would stream it."""
    base: Object = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": "m"}
    chunks: list[Object] = [
        {**base, "choices": [{"index": 0, "delta": delta, "finish_reason": None}]} for delta in told.deltas
    ]
    last = {"index": 0, "delta": {}, "finish_reason": told.finish, **told.beside_finish}
    usage = {"prompt_tokens": 7, "completion_tokens": 3} if told.usage is None else told.usage
    chunks += [{**base, "choices": [last]}, {**base, "choices": [], "usage": usage}]
    return tuple(json.dumps(chunk, ensure_ascii=False).encode() for chunk in chunks)
