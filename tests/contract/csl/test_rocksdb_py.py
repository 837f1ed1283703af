"""What the binding rocksdb-py must do beyond the suite of every store: its traps, the common format, a kill.

``make test-rocksdb-py`` runs this with the package; elsewhere only what needs none.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from dynbranch.csl.binding import opener
from dynbranch.csl.config import Binding, CslSettings
from dynbranch.csl.core.limits import Limits
from dynbranch.csl.core.store import Batch
from dynbranch.csl.fake import digest, name_of
from dynbranch.csl.key_value import StoreCorrupt, StoreFull, StoreLocked
from dynbranch.csl.opening import OpenDatabase
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
from dynbranch.runtime.config import ConfigError, load_settings

if installed := find_spec("rocksdbpy") is not None:
    import rocksdbpy
    from dynbranch.csl import rocksdb_py
    from dynbranch.csl.rocksdb_py import RocksDbPyKeyValue

needs_it = pytest.mark.skipif(
    not installed, reason="rocksdb-py is not installed; make test-rocksdb-py runs this"
)
SIZES = Sizes(block_cache=1 << 20, write_buffer=1 << 20)
ACCEPTED = {"DYNBRANCH_CSL_BINDING": "rocksdb-py", "DYNBRANCH_CSL_ACCEPT_PROCESS_CRASH_DURABILITY": "true"}


def settings_of(environ: dict[str, str]) -> CslSettings:
    return load_settings(CslSettings, service="csl", environ=environ)


def test_it_is_refused_until_someone_accepts_what_is_given_up() -> None:
    assert opener(settings_of({})) is RocksKeyValue
    only_chosen = settings_of({"DYNBRANCH_CSL_BINDING": "rocksdb-py"})
    assert only_chosen.binding is Binding.ROCKSDB_PY
    with pytest.raises(ConfigError) as refused:
        opener(only_chosen)
    for word in ("Given up", "power loss", "damaged", "DYNBRANCH_CSL_ACCEPT_PROCESS_CRASH_DURABILITY=true"):
        assert word in str(refused.value)
    with pytest.raises(ConfigError, match="rocksdict"):
        settings_of({"DYNBRANCH_CSL_BINDING": "leveldb"})


@pytest.mark.skipif(installed, reason="rocksdb-py is installed")
def test_where_it_is_not_installed_the_service_says_so() -> None:
    with pytest.raises(ConfigError, match="not installed; install the extra csl-rocksdb-py"):
        opener(settings_of(ACCEPTED))


@needs_it
def test_it_is_what_the_settings_choose() -> None:
    assert opener(settings_of(ACCEPTED)) is RocksDbPyKeyValue


def rows(first: int, count: int) -> dict[bytes, bytes | None]:
    return {b"%06d" % number: bytes([number % 251]) * 300 for number in range(first, first + count)}


@needs_it
@pytest.mark.parametrize("count", [10, 12_000], ids=["in the log", "in tables"])
def test_each_binding_reads_what_the_other_wrote(tmp_path: Path, count: int) -> None:
    """Tables of both, compressed as each does it, filters, logs, deletions."""
    path, expected = tmp_path / "db", {}
    bindings: list[OpenDatabase] = [RocksKeyValue, RocksDbPyKeyValue, RocksKeyValue, RocksDbPyKeyValue]
    sequence = 0
    for turn, open_database in enumerate(bindings):
        store = open_database(path, sizes=SIZES, floor=sequence)
        assert dict(store.scan(b"")) == expected
        changes = rows(turn * count, count) | {b"%06d" % (turn * count - 1): None}
        for start in range(0, len(changes), 1000):
            store.apply(Batch(dict(list(changes.items())[start : start + 1000])))
        expected = {key: value for key, value in (expected | changes).items() if value is not None}
        assert store.get(b"%06d" % (turn * count)) == changes[b"%06d" % (turn * count)]
        store.sync()
        sequence = store.sequence()
        store.close()
    assert count < 1000 or list(path.glob("*.sst"))
    last = RocksKeyValue(path, sizes=SIZES, floor=sequence)
    assert dict(last.scan(b"")) == expected
    last.close()


async def demand(shell: Shell, what: str) -> DemandOutcome:
    generation = GenerationRef(GenerationId(new_id()), "agent:1")
    scope = ReadScope(sources=("docs",))
    return await shell.demand(Demand(DemandId(new_id()), name_of(what), Identity(), scope, generation))


@needs_it
async def test_a_store_goes_from_one_binding_to_the_other_and_back(tmp_path: Path) -> None:
    """The whole service: entries, a write's cascade and the floor, in a directory that both have opened."""
    kept: list[str] = []
    bindings: list[OpenDatabase] = [RocksKeyValue, RocksDbPyKeyValue, RocksKeyValue, RocksDbPyKeyValue]
    for turn, open_database in enumerate(bindings):
        async with opened_shell(
            DataDirectory(tmp_path),
            limits=Limits(),
            sizes=SIZES,
            clock=SystemClock(),
            new_id=new_id,
            open_database=open_database,
        ) as (shell, _):
            for what in kept:
                assert isinstance(await demand(shell, what), Hit)
            for record, what in (("docs/kept", f"kept {turn}"), (f"docs/{turn}", f"felled {turn}")):
                outcome = await demand(shell, what)
                assert isinstance(outcome, Miss) and outcome.lease is not None
                reads = (RecordId(record),)
                commit = Commit(outcome.lease, b"x" * 5000, digest(what), Level.SOURCED, 1.0, reads=reads)
                assert isinstance(await shell.commit(commit), Committed)
            await shell.write([RecordId(f"docs/{turn}")], reporter="test")
            assert isinstance(await demand(shell, f"felled {turn}"), Miss)
            kept.append(f"kept {turn}")
    assert not (tmp_path / "quarantine").exists()


_WRITES = """
import sys
from pathlib import Path
from dynbranch.csl.core.store import Batch
from dynbranch.csl.rocks import Sizes
from dynbranch.csl.rocksdb_py import RocksDbPyKeyValue
store = RocksDbPyKeyValue(Path(sys.argv[1]), sizes=Sizes(1 << 20, 1 << 20))
number = 0
while True:
    number += 1
    store.apply(Batch({bytes([key]): b"%d" % number + bytes(5000) for key in range(7)}))
    print(number, flush=True)
"""


@needs_it
@pytest.mark.parametrize("acknowledged", [1, 150])
def test_a_kill_loses_nothing_applied_and_tears_nothing(tmp_path: Path, acknowledged: int) -> None:
    path = tmp_path / "db"
    command = [sys.executable, "-c", _WRITES, str(path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as writer:
        assert writer.stdout is not None
        for _ in range(acknowledged):
            seen = int(writer.stdout.readline())
        with pytest.raises(StoreLocked):
            RocksDbPyKeyValue(path, sizes=SIZES)
        writer.send_signal(signal.SIGKILL)
        seen = max([seen, *(int(line) for line in writer.stdout if line.endswith("\n"))])
    binding: OpenDatabase
    for binding in (RocksDbPyKeyValue, RocksKeyValue):
        store = binding(path, sizes=SIZES)
        values = {value for _, value in store.scan(b"")}
        assert len(values) == 1 and int(values.pop().rstrip(b"\0")) >= seen
        store.close()


_LEAVES_EARLY = """
import sys
from pathlib import Path
from dynbranch.csl.core.store import Batch
from dynbranch.csl.key_value import StoreClosed
from dynbranch.csl.rocks import Sizes
from dynbranch.csl.rocksdb_py import RocksDbPyKeyValue
store = RocksDbPyKeyValue(Path(sys.argv[1]), sizes=Sizes(1 << 20, 1 << 20))
store.apply(Batch({bytes([key]): b"v" for key in range(10)}))
held, view = store.scan(b""), store.frozen()
frozen = view.__enter__().scan(b"")
next(held), next(frozen), store.scan(b"")
store.close()
for scan in (held, frozen):
    try:
        next(scan)
    except StoreClosed:
        print("closed", flush=True)
"""


@needs_it
def test_scans_that_outlive_the_store_do_not_end_the_process(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", _LEAVES_EARLY, str(tmp_path / "db")],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert (done.returncode, done.stdout) == (0, "closed\nclosed\n"), done.stderr


@needs_it
def test_a_damaged_table_is_an_error_and_no_early_end(tmp_path: Path) -> None:
    path = tmp_path / "db"
    store = RocksDbPyKeyValue(path, sizes=SIZES)
    keys = [b"%06d" % number for number in range(2000)]
    store.apply(Batch({key: os.urandom(300) for key in keys}))
    store._database().flush()
    store.close()
    (table,) = path.glob("*.sst")
    content = bytearray(table.read_bytes())
    content[len(content) // 2] ^= 0x55
    table.write_bytes(content)

    store = RocksDbPyKeyValue(path, sizes=SIZES)
    with pytest.raises(StoreCorrupt, match="stopped before its end"):
        list(store.scan(b""))
    with pytest.raises(StoreCorrupt, match="checksum mismatch"):
        for key in keys:
            store.get(key)
    with pytest.raises(StoreCorrupt), store.frozen() as view:
        view.page(b"", b"", 2000)
    assert store.page(b"", b"", 10) and store.get(keys[-1]) is not None
    store.close()


@needs_it
def test_a_panic_of_the_binding_is_a_typed_error(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    database = rocksdbpy.open_default(str(tmp_path / "db"))
    batch = rocksdbpy.WriteBatch()
    batch.add(b"a", b"1")
    database.write(batch)
    with pytest.raises(StoreFailed, match="Batch writer is invalid"), rocksdb_py._typed_errors():
        database.write(batch)
    database.close()
    assert "panicked" in capfd.readouterr().err


@needs_it
def test_sync_flushes_the_log_and_a_flush_that_fails_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = RocksDbPyKeyValue(tmp_path / "db", sizes=SIZES)
    store.apply(Batch({b"a": b"1"}))
    flushed: list[str] = []
    really = os.fsync

    def fsync(descriptor: int) -> None:
        flushed.append(Path(os.readlink(f"/proc/self/fd/{descriptor}")).suffix)
        really(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    store.sync()
    assert flushed == [".log", ""]

    def fail(descriptor: int) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(StoreFailed, match="Input/output"):
        store.sync()
    store.close()


@needs_it
def test_without_room_it_refuses_writes_until_it_is_reclaimed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = RocksDbPyKeyValue(tmp_path / "db", sizes=SIZES)
    store.apply(Batch({b"a": b"1"}))
    usage = rocksdb_py.shutil.disk_usage(tmp_path)
    monkeypatch.setattr(rocksdb_py.shutil, "disk_usage", lambda path: usage._replace(free=1 << 20))
    for use in (lambda: store.apply(Batch({b"a": b"2"})), store.sync, store.reclaim):
        with pytest.raises(StoreFull):
            use()
    assert store.get(b"a") == b"1"
    monkeypatch.undo()
    with pytest.raises(StoreFull):
        store.apply(Batch({b"a": b"2"}))
    store.reclaim()
    store.apply(Batch({b"a": b"3"}))
    store.sync()
    assert dict(store.scan(b"")) == {b"a": b"3"}
    store.close()
