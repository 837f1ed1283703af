"""What one write wrote, asked once per read however many records it has."""

from __future__ import annotations

from collections.abc import Iterable

from dynbranch.domain.ids import RecordId, is_whole, source_of, whole
from dynbranch.domain.reuse import ReadScope


class Written:
    """Every question takes the same time whatever the number of records."""

    __slots__ = ("_first_of", "_records", "_whole_sources")

    def __init__(self, records: Iterable[RecordId]) -> None:
        self._records = frozenset(records)
        self._whole_sources = frozenset(source_of(record) for record in self._records if is_whole(record))
        self._first_of: dict[str, RecordId] = {}
        for record in sorted(self._records):
            self._first_of.setdefault(source_of(record), record)

    @property
    def sources(self) -> Iterable[str]:
        """Those with at least one written record."""
        return self._first_of.keys()

    def hit_by(self, record: RecordId) -> RecordId | None:
        """The written record that a read of ``record`` falls with."""
        source = source_of(record)
        if source in self._whole_sources:
            return whole(source)
        if is_whole(record):
            return self._first_of.get(source)
        return record if record in self._records else None

    def hit_in(self, scope: ReadScope) -> RecordId | None:
        """The written record that an execution of this scope may have read an older version of."""
        for source in scope.sources:
            if source in self._first_of:
                return self._first_of[source]
        for read in scope.declared:
            written = self.hit_by(read.record)
            if written is not None:
                return written
        return None
