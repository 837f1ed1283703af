"""Checking, backing up and restoring the data directory of a service that does not run."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from dynbranch.csl.core import consistency, rows
from dynbranch.csl.core.store import Inconsistent, UnknownFormat
from dynbranch.csl.key_value import StoreCorrupt, StoreLocked
from dynbranch.csl.rocks import DAMAGED, DATABASE, DataDirectory, RocksKeyValue, Sizes
from dynbranch.domain.errors import InvalidRequest
from dynbranch.domain.ids import UnixMs

MAX_PROBLEMS = 1000
ABOUT = "backup.json"


@dataclass(frozen=True, slots=True)
class Report:
    """What a check found. The numbers are zero where the first row can not be read."""

    problems: tuple[str, ...]
    epoch: int = 0
    sequence: int = 0
    entries: int = 0
    payload_bytes: int = 0


def check(directory: DataDirectory, sizes: Sizes) -> Report:
    """Look at every row. Changes nothing that the next start would not. Raises StoreLocked, UnknownFormat."""
    damage = directory.damage()
    if damage is not None:
        return Report((f"the service found damage and sets this store aside at its next start: {damage}",))
    try:
        floor = directory.read_floor()
        with _opened(directory.database, sizes, 0 if floor is None else floor.sequence) as store:
            return _report(store)
    except (StoreCorrupt, Inconsistent) as error:
        return Report((str(error),))


def _report(store: RocksKeyValue) -> Report:
    found = store.get(rows.META)
    if found is not None and rows.format_of(found) > rows.FORMAT:
        raise UnknownFormat(
            f"the store has format {rows.format_of(found)}, which is newer than {rows.FORMAT}, the "
            "newest that this program reads"
        )
    if found is not None and rows.format_of(found) < rows.FORMAT:
        raise UnknownFormat(
            f"the store has format {rows.format_of(found)}, which is older than {rows.FORMAT}; it is brought "
            "up to date when the service starts"
        )
    meta = rows.read_meta(store)
    problems: list[str] = []
    try:
        problems += islice(consistency.violations(store), MAX_PROBLEMS)
    except (StoreCorrupt, Inconsistent) as error:
        problems.append(str(error))
    return Report(tuple(problems), meta.epoch, meta.sequence, meta.entries, meta.payload_bytes)


def back_up(directory: DataDirectory, target: Path, sizes: Sizes, now: UnixMs) -> Report:
    """A checked copy in a folder that does not exist. Hard links to the store's files where it can.

    Raises StoreLocked, StoreCorrupt, InvalidRequest.
    """
    if target.exists():
        raise InvalidRequest("exists", f"{target} exists already")
    if target.resolve().is_relative_to(directory.database.resolve()):
        raise InvalidRequest("inside", f"{target} is inside the store's own {directory.database}")
    if not (directory.database / "CURRENT").exists():
        raise InvalidRequest(
            "no_store",
            f"{directory.path} holds no store: there is no {DATABASE}/ in it",
            advice="name the data directory of a store, as DYNBRANCH_CSL_DATA_DIR has it",
        )
    floor = directory.read_floor()
    with _opened(directory.database, sizes, 0 if floor is None else floor.sequence) as store:
        report = _report(store)
        if report.problems:
            raise StoreCorrupt(
                f"the store is not whole and is not copied: {report.problems[0]}",
                "'dynbranch csl check' tells all that is wrong; the service sets such a store aside",
            )
        target.mkdir(parents=True)
        store.checkpoint(target / DATABASE)
    about = {"format": rows.FORMAT, "epoch": report.epoch, "sequence": report.sequence, "unix_ms": now}
    (target / ABOUT).write_text(json.dumps(about) + "\n", encoding="utf-8")
    _fsync_tree(target)
    return report


def restore(source: Path, directory: DataDirectory, sizes: Sizes, now: UnixMs) -> Report:
    """Put a copy in the place of what the directory holds, which goes to quarantine.

    The next start begins a new epoch and drops what rests on any read: writes since the copy are not known.
    Raises StoreLocked, StoreCorrupt, InvalidRequest.
    """
    if not (source / DATABASE / "CURRENT").exists():
        raise InvalidRequest("no_backup", f"{source} holds no backup: there is no {DATABASE}/ in it")
    with _nobody_uses(directory):
        draft = directory.path / f"{DATABASE}.restored"
        if draft.exists():
            shutil.rmtree(draft)
        shutil.copytree(source / DATABASE, draft)
        try:
            with _opened(draft, sizes, 0) as store:
                report = _report(store)
            if report.problems:
                raise StoreCorrupt(
                    f"the backup is not whole: {report.problems[0]}",
                    "take another backup; the directory is as it was",
                )
        except BaseException:
            shutil.rmtree(draft)
            raise
        epoch = report.epoch
        try:
            floor = directory.read_floor()
            epoch = max(epoch, 0 if floor is None else floor.epoch)
        except StoreCorrupt:
            pass
        if directory.database.exists():
            directory.quarantine(now)
        # An epoch above the copy's own: the next start sees that this is no store that simply stopped.
        directory.write_floor(epoch + 1, 0)
        # What was damaged may be gone without having been set aside; the copy is not it.
        (directory.path / DAMAGED).unlink(missing_ok=True)
        _fsync_tree(draft)
        draft.rename(directory.database)
        _fsync_tree(directory.path, deep=False)
    return report


@contextmanager
def _opened(database: Path, sizes: Sizes, floor: int) -> Iterator[RocksKeyValue]:
    if not (database / "CURRENT").exists():
        raise StoreCorrupt(f"{database} holds no database")
    store = RocksKeyValue(database, sizes=sizes, floor=floor)
    try:
        yield store
    finally:
        store.close()


@contextmanager
def _nobody_uses(directory: DataDirectory) -> Iterator[None]:
    """Holds the database's own lock file. Raises StoreLocked."""
    lock = directory.database / "LOCK"
    if not lock.exists():
        yield
        return
    with lock.open("r+b") as file:
        try:
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise StoreLocked(f"{directory.path} is in use: {error}") from None
        yield


def _fsync_tree(path: Path, *, deep: bool = True) -> None:
    for each in (path, *(path.rglob("*") if deep else ())):
        descriptor = os.open(each, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
