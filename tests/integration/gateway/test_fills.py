"""A demand meets a fill: it is promoted, taken over, or consumed; or it is as if it had not been there."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from typing import Any

import pytest
from dynbranch.domain.fills import DiscardFills, DiscardReason, SettlementKind
from dynbranch.domain.ids import RecordId
from dynbranch.domain.reuse import DeclaredRead, ReadScope
from dynbranch.engine_agent.fake import Script, text_chunks
from dynbranch.runtime import telemetry
from integration.gateway.fills import (
    ACT,
    DRAW,
    WORKFLOW,
    granted,
    name_of,
    request,
    running_fill,
    serve,
    settled,
    templated,
)
from integration.gateway.world import Answer, Plan, World, eventually, running_world
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor, SpanExporter, SpanExportResult

BRANCH = (b"b" * 16).hex()
STREAMED = request("Do red", stream=True)


def kinds(settlements: list[Any]) -> list[SettlementKind]:
    return [one.kind for one in settlements]


def asked(world: World, body: bytes) -> asyncio.Task[Answer]:
    return asyncio.get_running_loop().create_task(serve(world, body))


async def taken_over(world: World) -> None:
    await eventually(lambda: len(world.csl.demands) >= 1)
    registry = world.agents["model-a:1"].agent.registry
    await eventually(lambda: any(one.adopted for one in registry.generations.values()))


@pytest.mark.promise("C2.promotion_atomic_once")
async def test_a_finished_fill_is_promoted_by_the_first_demand_and_a_hit_for_the_next(world: World) -> None:
    async with running_fill(world, ACT) as fill:
        await fill.ended()
        first = await serve(world, ACT)
        assert (first.outcome, first.text) == ("promoted", "Hello there")
        assert first.headers["x-dynbranch-branch"] == BRANCH
        assert first.headers["x-dynbranch-level"] == "greedy"
        assert float(first.headers["x-dynbranch-saved-ms"]) >= 0
        second = await serve(world, ACT)
        assert second.outcome == "hit" and "x-dynbranch-branch" not in second.headers
        assert kinds(await settled(world)) == [SettlementKind.SHADOWED, SettlementKind.PROMOTED]
    assert len(world.engine.orders) == 1


@pytest.mark.promise("C2.adoption")
@pytest.mark.parametrize("body", [ACT, STREAMED], ids=["plain", "streamed"])
async def test_a_running_fill_is_taken_over_and_followed(world: World, body: bytes) -> None:
    gate = asyncio.Event()
    world.engine.writer = lambda order: Script(gate=gate)
    async with running_fill(world, ACT):
        demand = asked(world, body)
        await taken_over(world)
        gate.set()
        answer = await demand
        assert answer.status == 200 and answer.outcome == "adopted"
        assert answer.headers["x-dynbranch-branch"] == BRANCH
        await eventually(lambda: world.entries())
        assert kinds(await settled(world)) == [SettlementKind.ADOPTED, SettlementKind.CONFIRMED]
        assert (await serve(world, ACT)).outcome == "hit"
    assert len(world.engine.orders) == 1


class Kept(SpanExporter):
    def __init__(self) -> None:
        self.spans: list[ReadableSpan] = []

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        self.spans += spans
        return SpanExportResult.SUCCESS


@pytest.mark.parametrize("running", [True, False], ids=["adopted", "promoted"])
async def test_who_is_served_by_a_fill_links_to_it(running: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    kept, provider = Kept(), TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(kept))
    monkeypatch.setattr(telemetry, "tracer", provider.get_tracer)
    gate = asyncio.Event()
    async with running_world(Plan()) as world:
        world.engine.writer = lambda order: Script(gate=gate)
        span = f"00-{'a' * 32}-{'b' * 16}-01"
        async with running_fill(world, ACT, traceparent=span) as fill:
            if not running:
                gate.set()
                await fill.ended()
            caller = {**WORKFLOW, "traceparent": f"00-{'c' * 32}-{'d' * 16}-01"}
            served = asyncio.create_task(serve(world, ACT, **caller))
            if running:
                await taken_over(world)
                gate.set()
            assert (await served).outcome == ("adopted" if running else "promoted")
    [link] = [
        link
        for one in kept.spans
        if one.name == ("attach" if running else "promotion")
        for link in one.links
        if link.context.trace_id == int("a" * 32, 16)
    ]
    assert link.context.span_id == int("b" * 16, 16)
    provider.shutdown()


@pytest.mark.promise("C2.adoption")
async def test_two_demands_share_one_fill(world: World) -> None:
    gate = asyncio.Event()
    world.engine.writer = lambda order: Script(gate=gate)
    async with running_fill(world, ACT):
        demands = [asked(world, ACT)]
        await taken_over(world)
        demands.append(asked(world, ACT))
        await eventually(lambda: len(world.csl.demands) == 2)
        gate.set()
        answers = await asyncio.gather(*demands)
    assert sorted(str(answer.outcome) for answer in answers) == ["adopted", "joined"]
    assert len({answer.text for answer in answers}) == 1 and len(world.engine.orders) == 1


@pytest.mark.promise("C2.adoption")
@pytest.mark.parametrize("policy", ["stream", "wait"])
@pytest.mark.parametrize("body", [ACT, STREAMED], ids=["plain", "streamed"])
async def test_a_fill_that_stands_still_is_left_for_an_execution(policy: str, body: bytes) -> None:
    gate = asyncio.Event()
    settings = {"adopt": policy, "adopt_stall_ms": 60}
    async with running_world(Plan(settings)) as world:
        world.engine.writer = lambda order: Script(gate=gate) if len(world.engine.orders) == 0 else Script()
        async with running_fill(world, ACT):
            answer = await serve(world, body)
            assert answer.status == 200 and answer.outcome == "miss"
            assert "x-dynbranch-branch" not in answer.headers
            assert len(world.engine.orders) == 2 and len(world.csl.demands[-1].exclude_generations) == 1
            gate.set()


async def test_one_that_waits_takes_the_whole_result() -> None:
    gate = asyncio.Event()
    async with running_world(Plan({"adopt": "wait"})) as world:
        world.engine.writer = lambda order: Script(gate=gate, between_s=0.001)
        async with running_fill(world, ACT):
            demand = asked(world, STREAMED)
            await taken_over(world)
            gate.set()
            answer = await demand
            assert answer.outcome == "adopted" and answer.events()[-1] == "[DONE]"


async def test_what_the_client_has_seen_is_never_left_for_being_slow() -> None:
    async with running_world(Plan({"adopt_stall_ms": 50})) as world:
        world.engine.writer = lambda order: Script(items=text_chunks(("a", "b")), between_s=0.15)
        async with running_fill(world, ACT):
            answer = await serve(world, STREAMED)
    assert answer.outcome == "adopted" and answer.events()[-1] == "[DONE]"
    assert len(world.engine.orders) == 1


async def test_a_plain_answer_is_moving_as_long_as_items_come() -> None:
    async with running_world(Plan({"adopt_stall_ms": 150})) as world:
        world.engine.writer = lambda order: Script(items=text_chunks(["x"] * 20), between_s=0.02)
        async with running_fill(world, ACT):
            answer = await serve(world, ACT)
    assert answer.outcome == "adopted" and len(world.engine.orders) == 1


@pytest.mark.promise("C2.adoption")
async def test_an_adopted_fill_that_fails_costs_no_answer(world: World) -> None:
    gate = asyncio.Event()
    world.engine.writer = lambda order: (
        Script(gate=gate, fail_after=1) if len(world.engine.orders) == 0 else Script()
    )
    async with running_fill(world, ACT):
        demand = asked(world, ACT)
        await taken_over(world)
        gate.set()
        answer = await demand
        assert (answer.status, answer.outcome) == (200, "miss")


@pytest.mark.promise("I4")
async def test_a_client_that_leaves_takes_nothing_from_the_fill_that_it_adopted(world: World) -> None:
    gate = asyncio.Event()
    world.engine.writer = lambda order: Script(gate=gate)
    async with running_fill(world, ACT) as fill:
        demand = asked(world, STREAMED)
        await taken_over(world)
        demand.cancel()
        await asyncio.gather(demand, return_exceptions=True)
        await eventually(lambda: not len(world.gateway.in_flight))
        gate.set()
        await fill.ended()
        await eventually(lambda: world.entries())
        assert (await serve(world, ACT)).outcome == "hit"
    assert await world.leases() == 0 and not world.engine.running


@pytest.mark.promise("C2.adoption")
async def test_a_controller_that_dies_takes_no_adopted_fill_along(world: World) -> None:
    gate = asyncio.Event()
    world.engine.writer = lambda order: Script(gate=gate)
    async with running_fill(world, ACT) as fill:
        demand = asked(world, ACT)
        await taken_over(world)
        world.controller.lose()
        await fill.let_go()
        gate.set()
        assert (await demand).outcome == "adopted"


@pytest.mark.promise("I3")
async def test_a_write_between_the_fill_and_its_demand_makes_it_a_miss(world: World) -> None:
    reads = {"x-dynbranch-reads": "passages/1"}
    scope = ReadScope((DeclaredRead(RecordId("passages/1")),))
    await serve(world, request("hello"), **reads)
    async with running_fill(world, ACT, scope=scope) as fill:
        await fill.ended()
        await world.post("/dynbranch/v1/writes", {"records": ["passages/1"]})
        assert (await serve(world, ACT)).outcome == "miss"


async def test_a_fill_without_what_the_harness_declares_serves_nobody(world: World) -> None:
    async with running_fill(world, ACT) as fill:
        await fill.ended()
        assert (await serve(world, ACT, **{"x-dynbranch-reads": "passages/1"})).outcome == "miss"


# -- sampled stages ----------------------------------------------------------------------------------------


@pytest.mark.promise("C2.once")
async def test_a_sampled_fill_serves_one_demand(world: World) -> None:
    await templated(world)
    async with running_fill(world, DRAW, once=True) as fill:
        await fill.ended()
        first = await serve(world, DRAW)
        assert first.outcome == "promoted" and first.headers["x-dynbranch-level"] == "sampled"
        assert [(await serve(world, DRAW)).outcome for _ in range(2)] == ["miss", "miss"]
        assert kinds(await settled(world))[-1] is SettlementKind.CONSUMED
    assert len(world.engine.orders) == 3


@pytest.mark.promise("C2.once")
async def test_a_running_sampled_fill_is_taken_however_long_it_takes_and_whatever_it_is() -> None:
    gate = asyncio.Event()
    async with running_world(Plan({"adopt_stall_ms": 40})) as world:
        await templated(world)
        world.engine.writer = lambda order: Script(gate=gate, fail_after=1)
        async with running_fill(world, DRAW, once=True):
            demand = asked(world, DRAW)
            await taken_over(world)
            other = asked(world, DRAW)
            await eventually(lambda: len(world.engine.orders) == 2)
            await asyncio.sleep(0.1)
            assert not demand.done()
            gate.set()
            answers = await asyncio.gather(demand, other)
    assert answers[0].outcome == "adopted" and answers[0].status >= 500
    assert len(world.engine.orders) == 2


@pytest.mark.promise("C2.once")
async def test_a_sampled_fill_that_is_lost_before_anything_was_sent_is_executed_anew() -> None:
    async with running_world(Plan(models=2)) as world:
        await templated(world)
        world.engine.writer = lambda order: Script(items=text_chunks(("a", "b")), between_s=60)
        async with running_fill(world, DRAW, once=True):
            demand = asked(world, DRAW)
            await taken_over(world)
            world.agents["model-a:1"].lose()
            answer = await demand
            assert (answer.status, answer.outcome, answer.text) == (200, "miss", "Hello there")
            assert "x-dynbranch-branch" not in answer.headers
        assert kinds(await settled(world)) == [SettlementKind.CONSUMED]
        assert len(world.agents["model-b:1"].engine.orders) == 1


@pytest.mark.promise("C2.once")
async def test_of_a_sampled_fill_that_is_lost_in_the_middle_nobody_sees_another_draw() -> None:
    async with running_world(Plan(models=2)) as world:
        await templated(world)
        world.engine.writer = lambda order: Script(items=text_chunks(("a", "b")), between_s=60)
        streamed = json.loads(DRAW) | {"stream": True}
        async with (
            running_fill(world, DRAW, once=True),
            world.http.post(f"{world.url}/v1/chat/completions", json=streamed, headers=WORKFLOW) as response,
        ):
            assert response.headers["x-dynbranch-outcome"] == "adopted"
            received = await response.content.readuntil(b"\n\n")
            world.agents["model-a:1"].lose()
            received += await response.content.read()
        assert b'"error"' in received and b"[DONE]" not in received
        assert not world.agents["model-b:1"].engine.orders


@pytest.mark.promise("C2.once")
@pytest.mark.parametrize("changed", ["no template", "other stage", "no-cache", "no-store", "reuse off"])
async def test_sampled_requests_ask_the_store_only_for_fills_of_their_own(changed: str) -> None:
    plan = Plan({"reuse": "off"} if changed == "reuse off" else {})
    async with running_world(plan) as world:
        if changed != "no template":
            await templated(world)
        body = request("Do red", temperature=1) if changed == "other stage" else DRAW
        headers = {"cache-control": changed} if changed.startswith("no-") else {}
        if changed == "other stage":
            headers["x-dynbranch-stage"] = "act"
        assert (await serve(world, body, **headers)).outcome == "miss"
        # One demand tells the store of the workflow's arrival; it neither hits nor executes.
        assert [demand.may_execute for demand in world.csl.demands] == [False]
        assert not any(demand.once for demand in world.csl.demands)


@pytest.mark.promise("C2.lost_never_promoted")
async def test_a_discarded_fill_was_never_there(world: World) -> None:
    lease = await granted(world.csl.inner, await name_of(world, ACT))
    assert lease.fill is not None
    discard = DiscardFills((lease.fill.fill_id,), DiscardReason.LOST)
    await world.csl.inner.discard_fills(discard, timeout_s=20)
    assert (await serve(world, ACT)).outcome == "miss"
