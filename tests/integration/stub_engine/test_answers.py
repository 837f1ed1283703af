"""What a client gets from the stub engine over HTTP."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
from dynbranch.stub_engine.engine import StubEngine
from dynbranch.stub_engine.matching import Match
from dynbranch.stub_engine.script import Reply, Rule, ToolCall, rules_from
from integration.stub_engine.conftest import HI, Client

LONG = {**HI, "messages": [{"role": "user", "content": "a long prompt of many words " * 20}]}


@pytest.fixture
async def stub() -> AsyncIterator[StubEngine]:
    async with StubEngine() as engine:
        yield engine


def text_of(chunks: list[Any]) -> str:
    return "".join(c["choices"][0]["delta"].get("content", "") for c in chunks if c["choices"])


async def test_a_stream_and_a_whole_answer_say_the_same(client: Client, stub: StubEngine) -> None:
    whole = await client.chat(stub, HI, max_tokens=9)
    chunks = await client.streamed(stub, HI, max_tokens=9)
    assert text_of(chunks) == whole["choices"][0]["message"]["content"]
    assert chunks[-1]["usage"] == whole["usage"]
    assert whole["usage"]["completion_tokens"] == 9
    assert len(chunks) == 1 + 9 + 1 + 1
    assert [c["choices"][0]["finish_reason"] for c in chunks[:-1]] == [None] * 10 + ["length"]


async def test_another_request_gets_another_text(client: Client, stub: StubEngine) -> None:
    texts = set()
    for fields in ({}, {"seed": 1}, {"temperature": 0}, {"messages": [{"role": "user", "content": "ho"}]}):
        texts.add((await client.chat(stub, HI, max_tokens=8, **fields))["choices"][0]["message"]["content"])
    assert len(texts) == 4


async def test_defaults_transport_and_length_do_not_change_the_text(client: Client, stub: StubEngine) -> None:
    short = (await client.chat(stub, HI, max_tokens=8))["choices"][0]["message"]["content"]
    for fields in ({"temperature": 1.0}, {"top_p": 1, "seed": None}, {"user": "me", "cache_salt": "s"}):
        answer = await client.chat(stub, HI, max_tokens=16, **fields)
        assert answer["choices"][0]["message"]["content"].startswith(short)


async def test_cached_tokens_are_told_and_salted(client: Client, stub: StubEngine) -> None:
    first = await client.chat(stub, LONG, max_tokens=1)
    again = await client.chat(stub, LONG, max_tokens=1)
    salted = await client.chat(stub, LONG, max_tokens=1, cache_salt="tenant")
    hits = [one["usage"]["prompt_tokens_details"]["cached_tokens"] for one in (first, again, salted)]
    assert hits[0] == hits[2] == 0
    assert 0 < hits[1] < again["usage"]["prompt_tokens"]
    assert [request.as_json()["prefix_hit_tokens"] for request in stub.requests] == hits


async def test_a_stop_text_ends_the_answer(client: Client, stub: StubEngine) -> None:
    full = (await client.chat(stub, HI, max_tokens=16))["choices"][0]["message"]["content"]
    stop = full[20:24]
    choice = (await client.chat(stub, HI, max_tokens=16, stop=[stop]))["choices"][0]
    assert choice["message"]["content"] == full[: full.index(stop)]
    assert choice["finish_reason"] == "stop"


async def test_scripted_tool_calls(client: Client, stub: StubEngine) -> None:
    call = ToolCall("look", '{"city":"Zürich"}')
    stub.script.rules.append(Rule(Reply(reasoning="well", tool_calls=(call,)), Match(contains="hi")))
    whole = await client.chat(stub, HI)
    message = whole["choices"][0]["message"]
    assert message["content"] is None and message["reasoning_content"] == "well"
    assert message["tool_calls"][0]["function"] == {"name": "look", "arguments": call.arguments}
    assert whole["choices"][0]["finish_reason"] == "tool_calls"

    chunks = await client.streamed(stub, HI)
    calls = [part for c in chunks if c["choices"] for part in c["choices"][0]["delta"].get("tool_calls", ())]
    assert "".join(part["function"]["arguments"] for part in calls) == call.arguments
    assert calls[0]["id"] == message["tool_calls"][0]["id"]
    assert len(calls) > 2


async def test_what_can_not_be_is_refused_with_its_reason(client: Client, stub: StubEngine) -> None:
    for body, status in (
        ({**HI, "model": "other"}, 404),
        ({**HI, "n": 2}, 400),
        ({**HI, "messages": "hi"}, 400),
        ({**HI, "max_tokens": -1}, 400),
        ({**HI, "max_tokens": 10**6}, 400),
    ):
        async with client.http.post(f"{stub.url}/v1/chat/completions", json=body) as answer:
            assert answer.status == status
            assert (await answer.json())["error"]["code"] == status
    async with client.http.post(f"{stub.url}/v1/chat/completions/render", json=HI) as answer:
        assert answer.status == 404


async def test_a_script_from_json(client: Client, stub: StubEngine) -> None:
    stub.script.rules[:] = rules_from(
        '{"match": {"tools": ["look"], "turn": 0}, "times": 1,'
        ' "reply": {"tool_calls": [{"name": "look", "arguments": {"x": 1}}]}}\n'
        '{"match": {"regex": "^h.$"}, "reply": {"chunks": ["Hel", "lo"], "usage": {"total_tokens": 3}}}',
        "a test",
    )
    tools = [{"type": "function", "function": {"name": "look"}}]
    first = (await client.chat(stub, HI, tools=tools))["choices"][0]["message"]
    assert first["tool_calls"][0]["function"] == {"name": "look", "arguments": '{"x":1}'}
    chunks = await client.streamed(stub, HI, tools=tools)
    assert [c["choices"][0]["delta"].get("content") for c in chunks if c["choices"]] == [
        "",
        "Hel",
        "lo",
        None,
    ]
    assert chunks[-1]["usage"] == {"total_tokens": 3}


async def test_completions_and_the_tokenizer_agree(client: Client, stub: StubEngine) -> None:
    _, text = await client.post(stub, "/tokenize", {"messages": HI["messages"], "return_token_strs": True})
    tokens = json.loads(text)
    assert "".join(tokens["token_strs"]) == "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
    answer = await client.chat(stub, HI, max_tokens=1)
    assert answer["usage"]["prompt_tokens"] == tokens["count"]
    _, text = await client.post(stub, "/detokenize", {"tokens": tokens["tokens"]})
    assert json.loads(text)["prompt"] == "".join(tokens["token_strs"])
    _, text = await client.post(stub, "/v1/completions", {"prompt": tokens["tokens"], "max_tokens": 3})
    assert json.loads(text)["usage"]["prompt_tokens"] == tokens["count"]
    assert len(json.loads(text)["choices"][0]["text"]) == 12


async def test_the_answer_to_a_pipelined_request_waits_for_the_one_before(stub: StubEngine) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", stub.port)
    for words in ("one", "two"):
        body = json.dumps({"prompt": words, "max_tokens": 2, "stream": words == "one"}).encode()
        writer.write(
            b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n" % len(body) + body
        )
    first = await reader.readuntil(b"0\r\n\r\n")
    assert first.count(b"text_completion") == 3
    assert b"200 OK" in await reader.readuntil(b"\r\n\r\n")
    writer.close()
