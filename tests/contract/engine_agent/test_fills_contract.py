"""Fills and drafts at the agent: quiet followers, limits, giving way, adoption, loss."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from dataclasses import replace

import pytest
from contract.engine_agent.conftest import SLOTS, Stage
from contract.engine_agent.test_agent_contract import ITEMS, Log, attached, ran, until
from dynbranch.domain.engine import Aborted, Completed, GenerationEvents, GenerationOrder, WorkClass
from dynbranch.domain.errors import NotReady
from dynbranch.domain.reuse import Refusal, Refused
from dynbranch.engine_agent.fake import Script


async def messages(stage: Stage, order: GenerationOrder) -> list[GenerationEvents]:
    async with aclosing(stage.agent.generate(order, idle_s=20)) as stream:  # type: ignore[type-var]
        return [message async for message in stream]


async def adopted(stage: Stage, order: GenerationOrder) -> Log:
    events = stage.agent.attach(order.generation_id, from_item=0, wait_ms=50, idle_s=20, adopts=True)
    return await Log().follow(events)


def shares(stage: Stage) -> int:
    return len(stage.inner.registry.speculation.held)


def commit_of(log: Log) -> str:
    assert isinstance(log.end, Completed)
    return log.end.commit


async def test_a_quiet_order_is_answered_once_with_everything(stage: Stage) -> None:
    stage.play(Script(ITEMS, between_s=0.005))
    order = stage.fill(leased=True, quiet=True)
    quiet = asyncio.create_task(messages(stage, order))
    loud = await attached(stage, order)
    assert tuple(loud.items) == ITEMS
    (only,) = await quiet
    assert only.items == ITEMS and only.end == loud.end


async def test_a_quiet_follower_of_a_loud_order(stage: Stage) -> None:
    stage.play(Script(ITEMS, between_s=0.005))
    order = stage.order()
    task = asyncio.create_task(ran(stage, order))
    events = stage.agent.attach(order.generation_id, from_item=2, wait_ms=50, idle_s=20, quiet=True)
    async with aclosing(events) as stream:  # type: ignore[type-var]
        (only,) = [message async for message in stream]
    log = await task
    assert (only.from_item, only.items, only.end) == (2, ITEMS[2:], log.end)


@pytest.mark.promise("I2")
async def test_a_quiet_follower_that_leaves_ends_the_fill(stage: Stage) -> None:
    stage.play(Script(ITEMS, gate=asyncio.Event()))
    order = stage.fill(leased=True, quiet=True, grace_ms=1)
    task = asyncio.create_task(messages(stage, order))
    await until(lambda: stage.engine_running() == 1)
    task.cancel()
    await until(lambda: stage.engine_running() == 0 and stage.nothing_is_held())
    await until(lambda: bool(stage.csl.released))
    assert stage.csl.commits == []


@pytest.mark.promise("C2.fill_limits")
async def test_a_fill_beyond_the_limit_is_refused_at_once(stage: Stage) -> None:
    gate = asyncio.Event()
    stage.play(Script(ITEMS, gate=gate))
    task = asyncio.create_task(ran(stage, stage.fill(leased=True)))
    await until(lambda: stage.engine_running() == 1)
    for order in (stage.fill(leased=True), stage.fill(work=WorkClass.DRAFT)):
        with pytest.raises(NotReady) as refusal:
            await ran(stage, order)
        assert refusal.value.reason == "fill_limit"
    assert stage.engine_running() == 1
    gate.set()
    assert commit_of(await task) == "committed"
    assert commit_of(await ran(stage, stage.fill(leased=True))) == "committed"
    assert stage.nothing_is_held()


@pytest.mark.promise("C2.canonical_first")
async def test_canonical_work_takes_a_fills_slot(stage: Stage) -> None:
    gate = asyncio.Event()
    stage.play(Script(ITEMS, gate=gate))
    fill = asyncio.create_task(ran(stage, stage.fill(leased=True)))
    await until(lambda: stage.engine_running() == 1)
    tasks = [asyncio.create_task(ran(stage, stage.order(leased=True))) for _ in range(SLOTS)]
    end = (await fill).end
    assert isinstance(end, Aborted) and end.reason == "gave_way"
    await until(lambda: stage.engine_running() == SLOTS and not stage.inner.registry.slots.waiting)
    gate.set()
    assert [commit_of(log) for log in await asyncio.gather(*tasks)] == ["committed"] * SLOTS
    assert stage.nothing_is_held() and len(stage.csl.released) == 1


@pytest.mark.promise("C2.adoption")
async def test_a_demand_adopts_a_fill_and_then_it_is_canonical_work(stage: Stage) -> None:
    gate = asyncio.Event()
    stage.play(Script(ITEMS, gate=gate))
    order = stage.fill(leased=True, quiet=True, grace_ms=1)
    filling = asyncio.create_task(ran(stage, order))
    await until(lambda: stage.engine_running() == 1 and shares(stage) == 1)
    demand = asyncio.create_task(adopted(stage, order))
    await until(lambda: shares(stage) == 0)
    filling.cancel()
    result = await stage.agent.abort(order.generation_id, reason="lost", timeout_s=5, only_speculative=True)
    assert not result.aborted
    others = [asyncio.create_task(ran(stage, stage.order())) for _ in range(SLOTS)]
    await until(lambda: len(stage.inner.registry.slots.waiting) == 1)
    gate.set()
    log = await demand
    assert tuple(log.items) == ITEMS and commit_of(log) == "committed"
    await asyncio.gather(*others)
    assert stage.nothing_is_held() and stage.csl.commits[0].lease == order.lease


@pytest.mark.promise("I2")
async def test_an_abort_of_what_nobody_waits_for(stage: Stage) -> None:
    stage.play(Script(ITEMS, gate=asyncio.Event()))
    order = stage.fill(leased=True, quiet=True)
    task = asyncio.create_task(messages(stage, order))
    await until(lambda: stage.engine_running() == 1)
    result = await stage.agent.abort(order.generation_id, reason="lost", timeout_s=5, only_speculative=True)
    assert result.aborted and result.confirmed_ms is not None
    assert stage.engine_running() == 0 and stage.nothing_is_held()
    (only,) = await task
    assert isinstance(only.end, Aborted) and only.end.reason == "lost"


@pytest.mark.promise("I2")
async def test_a_fill_whose_lease_the_store_closed_ends(stage: Stage) -> None:
    stage.play(Script(ITEMS, gate=asyncio.Event()))
    order = stage.fill(leased=True)
    assert order.lease is not None
    order = replace(order, lease=replace(order.lease, ttl_ms=60))
    stage.csl.unknown = frozenset({order.lease.lease_id})  # type: ignore[union-attr]
    end = (await ran(stage, order)).end
    assert isinstance(end, Aborted) and end.reason == "lease_unknown"
    await until(lambda: stage.engine_running() == 0 and stage.nothing_is_held())


async def test_what_the_store_says_to_a_fills_commit_is_told(stage: Stage) -> None:
    stage.csl.answer = Refused(Refusal.LEASE_CLOSED)
    assert commit_of(await ran(stage, stage.fill(leased=True, quiet=True))) == "lease_closed"


async def test_occupancy_tells_what_is_speculative(stage: Stage) -> None:
    gate = asyncio.Event()
    stage.play(Script(ITEMS, gate=gate))
    async with aclosing(stage.agent.watch_occupancy(interval_ms=20)) as reports:  # type: ignore[type-var]
        idle = await anext(reports)
        assert (idle.fills, idle.drafts, idle.speculative_tokens) == (0, 0, 0)
        assert (idle.fill_slots, idle.fill_kv_tokens) == (SLOTS // 2, 10_000)
        order = replace(stage.fill(work=WorkClass.DRAFT), reserve_tokens=77)
        task = asyncio.create_task(ran(stage, order))
        async with asyncio.timeout(20):
            async for report in reports:
                if report.fills:
                    break
        assert (report.running, report.fills, report.drafts, report.speculative_tokens) == (1, 1, 1, 77)
        gate.set()
        await task
