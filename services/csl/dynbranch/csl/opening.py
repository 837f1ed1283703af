"""Opening a data directory: set aside what is damaged, start a new epoch after a restore, finish what was
begun.

The store is a cache of results and never the only copy of anything, so damage costs work, not data: it is
said loudly, the database goes to quarantine, and an empty one starts in a new epoch, in which no old token
commits.
"""

from __future__ import annotations

import hashlib
import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from dynbranch.csl.core import consistency, founding, migration, rows
from dynbranch.csl.core.store import Inconsistent
from dynbranch.csl.key_value import KeyValue, StoreCorrupt
from dynbranch.csl.rocks import DataDirectory, Floor, RocksKeyValue, Sizes
from dynbranch.domain.ids import UnixMs

_log = logging.getLogger(__name__)

VERIFIED_ROWS = 64
"""Rows of every keyspace that each opening looks at."""


class Database(KeyValue, Protocol):
    def sequence(self) -> int:
        """What the floor may be once everything applied so far is durable."""


class OpenDatabase(Protocol):
    """A binding's way to open or make a database. Raises StoreCorrupt, StoreLocked, StoreFull."""

    def __call__(self, path: Path, *, sizes: Sizes, floor: int = 0) -> Database: ...


@dataclass(slots=True)
class Opened:
    """``new_epoch`` is set when the database is a restored copy: the epoch must begin before serving."""

    store: Database
    directory: DataDirectory
    epoch: int
    new_epoch: int | None = None
    quarantined: str = ""

    def keep(self) -> None:
        """Move the floor up to what is durable now. Blocks. Raises StoreFull, StoreFailed."""
        sequence = self.store.sequence()
        self.store.sync()
        self.directory.write_floor(self.epoch, sequence)


def open_directory(
    directory: DataDirectory, *, sizes: Sizes, now: UnixMs, open_database: OpenDatabase = RocksKeyValue
) -> Opened:
    """Raises StoreLocked, StoreFull, UnknownFormat; damage is not an error but an empty store."""
    oldest_epoch = 0
    try:
        floor = directory.read_floor()
        oldest_epoch = floor.epoch if floor is not None else 0
        damage = directory.damage()
        if damage is not None:
            raise StoreCorrupt(damage)
        if floor is not None and not directory.holds_database:
            raise StoreCorrupt("the database is gone")
        opened = _open(directory, sizes, floor, now, open_database)
    except (StoreCorrupt, Inconsistent) as error:
        place = directory.quarantine(now)
        _log.critical("the store is damaged and was set aside in %s; starting empty: %s", place, error)
        opened = _found(directory, sizes, max(oldest_epoch + 1, now), open_database, quarantined=str(error))
    if opened.new_epoch is None:
        # A copy keeps the mark of being one until its new epoch is durable: this opening may not get so far.
        opened.keep()
    return opened


def _open(
    directory: DataDirectory, sizes: Sizes, floor: Floor | None, now: UnixMs, open_database: OpenDatabase
) -> Opened:
    if not directory.holds_database:
        return _found(directory, sizes, now, open_database)
    store = open_database(directory.database, sizes=sizes, floor=floor.sequence if floor is not None else 0)
    try:
        if floor is None and next(store.scan(b""), None) is None:
            # The process that made it died before it wrote the first row.
            store.apply(founding.found(now))
            return Opened(store, directory, now)
        upgrade(store)
        verify(store, now)
        meta = rows.read_meta(store)
        store.apply(founding.open_store(store))
    except BaseException:
        store.close()
        raise
    if floor is None or floor.epoch > meta.epoch or directory.is_copy(floor):
        restored = max(meta.epoch, floor.epoch if floor is not None else 0) + 1
        _log.warning("the store is a restored copy; epoch %d ends", meta.epoch)
        return Opened(store, directory, meta.epoch, new_epoch=max(restored, now))
    return Opened(store, directory, meta.epoch)


def upgrade(store: KeyValue) -> None:
    """Bring a store of an older format to today's. Raises UnknownFormat for one of a newer program."""
    batches = 0
    for batch in migration.upgrade(store):
        store.apply(batch)
        batches += 1
    if batches:
        store.sync()
        _log.warning("the store was brought to format %d in %d batches", rows.FORMAT, batches)


def verify(store: KeyValue, seed: int) -> None:
    """A look at every opening that costs the same whatever the size. Raises Inconsistent, StoreCorrupt."""
    somewhere = hashlib.sha256(str(seed).encode()).digest()
    found = next(consistency.sampled(store, somewhere, VERIFIED_ROWS), None)
    if found is not None:
        raise Inconsistent(found)


def _found(
    directory: DataDirectory, sizes: Sizes, epoch: int, open_database: OpenDatabase, *, quarantined: str = ""
) -> Opened:
    store = open_database(directory.database, sizes=sizes)
    store.apply(founding.found(epoch))
    return Opened(store, directory, epoch, quarantined=quarantined)
