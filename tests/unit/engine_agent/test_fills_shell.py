"""Fills in the shell, on a clock that a test moves."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from dataclasses import replace

import pytest
from dynbranch.domain.engine import AbortResult, GenerationOrder, WorkClass
from dynbranch.domain.errors import NotReady
from dynbranch.domain.reuse import Level
from dynbranch.engine_agent.core.registry import Limits
from dynbranch.engine_agent.engines.port import EngineCounts
from dynbranch.engine_agent.fake import FakeEngineAgent, Script, ScriptedEngine
from dynbranch.engine_agent.shell import Agent
from dynbranch.runtime.clock import ManualClock
from prometheus_client import CollectorRegistry
from unit.engine_agent.samples import StubCsl, chat_order, fill_order
from unit.engine_agent.test_shell import ITEMS, ended, pass_time, settle, store_of


def gated(clock: ManualClock, *, slots: int = 4) -> ScriptedEngine:
    gate = asyncio.Event()
    return ScriptedEngine(clock, lambda order: Script(ITEMS, gate=gate), slots=slots)


def metric(metrics: CollectorRegistry, name: str) -> float | None:
    return metrics.get_sample_value(f"dynbranch_engine_agent_{name}")


async def test_metrics_tell_of_fills() -> None:
    clock, metrics = ManualClock(), CollectorRegistry()
    async with Agent(gated(clock, slots=2), None, clock, metrics=metrics) as agent:
        await agent.until_ready()
        fill = replace(fill_order(), reserve_tokens=50)
        tasks = [asyncio.create_task(ended(agent, fill))]
        await settle()
        assert (metric(metrics, "fills"), metric(metrics, "speculative_tokens")) == (1.0, 50.0)
        with pytest.raises(NotReady):
            await ended(agent, fill_order())
        tasks += [asyncio.create_task(ended(agent, chat_order())) for _ in range(2)]
        await settle()
        await pass_time(clock, 0.125)
        assert metric(metrics, "fill_refusals_total") == 1.0
        assert metric(metrics, "fills_gave_way_total") == 1.0
        assert metric(metrics, "fills") == 0.0
        assert metric(metrics, "abort_confirmed_seconds_count") == 1.0
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


@pytest.mark.promise("C2.once")
async def test_a_sampled_fill_is_stored_as_one() -> None:
    clock = ManualClock()
    async with FakeEngineAgent(csl=StubCsl(clock), clock=clock, engine=ScriptedEngine(clock)) as fake:
        order = fill_order(leased=True)
        assert order.lease is not None
        await ended(fake, replace(order, lease=replace(order.lease, once=True)))
        await ended(fake, fill_order(leased=True))
        assert [commit.level for commit in store_of(fake).commits] == [Level.SAMPLED, Level.GREEDY]


async def test_an_engine_without_a_count_confirms_nothing() -> None:
    class Silent(ScriptedEngine):
        async def counts(self) -> EngineCounts:
            return EngineCounts()

    clock, metrics = ManualClock(), CollectorRegistry()
    engine = Silent(clock, lambda order: Script(ITEMS, gate=asyncio.Event()))
    async with Agent(engine, None, clock, metrics=metrics) as agent:
        await agent.until_ready()
        order = fill_order()
        task = asyncio.create_task(ended(agent, order))
        await settle()
        assert await agent.abort(order.generation_id, reason="x") == AbortResult(True, None)
        assert metric(metrics, "abort_confirmed_seconds_count") == 0.0
        assert metric(metrics, "unconfirmed_aborts_total") == 0.0
        await task


async def test_whoever_aborts_learns_when_the_engine_confirmed_it() -> None:
    class Slow(ScriptedEngine):
        lingering = 1

        async def counts(self) -> EngineCounts:
            return EngineCounts(running=len(self.running) + self.lingering)

    clock = ManualClock()
    engine = Slow(clock, lambda order: Script(ITEMS, gate=asyncio.Event()))
    async with Agent(engine, None, clock) as agent:
        await agent.until_ready()
        order = fill_order()
        task = asyncio.create_task(ended(agent, order))
        await settle()
        aborting = asyncio.create_task(agent.abort(order.generation_id, reason="x"))
        await settle()
        assert agent.registry.speculation.slots == 1, "what it reserved is held until the engine lets go"
        await pass_time(clock, 0.5)
        assert not aborting.done()
        engine.lingering = 0
        await pass_time(clock, 0.125)
        result = await aborting
        assert result.aborted and result.confirmed_ms is not None and 500 <= result.confirmed_ms <= 625
        assert agent.registry.speculation.slots == 0
        await task


async def test_what_waits_is_aborted_without_the_engines_word() -> None:
    clock = ManualClock()
    async with Agent(gated(clock, slots=1), None, clock) as agent:
        await agent.until_ready()
        orders = [chat_order(), chat_order()]
        tasks = [asyncio.create_task(ended(agent, order)) for order in orders]
        await settle()
        result = await agent.abort(orders[1].generation_id, reason="x")
        assert result == AbortResult(True, None)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def test_a_quiet_follower_is_not_woken_before_the_end() -> None:
    clock, wakes = ManualClock(), 0
    engine = ScriptedEngine(clock, lambda order: Script(ITEMS, between_s=1.0))

    def wake() -> None:
        nonlocal wakes
        wakes += 1

    async with Agent(engine, None, clock) as agent:
        await agent.until_ready()
        follower = agent.order(fill_order(quiet=True), wake)
        await settle()
        await pass_time(clock, len(ITEMS) - 1.5)
        assert wakes == 0 and agent.next_of(follower) is None
        await pass_time(clock, 1.0)
        assert wakes == 1
        message = agent.next_of(follower)
        assert message is not None and message.items == ITEMS and message.end is not None
        follower.leave()


async def test_a_dead_engine_gives_every_share_back() -> None:
    clock = ManualClock()
    engine = gated(clock)
    limits = Limits(fill_slots=3, fill_kv_tokens=30)
    async with FakeEngineAgent(clock=clock, engine=engine, limits=limits) as fake:
        orders: list[GenerationOrder] = [
            replace(fill_order(work=work), reserve_tokens=10)
            for work in (WorkClass.FILL, WorkClass.FILL, WorkClass.DRAFT)
        ]
        tasks = [asyncio.create_task(ended(fake, order)) for order in orders]
        await settle()
        events = fake.attach(orders[0].generation_id, from_item=0, wait_ms=0, idle_s=1, adopts=True)
        async with aclosing(events) as adopter:
            following = asyncio.ensure_future(anext(adopter))
            await settle()
            assert fake.agent.registry.speculation.tokens == 20
            engine.die()
            gate = engine.writer(orders[0]).gate
            assert gate is not None
            gate.set()
            await settle()
            await following
        await asyncio.gather(*tasks)
        assert fake.agent.registry.speculation.tokens == 0 and not fake.agent.registry.slots.held
