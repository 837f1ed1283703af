"""What is put into a store before its first event: at its founding, and at every opening."""

from __future__ import annotations

from dataclasses import replace

from dynbranch.csl.core import rows
from dynbranch.csl.core.rows import Meta
from dynbranch.csl.core.store import Batch, Transaction, View

OPENING_GAP = 1 << 20
"""How far these counters jump at every opening.

A power loss may take writes and entries that were visible but not yet durable. What was handed out for them
(a read token, an incarnation, a settlement) must never be mistaken for something that happens after the
restart.
"""


def found(epoch: int) -> Batch:
    """The rows of a new, empty store."""
    return Batch({rows.META: rows.pack_meta(Meta(epoch))}, {rows.META: None})


def open_store(view: View) -> Batch:
    """What every opening of an existing store does first."""
    transaction = Transaction(view)
    meta = rows.read_meta(view)
    transaction.get_guarded(rows.META)
    meta = replace(
        meta,
        sequence=meta.sequence + OPENING_GAP,
        next_number=meta.next_number + OPENING_GAP,
        next_settlement=meta.next_settlement + OPENING_GAP,
    )
    transaction.put(rows.META, rows.pack_meta(meta))
    return transaction.batch()
