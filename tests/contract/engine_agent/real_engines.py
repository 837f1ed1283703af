"""One suite for every engine that really computes. A test file subclasses it and brings a ``RealEngine``.

What an engine can not be told to do (die in the middle of a chunk, answer with a given status) is tested with
stand-ins in ``test_agent_contract.py``.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass

import pytest
from dynbranch.domain.engine import (
    Aborted,
    Completed,
    Failed,
    GenerationEnd,
    GenerationOrder,
    ModelDescription,
)
from dynbranch.engine_agent.engines.port import Engine
from dynbranch.engine_agent.shell import Agent
from dynbranch.naming.chunks import output_digests, result_digest, usage
from dynbranch.runtime.clock import SystemClock
from unit.engine_agent.samples import StubCsl, chat_order, fill_order

QUESTIONS = (
    "Name three colours.",
    "What is the capital of France?",
    "Write one sentence about rain.",
    "Count from one to ten.",
)
LONG = 400
"""Tokens that no engine here decodes before a test has looked."""
STORED = ("committed", "pending")
"""A busy machine may need longer for the commit than a response waits."""
START_S = 400
STEP_S = 60


@dataclass
class RealEngine:
    """``shared`` may be attached to a server that other tests use too; ``own`` is one that may be killed, and
    ``pid`` says which process to kill. ``slots``: generations at once."""

    shared: Callable[[], Engine]
    own: Callable[[], Engine]
    pid: Callable[[Engine], int | None]
    slots: int


@asynccontextmanager
async def running(engine: Engine, csl: StubCsl | None = None) -> AsyncIterator[Agent]:
    async with Agent(engine, csl, SystemClock()) as agent:
        await asyncio.wait_for(agent.until_ready(), START_S)
        yield agent


async def model_of(agent: Agent) -> ModelDescription:
    return (await agent.describe()).models[0]


async def ran(agent: Agent, order: GenerationOrder) -> tuple[list[bytes], GenerationEnd | None]:
    items: list[bytes] = []
    end = None
    async with aclosing(agent.generate(order)) as events:
        async for message in events:
            items += message.items
            end = message.end
    return items, end


async def until(condition: Callable[[], bool], seconds: float = STEP_S) -> None:
    async with asyncio.timeout(seconds):
        while not condition():
            await asyncio.sleep(0.01)


def items_of(agent: Agent, order: GenerationOrder) -> int:
    generation = agent.registry.find(order.generation_id)
    return 0 if generation is None else len(generation.items)


async def nothing_left(agent: Agent, engine: Engine) -> None:
    """By the engine's own count and by the agent's books."""
    await until(lambda: not agent.registry.slots.held and not agent.registry.slots.waiting)
    agent.registry.validate_state()
    assert not agent.registry.leases.held
    async with asyncio.timeout(STEP_S):
        while True:
            counts = await engine.counts()
            if not counts.running and not counts.waiting and not counts.kv_used_share:
                return
            await asyncio.sleep(0.02)


class RealEngineSuite:
    @pytest.fixture
    def real(self) -> RealEngine:
        raise NotImplementedError

    @pytest.mark.promise("C1.commit_under_the_lease")
    async def test_a_generation_streams_and_is_committed(self, real: RealEngine) -> None:
        csl = StubCsl()
        async with running(real.shared(), csl) as agent:
            model = await model_of(agent)
            order = chat_order(QUESTIONS[0], model=model, leased=True, max_tokens=8)
            items, end = await ran(agent, order)
            assert isinstance(end, Completed) and end.commit in STORED
            await until(lambda: bool(csl.commits))
            assert len(items) > 4, "a stream, not one piece"
            told = usage(items)
            assert told is not None and told["completion_tokens"] == 8
            (commit,) = csl.commits
            assert commit.payload_digest == result_digest(items)
            assert commit.output_digests == output_digests(items)

    @pytest.mark.promise("I1")
    async def test_greedy_output_is_the_same_alone_and_among_others(self, real: RealEngine) -> None:
        csl = StubCsl()
        async with running(real.shared(), csl) as agent:
            model = await model_of(agent)

            async def answer(question: str) -> bytes:
                order = chat_order(question, model=model, leased=True, max_tokens=12)
                items, end = await ran(agent, order)
                assert isinstance(end, Completed) and end.commit in STORED
                return result_digest(items)

            alone = [await answer(question) for question in QUESTIONS]
            together = await asyncio.gather(*(answer(question) for question in QUESTIONS))
            again = await asyncio.gather(*(answer(QUESTIONS[0]) for _ in range(4)))
            assert alone == together and set(again) == {alone[0]}
            await until(lambda: len(csl.commits) == 12)
            assert {commit.payload_digest for commit in csl.commits} == set(alone)
            assert len(set(alone)) == len(QUESTIONS), "not vacuous"

    @pytest.mark.promise("C1.abort_when_nobody_follows")
    @pytest.mark.parametrize("seen", [0, 1, 2, 5, 15])
    async def test_a_client_may_leave_at_any_moment(self, real: RealEngine, seen: int) -> None:
        engine = real.shared()
        async with running(engine) as agent:
            model = await model_of(agent)
            order = chat_order("Tell a long story.", model=model, leased=True, max_tokens=LONG)
            task = asyncio.create_task(ran(agent, order))
            await until(lambda: bool(agent.registry.slots.held) and items_of(agent, order) >= seen)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            await nothing_left(agent, engine)
            assert agent.metrics.unconfirmed._value.get() == 0

    @pytest.mark.promise("C1.abort_frees_the_slot")
    async def test_an_abort_frees_the_slot_by_the_engines_own_count(self, real: RealEngine) -> None:
        engine = real.shared()
        async with running(engine) as agent:
            model = await model_of(agent)
            orders = [
                chat_order(f"Tell a long story {i}.", model=model, max_tokens=LONG)
                for i in range(real.slots + 1)
            ]
            tasks = [asyncio.create_task(ran(agent, order)) for order in orders]
            slots = agent.registry.slots
            await until(lambda: len(slots.held) == real.slots and len(slots.waiting) == 1)
            async with asyncio.timeout(STEP_S):
                while (await engine.counts()).running != real.slots:
                    await asyncio.sleep(0.01)
            tasks[0].cancel()  # the client leaves
            await until(lambda: items_of(agent, orders[-1]) >= 1)
            assert (await engine.counts()).running == real.slots, "the one that waited runs, and no more"
            for order in orders[1:]:
                result = await agent.abort(order.generation_id, reason="enough")
                assert result.aborted and result.confirmed_ms is not None
            counts = await engine.counts()
            assert (counts.running, counts.waiting) == (0, 0)
            await asyncio.gather(*tasks, return_exceptions=True)
            await nothing_left(agent, engine)
            assert agent.metrics.unconfirmed._value.get() == 0

    @pytest.mark.promise("C2.canonical_first")
    async def test_canonical_work_takes_the_slot_of_a_fill(self, real: RealEngine) -> None:
        engine = real.shared()
        async with running(engine) as agent:
            model = await model_of(agent)
            fill = fill_order("Tell a long story.", model=model, max_tokens=LONG)
            tasks = [asyncio.create_task(ran(agent, fill))]
            await until(lambda: items_of(agent, fill) >= 1)
            for i in range(real.slots - 1):
                order = chat_order(f"Tell a long story {i}.", model=model, max_tokens=LONG)
                tasks.append(asyncio.create_task(ran(agent, order)))
            await until(lambda: len(agent.registry.slots.held) == real.slots)
            _, end = await ran(agent, chat_order(QUESTIONS[0], model=model, max_tokens=2))
            assert isinstance(end, Completed)
            _, end = await tasks[0]
            assert isinstance(end, Aborted) and end.reason == "gave_way"
            for task in tasks[1:]:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await nothing_left(agent, engine)
            assert agent.metrics.unconfirmed._value.get() == 0

    async def test_a_killed_engine_is_started_again_and_answers_as_before(self, real: RealEngine) -> None:
        csl, engine = StubCsl(), real.own()
        async with running(engine, csl) as agent:
            model = await model_of(agent)
            before, _ = await ran(agent, chat_order(QUESTIONS[0], model=model, max_tokens=12))
            pid = real.pid(engine)
            assert pid is not None
            order = chat_order("Tell a long story.", model=model, max_tokens=LONG, leased=True)
            task = asyncio.create_task(ran(agent, order))
            await until(lambda: items_of(agent, order) >= 4)
            os.kill(pid, signal.SIGKILL)
            items, end = await asyncio.wait_for(task, STEP_S)
            assert items and isinstance(end, Failed) and not end.may_retry
            await until(lambda: real.pid(engine) not in (None, pid))
            await asyncio.wait_for(agent.until_ready(), START_S)
            assert (await model_of(agent)).fingerprint == model.fingerprint
            after, _ = await ran(agent, chat_order(QUESTIONS[0], model=model, max_tokens=12))
            assert result_digest(after) == result_digest(before)
            assert csl.commits == [] and order.lease is not None
            assert csl.released == [order.lease.lease_id]

    async def test_the_engines_own_error_comes_through(self, real: RealEngine) -> None:
        async with running(real.shared()) as agent:
            model = await model_of(agent)
            too_long = chat_order("word " * 9000, model=model, leased=True)
            _, end = await ran(agent, too_long)
            assert isinstance(end, Failed) and end.http_status == 400 and not end.may_retry
            assert b"error" in end.body
            _, end = await ran(agent, chat_order(model=model, max_tokens="many"))
            assert isinstance(end, Failed) and 400 <= end.http_status < 600
            _, end = await ran(agent, chat_order(QUESTIONS[0], model=model, max_tokens=2))
            assert isinstance(end, Completed), "it goes on after its errors"

    async def test_the_probe_knows_the_model(self, real: RealEngine) -> None:
        async with running(real.shared()) as agent:
            model = await model_of(agent)
            known = dict(model.fingerprint.facts)
            assert "single_text_block_is_string" in model.equivalences and not model.not_reusable_reason
            assert (
                known["engine.version"] != "unknown" and known["rendering"] and known["default.temperature"]
            )
