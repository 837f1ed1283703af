"""Which reads a write hits: the same as comparing every read with every record, without doing so."""

from __future__ import annotations

import random

from dynbranch.csl.core.written import Written
from dynbranch.domain.ids import RecordId, is_whole, source_of
from dynbranch.domain.reuse import DeclaredRead, ReadScope

RECORDS = [RecordId(f"{source}/{key}") for source in "abc" for key in ("!", "1", "2", "*", "x/*")]


def falls(read: RecordId, written: RecordId) -> bool:
    same = source_of(read) == source_of(written)
    return same and (read == written or is_whole(read) or is_whole(written))


def test_a_read_is_hit_exactly_when_it_is_by_one_of_the_records() -> None:
    chance = random.Random(3)
    for _ in range(300):
        records = chance.sample(RECORDS, chance.randrange(1, 5))
        written = Written(records)
        assert set(written.sources) == {source_of(record) for record in records}
        for read in RECORDS:
            found = written.hit_by(read)
            assert (found is not None) == any(falls(read, record) for record in records)
            assert found is None or (found in records and falls(read, found))


def test_a_scope_is_hit_by_any_record_of_its_sources_and_by_what_it_declares() -> None:
    chance = random.Random(4)
    for _ in range(300):
        records = chance.sample(RECORDS, chance.randrange(1, 4))
        scope = ReadScope(
            declared=tuple(map(DeclaredRead, chance.sample(RECORDS, chance.randrange(3)))),
            sources=tuple(chance.sample("abc", chance.randrange(2))),
        )
        expected = any(
            source_of(record) in scope.sources or any(falls(read.record, record) for read in scope.declared)
            for record in records
        )
        found = Written(records).hit_in(scope)
        assert (found is not None) == expected
        assert found is None or found in records


class CountedRecord(str):
    """A record that tells how often it is compared with another."""

    compared = 0

    def __eq__(self, other: object) -> bool:
        CountedRecord.compared += 1
        return str.__eq__(self, other)

    __hash__ = str.__hash__


def test_a_question_does_not_look_at_every_record() -> None:
    written = Written(RecordId(CountedRecord(f"docs/w{number}")) for number in range(2000))
    CountedRecord.compared = 0
    for number in range(1000):
        assert written.hit_by(RecordId(f"docs/other{number}")) is None
    assert CountedRecord.compared < 1000
