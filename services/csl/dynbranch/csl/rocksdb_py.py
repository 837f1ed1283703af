"""RocksDB behind the ``KeyValue`` boundary, by rocksdb-py: for those who must use that binding. What was
applied survives a crash of the process, and no more is promised.

What the binding lacks, and what is done about it:

- No synchronous write and no flush of the log. ``sync`` flushes the log's files from outside, which is all
  that can be done; what a power loss leaves is then read back with the binding's own recovery, which can not
  be chosen and silently drops the later half of a log that is damaged in the middle.
- No sequence number: the floor is kept as it was found and not compared, so missing changes are not seen.
- No snapshot. A frozen view keeps the rows as they were, of those that are changed while it is open.
- No upper bound of a scan, no filter, no choice of block cache: more is read than with rocksdict.
- No write that refuses to wait, and no call that lets other threads run: a wait holds the whole process up.
  Room on the disk is looked for before each batch.

What it demands:

- An iterator that outlives ``close`` ends the process: all are closed before.
- ``list`` of an iterator is empty: it asks for the length first, which walks to the end.
- An iterator that meets a damaged block says so once, without the reason, and seems ended from then on.
- A batch that is written twice raises a panic, which is no Exception. Each is made for one write.
- Errors have no types: they are told apart by their message.
"""

from __future__ import annotations

import os
import shutil
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from threading import Lock
from typing import Any

import rocksdbpy
from dynbranch.csl import log_files
from dynbranch.csl.core.store import Batch, Transaction, View
from dynbranch.csl.key_value import StoreClosed, StoreCorrupt, StoreFull, StoreLocked, check_guards
from dynbranch.csl.rocks import Sizes
from dynbranch.domain.errors import StoreFailed

_ROOM_TO_OPEN_BYTES = 8 << 20


class _Rows:
    """One iterator, for close to close however long someone holds the scan."""

    __slots__ = ("__weakref__", "_iterator")

    def __init__(self, iterator: Any) -> None:
        self._iterator: Any | None = iterator

    def next(self) -> tuple[bytes, bytes] | None:
        if self._iterator is None:
            raise StoreClosed
        try:
            row: tuple[bytes, bytes] | None = next(self._iterator, None)
        except rocksdbpy.RocksDBException as error:
            raise StoreCorrupt("a scan has stopped before its end; the binding does not say why") from error
        return row

    def drop(self) -> None:
        iterator, self._iterator = self._iterator, None
        if iterator is not None:
            iterator.close()


class _Frozen:
    """The database at one moment: what it holds now, under the earlier values of what was changed since."""

    def __init__(self, store: RocksDbPyKeyValue) -> None:
        self._store = store
        self._earlier: Transaction | None = Transaction(store)
        self._kept: set[bytes] = set()

    def keep(self, batch: Batch) -> None:
        """Before the batch is written."""
        earlier = self._present()
        for key in batch.changes:
            if key in self._kept:
                continue
            value = self._store.get(key)
            if value is None:
                earlier.delete(key)
            else:
                earlier.put(key, value)
            self._kept.add(key)

    def get(self, key: bytes) -> bytes | None:
        return self._present().get(key)

    def scan(self, prefix: bytes, start: bytes = b"") -> Iterator[tuple[bytes, bytes]]:
        for row in self._present().scan(prefix, start):
            yield row
            self._present()

    def page(self, prefix: bytes, start: bytes, at_most: int) -> list[tuple[bytes, bytes]]:
        return self._present().page(prefix, start, at_most)

    def drop(self) -> None:
        self._earlier = None

    def _present(self) -> Transaction:
        if self._earlier is None:
            raise StoreClosed
        return self._earlier


class RocksDbPyKeyValue:
    """One open database, of the same format as ``RocksKeyValue``'s."""

    def __init__(self, path: Path, *, sizes: Sizes, floor: int = 0) -> None:
        self._path = path
        self._sizes = sizes
        self._floor = floor
        self._open_rows: weakref.WeakSet[_Rows] = weakref.WeakSet()
        self._frozen: weakref.WeakSet[_Frozen] = weakref.WeakSet()
        self._syncing = Lock()
        self._full = ""
        self._db: Any | None = None
        self._open()

    def _open(self) -> None:
        for problem in log_files.problems(self._path):
            raise StoreCorrupt(problem)
        known = (self._path / "CURRENT").exists()
        self._path.mkdir(parents=True, exist_ok=True)
        try:
            self._db = rocksdbpy.open(str(self._path), _options(self._sizes))
        except rocksdbpy.RocksDBException as error:
            found = _typed(str(error))
            if known and "No such file" in str(error):
                found = StoreCorrupt(str(error))
            raise found from error

    def get(self, key: bytes) -> bytes | None:
        database = self._database()
        try:
            value: bytes | None = database.get(key)
        except rocksdbpy.RocksDBException as error:
            raise _typed(str(error)) from error
        return value

    def scan(self, prefix: bytes, start: bytes = b"") -> Iterator[tuple[bytes, bytes]]:
        return _walk(self._rows(prefix + start), prefix)

    def page(self, prefix: bytes, start: bytes, at_most: int) -> list[tuple[bytes, bytes]]:
        return list(islice(self.scan(prefix, start), at_most))

    def _rows(self, first: bytes) -> _Rows:
        with _typed_errors():
            rows = _Rows(self._database().iterator("from", first, 1))
        self._open_rows.add(rows)
        return rows

    def apply(self, batch: Batch) -> None:
        check_guards(self, batch)
        if batch.empty:
            return
        if self._full:
            raise StoreFull(self._full)
        for view in list(self._frozen):
            view.keep(batch)
        try:
            self._check_room()
            self._write(batch)
        except StoreFull as error:
            self._full = str(error)
            raise

    def _write(self, batch: Batch) -> None:
        writes = rocksdbpy.WriteBatch()
        for key, value in batch.changes.items():
            if value is None:
                writes.delete(key)
            else:
                writes.add(key, value)
        with _typed_errors():
            self._database().write(writes)

    def _check_room(self) -> None:
        """Raises StoreFull when there is too little room to write and open tables."""
        free = shutil.disk_usage(self._path).free
        needed = _ROOM_TO_OPEN_BYTES + 3 * self._sizes.write_buffer
        if free < needed:
            raise StoreFull(f"{free} bytes are free, {needed} are needed to go on")

    @contextmanager
    def frozen(self) -> Iterator[View]:
        self._database()
        view = _Frozen(self)
        self._frozen.add(view)
        try:
            yield view
        finally:
            self._frozen.discard(view)
            view.drop()

    def sync(self) -> None:
        """As much as can be done from outside: the log's files are flushed, and their directory.

        Weaker than the boundary asks: that everything is read back after a power loss is not promised.
        """
        with self._syncing:
            self._database()
            if self._full:
                raise StoreFull(self._full)
            try:
                for log in sorted(self._path.glob("*.log")):
                    _flush(log)
                _flush(self._path)
            except OSError as error:
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
        """The floor as it was found: the binding does not tell how far the database has come."""
        self._database()
        return self._floor

    def close(self) -> None:
        for rows in list(self._open_rows):
            rows.drop()
        for view in list(self._frozen):
            view.drop()
        database, self._db = self._db, None
        if database is None:
            return
        with _typed_errors():
            database.close()

    def _database(self) -> Any:
        if self._db is None:
            raise StoreClosed
        return self._db


def _walk(rows: _Rows, prefix: bytes) -> Iterator[tuple[bytes, bytes]]:
    try:
        while (row := rows.next()) is not None and row[0].startswith(prefix):
            yield row
    finally:
        rows.drop()


def _flush(path: Path) -> None:
    """A log that is gone by now has been replaced by a table, which RocksDB flushes itself."""
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except FileNotFoundError:
        return
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def _typed_errors() -> Iterator[None]:
    try:
        yield
    except rocksdbpy.RocksDBException as error:
        raise _typed(str(error)) from error
    except BaseException as error:
        if type(error).__name__ != "PanicException":
            raise
        raise StoreFailed("store_panic", str(error)) from error


def _typed(message: str) -> StoreFailed:
    if "No space left" in message:
        return StoreFull(message)
    if "lock hold by" in message or "While lock file" in message or "LOCK" in message:
        return StoreLocked(message)
    if "Corruption:" in message or "checksum mismatch" in message:
        return StoreCorrupt(message)
    return StoreFailed("store_io", message, advice="look at the disk of the data directory")


def _options(sizes: Sizes) -> Any:
    options = rocksdbpy.Option()
    options.create_if_missing(True)
    options.set_write_buffer_size(sizes.write_buffer)
    options.set_max_write_buffer_number(2)
    options.set_max_open_files(512)
    options.set_max_background_jobs(2)
    return options
