"""Engines, agents and the store fail; the client gets the right result or the protocol's own error."""

from __future__ import annotations

import asyncio

import pytest
from dynbranch.domain.engine import Failed
from dynbranch.engine_agent.fake import Script, text_chunks
from dynbranch.gateway.core.breaker import Position
from integration.gateway.world import Plan, RawEngine, World, eventually, running_world

OWN_ERROR = b'{"error": {"message": "too long", "type": "engine", "param": null, "code": 7}}'
ITEMS = text_chunks(("a", "b", "c"))


@pytest.mark.parametrize("stream", [False, True])
async def test_the_engines_own_error_is_passed_on(world: World, stream: bool) -> None:
    failure = Failed(422, OWN_ERROR, may_retry=False, content_type="application/problem+json")
    world.engine.writer = lambda order: Script(fail_after=0, failure=failure)
    answer = await world.chat(stream=stream)
    assert (answer.status, answer.body) == (422, OWN_ERROR)
    assert answer.headers["content-type"] == "application/problem+json"
    assert answer.outcome == "miss"
    assert await world.entries() == 0
    await eventually(lambda: world.engine.running == set())


@pytest.mark.promise("I5")
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("status", [429, 503])
async def test_the_engines_advice_when_to_come_back_is_passed_on(
    world: World, status: int, stream: bool
) -> None:
    failure = Failed(status, OWN_ERROR, may_retry=True, retry_after="17")
    world.engine.writer = lambda order: Script(fail_after=0, failure=failure)
    answer = await world.chat(stream=stream)
    assert (answer.status, answer.body) == (status, OWN_ERROR)
    assert answer.headers.getall("retry-after") == ["17"]


async def test_an_engine_that_dies_before_the_first_item(world: World) -> None:
    world.engine.writer = lambda order: Script(fail_after=0)
    answer = await world.chat(stream=True)
    assert answer.status in (502, 503) and answer.json["error"]["message"]
    await eventually(lambda: _no_lease(world))


async def test_an_engine_that_dies_in_the_middle_of_a_stream(world: World) -> None:
    world.engine.writer = lambda order: Script(items=ITEMS, fail_after=2, between_s=0.01)
    answer = await world.chat(stream=True)
    assert answer.status == 200
    *chunks, last = answer.events()
    assert chunks and "[DONE]" not in chunks
    assert last["error"]["message"]
    await eventually(lambda: _no_lease(world))
    assert await world.entries() == 0


async def test_an_engine_that_dies_in_the_middle_of_a_plain_answer(world: World) -> None:
    world.engine.writer = lambda order: Script(items=ITEMS, fail_after=2, between_s=0.01)
    answer = await world.chat()
    assert answer.status in (502, 503) and answer.json["error"]["message"]
    assert await world.entries() == 0


async def test_an_engine_that_dies_after_the_stream_stores_nothing_wrong(world: World) -> None:
    world.engine.writer = lambda order: Script(items=ITEMS, fail_after=len(ITEMS))
    answer = await world.chat(stream=True)
    assert answer.events()[-1] != "[DONE]"
    assert await world.entries() == 0
    world.engine.writer = lambda order: Script(items=ITEMS)
    assert (await world.chat()).text == "abc"


async def test_another_agent_takes_over_before_the_first_item() -> None:
    async with running_world(Plan(models=2)) as world:
        first = world.agents["model-a:1"]
        first.engine.writer = lambda order: Script(gate=asyncio.Event())
        asked = asyncio.create_task(world.chat(stream=True))
        await eventually(lambda: first.engine.running)
        first.lose()
        answer = await asked
        assert (answer.status, answer.outcome) == (200, "miss")
        assert answer.events()[-1] == "[DONE]"
        assert len(world.agents["model-b:1"].engine.orders) == 1
        assert (await world.chat()).outcome == "hit"


async def test_a_plain_answer_survives_an_agent_lost_in_the_middle() -> None:
    async with running_world(Plan(models=2)) as world:
        first = world.agents["model-a:1"]
        first.engine.writer = lambda order: Script(items=ITEMS, between_s=0.05)
        asked = asyncio.create_task(world.chat())
        await eventually(lambda: first.engine.running)
        first.lose()
        answer = await asked
        assert (answer.status, answer.text) == (200, "Hello there")


async def test_an_agent_lost_in_the_middle_of_a_stream_is_the_streams_error(world: World) -> None:
    world.engine.writer = lambda order: Script(items=ITEMS, between_s=0.05)
    async with world.http.post(
        f"{world.url}/v1/chat/completions",
        json={"model": "fake-model", "messages": [{"role": "user", "content": "x"}], "stream": True},
    ) as response:
        received = await response.content.readuntil(b"\n\n")
        world.agents["model-a:1"].lose()
        received += await response.content.read()
    assert b'"error"' in received and b"[DONE]" not in received


async def test_no_agent_and_no_raw_way_is_503_with_advice(world: World) -> None:
    world.agents["model-a:1"].lose()
    answer = await world.chat(temperature=1)
    assert answer.status == 503 and answer.error["type"] == "server_error"
    assert answer.headers["retry-after"]
    await eventually(lambda: not world.gateway.directory.offers_of_model("fake-model")[0].ready)
    assert (await world.chat(temperature=1)).status == 503


async def test_a_record_is_served_when_no_agent_is_left(world: World) -> None:
    first = await world.chat()
    world.agents["model-a:1"].lose()
    await eventually(lambda: not world.gateway.directory.offers_of_model("fake-model")[0].ready)
    second = await world.chat()
    assert second.outcome == "hit" and second.text == first.text


async def test_no_agent_but_a_raw_way_is_bypassed(raw_engine: RawEngine) -> None:
    async with running_world(Plan(bypass_url=raw_engine.url)) as world:
        world.agents["model-a:1"].lose()
        answer = await world.chat()
        assert (answer.status, answer.outcome) == (200, "bypass")
        assert [seen[1] for seen in raw_engine.seen] == ["/v1/chat/completions"]


async def test_an_agent_that_comes_back_is_used_again(world: World) -> None:
    agent = world.agents["model-a:1"]
    agent.lose()
    await world.chat()
    agent.find()
    await eventually(lambda: world.gateway.directory.offers_of_model("fake-model")[0].ready)
    assert (await world.chat()).status == 200


@pytest.mark.promise("I5")
async def test_a_store_that_is_down_costs_reuse_and_nothing_else(world: World) -> None:
    world.csl.down = True
    for _ in range(7):
        answer = await world.chat()
        assert (answer.status, answer.outcome, answer.text) == (200, "miss", "Hello there")
    assert world.gateway.gate is not None
    assert world.gateway.gate.breaker.position is not Position.CLOSED
    assert len(world.csl.demands) < 7
    world.csl.down = False
    await eventually(lambda: world.gateway.gate and world.gateway.gate.breaker.position is Position.CLOSED)
    assert [(await world.chat()).outcome for _ in range(2)] == ["miss", "hit"]


@pytest.mark.promise("I5")
async def test_a_store_that_does_not_answer_is_not_waited_for(world: World) -> None:
    world.csl.held = asyncio.Event()
    answer = await world.chat()
    assert (answer.status, answer.outcome) == (200, "miss")
    world.csl.held.set()
    world.csl.held = None
    assert await world.entries() == 0


async def test_a_record_that_can_not_be_read_is_executed_again(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    await world.chat()

    def unreadable(payload: bytes) -> tuple[bytes, ...]:
        raise ValueError("of another version")

    monkeypatch.setattr("dynbranch.gateway.conductor.decode_payload", unreadable)
    answer = await world.chat()
    assert (answer.outcome, answer.text) == ("miss", "Hello there")


async def test_an_engine_that_speaks_nonsense(world: World) -> None:
    world.engine.writer = lambda order: Script(items=(b"[1]",))
    for stream in (False, True):
        answer = await world.chat(stream=stream, temperature=1)
        assert answer.status in (502, 503)
        assert answer.json["error"]["message"]


async def test_a_long_silence_brings_keep_alives_between_events() -> None:
    async with running_world(Plan(settings={"keep_alive_s": 0.01})) as world:
        gate = asyncio.Event()
        world.engine.writer = lambda order: Script(gate=gate)
        async with world.http.post(
            f"{world.url}/v1/chat/completions",
            json={"model": "fake-model", "messages": [{"role": "user", "content": "x"}], "stream": True},
        ) as response:
            assert await response.content.readuntil(b"\n\n") == b": keep-alive\n\n"
            gate.set()
            rest = await response.content.read()
        parts = [part for part in rest.split(b"\n\n") if part]
        assert all(part.startswith((b"data: ", b": keep-alive")) for part in parts)
        assert parts[-1] == b"data: [DONE]"


async def test_an_error_after_a_keep_alive_is_an_event() -> None:
    async with running_world(Plan(settings={"keep_alive_s": 0.01})) as world:
        gate = asyncio.Event()
        failure = Failed(400, b'{"error":\n{"message": "no"}}', may_retry=False)
        world.engine.writer = lambda order: Script(gate=gate, fail_after=0, failure=failure)
        async with world.http.post(
            f"{world.url}/v1/chat/completions",
            json={"model": "fake-model", "messages": [{"role": "user", "content": "x"}], "stream": True},
        ) as response:
            await response.content.readuntil(b"\n\n")
            gate.set()
            rest = await response.content.read()
        assert rest.endswith(b'data: {"error": {"message": "no"}}\n\n')


async def _no_lease(world: World) -> bool:
    return await world.leases() == 0
