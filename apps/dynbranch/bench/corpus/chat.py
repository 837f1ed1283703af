"""Requests of Chat Completions. The shapes are those of the public API reference, and of what vLLM, SGLang
and llama.cpp add to it; the texts are our own."""

from __future__ import annotations

from typing import Any

from dynbranch.bench.corpus.shapes import Asked, Object, assistant, called, system, text, tool_says, user

HI = [user("hi")]
URL = "data:image/png;base64,aGk="
IMAGE = {"type": "image_url", "image_url": {"url": URL}}
SCHEMA = {"type": "object", "properties": {"b": {"type": "string"}, "a": {"type": "number"}}}
FUNCTION = {"name": "read", "description": "Reads.", "parameters": SCHEMA}
TOOL = {"type": "function", "function": FUNCTION}
CALLED = [user("go"), assistant(None, tool_calls=[called(0, '{"path":"a"}')])]


def _asked(name: str, messages: list[Object], **fields: Any) -> Asked:
    """The engine is asked what the gateway is asked."""
    asks = {"messages": messages, **fields}
    return Asked(name, asks, asks)


ASKED = [
    _asked("a text", HI),
    _asked("a part", [user([text("hi")])]),
    _asked("several parts", [user([text("a"), text("b")])]),
    _asked("a mark for the cache", [user([text("hi", cache_control={"type": "ephemeral"})])]),
    _asked("an unknown member", [user([text("hi", x=1)])]),
    _asked("instructions", [system("Be brief."), *HI]),
    _asked("instructions in parts", [system([text("Be brief."), text("Be kind.")]), *HI]),
    _asked("a developer", [{"role": "developer", "content": "Be brief."}, *HI]),
    _asked("instructions in between", [*HI, assistant("ho"), system("Mind."), *HI]),
    _asked("a name", [user("hi") | {"name": "Ann"}]),
    _asked("a conversation", [*HI, assistant("ho"), user("and?")]),
    _asked("an answer in parts", [*HI, assistant([text("ho")]), user("and?")]),
    _asked("what was refused", [*HI, assistant(None, refusal="No."), user("why?")]),
    _asked(
        "what was refused, in parts", [*HI, assistant([{"type": "refusal", "refusal": "No."}]), user("why?")]
    ),
    _asked("reasoning that comes back", [*HI, assistant("ho", reasoning_content="Hm."), user("and?")]),
    _asked("an image", [user([IMAGE, text("what?")])]),
    _asked("an image with its detail", [user([{**IMAGE, "image_url": {"url": URL, "detail": "low"}}])]),
    _asked("an image elsewhere", [user([{"type": "image_url", "image_url": {"url": "https://a/b.png"}}])]),
    _asked("a sound", [user([{"type": "input_audio", "input_audio": {"data": "aGk=", "format": "wav"}}])]),
    _asked("a file", [user([{"type": "file", "file": {"filename": "t.pdf", "file_data": "aGk="}}])]),
    _asked("a file elsewhere", [user([{"type": "file", "file": {"file_id": "f1"}}])]),
    _asked("a call", [*CALLED, tool_says(0, "A")]),
    _asked("a result in parts", [*CALLED, tool_says(0, [text("A"), text("B")])]),
    _asked(
        "words beside a call", [user("go"), assistant("I look.", tool_calls=[called(0)]), tool_says(0, "A")]
    ),
    _asked(
        "parallel calls",
        [
            user("go"),
            assistant(None, tool_calls=[called(0, '{"path":"a"}'), called(1, '{"path":"b"}')]),
            tool_says(0, "A"),
            tool_says(1, "B"),
        ],
    ),
    _asked("an empty result, and more words", [*CALLED, tool_says(0, ""), user("go on")]),
    _asked(
        "a call in the old way",
        [
            user("go"),
            assistant(None, function_call={"name": "read", "arguments": "{}"}),
            {"role": "function", "name": "read", "content": "A"},
        ],
        functions=[FUNCTION],
        function_call="auto",
    ),
    _asked("a tool", HI, tools=[TOOL]),
    _asked("a strict tool", HI, tools=[{"type": "function", "function": {**FUNCTION, "strict": True}}]),
    _asked("a tool with nothing", HI, tools=[{"type": "function", "function": {"name": "now"}}]),
    _asked("two tools", HI, tools=[TOOL, {"type": "function", "function": {**FUNCTION, "name": "write"}}]),
    *(
        _asked(f"a choice of tools: {choice}", HI, tools=[TOOL], tool_choice=choice)
        for choice in ("auto", "none", "required", {"type": "function", "function": {"name": "read"}})
    ),
    _asked("one call at a time", HI, tools=[TOOL], parallel_tool_calls=False),
    _asked("a length", HI, max_tokens=30),
    _asked("a length in its newer name", HI, max_completion_tokens=30),
    _asked("sampling", HI, top_p=0.9, frequency_penalty=0.5, presence_penalty=-0.5),
    _asked("more sampling", HI, top_k=5, min_p=0.05, repetition_penalty=1.1),
    _asked("a bias", HI, logit_bias={"50256": -100}),
    _asked("a stop", HI, stop="END"),
    _asked("stops", HI, stop=["a", "b"]),
    _asked("an object", HI, response_format={"type": "json_object"}),
    _asked(
        "a format",
        HI,
        response_format={
            "type": "json_schema",
            "json_schema": {"name": "n", "strict": True, "schema": SCHEMA},
        },
    ),
    _asked("an effort", HI, reasoning_effort="low"),
    _asked("few words", HI, verbosity="low"),
    _asked("a prediction", HI, prediction={"type": "content", "content": "ho"}),
    _asked(
        "who asks and who pays",
        HI,
        user="u",
        metadata={"k": "v"},
        store=False,
        service_tier="auto",
        prompt_cache_key="k",
        safety_identifier="s",
    ),
    _asked("arguments of the template", HI, chat_template_kwargs={"enable_thinking": False, "b": 1, "a": 2}),
    _asked("null members", [user("hi") | {"name": None}], stop=None, tools=None, max_tokens=None),
    _asked(
        "the beginning of an answer",
        [*HI, assistant("The answer is (")],
        add_generation_prompt=False,
        continue_final_message=True,
    ),
    _asked("numbers in another spelling", HI, top_p=1.0, presence_penalty=0.0),
    _asked("what is not known goes on", HI, of_tomorrow={"b": 1, "a": 2}),
]
