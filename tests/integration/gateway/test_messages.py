"""Anthropic Messages through the gateway, asked by the vendor's own client and by hand."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest
import pytest_asyncio
from anthropic import AsyncAnthropic, BadRequestError, InternalServerError, NotFoundError
from anthropic.types import Message
from dynbranch.domain.engine import Failed
from dynbranch.engine_agent.fake import FAKE_MODEL, Script, text_chunks
from integration.gateway.world import MODEL, Answer, Plan, World, running_world

ASKED: dict[str, Any] = {
    "model": MODEL,
    "max_tokens": 100,
    "temperature": 0,
    "messages": [{"role": "user", "content": "hi"}],
}
OF_THE_CLIENT: dict[str, Any] = {
    **{key: value for key, value in ASKED.items() if key != "temperature"},
    "extra_body": {"temperature": 0},
}
"""The client does not know a temperature any more."""

TOOL = {
    "name": "read",
    "description": "Reads a file.",
    "input_schema": {"type": "object", "properties": {"path": {"type": "string"}}},
}


@pytest_asyncio.fixture
async def client(world: World) -> AsyncIterator[AsyncAnthropic]:
    async with AsyncAnthropic(base_url=world.url, api_key="sk-any", max_retries=0) as vendor:
        yield vendor


async def asked(world: World, **fields: Any) -> Answer:
    return await world.post("/v1/messages?beta=true", {**ASKED, **fields})


async def streamed(client: AsyncAnthropic, **fields: Any) -> Message:
    async with client.messages.stream(**{**OF_THE_CLIENT, **fields}) as stream:
        return await stream.get_final_message()


def said(message: Message) -> dict[str, Any]:
    """All of it but what is this response's own."""
    return message.model_dump(exclude={"id"})


def chunk(delta: dict[str, Any], finish: str | None = None, **beside: Any) -> bytes:
    choice = {"index": 0, "delta": delta, "finish_reason": finish, **beside}
    return json.dumps({"object": "chat.completion.chunk", "choices": [choice]}).encode()


def call(index: int, name: str | None, arguments: str) -> dict[str, Any]:
    function = {"arguments": arguments, **({"name": name} if name else {})}
    return {"tool_calls": [{"index": index, "id": f"x{index}", "type": "function", "function": function}]}


CALLS = (
    chunk({"role": "assistant", "content": ""}),
    chunk({"reasoning_content": "Two "}),
    chunk({"reasoning_content": "files."}),
    chunk({"content": "I look"}),
    chunk({"content": " at both."}),
    chunk(call(0, "read", '{"path":')),
    chunk(call(0, None, ' "a"}')),
    chunk(call(1, "read", '{"path": "b"}')),
    chunk({}, "tool_calls"),
    b'{"choices":[],"usage":{"prompt_tokens":20,"completion_tokens":9}}',
)


def says(world: World, *items: bytes) -> None:
    world.engine.writer = lambda _: Script(items=items)


# -- answers -------------------------------------------------------------------------------------------------


@pytest.mark.promise("I1")
async def test_a_miss_and_a_hit_differ_in_ids_and_counts_of_the_cache_alone(
    world: World, client: AsyncAnthropic
) -> None:
    says(world, *CALLS)
    fields = {"tools": [TOOL], "thinking": {"type": "enabled", "budget_tokens": 1024}}
    answers = [
        await client.messages.create(**{**OF_THE_CLIENT, **fields}),
        await streamed(client, **fields),
        await client.messages.create(**{**OF_THE_CLIENT, **fields}),
    ]
    miss, *hits = [said(answer) for answer in answers]
    assert len(world.engine.orders) == 1
    assert miss.pop("usage")["input_tokens"] == 20
    for hit in hits:
        counts = hit.pop("usage")
        assert (counts["input_tokens"], counts["cache_read_input_tokens"]) == (0, 20)
        assert hit == miss
    assert [block["type"] for block in miss["content"]] == ["thinking", "text", "tool_use", "tool_use"]
    thinking, text, first, second = miss["content"]
    assert thinking["thinking"] == "Two files." and thinking["signature"]
    assert text["text"] == "I look at both."
    assert [first["input"], second["input"]] == [{"path": "a"}, {"path": "b"}]
    assert first["id"].startswith("toolu_") and first["id"] != second["id"]
    assert miss["stop_reason"] == "tool_use"
    assert len({answer.id for answer in answers}) == 3


async def test_a_live_stream_is_the_plain_answer(world: World, client: AsyncAnthropic) -> None:
    says(world, *CALLS)
    live = await streamed(client, tools=[TOOL])
    plain = await client.messages.create(**{**OF_THE_CLIENT, "tools": [TOOL]})
    assert live.model_dump(exclude={"id", "usage"}) == plain.model_dump(exclude={"id", "usage"})
    assert live.usage.input_tokens == 20 and live.usage.output_tokens == 9


async def test_events_come_in_the_protocols_order(world: World) -> None:
    answer = await asked(world, stream=True)
    assert answer.headers["content-type"].startswith("text/event-stream") and answer.outcome == "miss"
    events = [part.split(b"\n", 1) for part in answer.body.split(b"\n\n") if part]
    names = [name.removeprefix(b"event: ").decode() for name, _ in events]
    data = [json.loads(text.removeprefix(b"data: ")) for _, text in events]
    assert names == [one["type"] for one in data]
    assert names[:2] == ["message_start", "content_block_start"]
    assert names[-3:] == ["content_block_stop", "message_delta", "message_stop"]
    assert "".join(one["delta"]["text"] for one in data if one["type"] == "content_block_delta") == (
        "Hello there"
    )


async def test_sampled_answers_have_calls_of_their_own(world: World, client: AsyncAnthropic) -> None:
    says(world, *CALLS)
    fields = {**OF_THE_CLIENT, "tools": [TOOL], "extra_body": {"temperature": 1.0}}
    first, second = [await client.messages.create(**fields) for _ in range(2)]
    assert len(world.engine.orders) == 2
    assert first.content[2].id != second.content[2].id  # type: ignore[union-attr]


# -- names ---------------------------------------------------------------------------------------------------


async def test_one_request_in_two_protocols_has_one_name(world: World) -> None:
    chat = await world.chat(max_tokens=100)
    messages = await asked(world)
    assert (chat.outcome, messages.outcome) == ("miss", "hit")
    assert messages.json["content"] == [{"type": "text", "text": chat.text}]
    assert chat.headers["x-dynbranch-name"] == messages.headers["x-dynbranch-name"]


async def test_what_harnesses_vary_without_meaning_changes_no_name(world: World) -> None:
    marked = {"type": "text", "text": "hi", "cache_control": {"type": "ephemeral"}}
    spoken = [
        {
            "role": "assistant",
            "content": [{"type": "tool_use", "id": "toolu_A", "name": "read", "input": {}}],
        },
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "toolu_A", "content": "x"}]},
    ]
    other = json.loads(
        json.dumps(spoken).replace("toolu_A", "toolu_B").replace('"x"', '[{"type": "text", "text": "x"}]')
    )
    names = {
        (await asked(world, messages=messages, metadata={"user_id": str(number)})).headers["x-dynbranch-name"]
        for number, messages in enumerate(
            [
                [{"role": "user", "content": "hi"}, *spoken],
                [{"role": "user", "content": [marked]}, *other],
            ]
        )
    }
    assert len(names) == 1
    assert len(world.engine.orders) == 1


@pytest.mark.parametrize(
    "fields",
    [
        {"system": "Be brief."},
        {"max_tokens": 99},
        {"stop_sequences": ["x"]},
        {"thinking": {"type": "disabled"}},
        {"thinking": {"type": "adaptive"}},
        {"output_config": {"effort": "low"}},
        {"tools": [TOOL]},
        {"context_management": {"edits": []}},
        {"a_field_of_tomorrow": 1},
        {"messages": [{"role": "user", "content": "hi "}]},
        {"messages": [{"role": "user", "content": [{"type": "text", "text": t} for t in ("h", "i")]}]},
    ],
)
async def test_what_reaches_the_model_is_in_the_name(world: World, fields: dict[str, Any]) -> None:
    plain, other = await asked(world), await asked(world, **fields)
    assert plain.headers["x-dynbranch-name"] != other.headers["x-dynbranch-name"]
    assert [plain.outcome, other.outcome] == ["miss", "miss"]


async def test_an_unknown_field_reaches_the_engine(world: World) -> None:
    await asked(world, a_field_of_tomorrow={"z": 1, "a": 1.50})
    assert b'"a_field_of_tomorrow":{"z":1,"a":1.5' in world.engine.orders[0].body


# -- errors --------------------------------------------------------------------------------------------------


async def test_errors_are_the_protocols_own(world: World, client: AsyncAnthropic) -> None:
    with pytest.raises(NotFoundError) as unknown:
        await client.messages.create(**{**OF_THE_CLIENT, "model": "nobody"})
    error: Any = unknown.value.body
    assert error["type"] == "error" and error["error"]["type"] == "not_found_error"
    assert error["request_id"] == unknown.value.request_id
    with pytest.raises(BadRequestError, match=r"mcp_servers"):
        await client.messages.create(**{**OF_THE_CLIENT, "extra_body": {"mcp_servers": [{"name": "x"}]}})
    wrong = await world.get("/v1/messages")
    assert wrong.status == 405 and wrong.json["type"] == "error"


@pytest.mark.parametrize("stream", [False, True])
async def test_an_engines_error_is_told_in_the_protocols_words(world: World, stream: bool) -> None:
    body = b'{"error": {"message": "too long", "code": 400, "type": "BadRequestError"}}'
    world.engine.writer = lambda _: Script(fail_after=0, failure=Failed(400, body, may_retry=False))
    answer = await asked(world, stream=stream)
    assert answer.status == 400
    assert answer.json["error"] == {"type": "invalid_request_error", "message": "too long"}


async def test_an_engine_that_breaks_ends_the_stream_with_an_error(world: World) -> None:
    body = b'{"error": {"message": "gone", "code": 500}}'
    world.engine.writer = lambda _: Script(
        items=text_chunks(("Hello",)), fail_after=2, failure=Failed(500, body, may_retry=False)
    )
    answer = await asked(world, stream=True)
    assert answer.status == 200
    last = answer.body.split(b"\n\n")[-2]
    assert last.startswith(b"event: error\n") and b'"message":"gone"' in last
    assert b"message_stop" not in answer.body
    plain = await asked(world, max_tokens=5)
    assert plain.status == 500 and plain.json["error"]["type"] == "api_error"


async def test_the_client_knows_what_may_be_retried(world: World, client: AsyncAnthropic) -> None:
    world.engine.writer = lambda _: Script(
        fail_after=0, failure=Failed(503, b"", may_retry=False, retry_after="7")
    )
    with pytest.raises(InternalServerError) as busy:
        await client.messages.create(**OF_THE_CLIENT)
    assert busy.value.response.headers["retry-after"] == "7"
    assert busy.value.body["error"]["type"] == "overloaded_error"  # type: ignore[index]


# -- beside answers ------------------------------------------------------------------------------------------


async def test_harnesses_look_at_the_root(world: World) -> None:
    answer = await world.get("/", method="HEAD")
    assert answer.status == 200 and answer.body == b""


async def test_counting_is_no_demand(world: World, client: AsyncAnthropic) -> None:
    counted = await client.messages.count_tokens(model=MODEL, messages=[{"role": "user", "content": "hi"}])
    assert counted.input_tokens > 0
    assert not world.engine.orders and not world.csl.demands
    answer = await world.post("/v1/messages/count_tokens", {"model": MODEL, "messages": ASKED["messages"]})
    assert answer.headers["x-dynbranch-estimated"] == "1"
    with pytest.raises(NotFoundError):
        await client.messages.count_tokens(model="nobody", messages=[{"role": "user", "content": "hi"}])


async def test_a_key_of_this_protocol_keeps_results_apart() -> None:
    async with running_world(Plan(model=replace(FAKE_MODEL))) as world:
        outcomes = [
            (await world.post("/v1/messages", ASKED, {"x-api-key": key})).outcome for key in ("a", "b", "a")
        ]
        assert outcomes == ["miss", "miss", "hit"]
        assert world.engine.orders[0].forward_headers == (("authorization", "Bearer a"),)


async def test_bypass_goes_raw_to_the_engines_own_messages(raw_engine: Any) -> None:
    async with running_world(Plan(bypass_url=raw_engine.url)) as world:
        answer = await world.post("/v1/messages?beta=true", ASKED, {"x-dynbranch-bypass": "1"})
        assert answer.outcome == "bypass"
        method, path, _, body = raw_engine.seen[-1]
        assert (method, path, json.loads(body)) == ("POST", "/v1/messages?beta=true", ASKED)


async def test_models_are_listed_in_the_shape_that_is_asked_for(world: World, client: AsyncAnthropic) -> None:
    listed = [model async for model in client.models.list()]
    assert [model.id for model in listed] == [MODEL]
    one = await client.models.retrieve(MODEL)
    assert one.type == "model" and one == listed[0]
    with pytest.raises(NotFoundError) as unknown:
        await client.models.retrieve("nobody")
    assert unknown.value.body["type"] == "error"  # type: ignore[index]
    assert (await world.get("/v1/models")).json["object"] == "list"


@pytest.mark.parametrize("stream", [False, True])
async def test_an_engine_without_messages_is_no_way_around_an_agent_that_is_gone(
    raw_engine: Any, stream: bool
) -> None:
    raw_engine.lacks = frozenset({"/v1/messages"})
    async with running_world(Plan(bypass_url=raw_engine.url)) as world:
        world.agents["model-a:1"].lose()
        for _ in range(2):
            answer = await asked(world, stream=stream)
            assert answer.status == 503 and answer.headers["retry-after"] == "1"
            assert answer.json["type"] == "error"
            assert answer.json["error"]["type"] == "overloaded_error"
        raw_engine.lacks = frozenset()
        assert (await asked(world, stream=stream)).outcome == "bypass"


async def test_an_engine_alone_without_messages_says_so_in_its_shape(raw_engine: Any) -> None:
    raw_engine.lacks = frozenset({"/v1/messages"})
    async with running_world(Plan(settings={"agents": (), "engine_url": raw_engine.url})) as world:
        answer = await asked(world)
        assert answer.status == 404 and answer.json["error"]["type"] == "not_found_error"


@pytest.mark.parametrize("path", ["/v1/messages", "/v1/chat/completions", "/v1/responses"])
async def test_after_a_keep_alive_nothing_of_another_answer_follows(raw_engine: Any, path: str) -> None:
    async with running_world(Plan(bypass_url=raw_engine.url, settings={"keep_alive_s": 0.01})) as world:
        gate = asyncio.Event()
        world.engine.writer = lambda order: Script(gate=gate, fail_after=0)
        fields = {"input": "hi"} if path == "/v1/responses" else {"messages": ASKED["messages"]}
        body = {"model": MODEL, "temperature": 1, "max_tokens": 100, "stream": True, **fields}
        if path == "/v1/responses":
            del body["max_tokens"]
        async with world.http.post(world.url + path, json=body) as response:
            await response.content.readuntil(b"\n\n")
            gate.set()
            rest = await response.content.read()
        assert rest.endswith(b"\n\n") and b"No engine could serve" in rest
        assert not raw_engine.seen
