"""Why entries went: a bounded, unservable history. The oldest rows go first."""

from __future__ import annotations

from dataclasses import replace

from dynbranch.csl.core import rows
from dynbranch.csl.core.rows import Meta
from dynbranch.csl.core.store import Inconsistent, Transaction, View
from dynbranch.domain.ids import Name
from dynbranch.domain.reuse import Invalidation


def append(transaction: Transaction, meta: Meta, name: Name, row: Invalidation, *, max_rows: int) -> Meta:
    """Add a row, dropping the oldest ones above ``max_rows``. Returns the meta that counts them."""
    if max_rows == 0:
        return meta
    transaction.put(rows.history_key(name, meta.history_next), rows.pack_invalidation(row))
    transaction.put(rows.history_queue_key(meta.history_next), name)
    first, following = meta.history_first, meta.history_next + 1
    while following - first > max_rows:
        oldest = transaction.get(rows.history_queue_key(first))
        if oldest is None:
            raise Inconsistent(f"history row {first} is missing")
        transaction.delete(rows.history_key(Name(oldest), first))
        transaction.delete(rows.history_queue_key(first))
        first += 1
    return replace(meta, history_first=first, history_next=following)


def of_name(view: View, name: Name, *, at_most: int = 16) -> tuple[Invalidation, ...]:
    """Newest first."""
    found = [rows.unpack_invalidation(value) for _, value in view.scan(rows.history_prefix(name))]
    return tuple(reversed(found[-at_most:]))
