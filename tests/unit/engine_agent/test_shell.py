"""The shell on a clock that a test moves: renewals, back-off, lives of the engine."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing
from itertools import pairwise

import pytest
from dynbranch.clients.ports import Unreachable
from dynbranch.domain.engine import Completed, Failed, GenerationEnd, GenerationOrder
from dynbranch.domain.errors import NotReady
from dynbranch.engine_agent.core.registry import Limits
from dynbranch.engine_agent.engines.port import EngineCounts
from dynbranch.engine_agent.fake import FakeEngineAgent, Script, ScriptedEngine, scripts, text_chunks
from dynbranch.engine_agent.shell import Agent
from dynbranch.runtime.clock import ManualClock
from prometheus_client import CollectorRegistry
from unit.engine_agent.samples import StubCsl, chat_order

ITEMS = text_chunks(("a", "b"))


async def settle() -> None:
    """Let everything run that can run without time passing."""
    for _ in range(50):
        await asyncio.sleep(0)


async def pass_time(clock: ManualClock, seconds: float, step: float = 0.0625) -> None:
    for _ in range(round(seconds / step)):
        clock.advance(step)
        await settle()


async def ended(agent: FakeEngineAgent | Agent, order: GenerationOrder) -> GenerationEnd | None:
    end = None
    async with aclosing(agent.generate(order, idle_s=20)) as events:
        async for message in events:
            end = message.end
    return end


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
async def fake(clock: ManualClock) -> AsyncIterator[FakeEngineAgent]:
    engine = ScriptedEngine(clock, lambda order: Script(ITEMS))
    async with FakeEngineAgent(csl=StubCsl(clock), clock=clock, engine=engine) as agent:
        yield agent


def store_of(fake: FakeEngineAgent) -> StubCsl:
    store = fake.agent._csl
    assert isinstance(store, StubCsl)
    return store


def fails(task: asyncio.Task[GenerationEnd | None]) -> Failed:
    end = task.result()
    assert isinstance(end, Failed)
    return end


@pytest.mark.promise("C1.leases_are_renewed")
async def test_leases_are_renewed_in_one_batch_while_generations_run(
    fake: FakeEngineAgent, clock: ManualClock
) -> None:
    gate = asyncio.Event()
    fake.engine.writer = lambda order: Script(ITEMS, gate=gate)
    orders = [chat_order(leased=True) for _ in range(6)]
    tasks = [asyncio.create_task(ended(fake, order)) for order in orders]
    await settle()
    await pass_time(clock, 6.25, step=0.125)
    leases = tuple(order.lease.lease_id for order in orders if order.lease)
    assert store_of(fake).renewed == [leases, leases], "those that wait for a slot too"
    gate.set()
    await asyncio.gather(*tasks)
    await pass_time(clock, 10, step=1)
    assert len(store_of(fake).renewed) == 2


async def test_a_dead_engine_fails_its_generations_and_is_started_again(
    fake: FakeEngineAgent, clock: ManualClock
) -> None:
    gate = asyncio.Event()
    fake.engine.writer = lambda order: Script(ITEMS, gate=gate)
    orders = [chat_order(leased=True) for _ in range(5)]
    tasks = [asyncio.create_task(ended(fake, order)) for order in orders]
    await settle()
    before = await fake.describe(timeout_s=1)
    fake.engine.die()
    gate.set()
    await settle()
    ends = [fails(task) for task in tasks]
    assert all(end.may_retry for end in ends), "nothing was sent"
    assert ends[-1].http_status == 503, "it was waiting"
    gone = await fake.describe(timeout_s=1)
    assert not gone.ready and gone.not_ready_reason == "the engine died" and gone.revision > before.revision
    with pytest.raises(NotReady):
        await ended(fake, chat_order())
    await pass_time(clock, 1)
    assert not (await fake.describe(timeout_s=1)).ready
    fake.engine.revive()
    await pass_time(clock, 2)
    assert (await fake.describe(timeout_s=1)).ready
    assert isinstance(await ended(fake, chat_order()), Completed)
    assert len(store_of(fake).released) == 5 and not store_of(fake).commits


async def test_the_back_off_grows_and_is_bounded(clock: ManualClock) -> None:
    starts: list[float] = []

    class DeadEngine(ScriptedEngine):
        async def start(self):  # type: ignore[no-untyped-def]
            starts.append(clock.now())
            return await super().start()

    engine = DeadEngine(clock)
    engine.die()
    async with Agent(engine, None, clock):
        await settle()
        await pass_time(clock, 60)
    gaps = [after - before for before, after in pairwise(starts)]
    assert gaps[:9] == pytest.approx([0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 10.0, 10.0], abs=0.13)


@pytest.mark.promise("I1")
async def test_a_result_of_an_engine_that_was_replaced_is_served_and_not_stored(
    fake: FakeEngineAgent, clock: ManualClock
) -> None:
    gate = asyncio.Event()
    fake.engine.writer = lambda order: Script(ITEMS, gate=gate)
    task = asyncio.create_task(ended(fake, chat_order(leased=True)))
    await settle()
    await fake.engine.restart()
    await settle()
    await pass_time(clock, 1)
    assert (await fake.describe(timeout_s=1)).ready
    gate.set()
    end = await task
    assert isinstance(end, Completed) and end.commit == "executor_changed"
    assert store_of(fake).commits == []
    await settle()
    assert len(store_of(fake).released) == 1


async def test_a_malformed_log_is_served_and_not_stored(fake: FakeEngineAgent) -> None:
    fake.engine.writer = lambda order: Script((b'{"choices": [{"index": -1}]}',))
    end = await ended(fake, chat_order(leased=True))
    assert isinstance(end, Completed) and end.commit == "malformed_log"


async def test_what_nobody_foresaw_fails_one_generation_only(fake: FakeEngineAgent) -> None:
    gate = asyncio.Event()

    def write(order: GenerationOrder) -> Script:
        if b"surprise" in order.body:
            raise KeyError("a surprise")
        return Script(ITEMS, gate=gate)

    fake.engine.writer = write
    other = asyncio.create_task(ended(fake, chat_order(leased=True)))
    end = await ended(fake, chat_order("surprise", leased=True))
    assert isinstance(end, Failed)
    assert (end.http_status, end.may_retry) == (500, False)
    gate.set()
    assert isinstance(await other, Completed)
    assert isinstance(await ended(fake, chat_order()), Completed)
    assert not fake.agent._runs


@pytest.mark.parametrize("item", [b"[" * 100_000, b'{"a":' * 100_000, b'{"choices":' + b"9" * 5000 + b"}"])
async def test_a_log_that_no_reader_can_read_is_served_and_not_stored(
    fake: FakeEngineAgent, item: bytes
) -> None:
    fake.engine.writer = lambda order: Script((*ITEMS[:-1], item, ITEMS[-1]))
    end = await ended(fake, chat_order(leased=True))
    assert isinstance(end, Completed)
    assert end.commit != "committed"


async def test_large_logs_are_committed_too(fake: FakeEngineAgent) -> None:
    fake.engine.writer = lambda order: Script(text_chunks([f"w{i}" for i in range(400)]))
    end = await ended(fake, chat_order(leased=True))
    assert isinstance(end, Completed) and end.commit == "committed"


async def test_without_a_store_the_end_says_so(clock: ManualClock) -> None:
    async with FakeEngineAgent(clock=clock, engine=ScriptedEngine(clock)) as fake:
        end = await ended(fake, chat_order(leased=True))
        assert isinstance(end, Completed) and end.commit == "unavailable"


async def test_an_agent_that_stops_releases_its_leases_and_ends_its_streams(clock: ManualClock) -> None:
    store = StubCsl(clock)
    engine = ScriptedEngine(clock, lambda order: Script(ITEMS, gate=asyncio.Event()))
    order = chat_order(leased=True)
    async with FakeEngineAgent(csl=store, clock=clock, engine=engine) as fake:
        task = asyncio.create_task(ended(fake, order))
        await settle()
        assert engine.running
    with pytest.raises(NotReady):
        await task
    assert order.lease is not None and store.released == [order.lease.lease_id]
    assert not engine.running and engine.aborted == [order.generation_id]


async def test_an_abort_that_the_engine_does_not_confirm_ends_after_its_bound(clock: ManualClock) -> None:
    class Stubborn(ScriptedEngine):
        async def counts(self):  # type: ignore[no-untyped-def]
            return EngineCounts(running=1)

    engine = Stubborn(clock, lambda order: Script(ITEMS, gate=asyncio.Event()))
    metrics = CollectorRegistry()
    async with Agent(engine, None, clock, metrics=metrics) as agent:
        await agent.until_ready()
        order = chat_order()
        task = asyncio.create_task(ended(agent, order))
        await settle()
        aborting = asyncio.create_task(agent.abort(order.generation_id, reason="x"))
        await pass_time(clock, 9)
        assert not aborting.done() and agent.registry.slots.used == 1
        await pass_time(clock, 1.5)
        assert aborting.done() and agent.registry.slots.used == 0
        await task
        assert metrics.get_sample_value("dynbranch_engine_agent_unconfirmed_aborts_total") == 1.0
        assert (
            metrics.get_sample_value("dynbranch_engine_agent_generations_total", {"outcome": "aborted"})
            == 1.0
        )


async def test_others_who_share_the_engine_do_not_hold_an_abort_up(clock: ManualClock) -> None:
    class Shared(ScriptedEngine):
        lingering = 1  # an aborted one, until the engine notices

        async def counts(self):  # type: ignore[no-untyped-def]
            return EngineCounts(running=len(self.running) + self.lingering + 3)

    engine = Shared(clock, lambda order: Script(ITEMS, gate=asyncio.Event()))
    async with Agent(engine, None, clock) as agent:
        await agent.until_ready()
        order, other = chat_order(), chat_order()
        tasks = [asyncio.create_task(ended(agent, order)), asyncio.create_task(ended(agent, other))]
        await settle()
        aborting = asyncio.create_task(agent.abort(order.generation_id, reason="x"))
        await pass_time(clock, 0.25)
        assert not aborting.done()
        engine.lingering = 0
        await pass_time(clock, 0.25)
        assert aborting.done() and agent.registry.slots.used == 1
        tasks[1].cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def test_the_grace_lets_a_retry_join(fake: FakeEngineAgent, clock: ManualClock) -> None:
    gate = asyncio.Event()
    fake.engine.writer = lambda order: Script(ITEMS, gate=gate)
    order = chat_order(grace_ms=1000)
    task = asyncio.create_task(ended(fake, order))
    await settle()
    task.cancel()
    await pass_time(clock, 0.5)
    events = fake.attach(order.generation_id, from_item=0, wait_ms=0, idle_s=1)
    retry = asyncio.create_task(anext(events))
    await settle()
    await pass_time(clock, 2)
    gate.set()
    assert (await retry).items
    await events.aclose()
    assert fake.engine.aborted == []


async def test_finished_logs_are_forgotten(clock: ManualClock) -> None:
    engine = ScriptedEngine(clock)
    async with FakeEngineAgent(clock=clock, engine=engine, limits=Limits(retention_s=2)) as fake:
        await ended(fake, chat_order())
        assert len(fake.agent.registry.generations) == 1
        await pass_time(clock, 2.1)
        assert not fake.agent.registry.generations and not fake.agent._following and not fake.agent._runs


async def test_a_lost_agent_is_unreachable_at_once(fake: FakeEngineAgent) -> None:
    fake.engine.writer = scripts({"fake-model": Script(ITEMS, gate=asyncio.Event())})
    task = asyncio.create_task(ended(fake, chat_order()))
    await settle()
    fake.lose()
    with pytest.raises(Unreachable):
        await task
    with pytest.raises(Unreachable):
        await fake.describe(timeout_s=1)
    fake.find()
    assert (await fake.describe(timeout_s=1)).ready


@pytest.mark.parametrize("first_s", [0.0, 1.0])
async def test_scripted_latency_runs_on_the_clock(
    fake: FakeEngineAgent, clock: ManualClock, first_s: float
) -> None:
    fake.engine.writer = lambda order: Script(ITEMS, first_s=first_s, between_s=0.5)
    task = asyncio.create_task(ended(fake, chat_order()))
    await settle()
    await pass_time(clock, first_s + 1.9)
    assert not task.done()
    await pass_time(clock, 0.2)
    assert task.done(), "five items are four steps"
    end = task.result()
    assert end is not None and end.execution_ms == pytest.approx((first_s + 2.0) * 1000)


def test_a_callable_per_target() -> None:
    writer: Callable[[GenerationOrder], Script] = scripts({"fake-model": Script(ITEMS)})
    assert writer(chat_order()).items == ITEMS
