"""Requests of Messages, each with what the engine is to be asked. The shapes are those of the public API
reference; the texts are our own."""

from __future__ import annotations

from typing import Any

from dynbranch.bench.corpus.shapes import Asked, Object, assistant, called, text, tool_says, user


def use(call_id: str, name: str = "read", **given: Any) -> Object:
    return {"type": "tool_use", "id": call_id, "name": name, "input": given}


def result(call_id: str, content: Any = "ok", **beside: Any) -> Object:
    return {"type": "tool_result", "tool_use_id": call_id, "content": content, **beside}


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
