"""Every row reads back as it was written, and damage is told from absence."""

from __future__ import annotations

import pytest
from dynbranch.csl.core import cascade, rows
from dynbranch.csl.core.rows import EntryRow, Meta, Node
from dynbranch.csl.core.store import Inconsistent, UnknownFormat
from dynbranch.domain.ids import Digest, Name, RecordId, UnixMs, Version
from dynbranch.domain.reuse import Derivation, Incarnation, Invalidation, Level, Read
from hypothesis import given
from hypothesis import strategies as st

NUMBERS = st.integers(0, 2**64 - 1)
NAMES = st.binary(min_size=32, max_size=32).map(Name)
DIGESTS = st.binary(max_size=40).map(Digest)
VERSIONS = st.builds(Version, NUMBERS, NUMBERS)
RECORDS = (
    st.from_regex(r"[a-z._-]{1,8}/[^\0]{1,12}", fullmatch=True)
    .filter(lambda text: not any("\ud800" <= c <= "\udfff" for c in text))
    .map(RecordId)
)
INCARNATIONS = st.builds(Incarnation, NAMES, NUMBERS)
NODES = st.builds(Node, NAMES, st.integers(0, 0xFFFF))
TEXTS = st.text(max_size=20)

METAS = st.builds(
    Meta,
    epoch=NUMBERS,
    sequence=NUMBERS,
    next_number=NUMBERS,
    entries=NUMBERS,
    payload_bytes=NUMBERS,
    workflows=NUMBERS,
    versions=NUMBERS,
    history_first=NUMBERS,
    history_next=NUMBERS,
    floor=VERSIONS,
)
ENTRIES = st.builds(
    EntryRow,
    number=NUMBERS,
    level=st.sampled_from(Level),
    payload_bytes=NUMBERS,
    execution_ms=st.floats(allow_nan=False),
    created=NUMBERS.map(UnixMs),
    next_derivation=st.integers(0, 0xFFFF),
    derivations=st.lists(st.integers(0, 0xFFFF), max_size=5).map(tuple),
    payload_digest=DIGESTS,
    label=TEXTS,
    output_digests=st.lists(DIGESTS, max_size=4).map(tuple),
)
DERIVATIONS = st.builds(
    Derivation,
    read_token=VERSIONS,
    reads=st.lists(st.builds(Read, RECORDS, VERSIONS), max_size=4).map(tuple),
    producers=st.lists(INCARNATIONS, max_size=4).map(tuple),
)
INVALIDATIONS = st.builds(
    Invalidation,
    incarnation_number=NUMBERS,
    at=NUMBERS.map(UnixMs),
    version=VERSIONS,
    record=st.none() | RECORDS,
    lost_producer=st.none() | INCARNATIONS,
    label=TEXTS,
    reporter=TEXTS,
)


@given(METAS, ENTRIES, DERIVATIONS, INVALIDATIONS)
def test_values_read_back(
    meta: Meta, entry: EntryRow, derivation: Derivation, invalidation: Invalidation
) -> None:
    assert rows.unpack_meta(rows.pack_meta(meta)) == meta
    assert rows.unpack_entry(rows.pack_entry(entry)) == entry
    assert rows.unpack_derivation(rows.pack_derivation(derivation)) == derivation
    assert rows.unpack_invalidation(rows.pack_invalidation(invalidation)) == invalidation


@given(RECORDS, NODES, INCARNATIONS)
def test_index_keys_read_back(record: RecordId, node: Node, producer: Incarnation) -> None:
    reader, child = rows.reader_key(record, node), rows.child_key(producer, node)
    assert (rows.record_of_reader(reader), rows.node_at_end(reader)) == (record, node)
    assert (rows.producer_of_child(child), rows.node_at_end(child)) == (producer, node)
    assert reader.startswith(rows.readers_prefix(record))
    assert child.startswith(rows.children_prefix(producer))
    assert rows.node_of_derivation(rows.derivation_key(node)) == node


@given(RECORDS, RECORDS, NODES)
def test_the_readers_of_one_record_never_mix_with_those_of_another(
    record: RecordId, other: RecordId, node: Node
) -> None:
    if record != other:
        assert not rows.reader_key(other, node).startswith(rows.readers_prefix(record))


@given(
    st.lists(
        st.builds(
            cascade.Condemned,
            INCARNATIONS,
            st.just(False),
            st.lists(st.integers(0, 0xFFFF), max_size=3).map(tuple),
        ),
        max_size=4,
    )
)
def test_condemned_nodes_read_back(nodes: list[cascade.Condemned]) -> None:
    assert list(cascade.unpack_condemned(cascade.pack_condemned(nodes))) == nodes


@given(ENTRIES, st.integers(1, 8))
def test_a_cut_or_padded_row_is_damage(entry: EntryRow, by: int) -> None:
    data = rows.pack_entry(entry)
    for wrong in (data[:-by], data + bytes(by)):
        with pytest.raises(Inconsistent):
            rows.unpack_entry(wrong)


def test_another_format_is_not_damage() -> None:
    data = bytearray(rows.pack_meta(Meta(1)))
    data[1] += 1
    with pytest.raises(UnknownFormat):
        rows.unpack_meta(bytes(data))
