"""Garbage, rows of the future and rows of no keyspace: the check tells each, an opening never stumbles."""

from __future__ import annotations

from dataclasses import replace

import pytest
from dynbranch.csl.core import cascade, consistency, rows, versions
from dynbranch.csl.core.rows import Node
from dynbranch.csl.core.store import Batch, Inconsistent, Transaction, View
from dynbranch.csl.fake import SteppedLibrary, name_of
from dynbranch.csl.opening import verify
from dynbranch.domain.ids import RecordId, Version
from dynbranch.domain.reuse import Incarnation, ReadScope

DOCS = ReadScope(sources=("docs",))
GET, ANSWER = name_of("get"), name_of("answer")
FUTURE = rows.pack_version(Version(1, 10**15))

Fault = dict[bytes, bytes | None]


def a_store() -> SteppedLibrary:
    """It has rows in every keyspace but X."""
    library = SteppedLibrary(checked=False)
    library.commit(library.lease("old", workflow="w", scope=DOCS), "o", reads=["docs/0"])
    library.write("docs/0")
    library.commit(library.lease("get", workflow="w", scope=DOCS), "passage", reads=["docs/1"])
    library.commit(library.lease("answer", workflow="w", inputs=["passage"]), "text")
    assert library.violations() == []
    return library


def first(view: View, space: bytes) -> bytes:
    return next(view.scan(space))[0]


def listed_twice(view: View) -> Fault:
    entry = rows.read_entry(view, GET)
    assert entry is not None
    return {rows.entry_key(GET): rows.pack_entry(replace(entry, derivations=(0, 0)))}


def one_number_twice(view: View) -> Fault:
    entry, other = rows.read_entry(view, GET), rows.read_entry(view, ANSWER)
    assert entry is not None and other is not None
    return {rows.entry_key(GET): rows.pack_entry(replace(entry, number=other.number))}


def read_of_the_future(view: View) -> Fault:
    node = Node(GET, 0)
    derivation = rows.read_derivation(view, node)
    reads = tuple(replace(read, as_of=Version(1, 10**15)) for read in derivation.reads)
    return {rows.derivation_key(node): rows.pack_derivation(replace(derivation, reads=reads))}


def token_of_the_future(view: View) -> Fault:
    node = Node(GET, 0)
    derivation = replace(rows.read_derivation(view, node), read_token=Version(2, 0))
    return {rows.derivation_key(node): rows.pack_derivation(derivation)}


def source_gone(view: View) -> Fault:
    """With another row in its place, so that the count is right."""
    return {first(view, rows.SOURCES): None, rows.source_key("other"): rows.pack_version(Version(1, 1))}


def source_older(view: View) -> Fault:
    return {first(view, rows.SOURCES): rows.pack_version(Version(1, 0))}


def floor_of_the_future(view: View) -> Fault:
    return {rows.META: rows.pack_meta(replace(rows.read_meta(view), floor=Version(1, 10**15)))}


def history_of_the_future(view: View) -> Fault:
    key, value = next(view.scan(rows.HISTORY))
    row = replace(rows.unpack_invalidation(value), version=Version(7, 7))
    return {key: rows.pack_invalidation(row)}


def text_that_is_none(view: View) -> Fault:
    key, value = next(view.scan(rows.ENTRIES))
    entry = rows.unpack_entry(value)
    packed = rows.pack_entry(replace(entry, label="ab"))
    return {key: packed.replace(b"\0\x02ab", b"\0\x02\xff\xfe")}


NODE = bytes(34)
PLANTS = {
    f"{kind} in {space.decode()}": (space, value)
    for space in (rows.WRITTEN, rows.SOURCES, rows.ARRIVALS)
    for kind, value in (("garbage", b"junk"), ("nothing", b""), ("the future", FUTURE))
}
GARBAGE = {
    f"garbage in {space.decode()}": (space, b"junk")
    for space in (rows.ENTRIES, rows.DERIVATIONS, rows.HISTORY, rows.HISTORY_QUEUE)
}
STRAYS: dict[str, tuple[bytes, bytes]] = {
    "an X row cut short": (rows.condemned_key(0), b"junk"),
    "an X row whose numbers are cut off": (rows.condemned_key(0), bytes(40) + b"\0\0\x09"),
    "an X key of 2 bytes": (b"Xab", b""),
    "an X key of 5 bytes": (b"Xabcde", b""),
    "a short R key": (b"Rx", b""),
    "an R key without a record": (b"R" + NODE, b""),
    "an R key without its NUL": (b"Rdocs/1" + b"\1" * 35, b""),
    "an R key that is no text": (b"R\xff/\0" + NODE, b""),
    "a short D key": (b"Dx", b""),
    "a long D key": (b"D" + bytes(35), b""),
    "a short C key": (b"Cx", b""),
    "a long C key": (b"C" + bytes(75), b""),
    "a short E key": (b"Ex", b""),
    "a short P key": (b"Px", b""),
    "a short A key": (b"Ax", b""),
    "a short F key": (b"Fx", rows.pack_version(Version(1, 0))),
    "a short H key": (b"Hx", b""),
    "a short Q key": (b"Qx", bytes(32)),
    "a W key that is no record": (b"Wx", rows.pack_version(Version(1, 0))),
    "a W key that is no text": (b"W\xff/1", rows.pack_version(Version(1, 0))),
    "an S key that is no source": (b"Sa/b", rows.pack_version(Version(1, 0))),
    "an S key that is no text": (b"S\xff", rows.pack_version(Version(1, 0))),
    "a row of no keyspace": (b"Zzz", b"1"),
    "a row before every keyspace": (b"\0", b"1"),
    "a row after every keyspace": (b"\xff\xff", b"1"),
    "a second first row": (b"Mzz", b"1"),
}


def planted(fault: Fault) -> SteppedLibrary:
    library = a_store()
    library.store.apply(Batch(fault))
    return library


def counted_as_it_is(view: View, fault: Fault) -> Fault:
    """With the counters of the first row as they must be for the added row: they do not give it away."""
    meta = rows.read_meta(view)
    for key in fault:
        if view.get(key) is None:
            meta = replace(
                meta,
                versions=meta.versions + key.startswith((rows.WRITTEN, rows.SOURCES)),
                workflows=meta.workflows + key.startswith(rows.ARRIVALS),
            )
    return {rows.META: rows.pack_meta(meta), **fault}


@pytest.mark.promise("C1.check")
@pytest.mark.parametrize(
    "plant",
    [
        listed_twice,
        one_number_twice,
        read_of_the_future,
        token_of_the_future,
        source_gone,
        source_older,
        floor_of_the_future,
        history_of_the_future,
        text_that_is_none,
    ],
)
def test_rows_that_contradict_are_told(plant: object) -> None:
    assert callable(plant)
    assert list(consistency.violations(planted(plant(a_store().store)).store))


@pytest.mark.promise("C1.check")
@pytest.mark.parametrize("what", [*PLANTS, *GARBAGE])
def test_a_value_that_can_not_be_is_told(what: str) -> None:
    space, value = (PLANTS | GARBAGE)[what]
    library = planted({first(a_store().store, space): value})
    assert list(consistency.violations(library.store))


@pytest.mark.promise("C1.check")
@pytest.mark.parametrize("what", STRAYS)
def test_a_row_that_belongs_nowhere_is_told(what: str) -> None:
    key, value = STRAYS[what]
    library = planted(counted_as_it_is(a_store().store, {key: value}))
    assert list(consistency.violations(library.store))


@pytest.mark.promise("C1.check")
@pytest.mark.parametrize("what", [*PLANTS, *GARBAGE, *STRAYS])
def test_an_opening_finds_it_or_leaves_it_and_never_stumbles(what: str) -> None:
    """What it does not find is never met, or is met as an inconsistent row."""
    if what in STRAYS:
        key, value = STRAYS[what]
    else:
        space, value = (PLANTS | GARBAGE)[what]
        key = first(a_store().store, space)
    library = planted({key: value})
    try:
        verify(library.store, 1)
    except Inconsistent:
        return
    assert what in {
        "a short P key",
        "a short D key",
        "a long D key",
        "a short F key",
        "a W key that is no record",
        "a W key that is no text",
        "an S key that is no source",
        "an S key that is no text",
        "a row of no keyspace",
        "a row before every keyspace",
        "a row after every keyspace",
        "a second first row",
    }
    library.restart()


def test_an_unreadable_row_does_not_hide_the_others() -> None:
    library = a_store()
    library.store.apply(Batch({b"Rx": b"", b"Wx": b"", b"Fx": b"", b"Zzz": b""}))
    told = " ".join(consistency.violations(library.store))
    assert all(key.hex() in told for key in (b"Rx", b"Wx", b"Fx", b"Zzz"))


def test_keys_and_condemned_nodes_that_are_cut_anywhere_are_inconsistent() -> None:
    library = a_store()
    reader, edge = (first(library.store, space) for space in (rows.READERS, rows.CHILDREN))
    for end in range(1, len(edge)):
        with pytest.raises(Inconsistent):
            rows.producer_of_child(edge[:end])
    for end in range(1, 35):
        with pytest.raises(Inconsistent):
            rows.node_at_end(reader[:end])
        with pytest.raises(Inconsistent):
            rows.record_of_reader(reader[:end])
    entry = rows.read_entry(library.store, GET)
    assert entry is not None
    node = cascade.Condemned(Incarnation(GET, entry.number), False, (0, 1))
    packed = cascade.pack_condemned([node])
    for end in range(1, len(packed)):
        with pytest.raises(Inconsistent):
            cascade.unpack_condemned(packed[:end])


@pytest.mark.promise("C1.check")
@pytest.mark.parametrize("most", range(7))
def test_forgotten_rows_are_not_missed(most: int) -> None:
    library = a_store()
    library.write("docs/3", "docs/4", "other/1")
    transaction = Transaction(library.store)
    versions.forget(transaction, library.store, rows.read_meta(library.store), most=most)
    library.store.apply(transaction.batch())
    assert list(consistency.violations(library.store)) == []
    source = rows.source_key("docs")
    meta = rows.read_meta(library.store)
    if library.store.get(source) is not None:
        less = rows.pack_meta(replace(meta, versions=meta.versions - 1))
        library.store.apply(Batch({source: None, rows.META: less}))
        assert list(consistency.violations(library.store)) == []
    library.write("docs/9")
    assert list(consistency.violations(library.store)) == []
    library.store.apply(Batch({rows.written_key(RecordId("docs/9")): FUTURE}))
    assert list(consistency.violations(library.store))
