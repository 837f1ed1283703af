"""RocksDB behind the ``KeyValue`` boundary, by rocksdict in raw mode.

What the binding demands:

- Iterators may stop early at a damaged block. ``status()`` is asked after every scan; ``items()``, ``keys()``
  and ``values()``, which can not be asked, are not used.
- The names of the two iteration bounds are swapped: ``set_iterate_lower_bound`` sets the UPPER bound.
- An iterator points into its read options without owning them. Options that are freed first leave it with a
  wild upper bound, and it ends too early or too late: they are kept as long as the iterator.
- The iterators of a snapshot read the present, not the snapshot. An iterator itself stays at the moment when
  it was made, so a frozen view takes its one iterator at once.
- Errors have no types: they are told apart by their message.
- The directory stays locked until the last iterator and snapshot are gone: they are dropped on close.
- The default recovery drops the later half of a damaged log, which would bring invalidated entries back; ours
  accepts a torn tail only and refuses anything else.
- A damaged manifest can open as an empty database: a fsynced file beside it holds a floor for the sequence
  number. A damaged length at the end of a log passes for a torn tail: log_files.py looks before the opening.
- An existing database is opened with the options that it had, unless its column family is given some too.
- A write may wait, with the GIL, for tables to be written: ours does not where the disk is full.
- Once an append to the log has failed, every later one does, also when there is room again: the database must
  be opened anew.
"""

from __future__ import annotations

import errno
import json
import os
import shutil
import time
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from threading import Lock

from dynbranch.csl import log_files
from dynbranch.csl.core.store import Batch, View
from dynbranch.csl.key_value import (
    StoreClosed,
    StoreCorrupt,
    StoreFull,
    StoreLocked,
    check_guards,
)
from dynbranch.domain.errors import StoreFailed
from dynbranch.domain.ids import UnixMs
from rocksdict import (
    BlockBasedOptions,
    Cache,
    Checkpoint,
    DbClosedError,
    DBCompressionType,
    DBRecoveryMode,
    Options,
    Rdict,
    RdictIter,
    ReadOptions,
    Snapshot,
    WriteBatch,
    WriteOptions,
)

DATABASE, FLOOR, QUARANTINE, DAMAGED, ORIGIN = "rocks", "floor.json", "quarantine", "damaged", "origin"
KEPT_QUARANTINES = 2
_ROOM_TO_OPEN_BYTES = 8 << 20
_STALL_S = 0.002


@dataclass(frozen=True, slots=True)
class Sizes:
    """Bytes that the database may hold in memory."""

    block_cache: int = 64 << 20
    write_buffer: int = 32 << 20


class _Rows:
    """One iterator and what it points into, for close to drop however long someone holds the scan."""

    __slots__ = ("__weakref__", "iterator", "options")

    def __init__(self, iterator: RdictIter, options: ReadOptions | None) -> None:
        self.iterator: RdictIter | None = iterator
        self.options = options


class _Frozen:
    """The database at one moment: a snapshot for single keys and one iterator, so one scan at a time."""

    def __init__(self, snapshot: Snapshot, iterator: RdictIter) -> None:
        self._snapshot: Snapshot | None = snapshot
        self._rows = _Rows(iterator, None)
        self._scanning = False

    def get(self, key: bytes) -> bytes | None:
        if self._snapshot is None:
            raise StoreClosed
        try:
            value: bytes = self._snapshot[key]
        except Exception as error:
            if str(error) == "key not found":
                return None
            raise _typed(str(error)) from error
        return value

    def scan(self, prefix: bytes, start: bytes = b"") -> Iterator[tuple[bytes, bytes]]:
        assert not self._scanning, "a frozen view has one scan at a time"
        self._scanning = True
        try:
            yield from _walk(self._rows, prefix, prefix + start)
        finally:
            self._scanning = False

    def page(self, prefix: bytes, start: bytes, at_most: int) -> list[tuple[bytes, bytes]]:
        assert not self._scanning, "a frozen view has one scan at a time"
        return _page(self._rows, prefix, start, at_most)

    def drop(self) -> None:
        self._snapshot = None
        self._rows.iterator = None


class RocksKeyValue:
    """One open database. ``floor`` is the least sequence number that it may have; below it, files are
    missing.
    """

    def __init__(self, path: Path, *, sizes: Sizes, floor: int = 0) -> None:
        self._path = path
        self._sizes = sizes
        self._open_rows: weakref.WeakSet[_Rows] = weakref.WeakSet()
        self._frozen: weakref.WeakSet[_Frozen] = weakref.WeakSet()
        self._syncing = Lock()
        self._full = ""
        self._without_waiting = WriteOptions()
        self._without_waiting.no_slowdown = True
        self._db: Rdict | None = None
        self._open()
        found = self.sequence()
        if found < floor:
            self.close()
            raise StoreCorrupt(
                f"the database ends at {found}, but {floor} was durable: files are damaged or missing"
            )

    def _open(self) -> None:
        for problem in log_files.problems(self._path):
            raise StoreCorrupt(problem)
        known = (self._path / "CURRENT").exists()
        try:
            options = _options(self._sizes)
            # Without this the rows of an existing database keep the options, and the cache, that it had.
            self._db = Rdict(str(self._path), options, {"default": options})
        except Exception as error:
            found = _typed(str(error))
            if known and "No such file" in str(error):
                found = StoreCorrupt(str(error))
            raise found from error

    def get(self, key: bytes) -> bytes | None:
        # The hottest call of the service: no context manager here.
        if self._db is None:
            raise StoreClosed
        try:
            value: bytes | None = self._db.get(key)
        except Exception as error:
            raise _typed(str(error)) from error
        return value

    def scan(self, prefix: bytes, start: bytes = b"") -> Iterator[tuple[bytes, bytes]]:
        options = _bounded(prefix)
        with _typed_errors():
            iterator = self._database().iter(options)
        rows = _Rows(iterator, options)
        del iterator
        self._open_rows.add(rows)
        return _walk(rows, prefix, prefix + start)

    def page(self, prefix: bytes, start: bytes, at_most: int) -> list[tuple[bytes, bytes]]:
        options = _bounded(prefix)
        with _typed_errors():
            iterator = self._database().iter(options)
        rows = _Rows(iterator, options)
        # Its own frame would hold it, and with it the directory, as long as the traceback of an error lives.
        del iterator
        self._open_rows.add(rows)
        return _page(rows, prefix, start, at_most)

    def apply(self, batch: Batch) -> None:
        check_guards(self, batch)
        if batch.empty:
            return
        if self._full:
            raise StoreFull(self._full)
        try:
            while not self._written(batch):
                # Tables wait to be written. With a full disk that lasts, and the process would stand still.
                self._check_room()
                time.sleep(_STALL_S)
        except StoreFull as error:
            self._full = str(error)
            raise

    def _written(self, batch: Batch) -> bool:
        """False when the write would have to wait."""
        writes = WriteBatch(raw_mode=True)
        for key, value in batch.changes.items():
            if value is None:
                writes.delete(key)
            else:
                writes.put(key, value)
        try:
            self._database().write(writes, self._without_waiting)
        except StoreClosed:
            raise
        except Exception as error:
            if "Write stall" in str(error):
                return False
            raise _typed(str(error)) from error
        return True

    def _check_room(self) -> None:
        """Raises StoreFull when there is too little room to write and open tables."""
        free = shutil.disk_usage(self._path).free
        needed = _ROOM_TO_OPEN_BYTES + 3 * self._sizes.write_buffer
        if free < needed:
            raise StoreFull(f"{free} bytes are free, {needed} are needed to go on")

    @contextmanager
    def frozen(self) -> Iterator[View]:
        with _typed_errors():
            database = self._database()
            view = _Frozen(database.snapshot(), database.iter())
        self._frozen.add(view)
        try:
            yield view
        finally:
            view.drop()

    def sync(self) -> None:
        """A flush that is tried and fails leaves nothing known, whatever the reason. While the disk is full,
        none is tried.
        """
        with self._syncing:
            if self._full:
                raise StoreFull(self._full)
            try:
                with _typed_errors():
                    self._database().flush_wal(True)
            except StoreFull as error:
                raise StoreFailed("flush_failed", str(error)) from error

    def reclaim(self) -> None:
        if not self._full:
            return
        self._check_room()
        with self._syncing:
            self.close()
            self._open()
            self._full = ""

    def sequence(self) -> int:
        """The number of the last change, for the floor."""
        return int(self._database().latest_sequence_number())

    def checkpoint(self, target: Path) -> None:
        """A consistent copy of everything applied so far, in a directory that must not exist. Hard links
        where it can.
        """
        with _typed_errors():
            self._database().flush_wal(True)
            Checkpoint(self._database()).create_checkpoint(str(target))

    def close(self) -> None:
        for rows in list(self._open_rows):
            rows.iterator = None
        for view in list(self._frozen):
            view.drop()
        database, self._db = self._db, None
        if database is None:
            return
        try:
            with _typed_errors():
                database.close()
        except StoreFailed:
            # Its writer can not end well; what it has in its log is read at the next opening.
            if not self._full:
                raise

    def _database(self) -> Rdict:
        if self._db is None:
            raise StoreClosed
        return self._db


def _walk(rows: _Rows, prefix: bytes, first: bytes) -> Iterator[tuple[bytes, bytes]]:
    _present(rows).seek(first)
    while (iterator := _present(rows)).valid():
        key: bytes = iterator.key()
        if not key.startswith(prefix):
            return
        value: bytes = iterator.value()
        del iterator
        yield key, value
        _present(rows).next()
    _ended_well(rows)


def _page(rows: _Rows, prefix: bytes, start: bytes, at_most: int) -> list[tuple[bytes, bytes]]:
    """As _walk, without its generator: a cascade reads many short pages."""
    iterator = _present(rows)
    found: list[tuple[bytes, bytes]] = []
    iterator.seek(prefix + start)
    while len(found) < at_most:
        if not iterator.valid():
            del iterator
            _ended_well(rows)
            break
        key: bytes = iterator.key()
        if not key.startswith(prefix):
            break
        found.append((key, iterator.value()))
        iterator.next()
    return found


def _ended_well(rows: _Rows) -> None:
    try:
        _present(rows).status()
    except StoreClosed:
        raise
    except Exception as error:
        raise _typed(str(error)) from error


def _present(rows: _Rows) -> RdictIter:
    if rows.iterator is None:
        raise StoreClosed
    return rows.iterator


@contextmanager
def _typed_errors() -> Iterator[None]:
    try:
        yield
    except StoreFailed:
        raise
    except DbClosedError:
        raise StoreClosed from None
    # The binding raises nothing more precise than Exception.
    except Exception as error:
        raise _typed(str(error)) from error


def _typed(message: str) -> StoreFailed:
    if "No space left" in message:
        return StoreFull(message)
    if "lock hold by" in message or "While lock file" in message or "LOCK" in message:
        return StoreLocked(message)
    if message.startswith("Corruption") or "Corruption:" in message or "checksum mismatch" in message:
        return StoreCorrupt(message)
    return StoreFailed("store_io", message, advice="look at the disk of the data directory")


def _bounded(prefix: bytes) -> ReadOptions:
    options = ReadOptions()
    end = _after(prefix)
    if end is not None:
        # Misnamed in the binding: this is the upper bound.
        options.set_iterate_lower_bound(end)
    return options


def _after(prefix: bytes) -> bytes | None:
    """The first key after every key that begins with ``prefix``."""
    stripped = prefix.rstrip(b"\xff")
    return stripped[:-1] + bytes([stripped[-1] + 1]) if stripped else None


def _options(sizes: Sizes) -> Options:
    options = Options(raw_mode=True)
    options.create_if_missing(True)
    options.set_paranoid_checks(True)
    options.set_wal_recovery_mode(DBRecoveryMode.tolerate_corrupted_tail_records())
    options.set_write_buffer_size(sizes.write_buffer)
    options.set_max_write_buffer_number(2)
    options.set_max_total_wal_size(4 * sizes.write_buffer)
    options.set_compression_type(DBCompressionType.lz4())
    options.set_max_open_files(512)
    options.set_keep_log_file_num(2)
    options.set_max_background_jobs(2)
    table = BlockBasedOptions()
    table.set_block_cache(Cache(sizes.block_cache))
    table.set_bloom_filter(10, False)
    # Indexes and filters stay beside the cache: they are a hundredth of the data, and to read one of them
    # anew, half a megabyte, would cost more than the whole demand.
    table.set_cache_index_and_filter_blocks(False)
    table.set_block_size(8 << 10)
    options.set_block_based_table_factory(table)
    return options


@dataclass(frozen=True, slots=True)
class Floor:
    """What the file beside the database says: the epoch, and the least sequence number that is durable.

    ``origin`` tells the file system's own marks of one file of the directory, which no copy has.
    """

    epoch: int
    sequence: int
    origin: str = ""


class DataDirectory:
    """The directory of one store: the database, the floor beside it, and what was set aside.

    Layout: ``rocks/`` the database · ``floor.json`` epoch and floor, fsynced · ``origin`` an empty file whose
    place on the disk tells this directory from a copy of it · ``damaged`` left by a process that found
    corruption while it served · ``quarantine/<unix ms>/`` the last two databases that were set aside.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        path.mkdir(parents=True, exist_ok=True)

    @property
    def database(self) -> Path:
        return self.path / DATABASE

    @property
    def holds_database(self) -> bool:
        return (self.database / "CURRENT").exists()

    def read_floor(self) -> Floor | None:
        """None when there is no such file, as in a restored copy."""
        try:
            document = json.loads((self.path / FLOOR).read_bytes())
            return Floor(int(document["epoch"]), int(document["floor"]), str(document.get("origin", "")))
        except FileNotFoundError:
            return None
        except (ValueError, KeyError, TypeError, AttributeError):
            raise StoreCorrupt(f"{FLOOR} is not readable") from None

    def write_floor(self, epoch: int, floor: int) -> None:
        """Atomically and durably. The sequence number must be durable before it becomes a floor. Raises
        StoreFull.
        """
        document = {"epoch": epoch, "floor": floor, "origin": self.origin(make=True)}
        target = self.path / FLOOR
        draft = target.with_suffix(".new")
        try:
            with draft.open("w", encoding="utf-8") as file:
                json.dump(document, file)
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            if error.errno != errno.ENOSPC:
                raise
            raise StoreFull(str(error)) from error
        draft.replace(target)
        _fsync_directory(self.path)

    def origin(self, *, make: bool = False) -> str:
        """Inode and change time of a file that is never touched: a copy of the directory has others."""
        path = self.path / ORIGIN
        if make and not path.exists():
            path.touch()
        try:
            found = path.stat()
        except FileNotFoundError:
            return ""
        return f"{found.st_ino}.{found.st_ctime_ns}"

    def is_copy(self, floor: Floor) -> bool:
        return bool(floor.origin) and floor.origin != self.origin()

    def claim(self) -> None:
        """Say that this copied directory is the one and only now, and that nothing was written since then.

        For a directory that was moved while no process used it.
        """
        floor = self.read_floor()
        if floor is not None:
            self.write_floor(floor.epoch, floor.sequence)

    def mark_damaged(self, reason: str) -> None:
        """So that the next start sets the database aside, even if it opens."""
        marker = self.path / DAMAGED
        marker.write_text(reason, encoding="utf-8")
        _fsync_directory(self.path)

    def damage(self) -> str | None:
        marker = self.path / DAMAGED
        return marker.read_text(encoding="utf-8") if marker.exists() else None

    def quarantine(self, now: UnixMs) -> Path:
        """Set the database aside, keeping the last few. Returns where it went."""
        place = self.path / QUARANTINE
        place.mkdir(exist_ok=True)
        target = place / str(now)
        while target.exists():
            target = target.with_name(target.name + "x")
        if self.database.exists():
            self.database.rename(target)
        for name in (FLOOR, DAMAGED, ORIGIN):
            (self.path / name).unlink(missing_ok=True)
        _fsync_directory(self.path)
        # By name the newest need not be this one: the clock may have gone backwards.
        others = sorted(each for each in place.iterdir() if each != target)
        for old in others[: -(KEPT_QUARANTINES - target.exists())]:
            shutil.rmtree(old)
        return target


def _fsync_directory(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
