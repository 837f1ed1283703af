"""Flipped bits: whatever file they are in, the store is set aside or whole, and no wrong value is served.

Each seed flips one random bit of one file of a store that was killed in the middle, opens it, and asks for
everything.
"""

from __future__ import annotations

import asyncio
import random
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from dynbranch.csl import log_files
from dynbranch.csl.core.limits import Limits
from dynbranch.csl.core.store import Batch, Inconsistent
from dynbranch.csl.fake import digest, name_of
from dynbranch.csl.key_value import StoreCorrupt
from dynbranch.csl.rocks import DataDirectory, RocksKeyValue, Sizes
from dynbranch.csl.service import opened_shell
from dynbranch.csl.shell import Shell
from dynbranch.domain.errors import StoreFailed
from dynbranch.domain.ids import DemandId, GenerationId, RecordId
from dynbranch.domain.reuse import (
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
from dynbranch.runtime.chance import new_id
from dynbranch.runtime.clock import SystemClock

SIZES = Sizes(block_cache=1 << 20, write_buffer=64 << 10)
NAMES = 60


@asynccontextmanager
async def opened(path: Path) -> AsyncIterator[Shell]:
    async with opened_shell(
        DataDirectory(path), limits=Limits(), sizes=SIZES, clock=SystemClock(), new_id=new_id
    ) as (shell, _):
        yield shell


async def demand(shell: Shell, what: str) -> DemandOutcome:
    scope = ReadScope(sources=("docs",))
    ids = (DemandId(new_id()), GenerationId(new_id()))
    return await shell.demand(
        Demand(ids[0], name_of(what), Identity(), scope, GenerationRef(ids[1], "agent:1"))
    )


def payload_of(what: str) -> bytes:
    return random.Random(what).randbytes(3_000)


async def fill(path: Path, copy: Path) -> None:
    """Entries in tables and in the log; those of record 0 were felled. ``copy`` is as a kill leaves it."""
    async with opened(path) as shell:
        for number in range(NAMES):
            what = f"n{number}"
            outcome = await demand(shell, what)
            assert isinstance(outcome, Miss) and outcome.lease is not None
            reads = (RecordId(f"docs/{number % 4}"),)
            commit = Commit(outcome.lease, payload_of(what), digest(what), Level.SOURCED, 1.0, reads=reads)
            assert isinstance(await shell.commit(commit), Committed)
            if number == NAMES - 5:
                await shell.write([RecordId("docs/0")], reporter="test")
        await shell.write([RecordId("docs/0")], reporter="test")
        shutil.copytree(path, copy)
    DataDirectory(copy).claim()


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("damage")
    asyncio.run(fill(folder / "store", folder / "killed"))
    return folder / "killed"


def flip(path: Path, chance: random.Random) -> str:
    data = bytearray(path.read_bytes())
    bit = chance.randrange(8 * len(data))
    data[bit // 8] ^= 1 << (bit % 8)
    path.write_bytes(bytes(data))
    return f"bit {bit} of {path.name}"


async def serve_everything(path: Path) -> tuple[int, bool]:
    """(entries served, whether damage was found at once or when it was read); asserts that none is wrong."""
    hits = 0
    try:
        async with opened(path) as shell:
            for number in range(NAMES):
                outcome = await demand(shell, f"n{number}")
                if isinstance(outcome, Hit):
                    hits += 1
                    assert outcome.payload == payload_of(f"n{number}"), "a wrong value was served"
                    assert number % 4, "a felled entry was served"
    except (StoreCorrupt, Inconsistent):
        assert (path / "damaged").exists()
        async with opened(path) as shell:
            assert (await shell.stats()).entries == 0
        return 0, True
    return hits, (path / "quarantine").exists()


WHOLE = NAMES - NAMES // 4


@pytest.mark.promise("C1.quarantine")
@pytest.mark.parametrize("kind", ["*.log", "MANIFEST-*", "*.sst", "CURRENT", "floor.json"])
async def test_a_flipped_bit_is_found_or_does_no_harm(killed: Path, tmp_path: Path, kind: str) -> None:
    found = 0
    for seed in range(12 if kind == "*.sst" else 25):
        chance = random.Random(f"{kind} {seed}")
        copy = tmp_path / f"{seed}"
        shutil.copytree(killed, copy)
        DataDirectory(copy).claim()
        files = [path for path in sorted(copy.rglob(kind)) if path.stat().st_size]
        what = flip(chance.choice(files), chance)
        hits, aside = await serve_everything(copy)
        found += aside
        # Found, or of no consequence: then nothing at all is missing, unless a new epoch began.
        assert aside or hits in ((WHOLE, 0) if kind == "floor.json" else (WHOLE,)), (seed, what, hits)
        shutil.rmtree(copy)
    assert found >= (20 if kind == "*.log" else 1), found


@pytest.mark.promise("C1.quarantine")
def test_a_damaged_length_at_the_end_of_a_log_is_told_from_a_torn_tail(tmp_path: Path) -> None:
    store = RocksKeyValue(tmp_path / "db", sizes=Sizes(block_cache=1 << 20, write_buffer=8 << 20))
    for number in range(40):
        store.apply(Batch({b"k%d" % number: bytes([number]) * 500}))
    store.sync()
    (log,) = (path for path in (tmp_path / "db").glob("*.log") if path.stat().st_size)
    whole = log.read_bytes()
    store.close()
    database = tmp_path / "copy"
    database.mkdir()
    copy = database / log.name
    copy.write_bytes(whole)
    assert list(log_files.problems(database)) == []
    at, starts = 0, []
    while at + 7 <= len(whole) and len(starts) < 30:
        starts.append(at)
        at += 7 + int.from_bytes(whole[at + 4 : at + 6], "little")
    for start in starts[::5]:
        for cut in (start + 3, start + 9, start + 200):
            copy.write_bytes(whole[:cut])
            assert list(log_files.problems(database)) == [], "a torn tail is no damage"
        damaged = bytearray(whole)
        damaged[start + 5] |= 0x70
        copy.write_bytes(bytes(damaged[: min(len(whole), 30_000)]))
        assert len(list(log_files.problems(database))) == 1


@pytest.mark.promise("C1.quarantine")
def test_a_log_that_does_not_go_on_where_the_one_before_ended_is_found(tmp_path: Path) -> None:
    store = RocksKeyValue(tmp_path / "db", sizes=Sizes(block_cache=1 << 20, write_buffer=8 << 20))
    for number in range(20):
        store.apply(Batch({b"k%d" % number: b"v" * 3_000, b"l": b"w" * 3_000}))
    store.sync()
    (log,) = (path for path in (tmp_path / "db").glob("*.log") if path.stat().st_size)
    whole, told = log.read_bytes(), log_files.read_log(log)
    store.close()
    assert told.first is not None and told.next == told.first + 40 and told.tail is None
    database = tmp_path / "copy"
    database.mkdir()
    first, second = database / "000001.log", database / "000002.log"
    first.write_bytes(whole)
    for number, expected in ((told.next, 0), (told.next + 2, 1), (told.first, 1)):
        batch = number.to_bytes(8, "little") + b"\1\0\0\0"
        second.write_bytes(b"\0" * 4 + b"\x0c\0" + b"\1" + batch)
        assert len(list(log_files.problems(database))) == expected
    first.write_bytes(whole[:50_000])
    second.write_bytes(b"")
    assert list(log_files.problems(database)) == []


@pytest.mark.promise("C1.quarantine")
async def test_a_missing_table_sets_the_store_aside(killed: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(killed, copy)
    DataDirectory(copy).claim()
    next(iter((copy / "rocks").glob("*.sst"))).unlink()
    hits, aside = await serve_everything(copy)
    assert aside and hits == 0


def test_a_store_that_fails_otherwise_is_not_set_aside(tmp_path: Path) -> None:
    (tmp_path / "rocks").write_text("a file where the database should be")
    with pytest.raises((StoreFailed, OSError)):
        asyncio.run(serve_everything(tmp_path))
    assert not (tmp_path / "quarantine").exists()


@pytest.mark.promise("C1.quarantine")
async def test_rows_that_do_not_fit_are_seen_at_the_opening(tmp_path: Path) -> None:
    async with opened(tmp_path) as shell:
        outcome = await demand(shell, "a")
        assert isinstance(outcome, Miss) and outcome.lease is not None
        reads = (RecordId("docs/1"),)
        await shell.commit(Commit(outcome.lease, b"x", digest("x"), Level.SOURCED, 1.0, reads=reads))
    store = RocksKeyValue(tmp_path / "rocks", sizes=SIZES)
    store.apply(Batch({key: None for key, _ in store.page(b"P", b"", 1)}))
    store.close()
    async with opened(tmp_path) as shell:
        assert (await shell.stats()).entries == 0
    assert (tmp_path / "quarantine").exists()
