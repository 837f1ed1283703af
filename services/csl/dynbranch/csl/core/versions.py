"""Versions and read tokens (paper §3.2): when a record was last written, and whether a read is still current.

A write to ``s/k`` also advances ``s/*``; a write to ``s/*`` advances every ``s/k``.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from itertools import islice

from dynbranch.csl.core import rows
from dynbranch.csl.core.rows import Meta
from dynbranch.csl.core.store import Transaction, View
from dynbranch.domain.ids import NEVER, RecordId, Version, is_whole, source_of, whole
from dynbranch.domain.reuse import Read


def last_write(view: View, record: RecordId) -> Version:
    """The last write that changed the record, as far as the rows know; NEVER if none did."""
    if is_whole(record):
        return _version_at(view, rows.source_key(source_of(record)))
    return max(
        _version_at(view, rows.written_key(record)),
        _version_at(view, rows.written_key(whole(source_of(record)))),
    )


def _version_at(view: View, key: bytes) -> Version:
    data = view.get(key)
    return NEVER if data is None else rows.unpack_version(data)


def is_current(view: View, reads: Iterable[Read]) -> bool:
    """Whether nothing that was read has been written since."""
    return all(last_write(view, read.record) <= read.as_of for read in reads)


def stale_read(view: View, meta: Meta, reads: Iterable[Read]) -> Read | None:
    """The first read that a commit must be refused for. Where rows of old writes are gone, the floor stands
    in.
    """
    for read in reads:
        if read.as_of.epoch != meta.epoch or max(last_write(view, read.record), meta.floor) > read.as_of:
            return read
    return None


def advance(transaction: Transaction, records: Iterable[RecordId], version: Version) -> int:
    """Record one write to all ``records``. Returns how many version rows are new."""
    stamp = rows.pack_version(version)
    new = 0
    for record in records:
        for key in (rows.written_key(record), rows.source_key(source_of(record))):
            new += transaction.get(key) is None
            transaction.put(key, stamp)
    return new


def forget(transaction: Transaction, view: View, meta: Meta, *, most: int) -> int:
    """Raise the floor to now and drop up to ``most`` rows that it makes redundant. Returns how many went.

    Executions in flight that read anything are refused once; entries keep their own read-sets.
    """
    found = (key for space in (rows.WRITTEN, rows.SOURCES) for key, _ in view.scan(space))
    dropped = 0
    for key in islice(found, most):
        transaction.delete(key)
        dropped += 1
    meta = replace(meta, versions=meta.versions - dropped, floor=meta.version)
    transaction.put(rows.META, rows.pack_meta(meta))
    return dropped
