"""Several engines: where requests go, and what one dead or hanging engine does to the others."""

from __future__ import annotations

import asyncio

import pytest
from dynbranch.clients.engine_agent import GrpcEngineAgent
from dynbranch.gateway.assembly import Peers
from dynbranch.gateway.config import GatewaySettings
from dynbranch.gateway.tenants import Tenants
from dynbranch.stub_engine.engine import StubEngine
from dynbranch.stub_engine.faults import Fault, FaultKind
from integration.gateway.fleet import Fleet, cached, running_fleet
from integration.gateway.world import eventually, serving_gateway

LONG = "what was said before " * 30


@pytest.mark.parametrize("temperature", [0, 1])
async def test_a_conversation_stays_where_its_beginning_is_cached(temperature: int) -> None:
    async with running_fleet() as fleet:
        said: list[str] = []
        for turn in range(4):
            said.append(f"{turn}: {LONG}")
            answer = await fleet.door.chat(*said, temperature=temperature)
            assert bool(cached(answer)) is (turn > 0)
            said.append(f"answer {turn}: {LONG}")
        assert sorted(fleet.asked()) == [0, 0, 4]


async def test_two_gateways_send_one_family_to_one_engine() -> None:
    async with running_fleet(gateways=2) as fleet:
        for family in ("a", "b", "c", "d"):
            fleet.forget()
            for number, door in enumerate((*fleet.doors, *fleet.doors)):
                await door.chat(f"{number}", family=family)
                await eventually(fleet.is_quiet)
            assert sorted(fleet.asked()) == [0, 0, 4], family


async def test_a_conversation_stays_though_its_turns_come_through_two_gateways() -> None:
    async with running_fleet(gateways=2) as fleet:
        for number in range(3):
            await asyncio.gather(*(fleet.door.chat(f"{number} {other}: {LONG}") for other in range(3)))
        fleet.forget()
        said: list[str] = []
        for turn in range(6):
            said.append(f"{turn}: {LONG}")
            await fleet.doors[turn % 2].chat(*said)
            await fleet.has_reported()
            said.append(f"answer {turn}: {LONG}")
        assert sorted(fleet.asked()) == [0, 0, 6]


async def test_a_crowd_of_one_family_is_spread_within_the_bound() -> None:
    async with running_fleet() as fleet:
        for engine in fleet.engines:
            engine.faults.add(Fault(FaultKind.HANG, for_s=0.5))
        await asyncio.gather(*(fleet.door.chat(f"{number}") for number in range(12)))
        assert max(fleet.asked()) <= 1.25 * 4 + 1 and sum(fleet.asked()) == 12


async def test_the_families_of_a_dead_engine_move_and_come_back() -> None:
    async with running_fleet() as fleet:
        await fleet.door.chat("1")
        holder = fleet.engines[_asked_most(fleet)]
        await holder.stop()
        fleet.forget()
        for number in range(5):
            await fleet.door.chat(f"{number}")
        others = [len(engine.requests) for engine in fleet.engines if engine is not holder]
        assert sorted(others) == [0, 5]
        await eventually(lambda: fleet.door.available() == 2)
        await holder.start()
        await eventually(lambda: fleet.door.available() == 3)
        fleet.forget()
        for family in "abcdefgh":
            await fleet.door.chat("1", family=family)
        assert all(fleet.asked())


async def test_a_hanging_engine_keeps_only_what_it_was_sent_before() -> None:
    async with running_fleet(agent_mute_s=0.2) as fleet:
        await fleet.door.chat("1")
        holder = fleet.engines[_asked_most(fleet)]
        holder.faults.add(Fault(FaultKind.HANG))
        stuck = asyncio.create_task(fleet.door.chat("2"))
        await eventually(lambda: len(holder.requests) == 2)
        await eventually(lambda: _mute(fleet) == 1)
        for number in range(5):
            await fleet.door.chat(f"more {number}")
        assert len(holder.requests) == 2
        holder.faults.clear()
        stuck.cancel()
        await asyncio.wait((stuck,))
        await eventually(lambda: not holder.running)
        assert _mute(fleet) == 0
        for family in "abcdefgh":
            await fleet.door.chat("1", family=family)
        assert len(holder.requests) > 2


async def test_raw_requests_go_to_an_engine_that_serves_their_model() -> None:
    async with running_fleet(models=("one", "other", "other")) as fleet:
        for model in ("one", "other", "one"):
            answer = await fleet.door.post("/v1/completions", {"model": model, "prompt": "x"})
            assert answer["model"] == model
        assert fleet.asked()[0] == 2


async def test_raw_requests_go_where_least_is_in_flight() -> None:
    async with running_fleet(engines=2) as fleet:
        for engine in fleet.engines:
            engine.faults.add(Fault(FaultKind.HANG, for_s=0.5))
        body = {"model": "stub-model", "prompt": "x"}
        await asyncio.gather(*(fleet.door.post("/v1/completions", body) for _ in range(6)))
        assert fleet.asked() == [3, 3]


async def test_without_agents_an_engine_that_answers_is_enough_at_once() -> None:
    """Well within the time for which all parts are waited for."""
    engine = StubEngine()
    await engine.start()
    url = engine.url
    await engine.stop()
    settings = GatewaySettings(agents=("127.0.0.1:1",), engine_url=url, ready_grace_s=3600, stop_grace_s=1)
    async with serving_gateway(settings, Peers(None, None, GrpcEngineAgent), Tenants()) as (gateway, _):
        await eventually(lambda: gateway.directory.agents[0].tried)
        assert gateway.readiness.missing()
        await engine.start()
        try:
            await eventually(lambda: not gateway.readiness.missing())
        finally:
            await engine.stop()


def _asked_most(fleet: Fleet) -> int:
    asked = fleet.asked()
    return asked.index(max(asked))


def _mute(fleet: Fleet) -> int:
    return fleet.door.gateway.directory.count_mute()
