"""What survives a stop, and what happens to a data directory that is damaged, copied, or of another
version.
"""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from dynbranch.csl.core import consistency, rows
from dynbranch.csl.core.events import Moment, Write
from dynbranch.csl.core.limits import Limits
from dynbranch.csl.core.store import Batch, UnknownFormat
from dynbranch.csl.fake import digest, name_of
from dynbranch.csl.key_value import StoreCorrupt, StoreLocked
from dynbranch.csl.rocks import DataDirectory, RocksKeyValue, Sizes
from dynbranch.csl.service import opened_shell
from dynbranch.csl.shell import Shell
from dynbranch.domain.errors import StoreFailed
from dynbranch.domain.ids import DemandId, GenerationId, Instant, RecordId, UnixMs
from dynbranch.domain.reuse import (
    Commit,
    Committed,
    Demand,
    GenerationRef,
    Hit,
    Identity,
    Lease,
    Level,
    Miss,
    ReadScope,
    Refusal,
    Refused,
)
from dynbranch.runtime.chance import new_id
from dynbranch.runtime.clock import SystemClock

SIZES = Sizes(block_cache=1 << 20, write_buffer=1 << 20)
DOCS = ReadScope(sources=("docs",))


@asynccontextmanager
async def opened(path: Path, limits: Limits | None = None) -> AsyncIterator[Shell]:
    async with opened_shell(
        DataDirectory(path), limits=limits or Limits(), sizes=SIZES, clock=SystemClock(), new_id=new_id
    ) as (shell, _):
        yield shell


async def demand(shell: Shell, what: str, scope: ReadScope = DOCS) -> object:
    return await shell.demand(
        Demand(
            demand_id=DemandId(new_id()),
            name=name_of(what),
            identity=Identity(),
            scope=scope,
            intended=GenerationRef(GenerationId(new_id()), "agent:1"),
        )
    )


async def lease(shell: Shell, what: str) -> Lease:
    outcome = await demand(shell, what)
    assert isinstance(outcome, Miss) and outcome.lease is not None, outcome
    return outcome.lease


async def commit(shell: Shell, taken: Lease, *reads: str) -> object:
    return await shell.commit(
        Commit(
            lease=taken,
            payload=b"result",
            payload_digest=digest("result"),
            level=Level.SOURCED,
            execution_ms=10.0,
            reads=tuple(map(RecordId, reads)),
        )
    )


async def store(shell: Shell, what: str, *reads: str) -> None:
    assert isinstance(await commit(shell, await lease(shell, what), *reads), Committed)


async def write(shell: Shell, *records: str) -> int:
    return (await shell.write([RecordId(record) for record in records], reporter="test")).invalidated_entries


def damage(path: Path, at: float) -> None:
    """Flip one bit of a file."""
    data = bytearray(path.read_bytes())
    data[int(len(data) * at)] ^= 0x10
    path.write_bytes(bytes(data))


@pytest.mark.promise("I3")
async def test_entries_versions_and_epoch_survive_a_stop(tmp_path: Path) -> None:
    async with opened(tmp_path) as shell:
        await store(shell, "kept", "docs/1")
        stale = await lease(shell, "stale")
        await write(shell, "docs/2")
        epoch = (await shell.stats()).version.epoch
    async with opened(tmp_path) as shell:
        assert (await shell.stats()).version.epoch == epoch
        assert isinstance(await demand(shell, "kept"), Hit)
        refused = await commit(shell, stale, "docs/2")
        assert isinstance(refused, Refused) and refused.reason is Refusal.STALE_READ
        assert await write(shell, "docs/1") == 1


@pytest.mark.promise("I3")
async def test_an_interrupted_cascade_is_finished_before_serving(tmp_path: Path) -> None:
    limits = Limits(slice_nodes=1)
    async with opened(tmp_path, limits) as shell:
        for number in range(5):
            await store(shell, f"n{number}", "docs/1")
        # The write alone, as if the process died before the clean-up had its first turn.
        event = Write((RecordId("docs/1"),), "test")
        moment = Moment(Instant(0.0), UnixMs(0))
        store_of(shell).apply(shell.library.write(event, store_of(shell), moment).batch)
        assert len(shell.library.slices) == 5
    async with opened(tmp_path, limits) as shell:
        assert shell.library.slices == ()
        assert (await shell.stats()).entries == 0
    assert_whole(tmp_path)


def assert_whole(path: Path) -> None:
    found = RocksKeyValue(path / "rocks", sizes=SIZES)
    try:
        with found.frozen() as view:
            assert list(consistency.violations(view)) == []
    finally:
        found.close()


async def test_two_processes_never_share_a_directory(tmp_path: Path) -> None:
    async with opened(tmp_path):
        with pytest.raises(StoreLocked):
            async with opened(tmp_path):
                pass


@pytest.mark.promise("C1.restore")
async def test_a_restored_copy_starts_a_new_epoch_without_what_was_read(tmp_path: Path) -> None:
    async with opened(tmp_path / "a") as shell:
        await store(shell, "reader", "docs/1")
        await store(shell, "pure")
        old = await lease(shell, "late")
        epoch = (await shell.stats()).version.epoch
    shutil.copytree(tmp_path / "a" / "rocks", tmp_path / "b" / "rocks")
    async with opened(tmp_path / "b") as shell:
        assert (await shell.stats()).version.epoch > epoch
        assert isinstance(await demand(shell, "pure"), Hit)
        assert isinstance(await demand(shell, "reader"), Miss)
        refused = await commit(shell, old)
        assert isinstance(refused, Refused) and refused.reason is Refusal.STALE_READ
    assert_whole(tmp_path / "b")


@pytest.mark.promise("I3")
async def test_a_killed_process_loses_nothing_that_was_acknowledged(tmp_path: Path) -> None:
    async with opened(tmp_path / "a") as shell:
        await store(shell, "kept", "docs/1")
        await store(shell, "gone", "docs/2")
        await write(shell, "docs/2")
        shutil.copytree(tmp_path / "a", tmp_path / "b")
    DataDirectory(tmp_path / "b").claim()
    async with opened(tmp_path / "b") as shell:
        assert isinstance(await demand(shell, "kept"), Hit)
        assert isinstance(await demand(shell, "gone"), Miss)


@pytest.mark.promise("C1.quarantine")
async def test_a_flipped_bit_in_the_log_sets_the_database_aside(tmp_path: Path) -> None:
    async with opened(tmp_path / "a") as shell:
        for number in range(50):
            await store(shell, f"n{number}", "docs/1")
        await write(shell, "docs/2")
        old = await lease(shell, "late")
        epoch = (await shell.stats()).version.epoch
        # A clean end empties the log; this is what a killed process leaves.
        shutil.copytree(tmp_path / "a", tmp_path / "b")
    tmp_path = tmp_path / "b"
    (log,) = [path for path in (tmp_path / "rocks").glob("*.log") if path.stat().st_size > 0]
    damage(log, 0.3)
    async with opened(tmp_path) as shell:
        stats = await shell.stats()
        assert stats.entries == 0 and stats.version.epoch > epoch
        refused = await commit(shell, old)
        assert isinstance(refused, Refused) and refused.reason is Refusal.STALE_READ
    assert len(list((tmp_path / "quarantine").iterdir())) == 1


@pytest.mark.promise("C1.quarantine")
@pytest.mark.parametrize("at", [0.02, 0.2, 0.5, 0.8])
async def test_a_flipped_bit_in_the_manifest_never_opens_as_an_empty_store_in_the_same_epoch(
    tmp_path: Path, at: float
) -> None:
    async with opened(tmp_path) as shell:
        await store(shell, "reader", "docs/1")
        await write(shell, "docs/2")
        epoch = (await shell.stats()).version.epoch
    (manifest,) = (tmp_path / "rocks").glob("MANIFEST-*")
    damage(manifest, at)
    async with opened(tmp_path) as shell:
        stats = await shell.stats()
        assert stats.version.epoch > epoch or stats.entries == 1


@pytest.mark.promise("C1.quarantine")
async def test_a_database_that_is_gone_starts_a_new_epoch(tmp_path: Path) -> None:
    async with opened(tmp_path) as shell:
        epoch = (await shell.stats()).version.epoch
    shutil.rmtree(tmp_path / "rocks")
    async with opened(tmp_path) as shell:
        assert (await shell.stats()).version.epoch > epoch


@pytest.mark.promise("C1.quarantine")
async def test_damage_found_while_serving_stops_the_service_and_the_next_start_sets_it_aside(
    tmp_path: Path,
) -> None:
    with pytest.raises(StoreFailed):
        async with opened(tmp_path) as shell:
            await store(shell, "a", "docs/1")
            store_of(shell).apply(Batch({rows.payload_key(name_of("a")): None}))
            with pytest.raises(StoreFailed):
                await demand(shell, "a")
            with pytest.raises(StoreFailed):
                await demand(shell, "b")
            await asyncio.sleep(0)
            raise_crash(shell)
    async with opened(tmp_path) as shell:
        assert (await shell.stats()).entries == 0
    assert len(list((tmp_path / "quarantine").iterdir())) == 1


def store_of(shell: Shell) -> RocksKeyValue:
    assert isinstance(shell._store, RocksKeyValue)
    return shell._store


def raise_crash(shell: Shell) -> None:
    assert shell.failure is not None
    raise shell.failure


async def test_a_store_of_another_format_is_left_alone(tmp_path: Path) -> None:
    async with opened(tmp_path) as shell:
        await store(shell, "a")
        meta = bytearray(store_of(shell).get(rows.META) or b"")
        meta[1] = 99
        store_of(shell).apply(Batch({rows.META: bytes(meta)}))
        store_of(shell).sync()
        # Leave without the clean end, which could not read the row either.
        shell._fail(StoreFailed("test", "leave it"))
    with pytest.raises(UnknownFormat):
        async with opened(tmp_path):
            pass
    assert not (tmp_path / "quarantine").exists()


async def test_a_directory_whose_maker_died_early_is_used(tmp_path: Path) -> None:
    RocksKeyValue(tmp_path / "rocks", sizes=SIZES).close()
    async with opened(tmp_path) as shell:
        await store(shell, "a")


async def test_quarantines_are_bounded(tmp_path: Path) -> None:
    for _ in range(4):
        async with opened(tmp_path):
            pass
        DataDirectory(tmp_path).mark_damaged("by hand")
    async with opened(tmp_path):
        pass
    assert len(list((tmp_path / "quarantine").iterdir())) == 2


def test_what_was_just_set_aside_is_kept_when_the_clock_went_backwards(tmp_path: Path) -> None:
    directory = DataDirectory(tmp_path)
    for now in (3000, 2000, 1000, 1000):
        directory.database.mkdir()
        (directory.database / "mark").write_text(str(now), encoding="utf-8")
        place = directory.quarantine(UnixMs(now))
        assert (place / "mark").read_text(encoding="utf-8") == str(now)
        assert len(list((tmp_path / "quarantine").iterdir())) <= 2


def test_an_unreadable_floor_is_damage(tmp_path: Path) -> None:
    directory = DataDirectory(tmp_path)
    (tmp_path / "floor.json").write_text("{")
    with pytest.raises(StoreCorrupt):
        directory.read_floor()


# Group commit


class SlowFlush:
    """A store whose flush is counted and can be made to fail."""

    def __init__(self) -> None:
        self.flushes = 0
        self.error: Exception | None = None

    def sync(self) -> None:
        self.flushes += 1
        if self.error is not None:
            raise self.error


@pytest.mark.promise("C1.durability")
async def test_waiters_share_flushes_and_each_flush_began_after_its_waiters() -> None:
    from dynbranch.csl.durability import GroupCommit

    slow, running = SlowFlush(), asyncio.Event()

    async def later(call: object) -> None:
        running.set()
        await asyncio.sleep(0.01)
        slow.sync()

    group = GroupCommit(slow.sync, later)
    first = asyncio.ensure_future(group.durable())
    await running.wait()
    rest = [asyncio.ensure_future(group.durable()) for _ in range(20)]
    await asyncio.gather(first, *rest)
    assert slow.flushes == 2


@pytest.mark.promise("C1.durability")
async def test_after_a_failed_flush_nothing_is_acknowledged_any_more() -> None:
    from dynbranch.csl.durability import GroupCommit, run_inline

    slow = SlowFlush()
    slow.error = OSError("disk gone")
    group = GroupCommit(slow.sync, run_inline)
    for _ in range(2):
        with pytest.raises(StoreFailed):
            await group.durable()
        slow.error = None
    assert slow.flushes == 1


@pytest.mark.promise("C1.durability")
async def test_a_cancelled_leader_leaves_the_others_a_whole_flush() -> None:
    from dynbranch.csl.durability import GroupCommit

    slow = SlowFlush()

    async def later(call: object) -> None:
        await asyncio.sleep(0.01)
        slow.sync()

    group = GroupCommit(slow.sync, later)
    leader = asyncio.ensure_future(group.durable())
    await asyncio.sleep(0)
    follower = asyncio.ensure_future(group.durable())
    await asyncio.sleep(0)
    leader.cancel()
    await follower
    assert leader.cancelled() or leader.done()
    assert slow.flushes == 2


def test_an_existing_database_is_opened_with_the_sizes_that_are_asked_for(tmp_path: Path) -> None:
    for size in (1 << 20, 3 << 20):
        found = RocksKeyValue(tmp_path / "rocks", sizes=Sizes(block_cache=size, write_buffer=1 << 20))
        assert found._db is not None
        assert found._db.property_value("rocksdb.block-cache-capacity") == str(size)
        found.close()
