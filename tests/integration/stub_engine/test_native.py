"""Messages and Responses as the stub engine speaks them itself, read by the vendors' own clients."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import httpx2 as httpx
import pytest
from anthropic import AsyncAnthropic
from dynbranch.stub_engine.engine import StubEngine
from dynbranch.stub_engine.script import rules_from
from dynbranch.stub_engine.settings import StubSettings
from openai import AsyncOpenAI

SCRIPT = """
{"match": {"said": "weather", "tools": ["look"], "turn": 0}, "reply": {"reasoning": "Hm, rain?", "text": "I look.", "tool_calls": [{"name": "look", "arguments": {"city": "Ulm"}}, {"name": "look", "arguments": {"city": "Bonn"}}]}}
{"match": {"said": "weather", "tools": ["sky__look"], "turn": 0}, "reply": {"tool_calls": [{"name": "sky__look", "arguments": {"city": "Ulm"}}]}}
{"match": {"said": "weather", "result": "rain"}, "reply": {"text": "It rains."}}
"""  # noqa: E501


@pytest.fixture
async def stub() -> AsyncIterator[StubEngine]:
    async with StubEngine(StubSettings(native=True, rules=rules_from(SCRIPT, "here"))) as engine:
        yield engine


LOOK: Any = {"name": "look", "input_schema": {"type": "object"}}
ASKED: Any = {"role": "user", "content": "What is the weather?"}


async def test_messages_streamed_and_whole(stub: StubEngine) -> None:
    async with AsyncAnthropic(base_url=stub.url, api_key="any") as client:
        asked: Any = {"model": "stub-model", "max_tokens": 1000, "tools": [LOOK], "messages": [ASKED]}
        whole = await client.messages.create(**asked)
        async with client.messages.stream(**asked) as stream:
            streamed = await stream.get_final_message()
        blocks = [block.model_dump() for block in whole.content]
        assert [block["type"] for block in blocks] == ["thinking", "text", "tool_use", "tool_use"]
        assert [block["input"] for block in blocks[2:]] == [{"city": "Ulm"}, {"city": "Bonn"}]
        assert len({block["id"] for block in blocks[2:]}) == 2
        unsigned = [{**block.model_dump(), "signature": None} for block in streamed.content]
        assert unsigned == [{**block, "signature": None} for block in blocks]
        assert whole.stop_reason == streamed.stop_reason == "tool_use"
        results: Any = [
            {"type": "tool_result", "tool_use_id": block["id"], "content": "rain"} for block in blocks[2:]
        ]
        told: Any = [ASKED, {"role": "assistant", "content": blocks}, {"role": "user", "content": results}]
        after = await client.messages.create(**{**asked, "messages": told})
        assert after.content[0].text == "It rains." and after.stop_reason == "end_turn"  # type: ignore[union-attr]


async def test_responses_streamed_and_whole(stub: StubEngine) -> None:
    async with AsyncOpenAI(base_url=f"{stub.url}/v1", api_key="any") as client:
        space: Any = {"type": "namespace", "name": "sky", "tools": [{"type": "function", "name": "look"}]}
        asked: Any = {"model": "stub-model", "tools": [space], "input": [ASKED]}
        whole = (await client.responses.create(**asked)).model_dump()
        events = [event.model_dump() async for event in await client.responses.create(**asked, stream=True)]
        assert [event["type"] for event in events][:2] == ["response.created", "response.output_item.added"]
        assert [event["sequence_number"] for event in events] == list(range(len(events)))
        call = whole["output"][0]
        assert (call["type"], call["namespace"], call["name"]) == ("function_call", "sky", "look")
        done = next(event for event in events if event["type"] == "response.output_item.done")["item"]
        assert {**done, "id": ""} == {**call, "id": ""}
        assert json.loads(call["arguments"]) == {"city": "Ulm"}
        result = {"type": "function_call_output", "call_id": call["call_id"], "output": "rain"}
        after = await client.responses.create(**{**asked, "input": [ASKED, call, result]})
        assert after.output_text == "It rains."


async def test_they_are_spoken_only_where_that_is_asked_for() -> None:
    async with StubEngine() as plain, httpx.AsyncClient() as client:
        for path in ("/v1/messages", "/v1/responses"):
            assert (await client.post(plain.url + path, json={})).status_code == 404


async def test_what_can_not_be_read_is_refused(stub: StubEngine) -> None:
    async with httpx.AsyncClient() as client:
        for path, body in (("/v1/messages", b"{}"), ("/v1/responses", b"[]"), ("/v1/responses", b"{")):
            assert (await client.post(stub.url + path, content=body)).status_code == 400
