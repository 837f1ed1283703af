"""Requests of Responses, each with what the engine is to be asked. The shapes are those of the public API
reference and of the Open Responses specification; the texts are our own."""

from __future__ import annotations

from typing import Any

from dynbranch.bench.corpus.shapes import Asked, Object, assistant, called, system, text, tool_says, user


def item(role: str, content: Any, **beside: Any) -> Object:
    return {"type": "message", "role": role, "content": content, **beside}


def given(text: str, **beside: Any) -> Object:
    return {"type": "input_text", "text": text, **beside}


def told(text: str, **beside: Any) -> Object:
    return {"type": "output_text", "text": text, "annotations": [], **beside}


def wants(call_id: str, name: str = "read", arguments: Any = "{}", **beside: Any) -> Object:
    return {"type": "function_call", "call_id": call_id, "name": name, "arguments": arguments, **beside}


def result(call_id: str, output: Any = "ok", **beside: Any) -> Object:
    return {"type": "function_call_output", "call_id": call_id, "output": output, **beside}


def reasoned(*texts: str, **beside: Any) -> Object:
    content = [{"type": "reasoning_text", "text": text} for text in texts]
    return {"type": "reasoning", "id": "rs_1", "summary": [], "content": content, **beside}


def asks(*items: Object, **fields: Any) -> Object:
    return {"input": list(items), **fields}


def says(*messages: Object, **fields: Any) -> Object:
    return {"messages": list(messages), **fields}


HI, HI_CHAT = {"input": "hi"}, {"messages": [user("hi")]}
URL = "data:image/png;base64,aGk="
IMAGE = {"type": "input_image", "image_url": URL}
IMAGE_PART = {"type": "image_url", "image_url": {"url": URL}}
SCHEMA = {"type": "object", "properties": {"b": {"type": "string"}, "a": {"type": "number"}}}
TOOL = {"type": "function", "name": "read", "description": "Reads.", "parameters": SCHEMA, "strict": False}
FUNCTION = {"name": "read", "description": "Reads.", "parameters": SCHEMA, "strict": False}
OFFER = {"type": "function", "function": FUNCTION}
SPACE = {"type": "namespace", "name": "crew", "description": "For helpers.", "tools": [TOOL]}

ASKED = [
    Asked("a text", HI, HI_CHAT),
    Asked("a message without a type", asks(user("hi")), HI_CHAT),
    Asked("a message with an id", asks(item("user", "hi", id="msg_1", status="completed")), HI_CHAT),
    Asked("a part is its text", asks(item("user", [given("hi")])), HI_CHAT),
    Asked(
        "a mark for the cache is nothing",
        asks(item("user", [given("hi", prompt_cache_breakpoint={"type": "x"})])),
        HI_CHAT,
    ),
    Asked(
        "several parts stay", asks(item("user", [given("a"), given("b")])), says(user([text("a"), text("b")]))
    ),
    Asked("an unknown member goes on", asks(item("user", [given("a", x=1)])), says(user([text("a", x=1)]))),
    Asked("instructions", {**HI, "instructions": "Be brief."}, says(system("Be brief."), user("hi"))),
    Asked("no instructions", {**HI, "instructions": ""}, HI_CHAT),
    Asked("null instructions", {**HI, "instructions": None}, HI_CHAT),
    Asked(
        "a developer", asks(item("developer", "Mind."), item("user", "hi")), says(system("Mind."), user("hi"))
    ),
    Asked(
        "all instructions before the first word are one message",
        asks(item("developer", [given("B")]), item("system", "C"), item("user", "hi"), instructions="A"),
        says(system([text("A"), text("B"), text("C")]), user("hi")),
    ),
    Asked(
        "instructions in between",
        asks(item("user", "hi"), item("assistant", "ho"), item("developer", "Mind."), item("user", "hi")),
        says(user("hi"), assistant("ho"), system("Mind."), user("hi")),
    ),
    Asked(
        "an answer",
        asks(item("user", "hi"), item("assistant", [told("ho")])),
        says(user("hi"), assistant("ho")),
    ),
    Asked(
        "what was refused",
        asks(item("user", "hi"), item("assistant", [{"type": "refusal", "refusal": "No."}])),
        says(user("hi"), assistant("No.")),
    ),
    Asked(
        "two answers stay two",
        asks(item("user", "hi"), item("assistant", "a"), item("assistant", "b")),
        says(user("hi"), assistant("a"), assistant("b")),
    ),
    Asked("an image", asks(item("user", [IMAGE, given("what?")])), says(user([IMAGE_PART, text("what?")]))),
    Asked(
        "an image with its detail",
        asks(item("user", [{**IMAGE, "detail": "low", "file_id": None}])),
        says(user([{"type": "image_url", "image_url": {"url": URL, "detail": "low"}}])),
    ),
    Asked(
        "a file",
        asks(item("user", [{"type": "input_file", "filename": "t.pdf", "file_data": "aGk="}])),
        says(user([{"type": "file", "file": {"filename": "t.pdf", "file_data": "aGk="}}])),
    ),
    Asked(
        "a call",
        asks(item("user", "go"), wants("c1", arguments='{"b": 1.50}', id="fc_1", status="completed")),
        says(user("go"), assistant(None, tool_calls=[called(0, '{"b": 1.50}')])),
    ),
    Asked(
        "one answer: reasoning, words and calls",
        asks(
            item("user", "go"),
            reasoned("Hm."),
            item("assistant", [told("I look.")]),
            wants("c1"),
            wants("c2", "write"),
        ),
        says(
            user("go"),
            assistant("I look.", reasoning_content="Hm.", tool_calls=[called(0), called(1, name="write")]),
        ),
    ),
    Asked(
        "a result",
        asks(item("user", "go"), wants("c1"), result("c1", "A", id="fco_1", status="completed")),
        says(user("go"), assistant(None, tool_calls=[called(0)]), tool_says(0, "A")),
    ),
    Asked(
        "an empty result",
        asks(item("user", "go"), wants("c1"), result("c1", "")),
        says(user("go"), assistant(None, tool_calls=[called(0)]), tool_says(0, "")),
    ),
    Asked(
        "a result in parts, and more words",
        asks(item("user", "go"), wants("c1"), result("c1", [given("A")]), item("user", "go on")),
        says(user("go"), assistant(None, tool_calls=[called(0)]), tool_says(0, "A"), user("go on")),
    ),
    Asked(
        "an image as a result",
        asks(item("user", "go"), wants("c1"), result("c1", [given("see"), IMAGE])),
        says(user("go"), assistant(None, tool_calls=[called(0)]), tool_says(0, "see"), user([IMAGE_PART])),
    ),
    Asked(
        "results of parallel calls, in the order of the calls",
        asks(item("user", "go"), wants("x"), wants("y"), result("y", "B"), result("x", "A")),
        says(
            user("go"),
            assistant(None, tool_calls=[called(0), called(1)]),
            tool_says(0, "A"),
            tool_says(1, "B"),
        ),
    ),
    Asked(
        "a second round of calls",
        asks(item("user", "go"), wants("x"), result("x"), reasoned("So."), wants("y"), result("y")),
        says(
            user("go"),
            assistant(None, tool_calls=[called(0)]),
            tool_says(0, "ok"),
            assistant(None, reasoning_content="So.", tool_calls=[called(1)]),
            tool_says(1, "ok"),
        ),
    ),
    Asked(
        "a call into a namespace",
        asks(item("user", "go"), wants("c1", "ask", namespace="crew"), result("c1")),
        says(user("go"), assistant(None, tool_calls=[called(0, name="crew__ask")]), tool_says(0, "ok")),
    ),
    Asked(
        "reasoning that came to a summary",
        asks(
            item("user", "hi"),
            {"type": "reasoning", "id": "r", "summary": [{"type": "summary_text", "text": "S"}]},
            item("assistant", "ho"),
        ),
        says(user("hi"), assistant("ho", reasoning_content="S")),
    ),
    Asked(
        "no reasoning at all",
        asks(item("user", "hi"), {"type": "reasoning", "id": "r", "summary": []}, item("assistant", "ho")),
        says(user("hi"), assistant("ho")),
    ),
    Asked(
        "sampling",
        {**HI, "temperature": 0.5, "top_p": 0.9, "max_output_tokens": 30, "top_k": 5, "stop": ["a"]},
        {**HI_CHAT, "temperature": 0.5, "top_p": 0.9, "max_tokens": 30, "top_k": 5, "stop": ["a"]},
    ),
    Asked(
        "a stream",
        {**HI, "stream": True},
        {**HI_CHAT, "stream": True, "stream_options": {"include_usage": True}},
    ),
    Asked(
        "a stream without padding",
        {**HI, "stream": True, "stream_options": {"include_obfuscation": False}},
        {**HI_CHAT, "stream": True, "stream_options": {"include_usage": True}},
    ),
    Asked(
        "who asks, who pays and what is kept",
        {
            **HI,
            "store": False,
            "prompt_cache_key": "k",
            "client_metadata": {"a": "b"},
            "service_tier": "auto",
            "safety_identifier": "s",
            "max_tool_calls": 3,
            "user": "u",
            "metadata": {"k": "v"},
            "include": ["reasoning.encrypted_content"],
            "truncation": "disabled",
            "background": False,
            "previous_response_id": None,
        },
        {**HI_CHAT, "user": "u", "metadata": {"k": "v"}},
    ),
    Asked("a tool", {**HI, "tools": [TOOL]}, {**HI_CHAT, "tools": [OFFER]}),
    Asked(
        "a tool with everything",
        {
            **HI,
            "tools": [
                {
                    **TOOL,
                    "strict": True,
                    "defer_loading": False,
                    "async": False,
                    "output_schema": {"type": "x"},
                }
            ],
        },
        {
            **HI_CHAT,
            "tools": [
                {"type": "function", "function": {**FUNCTION, "strict": True, "output_schema": {"type": "x"}}}
            ],
        },
    ),
    Asked(
        "a tool with nothing",
        {**HI, "tools": [{"type": "function", "name": "now", "parameters": None, "strict": None}]},
        {**HI_CHAT, "tools": [{"type": "function", "function": {"name": "now"}}]},
    ),
    Asked(
        "a namespace of tools",
        {**HI, "tools": [TOOL, SPACE]},
        {
            **HI_CHAT,
            "tools": [
                OFFER,
                {
                    "type": "function",
                    "function": {**FUNCTION, "name": "crew__read", "description": "For helpers.\n\nReads."},
                },
            ],
        },
    ),
    Asked("a search that nobody here can do", {**HI, "tools": [{"type": "web_search"}]}, HI_CHAT),
    Asked("no tools", {**HI, "tools": []}, HI_CHAT),
    *(
        Asked(
            f"a choice of tools: {choice}",
            {**HI, "tools": [TOOL], "tool_choice": choice},
            {**HI_CHAT, "tools": [OFFER], "tool_choice": chat},
        )
        for choice, chat in (
            ("auto", "auto"),
            ("none", "none"),
            ("required", "required"),
            ({"type": "function", "name": "read"}, {"type": "function", "function": {"name": "read"}}),
            (
                {"type": "function", "name": "read", "namespace": "crew"},
                {"type": "function", "function": {"name": "crew__read"}},
            ),
        )
    ),
    Asked(
        "one call at a time",
        {**HI, "tools": [TOOL], "parallel_tool_calls": False},
        {**HI_CHAT, "tools": [OFFER], "parallel_tool_calls": False},
    ),
    *(
        Asked(
            f"an effort: {effort}",
            {**HI, "reasoning": {"effort": effort, "summary": "auto"}},
            {**HI_CHAT, "reasoning_effort": chat},
        )
        for effort, chat in (("minimal", "minimal"), ("high", "high"), ("xhigh", "high"))
    ),
    Asked("no effort", {**HI, "reasoning": {"summary": "auto", "context": "all_turns"}}, HI_CHAT),
    Asked("a text as it comes", {**HI, "text": {"format": {"type": "text"}}}, HI_CHAT),
    Asked("few words", {**HI, "text": {"verbosity": "low"}}, {**HI_CHAT, "verbosity": "low"}),
    Asked(
        "an object",
        {**HI, "text": {"format": {"type": "json_object"}}},
        {**HI_CHAT, "response_format": {"type": "json_object"}},
    ),
    Asked(
        "a format",
        {**HI, "text": {"format": {"type": "json_schema", "name": "n", "strict": True, "schema": SCHEMA}}},
        {
            **HI_CHAT,
            "response_format": {
                "type": "json_schema",
                "json_schema": {"name": "n", "strict": True, "schema": SCHEMA},
            },
        },
    ),
    Asked(
        "what is not known goes on",
        {**HI, "seed": 3, "chat_template_kwargs": {"b": 1, "a": 2}, "of_tomorrow": {"z": 1}},
        {**HI_CHAT, "seed": 3, "chat_template_kwargs": {"b": 1, "a": 2}, "of_tomorrow": {"z": 1}},
    ),
]

GO = item("user", "go")
REFUSED: list[tuple[Object, str]] = [
    ({}, "input"),
    ({"input": []}, "input"),
    ({"input": 3}, "input"),
    ({"input": ["hi"]}, "input[0]"),
    ({**HI, "model": None}, "model"),
    ({**HI, "instructions": ["x"]}, "instructions"),
    ({**HI, "previous_response_id": "resp_1"}, "previous_response_id"),
    ({**HI, "conversation": "conv_1"}, "conversation"),
    ({**HI, "background": True}, "background"),
    ({**HI, "prompt": {"id": "p"}}, "prompt"),
    ({**HI, "context_management": [{"type": "compaction"}]}, "context_management"),
    ({**HI, "truncation": "auto"}, "truncation"),
    ({**HI, "top_logprobs": 3}, "top_logprobs"),
    ({**HI, "include": ["message.output_text.logprobs"]}, "include[0]"),
    ({**HI, "include": "x"}, "include"),
    ({**HI, "max_output_tokens": 0}, "max_output_tokens"),
    ({**HI, "max_output_tokens": "9"}, "max_output_tokens"),
    ({**HI, "stream": "yes"}, "stream"),
    ({**HI, "messages": []}, "messages"),
    ({**HI, "max_tokens": 3}, "max_tokens"),
    ({**HI, "response_format": {}}, "response_format"),
    ({**HI, "n": 2}, "n"),
    ({**HI, "text": "x"}, "text"),
    ({**HI, "text": {"format": {"type": "grammar"}}}, "text.format"),
    ({**HI, "text": {"format": {"type": "json_schema", "schema": {}}}}, "text.format.name"),
    ({**HI, "text": {"format": {"type": "json_schema", "name": "n"}}}, "text.format.schema"),
    ({**HI, "text": {"x": 1}}, "text.x"),
    ({**HI, "reasoning": "high"}, "reasoning"),
    ({**HI, "reasoning": {"effort": 3}}, "reasoning.effort"),
    ({**HI, "reasoning": {"mode": "pro"}}, "reasoning.mode"),
    ({**HI, "reasoning": {"context": "current_turn"}}, "reasoning.context"),
    ({**HI, "tools": {}}, "tools"),
    ({**HI, "tools": [{"type": "code_interpreter"}]}, "tools[0].type"),
    ({**HI, "tools": [{"type": "custom", "name": "patch"}]}, "tools[0].type"),
    ({**HI, "tools": [{"name": "x"}]}, "tools[0].type"),
    ({**HI, "tools": [{"type": "function"}]}, "tools[0].name"),
    ({**HI, "tools": [{**TOOL, "parameters": "x"}]}, "tools[0].parameters"),
    ({**HI, "tools": [{**TOOL, "defer_loading": True}]}, "tools[0].defer_loading"),
    ({**HI, "tools": [{**TOOL, "async": True}]}, "tools[0].async"),
    ({**HI, "tools": [{**TOOL, "allowed_callers": ["programmatic"]}]}, "tools[0].allowed_callers"),
    ({**HI, "tools": [TOOL, TOOL]}, "tools"),
    ({**HI, "tools": [{**TOOL, "name": "crew__read"}, SPACE]}, "tools"),
    ({**HI, "tools": [{**SPACE, "tools": None}]}, "tools[0].tools"),
    ({**HI, "tools": [{**SPACE, "tools": [{"type": "custom"}]}]}, "tools[0].tools[0].type"),
    ({**HI, "tools": [{**SPACE, "x": 1}]}, "tools[0].x"),
    ({**HI, "tool_choice": "any"}, "tool_choice"),
    ({**HI, "tool_choice": {"type": "allowed_tools", "tools": []}}, "tool_choice.type"),
    ({**HI, "tool_choice": {"name": "x"}}, "tool_choice.type"),
    ({**HI, "tool_choice": {"type": "function"}}, "tool_choice.name"),
    (asks({"role": "critic", "content": "x"}), "input[0].role"),
    (asks({"role": "user"}), "input[0].content"),
    (asks(item("user", "x", phase="commentary")), "input[0].phase"),
    (asks({"type": "item_reference", "id": "x"}), "input[0].type"),
    (asks({"type": "compaction", "encrypted_content": "x"}), "input[0].type"),
    (asks({"content": "x"}), "input[0].type"),
    (asks(item("user", [{"type": "input_video"}])), "input[0].content[0].type"),
    (asks(item("user", [{"text": "x"}])), "input[0].content[0].type"),
    (asks(item("user", [{"type": "input_text"}])), "input[0].content[0].text"),
    (asks(item("user", [{"type": "input_image", "file_id": "f"}])), "input[0].content[0].file_id"),
    (asks(item("user", [{"type": "input_image"}])), "input[0].content[0].image_url"),
    (asks(item("user", [{"type": "input_file", "file_url": "u"}])), "input[0].content[0].file_url"),
    (
        asks(item("user", [{"type": "input_file", "file_data": "x", "detail": "high"}])),
        "input[0].content[0].detail",
    ),
    (asks(GO, wants("c1"), wants("c1")), "input[2].call_id"),
    (asks(GO, result("c9")), "input[1].call_id"),
    (asks(GO, wants("c1", async_=None) | {"async": True}), "input[1].async"),
    (asks(GO, wants("c1", caller={"type": "program"})), "input[1].caller"),
    (asks(GO, wants("c1", arguments=None)), "input[1].arguments"),
    (asks(GO, wants("c1"), {**result("c1"), "output": None}), "input[2].output"),
    (
        asks(GO, {"type": "reasoning", "id": "r", "summary": [], "encrypted_content": "gAAAA"}),
        "input[1].encrypted_content",
    ),
]
