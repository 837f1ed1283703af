"""The owner of a store: what waits for the disk, what does not, and what a failed disk means."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest
from dynbranch.csl.core import founding
from dynbranch.csl.core.library import Library
from dynbranch.csl.core.limits import Limits
from dynbranch.csl.core.store import Batch
from dynbranch.csl.fake import counting_ids, digest, name_of, origin_of
from dynbranch.csl.key_value import MemoryKeyValue, StoreFull
from dynbranch.csl.metrics import StoreCollector
from dynbranch.csl.shell import Shell
from dynbranch.domain.errors import StoreFailed
from dynbranch.domain.fills import BeginFill, DiscardFills, DiscardReason, FillGranted, FillOutcome
from dynbranch.domain.ids import DemandId, GenerationId, RecordId
from dynbranch.domain.reuse import (
    PURE,
    Commit,
    Committed,
    Demand,
    DemandOutcome,
    GenerationRef,
    Hit,
    Identity,
    Level,
    Miss,
    ReadScope,
)
from dynbranch.runtime.clock import ManualClock
from dynbranch.runtime.tasks import Tasks
from prometheus_client import CollectorRegistry, generate_latest

DOCS = ReadScope(sources=("docs",))
RECORD = RecordId("docs/1")


class Disk(MemoryKeyValue):
    """A store whose flush waits for the test, and whose writes can fail."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = asyncio.Event()
        self.gate.set()
        self.flushes = 0
        self.flush_error: Exception | None = None
        self.apply_error: Exception | None = None

    def apply(self, batch: Batch) -> None:
        if self.apply_error is not None:
            raise self.apply_error
        super().apply(batch)

    def sync(self) -> None:
        self.flushes += 1
        if self.flush_error is not None:
            raise self.flush_error

    async def run_blocking(self, call: Callable[[], None]) -> None:
        await self.gate.wait()
        call()


@pytest.fixture
def disk() -> Disk:
    disk = Disk()
    disk.apply(founding.found(1))
    return disk


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def shell(disk: Disk, clock: ManualClock) -> Shell:
    core = Library(limits=Limits(slice_nodes=1), new_id=counting_ids(), view=disk)
    return Shell(disk, core, clock, run_blocking=disk.run_blocking)


async def demand(shell: Shell, what: str) -> DemandOutcome:
    ids = (DemandId(what.encode().ljust(16)), GenerationId(what.encode().rjust(16)))
    return await shell.demand(
        Demand(ids[0], name_of(what), Identity(), DOCS, GenerationRef(ids[1], "agent:1"))
    )


async def store(shell: Shell, what: str) -> None:
    outcome = await demand(shell, what)
    assert isinstance(outcome, Miss) and outcome.lease is not None
    commit = Commit(outcome.lease, b"x", digest("x"), Level.SOURCED, 1.0, reads=(RECORD,))
    assert isinstance(await shell.commit(commit), Committed)


@pytest.mark.promise("C1.durability")
async def test_a_write_is_visible_at_once_and_acknowledged_only_when_durable(
    shell: Shell, disk: Disk
) -> None:
    await store(shell, "a")
    assert disk.flushes == 0, "a commit does not wait for the disk"
    disk.gate.clear()
    writing = asyncio.ensure_future(shell.write([RECORD], reporter="test"))
    for _ in range(5):
        await asyncio.sleep(0)
    assert not writing.done()
    assert isinstance(await demand(shell, "a"), Miss)
    disk.gate.set()
    assert (await writing).invalidated_entries == 1


@pytest.mark.promise("C1.durability")
async def test_waiting_writes_share_a_flush(shell: Shell, disk: Disk) -> None:
    disk.gate.clear()
    writes = [asyncio.ensure_future(shell.write([RECORD], reporter="test")) for _ in range(10)]
    for _ in range(5):
        await asyncio.sleep(0)
    disk.gate.set()
    results = await asyncio.gather(*writes)
    assert [result.version.sequence for result in results] == list(range(1, 11))
    assert disk.flushes <= 2


@pytest.mark.promise("C1.durability")
async def test_a_write_whose_caller_left_has_happened_all_the_same(shell: Shell, disk: Disk) -> None:
    await store(shell, "a")
    await store(shell, "b")
    disk.gate.clear()
    writing = asyncio.ensure_future(shell.write([RECORD], reporter="test"))
    await asyncio.sleep(0)
    writing.cancel()
    disk.gate.set()
    await asyncio.gather(writing, return_exceptions=True)
    assert isinstance(await demand(shell, "a"), Miss)
    assert (await shell.write([RECORD], reporter="test")).version.sequence == 2


@pytest.mark.promise("C1.durability")
async def test_a_failed_flush_stops_everything(shell: Shell, disk: Disk) -> None:
    await store(shell, "a")
    disk.flush_error = OSError("input/output error")
    with pytest.raises(StoreFailed):
        async with Tasks() as tasks:
            shell.start(tasks)
            with pytest.raises(StoreFailed):
                await shell.write([RECORD], reporter="test")
            await tasks.crashed
    disk.flush_error = None
    for call in (demand(shell, "a"), shell.stats(), shell.write([RECORD], reporter="test")):
        with pytest.raises(StoreFailed):
            await call


async def test_a_full_disk_refuses_what_must_be_written_and_serves_on(shell: Shell, disk: Disk) -> None:
    await store(shell, "a")
    disk.apply_error = StoreFull("No space left on device")
    with pytest.raises(StoreFull):
        await shell.write([RECORD], reporter="test")
    assert isinstance(await demand(shell, "a"), Hit)
    disk.apply_error = None
    assert (await shell.write([RECORD], reporter="test")).invalidated_entries == 1


@pytest.mark.promise("I4")
async def test_a_leave_that_does_not_fit_on_the_disk_is_not_given(
    shell: Shell, disk: Disk, clock: ManualClock
) -> None:
    async def begin(fill: str) -> FillOutcome:
        intended = GenerationRef(GenerationId(b"g" * 16), "agent:1")
        asked = BeginFill(origin_of(fill), name_of("a"), Identity(), PURE, intended, shadow_ttl_ms=1000)
        return await shell.begin_fill(asked)

    begun = await begin("f")
    assert isinstance(begun, FillGranted)
    await shell.commit(Commit(begun.lease, b"x", digest("x"), Level.GREEDY, 1.0))
    clock.advance(2)
    disk.apply_error = StoreFull("No space left on device")
    with pytest.raises(StoreFull):
        await begin("g")
    stats = await shell.stats()
    assert (stats.fills, stats.leases, stats.shadows) == (0, 0, 1)
    disk.apply_error = None
    assert isinstance(await begin("g"), FillGranted)
    assert not [*shell.library.violations(disk)]


@pytest.mark.promise("I2")
async def test_a_loss_that_did_not_fit_on_the_disk_names_what_runs_when_it_is_asked_again(
    shell: Shell, disk: Disk
) -> None:
    intended = GenerationRef(GenerationId(b"g" * 16), "agent:1")
    begun = await shell.begin_fill(BeginFill(origin_of("f"), name_of("a"), Identity(), PURE, intended))
    assert isinstance(begun, FillGranted)
    lost = DiscardFills((origin_of("f").fill_id,), DiscardReason.LOST)
    disk.apply_error = StoreFull("No space left on device")
    with pytest.raises(StoreFull):
        await shell.discard_fills(lost)
    assert isinstance(await demand(shell, "a"), Miss)
    disk.apply_error = None
    assert (await shell.discard_fills(lost)).abort == (begun.lease.generation,)


async def test_housekeeping_makes_commits_durable(shell: Shell, disk: Disk, clock: ManualClock) -> None:
    async with Tasks() as tasks:
        shell.start(tasks)
        await store(shell, "a")
        await asyncio.sleep(0)
        assert clock.sleeping == 1
        clock.advance(1)
        for _ in range(10):
            await asyncio.sleep(0)
        assert disk.flushes == 1


@pytest.mark.promise("C1.ttl")
async def test_housekeeping_lets_old_entries_go(shell: Shell, clock: ManualClock) -> None:
    async with Tasks() as tasks:
        shell.start(tasks)
        await store(shell, "a")
        await asyncio.sleep(0)
        clock.advance(31 * 86_400.0)
        for _ in range(10):
            await asyncio.sleep(0)
        assert (await shell.stats()).entries == 0


@pytest.mark.promise("I3")
async def test_a_first_arrival_that_does_not_fit_does_not_fail_its_demand(shell: Shell, disk: Disk) -> None:
    disk.apply_error = StoreFull("No space left on device")
    ids = (DemandId(b"d" * 16), GenerationId(b"g" * 16))
    identity = Identity(workflow_id="w")
    outcome = await shell.demand(
        Demand(ids[0], name_of("a"), identity, DOCS, GenerationRef(ids[1], "agent:1"))
    )
    assert isinstance(outcome, Miss) and outcome.lease is not None
    assert shell.failure is None


@pytest.mark.promise("C1.linearisable")
async def test_demands_are_answered_between_the_steps_of_a_large_write(
    disk: Disk, clock: ManualClock
) -> None:
    core = Library(limits=Limits(plan_nodes=1, slice_nodes=2), new_id=counting_ids(), view=disk)
    shell = Shell(disk, core, clock, run_blocking=disk.run_blocking)
    for number in range(12):
        await store(shell, f"n{number}")
    writing = asyncio.ensure_future(shell.write([RECORD], reporter="test"))
    hits = 0
    while not writing.done():
        await asyncio.sleep(0)
        hits += isinstance(await demand(shell, "n11"), Hit)
    assert (await writing).invalidated_entries == 12
    assert hits > 3
    assert isinstance(await demand(shell, "n11"), Miss)


async def test_slices_are_deleted_beside_the_requests(shell: Shell) -> None:
    async with Tasks() as tasks:
        shell.start(tasks)
        for what in ("a", "b", "c"):
            await store(shell, what)
        await shell.write([RECORD], reporter="test")
        for _ in range(20):
            await asyncio.sleep(0)
        assert shell.library.slices == ()
        assert (await shell.stats()).payload_bytes == 0


@pytest.mark.promise("I3")
async def test_condemned_entries_stay_so_when_their_rows_can_not_be_deleted(shell: Shell, disk: Disk) -> None:
    for what in ("a", "b", "c"):
        await store(shell, what)
    await shell.write([RECORD], reporter="test")
    disk.apply_error = StoreFull("No space left on device")
    with pytest.raises(StoreFull):
        await shell.recover()
    for what in ("a", "b", "c"):
        assert isinstance(await demand(shell, what), Miss)
    disk.apply_error = None
    await shell.recover()
    assert (await shell.stats()).payload_bytes == 0


async def test_metrics_show_what_happened(shell: Shell) -> None:
    registry = CollectorRegistry()
    registry.register(StoreCollector(shell.stats_now, shell.library.counters, shell.flushes))
    await store(shell, "a")
    await demand(shell, "a")
    text = generate_latest(registry).decode()
    assert "dynbranch_csl_hits_total 1.0" in text
    assert "dynbranch_csl_entries 1.0" in text
    assert "dynbranch_csl_guard_misses_total 0.0" in text


@pytest.mark.promise("C1.first_arrival")
async def test_no_demand_of_a_new_workflow_is_answered_before_its_arrival_is_durable(
    shell: Shell, disk: Disk
) -> None:
    def arriving(what: str, workflow: str) -> Demand:
        ids = (DemandId(what.encode().ljust(16)), GenerationId(what.encode().rjust(16)))
        identity = Identity(workflow_id=workflow)
        return Demand(ids[0], name_of(what), identity, DOCS, GenerationRef(ids[1], "agent:1"))

    await shell.demand(arriving("known", "old"))
    disk.gate.clear()
    asked = [asyncio.ensure_future(shell.demand(arriving(what, "new"))) for what in ("first", "second")]
    for _ in range(5):
        await asyncio.sleep(0)
    assert not any(one.done() for one in asked), "the second found a row that a power loss may take"
    assert isinstance(await shell.demand(arriving("third", "old")), Miss), "others do not wait"
    disk.gate.set()
    assert all(isinstance(outcome, Miss) for outcome in await asyncio.gather(*asked))
    flushes = disk.flushes
    await shell.demand(arriving("fourth", "new"))
    assert disk.flushes == flushes


@pytest.mark.promise("C1.durability")
async def test_the_floor_follows_writes_too(disk: Disk, clock: ManualClock) -> None:
    kept: list[int] = []
    core = Library(limits=Limits(max_versions=3), new_id=counting_ids(), view=disk)
    shell = Shell(disk, core, clock, run_blocking=disk.run_blocking, keep=lambda: kept.append(disk.flushes))
    async with Tasks() as tasks:
        shell.start(tasks)
        for number in range(8):
            await shell.write([RecordId(f"docs/{number}")], reporter="test")
        for _ in range(20):
            clock.advance(1.0)
            await asyncio.sleep(0)
        assert kept, "writes are durable by themselves; the floor is moved all the same"
        once = len(kept)
        for _ in range(20):
            clock.advance(1.0)
            await asyncio.sleep(0)
        assert len(kept) <= once + 1, "and not when nothing happens"
    assert sum(1 for _ in disk.scan(b"W")) <= 3, "version rows are bounded under writes alone"


async def test_leases_that_nobody_renews_go_without_being_asked_for(shell: Shell, clock: ManualClock) -> None:
    assert isinstance(await demand(shell, "a"), Miss)
    assert shell.stats_now().leases == 1
    clock.advance(11.0)
    async with Tasks() as tasks:
        shell.start(tasks)
        while shell.stats_now().leases:
            clock.advance(0.5)
            await asyncio.sleep(0)
