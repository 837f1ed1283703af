"""Faults on command, one by one."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import aiohttp
import pytest
from dynbranch.enginemodel.parameters import BatchParameters, FixedParameters
from dynbranch.stub_engine.engine import StubEngine
from dynbranch.stub_engine.faults import Fault, FaultKind
from dynbranch.stub_engine.generation import Ending
from dynbranch.stub_engine.matching import Match
from dynbranch.stub_engine.script import Reply, Rule, ToolCall
from dynbranch.stub_engine.settings import Flavour, StubSettings
from integration.stub_engine.conftest import HI, Client, until

SLOW = FixedParameters(time_to_first_token_ms=0, inter_token_ms=1000)


def hit_by(*faults: Fault, **settings: Any) -> StubEngine:
    return StubEngine(StubSettings(faults=faults, **settings))


async def test_a_status_with_its_advice_so_many_times(client: Client) -> None:
    fault = Fault(FaultKind.STATUS, status=429, retry_after_s=2, times=2, skip=1)
    async with hit_by(fault) as stub:
        seen = []
        for _ in range(4):
            async with client.http.post(f"{stub.url}/v1/chat/completions", json=HI) as answer:
                seen.append((answer.status, answer.headers.get("retry-after")))
        assert seen == [(200, None), (429, "2"), (429, "2"), (200, None)]


async def test_only_those_that_match_are_hit(client: Client) -> None:
    async with hit_by(Fault(FaultKind.STATUS, Match(contains="bad"), status=500)) as stub:
        assert "choices" in await client.chat(stub)
        bad = {**HI, "messages": [{"role": "user", "content": "a bad one"}]}
        assert (await client.chat(stub, bad))["error"]["code"] == 500


@pytest.mark.parametrize("after", [0, 1, 5, 64])
async def test_a_cut_after_so_many_tokens(client: Client, after: int) -> None:
    async with hit_by(Fault(FaultKind.CUT, after_tokens=after)) as stub:
        events = await client.events(stub)
        assert events[-1] == "broken"
        # The first token brings the role with it.
        assert len(events) - 1 == (after + 1 if after else 0)
        assert stub.running == 0
        assert stub.requests[0].ending is Ending.FAULT


async def test_a_cut_of_a_whole_answer(client: Client) -> None:
    async with hit_by(Fault(FaultKind.CUT, after_tokens=3)) as stub:
        with pytest.raises(aiohttp.ClientError):
            await client.chat(stub)


async def test_a_malformed_chunk(client: Client) -> None:
    async with hit_by(Fault(FaultKind.MALFORMED, after_tokens=2)) as stub:
        events = await client.events(stub)
        assert len(events) == 4
        with pytest.raises(ValueError, match=r"Invalid control character|Unterminated"):
            json.loads(events[-1].removeprefix("data: ") + "\n")


async def test_a_duplicate_first_chunk(client: Client) -> None:
    async with hit_by(Fault(FaultKind.DUPLICATE)) as stub:
        chunks = await client.streamed(stub, max_tokens=1)
        assert chunks[0] == chunks[1] != chunks[2]


async def test_a_whole_call_in_one_chunk(client: Client) -> None:
    call = ToolCall("look", '{"where":"everywhere"}')
    rule = Rule(Reply(tool_calls=(call,)))
    async with hit_by(Fault(FaultKind.WHOLE_CALL), rules=(rule,)) as stub:
        chunks = await client.streamed(stub)
        (only,) = [c for c in chunks if c["choices"] and "tool_calls" in c["choices"][0]["delta"]]
        assert only["choices"][0]["delta"]["tool_calls"][0]["function"]["arguments"] == call.arguments


async def test_a_hang_ends_when_its_time_is_over_or_the_client_goes(client: Client) -> None:
    async with hit_by(Fault(FaultKind.HANG, times=1), Fault(FaultKind.HANG, times=1, for_s=0.01)) as stub:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.1):
                await client.events(stub)
        await until(lambda: stub.running == 0)
        assert len(await client.events(stub, max_tokens=3)) == 6


async def test_a_stall_keeps_the_slot_and_goes_on(client: Client) -> None:
    async with hit_by(Fault(FaultKind.STALL, after_tokens=2, for_s=0.05)) as stub:
        running = asyncio.ensure_future(client.events(stub, max_tokens=5))
        await until(lambda: stub.running == 1)
        assert len(await running) == 1 + 5 + 2
        assert stub.running == 0


async def test_a_stall_for_ever_ends_with_the_client(client: Client) -> None:
    async with hit_by(Fault(FaultKind.STALL, after_tokens=2)) as stub:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.1):
                await client.chat(stub)
        await until(lambda: stub.running == 0)
        assert stub.requests[0].ending is Ending.ABORTED


async def test_connections_are_refused_for_a_while(client: Client) -> None:
    async with StubEngine() as stub:
        status, _ = await client.post(stub, "/stub/faults", {"kind": "refuse", "for_s": 0.1})
        assert status == 200
        refused = False
        while not refused:
            try:
                await client.get(stub, "/health")
            except aiohttp.ClientConnectionError:
                refused = True
        while True:
            try:
                assert (await client.get(stub, "/health"))[0] == 200
                break
            except aiohttp.ClientConnectionError:
                await asyncio.sleep(0.02)


async def test_a_health_that_lies(client: Client) -> None:
    async with hit_by(Fault(FaultKind.HEALTH, status=503)) as stub:
        assert (await client.get(stub, "/health"))[0] == 503
        assert "choices" in await client.chat(stub)


async def test_a_slow_start(client: Client) -> None:
    async with StubEngine(StubSettings(slow_start_s=0.2, flavour=Flavour.LLAMA_SERVER)) as stub:
        assert (await client.get(stub, "/health"))[0] == 503
        assert (await client.chat(stub))["error"]["message"] == "Loading model"
        await until(lambda: not stub.is_loading)
        assert (await client.get(stub, "/health"))[0] == 200


async def test_the_fault_that_ends_the_engine(client: Client) -> None:
    async with hit_by(Fault(FaultKind.EXIT, after_tokens=2, times=1)) as stub:
        assert (await client.events(stub))[-1] == "broken"
        with pytest.raises(aiohttp.ClientConnectionError):
            await client.get(stub, "/health")
        await stub.stop()
        await stub.start()
        assert (await client.get(stub, "/health"))[0] == 200


async def test_faults_and_scripts_at_runtime(client: Client) -> None:
    async with StubEngine() as stub:
        status, text = await client.post(
            stub, "/stub/faults", [{"kind": "status", "status": 503, "times": 1}]
        )
        assert status == 200 and json.loads(text)["faults"][0]["status"] == 503
        assert (await client.chat(stub))["error"]["code"] == 503
        for wrong in ({"kind": "smoke"}, {"kind": "cut", "after": 1}, {"kind": "refuse"}, [1]):
            assert (await client.post(stub, "/stub/faults", wrong))[0] == 400
        assert (await client.post(stub, "/stub/script", {"reply": {"text": "yes"}}))[0] == 200
        assert (await client.chat(stub))["choices"][0]["message"]["content"] == "yes"
        assert len(json.loads((await client.get(stub, "/stub/requests"))[1])["requests"]) == 2
        assert (await client.post(stub, "/stub/reset", {}))[0] == 200
        assert json.loads((await client.get(stub, "/stub/requests"))[1]) == {"requests": []}


@pytest.mark.parametrize("streaming", [True, False])
async def test_a_client_that_leaves_frees_its_slot(client: Client, streaming: bool) -> None:
    batch = BatchParameters(20, 0, 0, 0, 1000, 1000, slots=1)
    for latency in (SLOW, batch):
        async with StubEngine(StubSettings(latency=latency)) as stub:
            asking = client.events(stub, max_tokens=400) if streaming else client.chat(stub, max_tokens=400)
            left = asyncio.ensure_future(asking)
            await until(lambda: stub.running == 1)
            left.cancel()
            await until(lambda: stub.running == 0)
            assert stub.readings.gauges.kv_used_share == 0
            assert stub.requests[0].ending is Ending.ABORTED


async def test_order_by_priority(client: Client) -> None:
    for flavour, order in ((Flavour.VLLM, "-105"), (Flavour.SGLANG, "50-1")):
        batch = BatchParameters(5, 0, 0, 0, 100_000, 1000, slots=1)
        async with StubEngine(StubSettings(flavour=flavour, latency=batch)) as stub:
            first = asyncio.ensure_future(client.chat(stub, max_tokens=30))
            await until(lambda: stub.running == 1)
            done: list[str] = []

            async def ask(priority: int, done: list[str] = done, stub: StubEngine = stub) -> None:
                await client.chat(stub, max_tokens=1, priority=priority)
                done.append(str(priority))

            async with asyncio.TaskGroup() as group:
                for number, priority in enumerate((0, 5, -1)):
                    group.create_task(ask(priority))
                    await until(lambda: stub.waiting == number + 1)  # noqa: B023
            await first
            assert "".join(done) == order
