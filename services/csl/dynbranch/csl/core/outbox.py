"""What became of fills, as rows written in the batch of the change itself, until a controller has them."""

from __future__ import annotations

from dataclasses import replace

from dynbranch.csl.core import fill_rows, rows
from dynbranch.csl.core.rows import Meta
from dynbranch.csl.core.store import Transaction, View
from dynbranch.domain.fills import Settlement

ACKNOWLEDGED_PER_STEP = 256


def append(transaction: Transaction, meta: Meta, *settlements: Settlement, max_rows: int) -> Meta:
    """Put them under their numbers. Above ``max_rows`` the oldest go: nobody takes them in."""
    number = meta.next_settlement
    for settlement in settlements:
        transaction.put(fill_rows.settlement_key(number), fill_rows.pack_settlement(settlement))
        number += 1
    held = meta.settlements + len(settlements)
    if held > max_rows:
        oldest = transaction.page(rows.SETTLEMENTS, b"", held - max_rows)
        for key, _ in oldest:
            transaction.delete(key)
        held -= len(oldest)
    return replace(meta, next_settlement=number, settlements=held)


def read(view: View, *, after: int, at_most: int) -> tuple[Settlement, ...]:
    start = fill_rows.settlement_key(after + 1)[1:]
    page = view.page(rows.SETTLEMENTS, start, at_most)
    return tuple(
        fill_rows.unpack_settlement(fill_rows.number_of_settlement(key), value) for key, value in page
    )


def acknowledge(transaction: Transaction, meta: Meta, through: int) -> tuple[Meta, int]:
    """Delete some of what has been taken in. Returns how many went; zero: nothing is left to do."""
    page = transaction.page(rows.SETTLEMENTS, b"", ACKNOWLEDGED_PER_STEP)
    gone = [key for key, _ in page if fill_rows.number_of_settlement(key) <= through]
    for key in gone:
        transaction.delete(key)
    return replace(meta, settlements=meta.settlements - len(gone)), len(gone)
