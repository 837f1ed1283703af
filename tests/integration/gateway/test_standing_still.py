"""An agent whose process stands still: its connections stay open, and nothing comes."""

from __future__ import annotations

import asyncio

import pytest
from dynbranch.engine_agent.fake import Script, text_chunks
from integration.gateway.world import Plan, World, eventually, running_world

STILL = Plan(models=2, settings={"agent_silence_s": 1})
ITEMS = text_chunks(("a", "b", "c"))


@pytest.mark.promise("C1.single_flight")
async def test_leader_and_followers_are_served_by_the_healthy_one() -> None:
    async with running_world(STILL) as world:
        first, second = world.agents["model-a:1"], world.agents["model-b:1"]
        first.engine.writer = lambda order: Script(gate=asyncio.Event())
        leader = asyncio.create_task(world.chat())
        await eventually(lambda: first.engine.running)
        first.moves.clear()
        followers = [asyncio.create_task(world.chat(stream=stream)) for stream in (False, True)]
        answers = await asyncio.wait_for(asyncio.gather(leader, *followers), 20)
        assert [answer.status for answer in answers] == [200, 200, 200]
        assert len(second.engine.orders) == 1
        assert (await world.chat()).outcome == "hit"


async def test_one_that_moves_again_is_used_again() -> None:
    async with running_world(STILL) as world:
        first = world.agents["model-a:1"]
        first.moves.clear()
        await eventually(lambda: not _offered(world))
        assert (await world.chat()).status == 200
        first.moves.set()
        await eventually(lambda: _offered(world))
        assert (await world.chat(temperature=1)).status == 200
        assert len(first.engine.orders) == 1


async def test_what_was_shown_ends_with_an_error() -> None:
    async with running_world(STILL) as world:
        gate = asyncio.Event()
        world.engine.writer = lambda order: Script(items=ITEMS, between_s=0.05)
        async with world.http.post(
            f"{world.url}/v1/chat/completions",
            json={"model": "fake-model", "messages": [{"role": "user", "content": "x"}], "stream": True},
        ) as response:
            received = await response.content.readuntil(b"\n\n")
            world.agents["model-a:1"].moves.clear()
            received += await asyncio.wait_for(response.content.read(), 20)
        assert b'"error"' in received and b"[DONE]" not in received
        gate.set()


async def test_a_call_that_must_not_run_twice_is_not_made_again() -> None:
    async with running_world(Plan(settings={"agent_silence_s": 1})) as world:
        tools = world.agents["tools:1"]
        tools.engine.writer = lambda order: Script(gate=asyncio.Event())
        asked = asyncio.create_task(world.post("/dynbranch/v1/tools/roll", {}))
        await eventually(lambda: tools.engine.running)
        tools.moves.clear()
        answer = await asyncio.wait_for(asked, 20)
        assert answer.status == 503 and "not known" in answer.error["message"]
        assert len(tools.engine.orders) <= 1


def _offered(world: World) -> bool:
    offers = world.gateway.directory.offers_of_model("fake-model")
    return all(offer.ready for offer in offers)
