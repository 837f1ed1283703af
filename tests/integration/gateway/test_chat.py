"""Chat Completions through the gateway: what is stored, what is reused, what the answer says."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace

import pytest
from dynbranch.engine_agent.fake import Script, text_chunks
from dynbranch.gateway.assembly import Peers
from dynbranch.gateway.config import GatewaySettings
from dynbranch.gateway.tenants import Tenants
from integration.gateway.world import MODEL, Plan, World, eventually, running_world, serving_gateway
from openai import AsyncOpenAI, BadRequestError, NotFoundError


@pytest.mark.promise("I1")
async def test_the_second_answer_is_the_first_one_and_says_so(world: World) -> None:
    first, second = await world.chat(), await world.chat()
    assert (first.status, first.outcome, second.outcome) == (200, "miss", "hit")
    assert first.json["choices"] == second.json["choices"]
    assert first.text == "Hello there"
    assert first.json["id"] != second.json["id"]
    assert second.json["usage"]["prompt_tokens_details"] == {"cached_tokens": 7}
    assert len(world.engine.orders) == 1
    for name in ("x-dynbranch-level", "x-dynbranch-name", "x-request-id", "server-timing"):
        assert second.headers[name]
    assert second.headers["x-dynbranch-level"] == "greedy"
    assert float(second.headers["x-dynbranch-saved-ms"]) >= 0


@pytest.mark.promise("C1.serve_a_hit")
async def test_any_mode_serves_any_mode(world: World) -> None:
    plain = await world.chat()
    streamed = await world.chat(stream=True, stream_options={"include_usage": True})
    assert (plain.outcome, streamed.outcome) == ("miss", "hit")
    *chunks, done = streamed.events()
    assert done == "[DONE]"
    text = "".join(c["delta"].get("content") or "" for chunk in chunks for c in chunk["choices"])
    assert text == plain.text
    assert chunks[-1]["usage"]["completion_tokens"] == 2
    assert len({chunk["id"] for chunk in chunks}) == 1
    assert streamed.headers["content-type"].startswith("text/event-stream")


async def test_a_stream_has_usage_only_if_asked(world: World) -> None:
    bare = await world.chat(stream=True)
    asked = await world.chat(stream=True, stream_options={"include_usage": True}, seed=2)
    assert not any("usage" in chunk for chunk in bare.events()[:-1])
    assert asked.events()[-2]["usage"]["prompt_tokens"] == 7


async def test_sampled_requests_skip_the_store(world: World) -> None:
    for _ in range(2):
        answer = await world.chat(temperature=1.0)
        assert answer.outcome == "miss" and answer.headers["x-dynbranch-level"] == "sampled"
        assert "x-dynbranch-name" not in answer.headers
    assert not world.csl.demands and len(world.engine.orders) == 2


@pytest.mark.parametrize(("directive", "outcomes"), [("no-cache", "miss hit"), ("no-store", "miss miss")])
async def test_opt_outs_of_the_store(world: World, directive: str, outcomes: str) -> None:
    first = await world.chat(headers={"cache-control": directive})
    second = await world.chat()
    assert f"{first.outcome} {second.outcome}" == outcomes


async def test_no_cache_executes_although_an_entry_is_there(world: World) -> None:
    await world.chat()
    assert (await world.chat(headers={"cache-control": "no-cache"})).outcome == "miss"
    assert len(world.engine.orders) == 2


async def test_an_unknown_field_reaches_the_engine_and_is_named(world: World) -> None:
    await world.chat()
    other = await world.chat(chat_template_kwargs={"z": 1, "a": 1.50})
    assert other.outcome == "miss"
    assert json.loads(world.engine.orders[1].body)["chat_template_kwargs"] == {"z": 1, "a": 1.5}


async def test_presentation_and_identity_do_not_change_the_name(world: World) -> None:
    first = await world.chat(user="me", stream=False)
    second = await world.chat(metadata={"a": "b"})
    assert first.headers["x-dynbranch-name"] == second.headers["x-dynbranch-name"]
    assert second.outcome == "hit"


async def test_an_alias_is_the_model(world: World) -> None:
    first, second = await world.chat(), await world.chat(model="fake-alias")
    assert second.outcome == "hit" and second.text == first.text


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (b"", "invalid_json"),
        (b'{"model": ', "invalid_json"),
        (b'{"model": "fake-model", "model": "x", "messages": []}', "invalid_json"),
        (b'{"temperature": NaN}', "invalid_json"),
        (b"[]", None),
        (b'{"model": 3, "messages": [{"role": "user", "content": "x"}]}', None),
        (b'{"model": "fake-model"}', None),
        (b'{"model": "fake-model", "messages": "hi"}', None),
        (b'{"model": "fake-model", "messages": [{"role": "user", "content": "x"}], "stream": "yes"}', None),
        (b"\xff\xfe", "invalid_json"),
    ],
)
async def test_malformed_bodies_are_the_callers_fault(world: World, body: bytes, code: str | None) -> None:
    answer = await world.chat(body)
    assert answer.status == 400
    assert answer.error["type"] == "invalid_request_error"
    assert code is None or answer.error["code"] == code
    assert not world.engine.orders and not world.csl.demands


async def test_an_unknown_model_is_said_to_be_unknown(world: World) -> None:
    answer = await world.chat(model="nobody")
    assert answer.status == 404
    assert (answer.error["code"], answer.error["param"]) == ("model_not_found", "model")


@pytest.mark.parametrize("value", ["nonsense", "s/a=x"])
async def test_malformed_read_declarations(world: World, value: str) -> None:
    answer = await world.chat(headers={"x-dynbranch-reads": value})
    assert answer.status == 400 and answer.error["code"] == "invalid_reads"


@pytest.mark.promise("I3")
async def test_declared_reads_make_an_entry_fall_with_a_write(world: World) -> None:
    headers = {"x-dynbranch-reads": "passages/7", "x-dynbranch-workflow": "w1"}
    first, second = await world.chat(headers=headers), await world.chat(headers=headers)
    assert (first.outcome, second.outcome) == ("miss", "hit")
    written = await world.post("/dynbranch/v1/writes", {"records": ["passages/7"]})
    assert written.json["invalidated"] == 1
    assert written.json["invalidated_names"] == [second.headers["x-dynbranch-name"]]
    assert (await world.chat(headers=headers | {"x-dynbranch-workflow": "w2"})).outcome == "miss"


async def test_tenants_do_not_share_unless_told(world: World) -> None:
    keys = Tenants({"k1": "one", "k2": "two"})
    first, other = {"authorization": "Bearer k1"}, {"authorization": "Bearer k2"}
    for sharing, outcome in (("tenant", "miss"), ("all", "hit")):
        async with running_world(Plan(settings={"sharing": sharing}, tenants=keys)) as keyed:
            assert (await keyed.chat(headers=first)).outcome == "miss"
            assert (await keyed.chat(headers=other)).outcome == outcome
            refused = await keyed.chat(headers={"authorization": "Bearer k3"})
            assert refused.status == 401 and refused.error["code"] == "invalid_api_key"
            assert keyed.engine.orders[0].forward_headers == ()


async def test_the_real_client_streams_and_not(world: World) -> None:
    async with AsyncOpenAI(base_url=f"{world.url}/v1", api_key="sk-x", max_retries=0) as client:
        plain = await client.chat.completions.create(
            model=MODEL, messages=[{"role": "user", "content": "hi"}], temperature=0
        )
        assert plain.choices[0].message.content == "Hello there"
        assert plain.choices[0].finish_reason == "stop"
        stream = await client.chat.completions.create(
            model=MODEL,
            messages=[{"role": "user", "content": "hi"}],
            temperature=0,
            stream=True,
            stream_options={"include_usage": True},
        )
        chunks = [chunk async for chunk in stream]
        assert "".join(c.choices[0].delta.content or "" for c in chunks if c.choices) == "Hello there"
        assert chunks[-1].usage is not None and chunks[-1].usage.total_tokens == 9
        assert [model.id async for model in client.models.list()] == [MODEL]
        with pytest.raises(NotFoundError):
            await client.chat.completions.create(model="x", messages=[{"role": "user", "content": "hi"}])
        with pytest.raises(BadRequestError):
            await client.chat.completions.create(model=MODEL, messages=[])
    assert world.engine.orders[0].forward_headers == (("authorization", "Bearer sk-x"),)


async def test_the_real_client_gets_tool_calls_of_several_choices(world: World) -> None:
    call = {"index": 0, "id": "c1", "type": "function", "function": {"name": "f", "arguments": '{"a":'}}
    rest = {"index": 0, "function": {"arguments": "1}"}}
    pieces = [
        {"index": 0, "delta": {"role": "assistant", "tool_calls": [call]}, "finish_reason": None},
        {"index": 1, "delta": {"role": "assistant", "content": "no"}, "finish_reason": "stop"},
        {"index": 0, "delta": {"tool_calls": [rest]}, "finish_reason": "tool_calls"},
    ]
    base = {"id": "e", "object": "chat.completion.chunk", "created": 1, "model": MODEL}
    items = tuple(json.dumps({**base, "choices": [piece]}).encode() for piece in pieces)
    world.engine.writer = lambda order: Script(items=items)
    async with AsyncOpenAI(base_url=f"{world.url}/v1", api_key="sk-x", max_retries=0) as client:
        for _ in range(2):
            answer = await client.chat.completions.create(
                model=MODEL, messages=[{"role": "user", "content": "hi"}], temperature=0, n=2
            )
            calls = answer.choices[0].message.tool_calls
            assert calls is not None and calls[0].type == "function"
            assert calls[0].function.arguments == '{"a":1}'
            assert answer.choices[1].message.content == "no"
            assert answer.choices[0].finish_reason == "tool_calls"


@pytest.mark.promise("C1.single_flight")
async def test_eight_identical_demands_execute_once(world: World) -> None:
    gate = asyncio.Event()
    world.engine.writer = lambda order: Script(gate=gate)
    asked = [asyncio.create_task(world.chat(stream=bool(n % 2))) for n in range(8)]
    await eventually(lambda: len(world.csl.demands) == 8)
    gate.set()
    answers = await asyncio.gather(*asked)
    assert sorted(str(answer.outcome) for answer in answers) == ["joined"] * 7 + ["miss"]
    assert len(world.engine.orders) == 1
    assert await world.leases() == 0 and await world.entries() == 1


@pytest.mark.promise("C1.single_flight")
async def test_two_gateways_share_an_execution_at_an_agent_that_one_of_them_does_not_know() -> None:
    async with running_world(Plan(models=2, settings={"agents": ("model-a:1",)})) as world:
        settings = GatewaySettings(agents=("model-b:1",), stop_grace_s=1)
        peers = Peers(world.csl, None, lambda address: world.agents[address])
        async with serving_gateway(settings, peers, Tenants()) as (other, url):
            await eventually(lambda: not other.readiness.missing())
            gate = asyncio.Event()
            world.engine.writer = lambda order: Script(gate=gate)
            first = asyncio.create_task(world.chat())
            await eventually(lambda: world.engine.running)
            second = asyncio.create_task(replace(world, url=url).chat(stream=True))
            await eventually(lambda: len(world.csl.demands) == 2)
            gate.set()
            assert ((await first).outcome, (await second).outcome) == ("miss", "joined")
            assert not world.agents["model-b:1"].engine.orders


async def test_a_client_that_does_not_read_slows_nobody(world: World) -> None:
    items = text_chunks(["x" * 20_000] * 200)
    world.engine.writer = lambda order: Script(items=items)
    body = json.dumps(
        {"model": MODEL, "messages": [{"role": "user", "content": "hi"}], "temperature": 0, "stream": True}
    )
    slow = await world.http.post(f"{world.url}/v1/chat/completions", data=body)
    quick = await world.chat(stream=True)
    assert quick.events()[-1] == "[DONE]"
    slow.close()


async def test_the_controller_hears_of_arrivals_and_outcomes(world: World) -> None:
    await world.chat(headers={"x-dynbranch-workflow": "w"})
    await world.chat(headers={"x-dynbranch-workflow": "w"})

    async def both() -> bool:
        return (await world.controller.summary(timeout_s=1)).arrivals == 2

    await eventually(both)

    async def outcomes() -> bool:
        return dict((await world.controller.summary(timeout_s=1)).outcomes) == {"hit": 1, "miss": 1}

    await eventually(outcomes)


async def test_without_a_controller_nothing_changes(world: World) -> None:
    world.controller.reachable = False
    assert [(await world.chat()).outcome for _ in range(2)] == ["miss", "hit"]
