"""OpenAI Responses through the gateway, asked by the vendor's own client and by hand."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio
from dynbranch.domain.engine import Failed
from dynbranch.engine_agent.fake import Script, text_chunks
from integration.gateway.test_messages import CALLS, says
from integration.gateway.world import MODEL, Answer, Plan, World, running_world
from openai import AsyncOpenAI, BadRequestError, NotFoundError, RateLimitError
from openai.types.responses import Response

ASKED: dict[str, Any] = {"model": MODEL, "temperature": 0, "input": "hi"}
TOOL: dict[str, Any] = {
    "type": "function",
    "name": "read",
    "description": "Reads a file.",
    "parameters": {"type": "object", "properties": {"path": {"type": "string"}}},
    "strict": False,
}
SPACE = {"type": "namespace", "name": "crew", "description": "For helpers.", "tools": [TOOL]}


@pytest_asyncio.fixture
async def client(world: World) -> AsyncIterator[AsyncOpenAI]:
    async with AsyncOpenAI(base_url=f"{world.url}/v1", api_key="sk-any", max_retries=0) as vendor:
        yield vendor


async def asked(world: World, headers: dict[str, str] | None = None, **fields: Any) -> Answer:
    return await world.post("/v1/responses", {**ASKED, **fields}, headers)


async def streamed(client: AsyncOpenAI, **fields: Any) -> Response:
    async with client.responses.stream(**{**ASKED, **fields}) as stream:
        return await stream.get_final_response()


def said(response: Response) -> list[dict[str, Any]]:
    """All of its output but what is this response's own."""
    return [item.model_dump(exclude={"id", "parsed_arguments"}) for item in response.output]


def events_in(body: bytes) -> list[dict[str, Any]]:
    parts = [part.split(b"\n", 1) for part in body.split(b"\n\n") if part.startswith(b"event: ")]
    return [json.loads(data.removeprefix(b"data: ")) for _, data in parts]


# -- answers -------------------------------------------------------------------------------------------------


@pytest.mark.promise("I1")
async def test_a_miss_and_a_hit_differ_in_ids_and_counts_of_the_cache_alone(
    world: World, client: AsyncOpenAI
) -> None:
    says(world, *CALLS)
    fields: dict[str, Any] = {"tools": [TOOL]}
    answers = [
        await client.responses.create(**{**ASKED, **fields}),
        await client.responses.create(**{**ASKED, **fields}),
    ]
    miss, hit = answers
    assert len(world.engine.orders) == 1
    assert said(miss) == said(hit) and miss.id != hit.id
    assert (miss.status, hit.status) == ("completed", "completed")
    assert miss.usage is not None and hit.usage is not None
    assert miss.usage.input_tokens == hit.usage.input_tokens == 20
    assert (miss.usage.input_tokens_details.cached_tokens, hit.usage.input_tokens_details.cached_tokens) == (
        0,
        20,
    )
    assert [item.type for item in miss.output] == ["reasoning", "message", "function_call", "function_call"]
    assert miss.output_text == "I look at both."
    assert [item["arguments"] for item in said(miss)[2:]] == ['{"path": "a"}', '{"path": "b"}']


async def test_a_live_stream_is_the_plain_answer(world: World) -> None:
    says(world, *CALLS)
    live = (await asked(world, tools=[TOOL], stream=True)).body
    recorded = (await asked(world, tools=[TOOL], stream=True)).body
    plain = Response.model_validate((await asked(world, tools=[TOOL])).json)
    assert len(world.engine.orders) == 1
    for body in (live, recorded):
        last = events_in(body)[-1]
        assert last["type"] == "response.completed"
        assert said(Response.model_validate(last["response"])) == said(plain)


async def test_the_vendors_stream_gives_the_text(world: World, client: AsyncOpenAI) -> None:
    response = await streamed(client)
    assert response.output_text == "Hello there"


async def test_events_come_in_the_protocols_order(world: World) -> None:
    answer = await asked(world, stream=True)
    assert answer.headers["content-type"].startswith("text/event-stream") and answer.outcome == "miss"
    events = events_in(answer.body)
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    kinds = [event["type"].removeprefix("response.") for event in events]
    assert kinds[:4] == ["created", "in_progress", "output_item.added", "content_part.added"]
    assert kinds[-4:] == ["output_text.done", "content_part.done", "output_item.done", "completed"]
    assert set(kinds[4:-4]) == {"output_text.delta"}
    assert answer.body.endswith(b"data: [DONE]\n\n")


async def test_the_token_limit_makes_a_response_incomplete(world: World, client: AsyncOpenAI) -> None:
    says(
        world,
        b'{"choices":[{"index":0,"delta":{"content":"Hel"},"finish_reason":null}]}',
        b'{"choices":[{"index":0,"delta":{},"finish_reason":"length"}]}',
    )
    response = await client.responses.create(**{**ASKED, "max_output_tokens": 1})
    assert response.status == "incomplete"
    assert response.incomplete_details is not None
    assert response.incomplete_details.reason == "max_output_tokens"


async def test_a_tool_of_a_namespace_is_called_by_its_name_there(world: World) -> None:
    call = {"index": 0, "id": "x", "type": "function", "function": {"name": "crew__read", "arguments": "{}"}}
    says(
        world,
        json.dumps({"choices": [{"index": 0, "delta": {"tool_calls": [call]}}]}).encode(),
        b'{"choices":[{"index":0,"delta":{},"finish_reason":"tool_calls"}]}',
    )
    answer = await asked(world, tools=[SPACE])
    (item,) = answer.json["output"]
    assert (item["namespace"], item["name"]) == ("crew", "read")
    again = [
        {"role": "user", "content": "hi"},
        item,
        {"type": "function_call_output", "call_id": item["call_id"], "output": "ok"},
    ]
    await asked(world, tools=[SPACE], input=again)
    assert b'"name":"crew__read"' in world.engine.orders[-1].body


async def test_what_no_engine_has_is_left_out_and_told(world: World) -> None:
    answer = await asked(world, tools=[{"type": "web_search", "external_web_access": False}, TOOL])
    assert answer.headers["x-dynbranch-tools-left-out"] == "web_search"
    assert b"web_search" not in world.engine.orders[0].body
    assert "x-dynbranch-tools-left-out" not in (await asked(world, tools=[TOOL])).headers


async def test_reasoning_may_be_sealed_for_the_next_turn(world: World) -> None:
    says(world, *CALLS)
    answer = await asked(world, tools=[TOOL], include=["reasoning.encrypted_content"])
    reasoning, *_ = answer.json["output"]
    turn = {"role": "user", "content": "hi"}
    bare = {key: value for key, value in reasoning.items() if key != "content"}
    names = [
        (await asked(world, tools=[TOOL], input=[turn, item, turn])).headers["x-dynbranch-name"]
        for item in (reasoning, bare)
    ]
    assert names[0] == names[1]
    assert b'"reasoning_content":"Two files."' in world.engine.orders[-1].body


# -- names ---------------------------------------------------------------------------------------------------


async def test_one_request_in_three_protocols_has_one_name(world: World) -> None:
    said_once = [{"role": "user", "content": "hi"}]
    chat = await world.chat(messages=said_once, max_tokens=100)
    messages = await world.post(
        "/v1/messages", {"model": MODEL, "temperature": 0, "messages": said_once, "max_tokens": 100}
    )
    responses = await asked(world, max_output_tokens=100)
    assert [chat.outcome, messages.outcome, responses.outcome] == ["miss", "hit", "hit"]
    assert responses.json["output"][0]["content"][0]["text"] == chat.text
    names = {answer.headers["x-dynbranch-name"] for answer in (chat, messages, responses)}
    assert len(names) == 1


async def test_what_harnesses_vary_without_meaning_changes_no_name(world: World) -> None:
    def turns(number: int) -> list[dict[str, Any]]:
        call = {"type": "function_call", "call_id": f"c{number}", "name": "read", "arguments": "{}"}
        return [
            {"type": "message", "id": f"msg_{number}", "role": "user", "content": "hi"},
            {**call, "id": f"fc_{number}", "status": "completed"},
            {"type": "function_call_output", "call_id": f"c{number}", "output": "x"},
        ]

    names = {
        (
            await asked(
                world,
                input=turns(number),
                prompt_cache_key=str(number),
                client_metadata={"turn": str(number)},
                store=bool(number),
            )
        ).headers["x-dynbranch-name"]
        for number in range(2)
    }
    assert len(names) == 1 and len(world.engine.orders) == 1


@pytest.mark.parametrize(
    "fields",
    [
        {"instructions": "Be brief."},
        {"max_output_tokens": 99},
        {"reasoning": {"effort": "low"}},
        {"text": {"format": {"type": "json_object"}}},
        {"text": {"verbosity": "low"}},
        {"tools": [TOOL]},
        {"tools": [SPACE]},
        {"parallel_tool_calls": False},
        {"a_field_of_tomorrow": 1},
        {"input": "hi "},
    ],
    ids=str,
)
async def test_what_reaches_the_model_is_in_the_name(world: World, fields: dict[str, Any]) -> None:
    plain, other = await asked(world), await asked(world, **fields)
    assert plain.headers["x-dynbranch-name"] != other.headers["x-dynbranch-name"]
    assert [plain.outcome, other.outcome] == ["miss", "miss"]


# -- errors --------------------------------------------------------------------------------------------------


async def test_errors_are_the_protocols_own(world: World, client: AsyncOpenAI) -> None:
    with pytest.raises(NotFoundError) as unknown:
        await client.responses.create(**{**ASKED, "model": "nobody"})
    assert unknown.value.code == "model_not_found"
    with pytest.raises(BadRequestError) as earlier:
        await client.responses.create(**{**ASKED, "previous_response_id": "resp_1"})
    assert earlier.value.param == "previous_response_id"
    assert earlier.value.code == "previous_response_not_found"
    with pytest.raises(BadRequestError, match="code_interpreter"):
        await client.responses.create(**{**ASKED, "tools": [{"type": "code_interpreter"}]})


async def test_a_websocket_is_declined(world: World) -> None:
    offer = {"upgrade": "websocket", "connection": "upgrade", "sec-websocket-version": "13"}
    answer = await world.get("/v1/responses", offer)
    assert answer.status == 426 and answer.json["error"]["code"] == "upgrade_required"


async def test_an_engine_that_breaks_ends_the_stream_with_a_failed_response(world: World) -> None:
    body = b'{"error": {"message": "gone", "code": 500}}'
    world.engine.writer = lambda _: Script(
        items=text_chunks(("Hello",)), fail_after=2, failure=Failed(500, body, may_retry=False)
    )
    answer = await asked(world, stream=True)
    events = events_in(answer.body)
    assert answer.status == 200 and events[-1]["type"] == "response.failed"
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    assert events[-1]["response"]["error"] == {"code": "server_error", "message": "gone"}
    assert b"response.completed" not in answer.body and b"[DONE]" not in answer.body
    Response.model_validate(events[-1]["response"])


async def test_the_client_knows_when_to_come_back(world: World, client: AsyncOpenAI) -> None:
    world.engine.writer = lambda _: Script(
        fail_after=0, failure=Failed(429, b"", may_retry=False, retry_after="7")
    )
    with pytest.raises(RateLimitError) as busy:
        await client.responses.create(**ASKED)
    assert busy.value.response.headers["retry-after"] == "7"


# -- beside answers ------------------------------------------------------------------------------------------


async def test_bypass_goes_raw_to_the_engines_own_responses(raw_engine: Any) -> None:
    async with running_world(Plan(bypass_url=raw_engine.url)) as world:
        answer = await asked(world, {"x-dynbranch-bypass": "1"})
        assert answer.outcome == "bypass"
        method, path, _, body = raw_engine.seen[-1]
        assert (method, path, json.loads(body)) == ("POST", "/v1/responses", ASKED)


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/responses", ASKED),
        (
            "/v1/messages",
            {
                "model": MODEL,
                "max_tokens": 9,
                "temperature": 0,
                "messages": [{"role": "user", "content": "hi"}],
            },
        ),
        (
            "/v1/chat/completions",
            {"model": MODEL, "temperature": 0, "messages": [{"role": "user", "content": "hi"}]},
        ),
    ],
)
async def test_a_request_is_explained_in_the_protocol_it_is_written_in(
    world: World, path: str, body: dict[str, Any]
) -> None:
    before = await world.post(f"/dynbranch/v1/explain{path}", body)
    answer = await world.post(path, body)
    after = await world.post(f"/dynbranch/v1/explain{path}", body)
    assert before.json["name"] == after.json["name"] == answer.headers["x-dynbranch-name"]
    assert [before.json["outcome"], answer.outcome, after.json["outcome"]] == ["miss", "miss", "hit"]
    assert len(world.engine.orders) == 1


async def test_an_engine_without_responses_is_no_way_around_an_agent_that_is_gone(raw_engine: Any) -> None:
    raw_engine.lacks = frozenset({"/v1/responses"})
    async with running_world(Plan(bypass_url=raw_engine.url)) as world:
        world.agents["model-a:1"].lose()
        answer = await asked(world)
        assert answer.status == 503 and answer.headers["retry-after"] == "1"
        assert answer.error["code"] == "no_engine"
        raw_engine.lacks = frozenset()
        assert (await asked(world)).outcome == "bypass"
