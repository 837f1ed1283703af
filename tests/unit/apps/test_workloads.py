"""The workloads ask what they should, and the harness sees all of an answer."""

from __future__ import annotations

import json
from typing import Any

import pytest
from dynbranch.demo.harness import _canonical, _gather, _seen
from dynbranch.demo.records import Function, questions, routing_requests
from dynbranch.demo.workloads import arguments_schema, decision_schema, handler, reading_messages, tasks
from openai.types.chat import ChatCompletion, ChatCompletionChunk


def completion(message: dict[str, Any], finish: str = "stop") -> ChatCompletion:
    return ChatCompletion.model_validate(
        {
            "id": "x",
            "object": "chat.completion",
            "created": 1,
            "model": "m",
            "choices": [{"index": 0, "message": {"role": "assistant", **message}, "finish_reason": finish}],
            "usage": {"prompt_tokens": 5, "completion_tokens": 3, "total_tokens": 8},
        }
    )


def chunk(delta: dict[str, Any], finish: str | None = None, usage: bool = False) -> ChatCompletionChunk:
    return ChatCompletionChunk.model_validate(
        {
            "id": "x",
            "object": "chat.completion.chunk",
            "created": 1,
            "model": "m",
            "choices": [] if usage else [{"index": 0, "delta": delta, "finish_reason": finish}],
            "usage": {"prompt_tokens": 5, "completion_tokens": 3, "total_tokens": 8} if usage else None,
        }
    )


def test_a_stream_and_a_plain_answer_compare_by_the_same_bytes() -> None:
    call = {"index": 0, "id": "c1", "type": "function", "function": {"name": "f", "arguments": '{"a":1}'}}
    plain = completion({"content": "ab", "reasoning_content": "hm", "tool_calls": [call]}, "tool_calls")
    stream = [
        chunk({"reasoning_content": "hm"}),
        chunk({"content": "a"}),
        chunk({"content": "b"}),
        chunk({"tool_calls": [{**call, "id": "other", "function": {"name": "f", "arguments": ""}}]}),
        chunk({"tool_calls": [{"index": 0, "function": {"arguments": '{"a":1}'}}]}),
        chunk({}, "tool_calls"),
        chunk({}, usage=True),
    ]
    assert _canonical(_seen(plain)) == _canonical(_gather(stream))


@pytest.mark.parametrize(
    "other",
    [
        completion({"content": "a "}),
        completion({"content": "a"}, "length"),
        completion({"content": "a", "reasoning_content": "b"}),
        completion({"content": "a", "refusal": "no"}),
    ],
)
def test_every_part_of_a_choice_counts(other: ChatCompletion) -> None:
    assert _canonical(_seen(completion({"content": "a"}))) != _canonical(_seen(other))


def test_token_counts_count() -> None:
    other = completion({"content": "a"})
    assert other.usage is not None
    other.usage.completion_tokens = 4
    assert _canonical(_seen(completion({"content": "a"}))) != _canonical(_seen(other))


@pytest.mark.parametrize(
    ("decision", "chosen"),
    [('{"reason":"r","handler":"b"}', "b"), ('{"reason":"cut', "a"), ("7", "a"), ('{"handler":"z"}', "a")],
)
def test_the_handler_is_the_named_one_or_the_first(decision: str, chosen: str) -> None:
    assert handler(decision, ["a", "b"]) == chosen


def test_schemas_are_bounded() -> None:
    for request in routing_requests():
        assert decision_schema([f.name for f in request.functions])["properties"]["reason"]["maxLength"]
        for function in request.functions:
            for schema in arguments_schema(function)["properties"].values():
                match schema["type"]:
                    case "string":
                        assert "maxLength" in schema or "enum" in schema
                    case "array":
                        assert "maxItems" in schema
                    case kind:
                        assert kind in ("integer", "number", "boolean")


def test_an_enumeration_keeps_its_choices() -> None:
    function = Function("f", "", {"properties": {"unit": {"type": "string", "enum": ["a", "b"]}}})
    assert arguments_schema(function)["properties"]["unit"] == {"type": "string", "enum": ["a", "b"]}


def test_tool_results_go_into_the_prompt_word_for_word() -> None:
    messages = reading_messages("Who?", ["1", "2"], ['{"id":"1"}', '{"id":"2"}'])
    assert [m["content"] for m in messages if m["role"] == "tool"] == ['{"id":"1"}', '{"id":"2"}']
    called = {c["id"]: json.loads(c["function"]["arguments"])["id"] for c in messages[2]["tool_calls"]}
    answered = {m["tool_call_id"]: json.loads(m["content"])["id"] for m in messages if m["role"] == "tool"}
    assert called == answered


def test_every_record_is_a_task_of_its_own() -> None:
    todo = tasks(routing_requests(), questions())
    assert len({(t.workload, t.id) for t in todo}) == len(todo) == len(routing_requests()) + len(questions())
