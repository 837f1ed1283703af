"""What a client gets from the stub engine over HTTP."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest
from dynbranch.enginemodel.parameters import FixedParameters
from dynbranch.stub_engine.engine import StubEngine
from dynbranch.stub_engine.script import Match, Reply, Rule, ToolCall
from dynbranch.stub_engine.settings import StubSettings

HI: dict[str, Any] = {"model": "stub-model", "messages": [{"role": "user", "content": "hi"}]}
LONG = {**HI, "messages": [{"role": "user", "content": "a long prompt of many words " * 20}]}


@pytest.fixture
async def stub() -> AsyncIterator[StubEngine]:
    async with StubEngine(StubSettings(latency=FixedParameters())) as engine:
        yield engine


@pytest.fixture
async def http() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession() as session:
        yield session


async def chat(http: aiohttp.ClientSession, stub: StubEngine, body: dict[str, Any], **fields: Any) -> Any:
    async with http.post(f"{stub.url}/v1/chat/completions", json={**body, **fields}) as answer:
        return await answer.json()


async def streamed(
    http: aiohttp.ClientSession, stub: StubEngine, body: dict[str, Any], **fields: Any
) -> list[Any]:
    """The chunks of a stream, without its end mark."""
    body = {**body, "stream": True, "stream_options": {"include_usage": True}, **fields}
    async with http.post(f"{stub.url}/v1/chat/completions", json=body) as answer:
        assert answer.content_type == "text/event-stream"
        events = (await answer.text()).split("\n\n")
    assert events[-2:] == ["data: [DONE]", ""]
    return [json.loads(event.removeprefix("data: ")) for event in events[:-2]]


def text_of(chunks: list[Any]) -> str:
    return "".join(c["choices"][0]["delta"].get("content", "") for c in chunks if c["choices"])


async def test_a_stream_and_a_whole_answer_say_the_same(
    http: aiohttp.ClientSession, stub: StubEngine
) -> None:
    whole = await chat(http, stub, HI, max_tokens=9)
    chunks = await streamed(http, stub, HI, max_tokens=9)
    assert text_of(chunks) == whole["choices"][0]["message"]["content"]
    assert chunks[-1]["usage"] == whole["usage"]
    assert whole["usage"]["completion_tokens"] == 9
    assert len(chunks) == 1 + 9 + 1 + 1
    assert [c["choices"][0]["finish_reason"] for c in chunks[:-1]] == [None] * 10 + ["length"]


async def test_another_request_gets_another_text(http: aiohttp.ClientSession, stub: StubEngine) -> None:
    texts = set()
    for fields in ({}, {"seed": 1}, {"temperature": 0}, {"messages": [{"role": "user", "content": "ho"}]}):
        texts.add((await chat(http, stub, HI, max_tokens=8, **fields))["choices"][0]["message"]["content"])
    assert len(texts) == 4


async def test_defaults_transport_and_length_do_not_change_the_text(
    http: aiohttp.ClientSession, stub: StubEngine
) -> None:
    short = (await chat(http, stub, HI, max_tokens=8))["choices"][0]["message"]["content"]
    for fields in ({"temperature": 1.0}, {"top_p": 1, "seed": None}, {"user": "me", "cache_salt": "s"}):
        answer = await chat(http, stub, HI, max_tokens=16, **fields)
        assert answer["choices"][0]["message"]["content"].startswith(short)


async def test_cached_tokens_are_told_and_salted(http: aiohttp.ClientSession, stub: StubEngine) -> None:
    first = await chat(http, stub, LONG, max_tokens=1)
    again = await chat(http, stub, LONG, max_tokens=1)
    salted = await chat(http, stub, LONG, max_tokens=1, cache_salt="tenant")
    hits = [one["usage"]["prompt_tokens_details"]["cached_tokens"] for one in (first, again, salted)]
    assert hits[0] == hits[2] == 0
    assert 0 < hits[1] < again["usage"]["prompt_tokens"]
    assert [request.as_json()["prefix_hit_tokens"] for request in stub.requests] == hits


async def test_a_stop_text_ends_the_answer(http: aiohttp.ClientSession, stub: StubEngine) -> None:
    full = (await chat(http, stub, HI, max_tokens=16))["choices"][0]["message"]["content"]
    stop = full[20:24]
    choice = (await chat(http, stub, HI, max_tokens=16, stop=[stop]))["choices"][0]
    assert choice["message"]["content"] == full[: full.index(stop)]
    assert choice["finish_reason"] == "stop"


async def test_scripted_tool_calls(http: aiohttp.ClientSession, stub: StubEngine) -> None:
    call = ToolCall("look", '{"city":"Zürich"}')
    stub.script.rules.append(Rule(Reply(reasoning="well", tool_calls=(call,)), Match(contains="hi")))
    whole = await chat(http, stub, HI)
    message = whole["choices"][0]["message"]
    assert message["content"] is None and message["reasoning_content"] == "well"
    assert message["tool_calls"][0]["function"] == {"name": "look", "arguments": call.arguments}
    assert whole["choices"][0]["finish_reason"] == "tool_calls"

    chunks = await streamed(http, stub, HI)
    calls = [part for c in chunks if c["choices"] for part in c["choices"][0]["delta"].get("tool_calls", ())]
    assert "".join(part["function"]["arguments"] for part in calls) == call.arguments
    assert calls[0]["id"] == message["tool_calls"][0]["id"]
    assert len(calls) > 2


async def test_what_can_not_be_is_refused_with_its_reason(
    http: aiohttp.ClientSession, stub: StubEngine
) -> None:
    for body, status in (
        ({**HI, "model": "other"}, 404),
        ({**HI, "n": 2}, 400),
        ({**HI, "messages": "hi"}, 400),
        ({**HI, "max_tokens": -1}, 400),
        ({**HI, "max_tokens": 10**6}, 400),
    ):
        async with http.post(f"{stub.url}/v1/chat/completions", json=body) as answer:
            assert answer.status == status
            assert (await answer.json())["error"]["code"] == status
    async with http.post(f"{stub.url}/v1/chat/completions/render", json=HI) as answer:
        assert answer.status == 404
