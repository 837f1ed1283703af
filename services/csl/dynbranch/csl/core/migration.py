"""From the format of an older store to today's, in batches. An upgrade that was interrupted begins again.

format  since then
------  ------------------------------------------------------------
1       everything but:
2       keyspace A, the entries by age
3       keyspaces G and O, shadows and settlements; three more counters in the first row
"""

from __future__ import annotations

from collections.abc import Iterator

from dynbranch.csl.core import rows
from dynbranch.csl.core.store import Batch, Inconsistent, UnknownFormat, View
from dynbranch.domain.ids import Name

ROWS_PER_BATCH = 1000


def upgrade(view: View) -> Iterator[Batch]:
    """Batches to be applied one by one, the last of which changes the format; none, if it is today's.

    Raises UnknownFormat for a store that a newer program wrote.
    """
    meta = view.get(rows.META)
    if meta is None:
        raise Inconsistent("the store has rows but no first row")
    found = rows.format_of(meta)
    if found == rows.FORMAT:
        return
    if not 1 <= found < rows.FORMAT:
        raise UnknownFormat(f"the store has format {found}, this program reads formats 1 to {rows.FORMAT}")
    if found == 1:
        yield from _index_ages(view)
    yield Batch({rows.META: rows.upgraded_meta(meta)}, {rows.META: meta})


def _index_ages(view: View) -> Iterator[Batch]:
    # An upgrade that was interrupted, and the older program after it, may have left rows that are not so now.
    while stale := view.page(rows.AGES, b"", ROWS_PER_BATCH):
        yield Batch({key: None for key, _ in stale})
    start = b""
    while page := view.page(rows.ENTRIES, start, ROWS_PER_BATCH):
        yield Batch(
            {rows.age_key(rows.unpack_entry(value).created, Name(key[1:])): b"" for key, value in page}
        )
        start = page[-1][0][1:] + b"\0"
