"""Requests and answers of Messages, each with what the engine is to be asked and what the harness is to be
told. The shapes are those of the public API reference; the texts are our own."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

Object = dict[str, Any]


@dataclass(frozen=True)
class Asked:
    """``asks`` goes beside a model and a length, ``chat`` is what of the engine's request it makes."""

    name: str
    asks: Object
    chat: Object


@dataclass(frozen=True)
class Told:
    """``deltas`` are of the only choice, ``content`` are the message's blocks but for ids and signatures."""

    name: str
    deltas: list[Object]
    content: list[Object]
    stop_reason: str = "end_turn"
    finish: str = "stop"
    beside_finish: Object = field(default_factory=dict)
    stops: tuple[str, ...] = ()
    stop_sequence: str | None = None
    usage: Object | None = None
    counts: tuple[int, int, int] = (7, 0, 3)
    """Prompt tokens that were read, those from a cache, and output tokens."""


def user(content: Any) -> Object:
    return {"role": "user", "content": content}


def assistant(content: Any, **beside: Any) -> Object:
    return {"role": "assistant", "content": content, **beside}


def text(said: str, **beside: Any) -> Object:
    return {"type": "text", "text": said, **beside}


def use(call_id: str, name: str = "read", **given: Any) -> Object:
    return {"type": "tool_use", "id": call_id, "name": name, "input": given}


def result(call_id: str, content: Any = "ok", **beside: Any) -> Object:
    return {"type": "tool_result", "tool_use_id": call_id, "content": content, **beside}


def called(place: int, arguments: str, name: str = "read") -> Object:
    function = {"name": name, "arguments": arguments}
    return {"id": f"call{place:05d}", "type": "function", "function": function}


def tool_says(place: int, content: Any, **beside: Any) -> Object:
    return {"role": "tool", "tool_call_id": f"call{place:05d}", "content": content, **beside}


HI = [user("hi")]
PNG = {"type": "base64", "media_type": "image/png", "data": "aGk="}
IMAGE = {"type": "image", "source": PNG}
IMAGE_PART = {"type": "image_url", "image_url": {"url": "data:image/png;base64,aGk="}}
SCHEMA = {"type": "object", "properties": {"b": {"type": "string"}, "a": {"type": "number"}}}
TOOL = {"name": "read", "description": "Reads.", "input_schema": SCHEMA}
FUNCTION = {"name": "read", "description": "Reads.", "parameters": SCHEMA}
CALLED = [user("go"), assistant([text("I look."), use("t1", path="a")])]
CALLED_CHAT = [user("go"), assistant("I look.", tool_calls=[called(0, '{"path":"a"}')])]


def says(messages: list[Object]) -> Object:
    return {"messages": messages}


ASKED = [
    Asked("a text", {"messages": HI}, {"messages": HI}),
    Asked("a block is its text", says([user([text("hi")])]), {"messages": HI}),
    Asked(
        "a mark for the cache is nothing",
        says([user([text("hi", cache_control={"type": "ephemeral"})])]),
        {"messages": HI},
    ),
    Asked("several blocks stay", says([user([text("a"), text("b")])]), says([user([text("a"), text("b")])])),
    Asked("an unknown member goes on", says([user([text("a", x=1)])]), says([user([text("a", x=1)])])),
    Asked(
        "a system prompt",
        {"system": "Be brief.", "messages": HI},
        says([{"role": "system", "content": "Be brief."}, *HI]),
    ),
    Asked(
        "system blocks without a header of accounts",
        {
            "system": [
                text("x-anthropic-billing-header: cc_version=1; cch=ab"),
                text("Be brief.", cache_control={"type": "ephemeral", "ttl": "1h"}),
            ],
            "messages": HI,
        },
        says([{"role": "system", "content": "Be brief."}, *HI]),
    ),
    Asked(
        "a header is one line",
        {"system": "x-anthropic-billing-header: a\nBe brief.", "messages": HI},
        says([{"role": "system", "content": "x-anthropic-billing-header: a\nBe brief."}, *HI]),
    ),
    Asked("no system prompt", {"system": [], "messages": HI}, {"messages": HI}),
    Asked(
        "a system message in between",
        says([*HI, assistant("ho"), {"role": "system", "content": [text("Mind.")]}, *HI]),
        says([*HI, assistant("ho"), {"role": "system", "content": "Mind."}, *HI]),
    ),
    Asked("an image", says([user([IMAGE, text("what?")])]), says([user([IMAGE_PART, text("what?")])])),
    Asked(
        "an image elsewhere",
        says([user([{"type": "image", "source": {"type": "url", "url": "https://a/b.png"}}])]),
        says([user([{"type": "image_url", "image_url": {"url": "https://a/b.png"}}])]),
    ),
    Asked(
        "a document of plain text",
        says(
            [
                user(
                    [
                        {
                            "type": "document",
                            "title": "T",
                            "context": "C",
                            "citations": {"enabled": False},
                            "source": {"type": "text", "media_type": "text/plain", "data": "D"},
                        }
                    ]
                )
            ]
        ),
        says([user("T\n\nC\n\nD")]),
    ),
    Asked(
        "a document of blocks",
        says([user([{"type": "document", "title": "T", "source": {"type": "content", "content": [IMAGE]}}])]),
        says([user([text("T"), IMAGE_PART])]),
    ),
    Asked(
        "a file",
        says(
            [
                user(
                    [
                        {
                            "type": "document",
                            "title": "t.pdf",
                            "source": {"type": "base64", "media_type": "application/pdf", "data": "aGk="},
                        }
                    ]
                )
            ]
        ),
        says(
            [
                user(
                    [
                        {
                            "type": "file",
                            "file": {"filename": "t.pdf", "file_data": "data:application/pdf;base64,aGk="},
                        }
                    ]
                )
            ]
        ),
    ),
    Asked(
        "a search result",
        says([user([{"type": "search_result", "title": "T", "source": "S", "content": [text("C")]}])]),
        says([user([text("T\nS"), text("C")])]),
    ),
    Asked("a call", {"messages": CALLED}, {"messages": CALLED_CHAT}),
    Asked(
        "a call alone, with the spelling of its input",
        says([user("go"), assistant([use("t1", b=1.50, a={"z": [], "y": None})])]),
        says([user("go"), assistant(None, tool_calls=[called(0, '{"b":1.5,"a":{"z":[],"y":null}}')])]),
    ),
    Asked(
        "a result",
        says([*CALLED, user([result("t1", "A")])]),
        says([*CALLED_CHAT, tool_says(0, "A")]),
    ),
    Asked(
        "a result without content",
        says([*CALLED, user([{"type": "tool_result", "tool_use_id": "t1"}])]),
        says([*CALLED_CHAT, tool_says(0, "")]),
    ),
    Asked(
        "a result in blocks, and more words",
        says([*CALLED, user([result("t1", [text("A")], is_error=False), text("go on")])]),
        says([*CALLED_CHAT, tool_says(0, "A"), user("go on")]),
    ),
    Asked(
        "a failure",
        says([*CALLED, user([result("t1", "no such file", is_error=True)])]),
        says([*CALLED_CHAT, tool_says(0, "no such file", is_error=True)]),
    ),
    Asked(
        "an image as a result",
        says([*CALLED, user([result("t1", [text("see"), IMAGE]), text("well?")])]),
        says([*CALLED_CHAT, tool_says(0, "see"), user([IMAGE_PART, text("well?")])]),
    ),
    Asked(
        "results of parallel calls, in the order of the calls",
        says(
            [
                user("go"),
                assistant([use("x", path="a"), use("y", path="b")]),
                user([result("y", "B"), result("x", "A")]),
            ]
        ),
        says(
            [
                user("go"),
                assistant(None, tool_calls=[called(0, '{"path":"a"}'), called(1, '{"path":"b"}')]),
                tool_says(0, "A"),
                tool_says(1, "B"),
            ]
        ),
    ),
    Asked(
        "thinking goes back to the model, its signature does not",
        says(
            [
                *HI,
                assistant([{"type": "thinking", "thinking": "Hm.", "signature": "s"}, text("ho")]),
                *HI,
            ]
        ),
        says([*HI, assistant("ho", reasoning_content="Hm."), *HI]),
    ),
    Asked(
        "the beginning of an answer",
        says([*HI, assistant("The answer is (")]),
        {
            "messages": [*HI, assistant("The answer is (")],
            "add_generation_prompt": False,
            "continue_final_message": True,
        },
    ),
    Asked(
        "sampling",
        {"messages": HI, "temperature": 0.5, "top_p": 0.9, "top_k": 5, "stop_sequences": ["a", "b"]},
        {"messages": HI, "temperature": 0.5, "top_p": 0.9, "top_k": 5, "stop": ["a", "b"]},
    ),
    Asked("no stops", {"messages": HI, "stop_sequences": []}, {"messages": HI}),
    Asked(
        "a stream",
        {"messages": HI, "stream": True},
        {"messages": HI, "stream": True, "stream_options": {"include_usage": True}},
    ),
    Asked("no stream", {"messages": HI, "stream": False}, {"messages": HI}),
    Asked(
        "who asks and who pays",
        {
            "messages": HI,
            "metadata": {"user_id": "u"},
            "service_tier": "auto",
            "speed": "fast",
            "cache_control": {"type": "ephemeral"},
            "diagnostics": {"previous_message_id": None},
            "container": None,
            "mcp_servers": [],
        },
        {"messages": HI, "metadata": {"user_id": "u"}},
    ),
    Asked(
        "a tool",
        {"messages": HI, "tools": [TOOL]},
        {"messages": HI, "tools": [{"type": "function", "function": FUNCTION}]},
    ),
    Asked(
        "a tool with everything",
        {
            "messages": HI,
            "tools": [
                {
                    **TOOL,
                    "type": "custom",
                    "strict": True,
                    "cache_control": {"type": "ephemeral"},
                    "eager_input_streaming": True,
                    "allowed_callers": ["direct"],
                    "defer_loading": False,
                    "input_examples": [{"b": "x"}],
                }
            ],
        },
        {
            "messages": HI,
            "tools": [
                {"type": "function", "function": {**FUNCTION, "strict": True, "input_examples": [{"b": "x"}]}}
            ],
        },
    ),
    Asked("no tools", {"messages": HI, "tools": []}, {"messages": HI}),
    *(
        Asked(
            f"a choice of tools: {asks['type']}",
            {"messages": HI, "tools": [TOOL], "tool_choice": asks},
            {"messages": HI, "tools": [{"type": "function", "function": FUNCTION}], **chat},
        )
        for asks, chat in (
            ({"type": "auto"}, {"tool_choice": "auto"}),
            ({"type": "none"}, {"tool_choice": "none"}),
            (
                {"type": "any", "disable_parallel_tool_use": True},
                {"tool_choice": "required", "parallel_tool_calls": False},
            ),
            (
                {"type": "tool", "name": "read", "disable_parallel_tool_use": False},
                {"tool_choice": {"type": "function", "function": {"name": "read"}}},
            ),
        )
    ),
    *(
        Asked(
            f"thinking {asks['type']}", {"messages": HI, "thinking": asks, **more}, {"messages": HI, **chat}
        )
        for asks, more, chat in (
            (
                {"type": "enabled", "budget_tokens": 1024},
                {},
                {
                    "thinking": {"type": "enabled", "budget_tokens": 1024},
                    "chat_template_kwargs": {"enable_thinking": True},
                },
            ),
            (
                {"type": "disabled"},
                {"chat_template_kwargs": {"x": 1}},
                {
                    "thinking": {"type": "disabled"},
                    "chat_template_kwargs": {"enable_thinking": False, "x": 1},
                },
            ),
            ({"type": "adaptive"}, {}, {"thinking": {"type": "adaptive"}}),
        )
    ),
    Asked(
        "an effort and what is not known of it",
        {"messages": HI, "output_config": {"effort": "max", "task_budget": 3}},
        {"messages": HI, "reasoning_effort": "high", "output_config": {"task_budget": 3}},
    ),
    Asked(
        "a format",
        {"messages": HI, "output_config": {"format": {"type": "json_schema", "schema": SCHEMA}}},
        {
            "messages": HI,
            "response_format": {
                "type": "json_schema",
                "json_schema": {"name": "output", "schema": SCHEMA, "strict": True},
            },
        },
    ),
    Asked(
        "what is not known goes on",
        {"messages": HI, "context_management": {"edits": []}, "seed": 3, "of_tomorrow": {"b": 1, "a": 2}},
        {"messages": HI, "context_management": {"edits": []}, "seed": 3, "of_tomorrow": {"b": 1, "a": 2}},
    ),
]

REFUSED: list[tuple[Object, str]] = [
    ({"messages": []}, "messages"),
    ({"messages": "hi"}, "messages"),
    ({}, "messages"),
    ({"messages": HI, "max_tokens": 0}, "max_tokens"),
    ({"messages": HI, "max_tokens": "9"}, "max_tokens"),
    ({"messages": HI, "max_tokens": None}, "max_tokens"),
    ({"messages": HI, "model": None}, "model"),
    ({"messages": HI, "stop_sequences": "x"}, "stop_sequences"),
    ({"messages": HI, "stream": 1}, "stream"),
    ({"messages": HI, "n": 2}, "n"),
    ({"messages": HI, "logprobs": True}, "logprobs"),
    ({"messages": HI, "response_format": {}}, "response_format"),
    ({"messages": HI, "container": "c"}, "container"),
    ({"messages": HI, "mcp_servers": [{}]}, "mcp_servers"),
    ({"messages": HI, "inference_geo": "eu"}, "inference_geo"),
    ({"messages": HI, "thinking": {"type": "much"}}, "thinking.type"),
    ({"messages": HI, "output_config": {"effort": "huge"}}, "output_config.effort"),
    ({"messages": HI, "output_format": {"type": "yaml"}}, "output_format"),
    ({"messages": HI, "tools": [{"type": "web_search_20250305", "name": "w"}]}, "tools[0].type"),
    ({"messages": HI, "tools": [{"name": "w"}]}, "tools[0].input_schema"),
    ({"messages": HI, "tools": [{**TOOL, "defer_loading": True}]}, "tools[0].defer_loading"),
    ({"messages": HI, "tool_choice": {"type": "some"}}, "tool_choice.type"),
    ({"messages": HI, "tool_choice": {"type": "auto", "x": 1}}, "tool_choice.x"),
    ({"messages": [{"role": "critic", "content": "x"}]}, "messages[0].role"),
    ({"messages": [{"role": "user"}]}, "messages[0].content"),
    ({"messages": [{**HI[0], "name": "x"}]}, "messages[0].name"),
    ({"messages": [user([{"type": "video"}])]}, "messages[0].content[0].type"),
    ({"messages": [user([{"text": "x"}])]}, "messages[0].content[0].type"),
    ({"messages": [user([{"type": "text"}])]}, "messages[0].content[0].text"),
    (
        {"messages": [user([{"type": "image", "source": {"type": "file", "file_id": "f"}}])]},
        "messages[0].content[0].source.type",
    ),
    ({"messages": [user([{**IMAGE, "transformations": {}}])]}, "messages[0].content[0].transformations"),
    (
        {"messages": [user([text("x", citations=[{"type": "char_location"}])])]},
        "messages[0].content[0].citations",
    ),
    (
        {"messages": [*HI, assistant([{"type": "redacted_thinking", "data": "x"}])]},
        "messages[1].content[0].type",
    ),
    ({"messages": [user([result("t9")])]}, "messages[0].content[0].tool_use_id"),
    ({"messages": [*CALLED, user([text("x"), result("t1")])]}, "messages[2].content[1]"),
    ({"messages": [*CALLED, assistant([use("t1")])]}, "messages[2].content[0].id"),
    ({"messages": [*HI, assistant([{**use("t1"), "input": "x"}])]}, "messages[1].content[0].input"),
    (
        {"messages": [*HI, assistant([{**use("t1"), "caller": {"type": "code"}}])]},
        "messages[1].content[0].caller",
    ),
    ({"messages": HI, "system": [IMAGE]}, "system[0].type"),
]


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
