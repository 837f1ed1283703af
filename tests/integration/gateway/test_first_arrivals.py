"""A read without a version counts from the workflow's first arrival, whatever that arrival was."""

from __future__ import annotations

from typing import Any

import pytest
from dynbranch.gateway.core.breaker import Position
from integration.gateway.world import Plan, RawEngine, World, eventually, running_world

READS = {"x-dynbranch-workflow": "w", "x-dynbranch-reads": "s/1"}
TOOL = "/dynbranch/v1/tools/roll"


async def first_arrival(world: World, kind: str) -> None:
    headers = {"x-dynbranch-workflow": "w"}
    fields: dict[str, Any] = {"messages": [{"role": "user", "content": "plan"}]}
    match kind:
        case "greedy":
            pass
        case "sampled":
            fields["temperature"] = 1
        case "logprobs":
            fields["logprobs"] = True
        case "no-store":
            headers["cache-control"] = "no-store"
        case "bypass":
            headers["x-dynbranch-bypass"] = "1"
        case "tool":
            assert (await world.post(TOOL, {}, headers)).status == 200
            return
        case "raw":
            assert (await world.post("/v1/embeddings", {}, headers)).status == 200
            return
    assert (await world.chat(fields, headers)).status == 200


@pytest.mark.promise("C1.first_arrival")
@pytest.mark.parametrize("kind", ["greedy", "sampled", "logprobs", "no-store", "bypass", "tool", "raw"])
async def test_every_arrival_counts(raw_engine: RawEngine, kind: str) -> None:
    async with running_world(Plan(bypass_url=raw_engine.url)) as world:
        await first_arrival(world, kind)
        await first_arrival(world, kind)
        assert len(world.csl.demands) == (2 if kind == "greedy" else 1)
        await world.post("/dynbranch/v1/writes", {"records": ["s/1"]})
        assert [(await world.chat(headers=READS)).outcome for _ in range(2)] == ["miss", "miss"]
        unwritten = {**READS, "x-dynbranch-reads": "s/2"}
        assert [(await world.chat(n=1, headers=unwritten)).outcome for _ in range(2)] == ["miss", "hit"]


@pytest.mark.promise("C1.first_arrival")
@pytest.mark.parametrize("kind", ["greedy", "sampled"])
async def test_a_first_arrival_while_the_store_is_down_is_unknown(world: World, kind: str) -> None:
    world.csl.down = True
    await first_arrival(world, kind)
    world.csl.down = False
    gate = world.gateway.gate
    await eventually(lambda: gate is not None and gate.breaker.position is Position.CLOSED)
    await world.post("/dynbranch/v1/writes", {"records": ["s/1"]})
    assert [(await world.chat(headers=READS)).outcome for _ in range(2)] == ["miss", "miss"]
    assert await world.entries() == 0
    other = {**READS, "x-dynbranch-workflow": "v"}
    assert [(await world.chat(headers=other)).outcome for _ in range(2)] == ["miss", "hit"]
    assert (await world.chat(headers=READS)).outcome == "hit"


async def test_an_identity_that_can_not_be_read_keeps_no_raw_request_back(raw_engine: RawEngine) -> None:
    async with running_world(Plan(bypass_url=raw_engine.url)) as world:
        headers = {"x-dynbranch-workflow": "w" * 300, "x-dynbranch-bypass": "1"}
        assert (await world.chat(headers=headers)).status == 200
        assert not world.csl.demands


@pytest.mark.promise("I5")
async def test_disabled_nothing_is_registered(raw_engine: RawEngine) -> None:
    async with running_world(Plan(settings={"enabled": False, "engine_url": raw_engine.url})) as world:
        assert (await world.chat(headers={"x-dynbranch-workflow": "w"})).outcome == "bypass"
        assert not world.csl.demands
