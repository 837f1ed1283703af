"""Which shadows there are, whose they are and when they go: what the rows of keyspace G say, in memory."""

from __future__ import annotations

import heapq
from collections.abc import Iterator

from dynbranch.csl.core import fill_rows, rows
from dynbranch.csl.core.fill_rows import ShadowRow
from dynbranch.csl.core.store import View
from dynbranch.domain.ids import FillId, Name, UnixMs


class Shadows:
    """Their number is bounded, so that all of them may be held here. ``reread`` comes first."""

    def __init__(self) -> None:
        self._rows: dict[Name, ShadowRow] = {}
        self._by_fill: dict[FillId, set[Name]] = {}
        self._lost: dict[Name, None] = {}
        self._expiries: list[tuple[UnixMs, Name]] = []

    def __len__(self) -> int:
        return len(self._rows)

    def __contains__(self, name: object) -> bool:
        return name in self._rows

    def reread(self, view: View) -> None:
        """As the rows are: at the start, and when a batch that changed them was refused."""
        self._rows.clear()
        self._by_fill.clear()
        self._lost.clear()
        self._expiries.clear()
        for key, value in view.scan(rows.SHADOWS):
            self.put(rows.name_of_key(key), fill_rows.unpack_shadow(value))

    def get(self, name: Name) -> ShadowRow | None:
        return self._rows.get(name)

    def of_fill(self, fill: FillId) -> tuple[Name, ...]:
        return tuple(sorted(self._by_fill.get(fill, ())))

    def put(self, name: Name, row: ShadowRow) -> None:
        self.drop(name)
        self._rows[name] = row
        self._by_fill.setdefault(row.origin.fill_id, set()).add(name)
        if row.lost:
            self._lost[name] = None
        heapq.heappush(self._expiries, (row.expires, name))

    def drop(self, name: Name) -> ShadowRow | None:
        row = self._rows.pop(name, None)
        if row is not None:
            names = self._by_fill[row.origin.fill_id]
            names.discard(name)
            if not names:
                del self._by_fill[row.origin.fill_id]
            self._lost.pop(name, None)
        return row

    def to_sweep(self, now: UnixMs, at_most: int) -> list[Name]:
        """Lost and expired ones. Those returned come back at the next call if they are still there."""
        found = list(self._lost)[:at_most]
        # A name may stand there twice: it was a shadow before, with the same expiry.
        passed: dict[tuple[UnixMs, Name], None] = {}
        while self._expiries and self._expiries[0][0] <= now and len(found) + len(passed) < at_most:
            expiry = heapq.heappop(self._expiries)
            row = self._rows.get(expiry[1])
            if row is not None and row.expires == expiry[0] and not row.lost:
                passed[expiry] = None
        for expiry in passed:
            heapq.heappush(self._expiries, expiry)
        return [*found, *(name for _, name in passed)]

    def violations(self, view: View) -> Iterator[str]:
        """What is wrong with the indexes; nothing, if the code is right."""
        stored = {
            rows.name_of_key(key): fill_rows.unpack_shadow(value) for key, value in view.scan(rows.SHADOWS)
        }
        if stored != self._rows:
            yield "the shadows in memory are not those of the rows"
        fills = {(row.origin.fill_id, name) for name, row in self._rows.items()}
        if fills != {(fill, name) for fill, names in self._by_fill.items() for name in names}:
            yield "the index of shadows by fill is not exact"
        if {name for name, row in self._rows.items() if row.lost} != set(self._lost):
            yield "the list of lost shadows is not exact"
        if not {(row.expires, name) for name, row in self._rows.items()} <= set(self._expiries):
            yield "a shadow has no expiry"
