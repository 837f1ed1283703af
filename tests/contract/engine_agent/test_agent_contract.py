from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing
from dataclasses import replace

import pytest
from contract.engine_agent.conftest import LIMITS, SLOTS, Stage
from dynbranch.domain.engine import (
    Aborted,
    AbortResult,
    Completed,
    Failed,
    GenerationEnd,
    GenerationEvents,
    GenerationOrder,
)
from dynbranch.domain.errors import Conflict, DomainError, InvalidRequest, NotFound, NotReady
from dynbranch.domain.ids import Digest, GenerationId
from dynbranch.domain.reuse import Refusal, Refused
from dynbranch.engine_agent.fake import Script, text_chunks
from dynbranch.naming.chunks import compact, decode_payload, output_digests, result_digest

ITEMS = text_chunks(("one ", "two ", "three ", "four"))


class Log:
    """What one follower saw."""

    def __init__(self, from_item: int = 0) -> None:
        self.items: list[bytes] = []
        self.end: GenerationEnd | None = None
        self.cursor = from_item

    async def follow(self, events: AsyncIterator[GenerationEvents]) -> Log:
        async with aclosing(events) as stream:  # type: ignore[type-var]
            async for message in stream:
                assert message.from_item == self.cursor, "no item is lost or repeated"
                assert self.end is None, "nothing follows the end"
                self.cursor += len(message.items)
                self.items += message.items
                self.end = message.end
        return self


async def ran(stage: Stage, order: GenerationOrder) -> Log:
    return await Log().follow(stage.agent.generate(order, idle_s=20))


async def attached(stage: Stage, order: GenerationOrder, from_item: int = 0, wait_ms: int = 50) -> Log:
    events = stage.agent.attach(order.generation_id, from_item=from_item, wait_ms=wait_ms, idle_s=20)
    return await Log(from_item).follow(events)


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not condition():
            await asyncio.sleep(0.005)


async def test_describe_says_what_runs_here(stage: Stage) -> None:
    description = await stage.agent.describe(timeout_s=5)
    assert description.ready and description.slots == SLOTS
    assert "single_text_block_is_string" in description.models[0].equivalences
    assert description.models[0].not_reusable_reason == ""


@pytest.mark.promise("C1.commit_under_the_lease")
async def test_a_generation_streams_and_is_committed_before_its_end(stage: Stage) -> None:
    stage.play(Script(ITEMS))
    order = stage.order(leased=True)
    log = await ran(stage, order)
    assert tuple(log.items) == ITEMS
    assert isinstance(log.end, Completed) and log.end.commit == "committed"
    (commit,) = stage.csl.commits
    assert commit.lease == order.lease and commit.reads is None
    assert decode_payload(commit.payload) == compact(ITEMS)
    assert commit.payload_digest == result_digest(ITEMS)
    assert commit.output_digests == output_digests(ITEMS)
    assert commit.label.startswith("chat ") and commit.execution_ms > 0
    assert stage.csl.released == [] and stage.nothing_is_held()


async def test_without_a_lease_nothing_is_stored(stage: Stage) -> None:
    log = await ran(stage, stage.order())
    assert isinstance(log.end, Completed) and log.end.commit == "not_asked"
    assert stage.csl.commits == []


@pytest.mark.promise("C1.single_flight")
async def test_followers_see_the_same_log_from_wherever_they_start(stage: Stage) -> None:
    gate = asyncio.Event()
    stage.play(Script(ITEMS, gate=gate))
    order = stage.order(leased=True)
    first = asyncio.create_task(ran(stage, order))
    await until(lambda: stage.engine_running() == 1)
    others = [asyncio.create_task(attached(stage, order, from_item)) for from_item in (0, 2, 4)]
    await until(lambda: len(_followers(stage, order)) == 4)
    gate.set()
    log = await first
    for task, from_item in zip(others, (0, 2, 4), strict=True):
        other = await task
        assert (other.items, other.end) == (log.items[from_item:], log.end)
    assert len(stage.csl.commits) == 1


def _followers(stage: Stage, order: GenerationOrder) -> set[int]:
    generation = stage.inner.registry.find(order.generation_id)
    return set() if generation is None else set(generation.followers)


async def test_a_finished_generation_can_still_be_followed(stage: Stage) -> None:
    stage.play(Script(ITEMS))
    order = stage.order(leased=True)
    log = await ran(stage, order)
    late = await attached(stage, order, from_item=3)
    assert (late.items, late.end) == (log.items[3:], log.end)
    beyond = await attached(stage, order, from_item=99)
    assert (beyond.items, beyond.end) == ([], log.end)


async def test_an_unknown_generation_is_not_found_after_the_wait(stage: Stage) -> None:
    with pytest.raises(NotFound) as refusal:
        await attached(stage, stage.order(), wait_ms=10)
    assert refusal.value.reason == "unknown_generation"


async def test_a_follower_may_come_before_its_generation(stage: Stage) -> None:
    for _ in range(50):  # a busy machine may let the 50 ms pass before the order is there
        order = stage.order()
        early = asyncio.create_task(attached(stage, order, wait_ms=50))
        await until(lambda: order.generation_id in stage.inner._newcomers or early.done())  # noqa: B023
        log = await ran(stage, order)
        await asyncio.wait((early,))
        if early.exception() is None:
            break
    assert early.result().items == log.items


@pytest.mark.parametrize(
    ("change", "error", "reason"),
    [
        (lambda order: replace(order, target="nobody"), NotFound, "unknown_model"),
        (
            lambda order: replace(order, fingerprint_digest=Digest(b"x" * 32)),
            Conflict,
            "fingerprint_changed",
        ),
        (lambda order: replace(order, body=b"{"), InvalidRequest, "invalid_json"),
        (lambda order: replace(order, body=b"[1]"), InvalidRequest, "invalid_body"),
    ],
    ids=["model", "fingerprint", "json", "kind"],
)
async def test_an_order_that_can_not_be_run_is_refused(
    stage: Stage,
    change: Callable[[GenerationOrder], GenerationOrder],
    error: type[DomainError],
    reason: str,
) -> None:
    with pytest.raises(error) as refusal:
        await ran(stage, change(stage.order(leased=True)))
    assert refusal.value.reason == reason
    assert stage.nothing_is_held() and stage.engine_running() == 0


async def test_an_id_runs_once(stage: Stage) -> None:
    order = stage.order()
    await ran(stage, order)
    with pytest.raises(Conflict):
        await ran(stage, order)


async def test_waiting_is_bounded_and_everybody_who_waits_is_served(stage: Stage) -> None:
    gate = asyncio.Event()
    stage.play(Script(ITEMS, gate=gate))
    tasks = [asyncio.create_task(ran(stage, stage.order())) for _ in range(SLOTS + LIMITS.waiting)]
    await until(lambda: len(stage.inner.registry.slots.waiting) == LIMITS.waiting)
    with pytest.raises(NotReady) as refusal:
        await ran(stage, stage.order())
    assert refusal.value.reason == "queue_full"
    await until(lambda: stage.engine_running() == SLOTS)
    gate.set()
    assert all(tuple(log.items) == ITEMS for log in await asyncio.gather(*tasks))
    assert stage.nothing_is_held()


BUSY = Failed(503, b'{"error":{"message":"busy"}}', may_retry=True)
WRONG = Failed(400, b"<p>wrong</p>", may_retry=False, content_type="text/html")


@pytest.mark.promise("C1.failures_are_not_stored")
@pytest.mark.parametrize("failure", [BUSY, WRONG], ids=["busy", "wrong"])
async def test_the_engines_own_refusal_reaches_the_follower(stage: Stage, failure: Failed) -> None:
    stage.play(Script(ITEMS, fail_after=0, failure=failure))
    order = stage.order(leased=True)
    log = await ran(stage, order)
    assert isinstance(log.end, Failed) and log.items == []
    assert replace(log.end, execution_ms=0.0) == failure
    await _nothing_stored(stage, order)


@pytest.mark.promise("C1.failures_are_not_stored")
@pytest.mark.parametrize("sent", [0, 1, 3, len(ITEMS)], ids=["before", "first", "middle", "after"])
async def test_an_engine_that_dies_stores_nothing(stage: Stage, sent: int) -> None:
    stage.play(Script(ITEMS, between_s=0.002, fail_after=sent))
    order = stage.order(leased=True)
    log = await ran(stage, order)
    assert isinstance(log.end, Failed)
    assert log.end.may_retry == (not log.items)
    assert tuple(log.items) == ITEMS[: len(log.items)]
    await _nothing_stored(stage, order)


async def _nothing_stored(stage: Stage, order: GenerationOrder) -> None:
    assert order.lease is not None
    await until(lambda: bool(stage.csl.released))
    assert stage.csl.released == [order.lease.lease_id]
    assert stage.csl.commits == [] and stage.nothing_is_held()
    with pytest.raises(NotFound):
        await attached(stage, order)


@pytest.mark.promise("C1.abort_when_nobody_follows")
@pytest.mark.parametrize("seen", range(1, len(ITEMS) + 1))
async def test_a_client_may_leave_at_any_moment(stage: Stage, seen: int) -> None:
    gate = asyncio.Event()
    chunks = text_chunks([f"w{i} " for i in range(200)])
    stage.play(Script(chunks, between_s=0.001))
    order = stage.order(leased=True)
    events = stage.agent.generate(order, idle_s=20)
    count = 0
    async with aclosing(events) as stream:  # type: ignore[type-var]
        async for message in stream:
            count += len(message.items)
            if count >= seen:
                break
    await until(lambda: stage.engine_running() == 0 and stage.nothing_is_held())
    await until(lambda: bool(stage.csl.released))
    assert stage.csl.commits == []
    gate.set()


@pytest.mark.promise("C1.abort_when_nobody_follows")
async def test_a_client_that_leaves_before_the_first_item(stage: Stage) -> None:
    stage.play(Script(ITEMS, gate=asyncio.Event()))
    task = asyncio.create_task(ran(stage, stage.order(leased=True)))
    await until(lambda: stage.engine_running() == 1)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await until(lambda: stage.engine_running() == 0 and stage.nothing_is_held())


@pytest.mark.promise("C1.cancel_detaches_only_its_client")
async def test_a_client_that_leaves_does_not_stop_the_others(stage: Stage) -> None:
    gate = asyncio.Event()
    stage.play(Script(ITEMS, gate=gate))
    order = stage.order(leased=True)
    first = asyncio.create_task(ran(stage, order))
    await until(lambda: stage.engine_running() == 1)
    other = asyncio.create_task(attached(stage, order))
    await until(lambda: len(_followers(stage, order)) == 2)
    first.cancel()
    await until(lambda: len(_followers(stage, order)) == 1)
    gate.set()
    log = await other
    assert tuple(log.items) == ITEMS
    assert isinstance(log.end, Completed) and log.end.commit == "committed"


async def test_a_slow_follower_slows_nobody(stage: Stage) -> None:
    chunks = text_chunks([f"w{i} " for i in range(2000)])
    gate = asyncio.Event()
    stage.play(Script(chunks, gate=gate))
    order = stage.order()
    first = asyncio.create_task(ran(stage, order))
    await until(lambda: stage.engine_running() == 1)
    slow = stage.agent.attach(order.generation_id, from_item=0, wait_ms=50, idle_s=20)
    gate.set()
    async with aclosing(slow) as stream:  # type: ignore[type-var]
        opening = await anext(stream)
        assert tuple((await first).items) == chunks
        rest = [item async for message in stream for item in message.items]
    assert (*opening.items, *rest) == chunks


async def test_abort_ends_the_generation_for_everybody(stage: Stage) -> None:
    stage.play(Script(ITEMS, gate=asyncio.Event()))
    order = stage.order(leased=True)
    task = asyncio.create_task(ran(stage, order))
    await until(lambda: stage.engine_running() == 1)
    result = await stage.agent.abort(order.generation_id, reason="no longer wanted", timeout_s=5)
    assert result.aborted and result.confirmed_ms is not None and result.confirmed_ms > 0
    assert stage.engine_running() == 0, "it returns when the engine has let go"
    log = await task
    assert isinstance(log.end, Aborted) and log.end.reason == "no longer wanted"
    for gone in (order.generation_id, GenerationId(b"x" * 16)):
        result = await stage.agent.abort(gone, reason="again", timeout_s=5)
        assert result == AbortResult(aborted=False)


async def test_drain_waits_for_what_runs_and_takes_nothing_new(stage: Stage) -> None:
    gate = asyncio.Event()
    stage.play(Script(ITEMS, gate=gate))
    task = asyncio.create_task(ran(stage, stage.order(leased=True)))
    await until(lambda: stage.engine_running() == 1)
    assert await stage.agent.drain(deadline_s=0.02) == 1
    with pytest.raises(NotReady):
        await ran(stage, stage.order())
    assert not (await stage.agent.describe(timeout_s=5)).ready
    draining = asyncio.create_task(stage.agent.drain(deadline_s=20))
    gate.set()
    assert await draining == 0
    assert isinstance((await task).end, Completed)


async def test_occupancy_tells_own_and_engines_counts(stage: Stage) -> None:
    gate = asyncio.Event()
    stage.play(Script(ITEMS, gate=gate))
    async with aclosing(stage.agent.watch_occupancy(interval_ms=20)) as reports:  # type: ignore[type-var]
        idle = await anext(reports)
        assert (idle.ready, idle.slots, idle.running, idle.engine_running) == (True, SLOTS, 0, 0)
        tasks = [asyncio.create_task(ran(stage, stage.order())) for _ in range(SLOTS + 1)]
        async with asyncio.timeout(20):
            async for report in reports:
                if (report.running, report.waiting, report.engine_running) == (SLOTS, 1, SLOTS):
                    break
        gate.set()
        await asyncio.gather(*tasks)


async def test_a_content_filter_stop_is_served_and_not_stored(stage: Stage) -> None:
    filtered = text_chunks(("no",), finish="content_filter")
    stage.play(Script(filtered, unstorable="content_filter"))
    order = stage.order(leased=True)
    log = await ran(stage, order)
    assert isinstance(log.end, Completed) and log.end.commit == "content_filter"
    assert tuple(log.items) == filtered
    await until(lambda: bool(stage.csl.released))
    assert stage.csl.commits == []


async def test_a_refused_commit_is_told(stage: Stage) -> None:
    stage.csl.answer = Refused(Refusal.STALE_READ)
    log = await ran(stage, stage.order(leased=True))
    assert isinstance(log.end, Completed) and log.end.commit == "stale_read"


@pytest.mark.promise("I5")
async def test_a_store_that_is_gone_costs_nothing_but_the_storing(stage: Stage) -> None:
    stage.csl.reachable = False
    stage.play(Script(ITEMS))
    log = await ran(stage, stage.order(leased=True))
    assert isinstance(log.end, Completed) and log.end.commit == "unavailable"
    assert tuple(log.items) == ITEMS
    await until(stage.nothing_is_held)


async def test_a_slow_commit_does_not_hold_the_response_back(stage: Stage) -> None:
    stage.csl.commit_s = 0.4
    order = stage.order(leased=True)
    log = await ran(stage, order)
    assert isinstance(log.end, Completed) and log.end.commit == "pending"
    await until(lambda: len(stage.csl.commits) == 1 and stage.nothing_is_held())
    late = await attached(stage, order)
    assert isinstance(late.end, Completed) and late.end.commit == "committed"
