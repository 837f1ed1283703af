"""A store of an older format is brought up to date at its first opening; a newer one is left alone."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
from dynbranch.csl.core import consistency, migration, rows
from dynbranch.csl.core.limits import Limits
from dynbranch.csl.core.store import Batch, UnknownFormat
from dynbranch.csl.fake import name_of
from dynbranch.csl.key_value import MemoryKeyValue
from dynbranch.csl.rocks import DataDirectory, RocksKeyValue, Sizes
from dynbranch.csl.service import opened_shell
from dynbranch.domain.ids import RecordId
from dynbranch.runtime.chance import new_id
from dynbranch.runtime.clock import SystemClock

SIZES = Sizes(block_cache=1 << 20, write_buffer=1 << 20)
# Rows of a store of format 1: two entries, one with two derivations, and a cascade that was not finished.
FORMAT_1 = Path(__file__).with_name("format_1.json")


def rows_of_format_1() -> dict[bytes, bytes | None]:
    document = json.loads(FORMAT_1.read_text())
    return {bytes.fromhex(key): bytes.fromhex(value) for key, value in document.items()}


def put(path: Path, changes: dict[bytes, bytes | None]) -> None:
    store = RocksKeyValue(path / "rocks", sizes=SIZES)
    store.apply(Batch(changes))
    store.sync()
    store.close()
    DataDirectory(path).write_floor(1, 0)


@pytest.mark.promise("C1.format")
def test_a_store_of_format_1_is_served_after_its_first_opening(tmp_path: Path) -> None:
    put(tmp_path, rows_of_format_1())

    async def look() -> tuple[int, int, bool]:
        async with opened_shell(
            DataDirectory(tmp_path), limits=Limits(), sizes=SIZES, clock=SystemClock(), new_id=new_id
        ) as (shell, _):
            entries = (await shell.stats()).entries
            known = (await shell.inspect(name_of("answer"))).entry is not None
            felled = await shell.write([RecordId("docs/1"), RecordId("docs/2")], reporter="test")
            return entries, felled.invalidated_entries, known

    assert asyncio.run(look()) == (2, 2, True)
    store = RocksKeyValue(tmp_path / "rocks", sizes=SIZES)
    assert rows.format_of(store.get(rows.META) or b"") == rows.FORMAT
    assert list(consistency.violations(store)) == []
    store.close()
    assert not (tmp_path / "quarantine").exists()


@pytest.mark.promise("C1.format")
def test_an_upgrade_that_was_interrupted_begins_again() -> None:
    for applied in range(4):
        store = MemoryKeyValue()
        store.apply(Batch(rows_of_format_1()))
        for _, batch in zip(range(applied), migration.upgrade(store), strict=False):
            store.apply(batch)
        # What the older program may have left: an entry that went without its row in the newer index.
        store.apply(Batch({rows.age_key(rows.UnixMs(7), name_of("gone")): b""} if applied < 2 else {}))
        for batch in migration.upgrade(store):
            store.apply(batch)
        assert list(consistency.violations(store)) == []
        assert not list(migration.upgrade(store))


@pytest.mark.promise("C1.format")
def test_a_store_of_a_newer_program_is_left_alone(tmp_path: Path) -> None:
    changes = rows_of_format_1()
    meta = changes[rows.META]
    assert meta is not None
    changes[rows.META] = (rows.FORMAT + 1).to_bytes(2, "big") + meta[2:]
    put(tmp_path, changes)

    async def look() -> None:
        async with opened_shell(
            DataDirectory(tmp_path), limits=Limits(), sizes=SIZES, clock=SystemClock(), new_id=new_id
        ):
            pass

    with pytest.raises(UnknownFormat):
        asyncio.run(look())
    assert not (tmp_path / "quarantine").exists()
