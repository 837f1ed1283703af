"""The check of the whole store finds every fault that is planted by hand."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from dynbranch.csl.core import consistency, rows
from dynbranch.csl.core.rows import Node
from dynbranch.csl.core.store import Batch, View
from dynbranch.csl.fake import SteppedLibrary, name_of
from dynbranch.domain.ids import RecordId, Version
from dynbranch.domain.reuse import Incarnation, ReadScope

DOCS = ReadScope(sources=("docs",))
GET, ANSWER = name_of("get"), name_of("answer")
STRAY = Node(name_of("stray"), 0)

Fault = dict[bytes, bytes | None]


def a_store() -> SteppedLibrary:
    library = SteppedLibrary(checked=False)
    library.commit(library.lease("old", scope=DOCS), "o", reads=["docs/0"])
    library.write("docs/0")
    library.commit(library.lease("get", workflow="w", scope=DOCS), "passage", reads=["docs/1"])
    library.commit(library.lease("answer", workflow="w", inputs=["passage"]), "text")
    assert library.violations() == []
    return library


def _get(view: View) -> Incarnation:
    entry = rows.read_entry(view, GET)
    assert entry is not None
    return Incarnation(GET, entry.number)


def wrong_bytes(view: View) -> Fault:
    meta = rows.read_meta(view)
    return {rows.META: rows.pack_meta(replace(meta, payload_bytes=meta.payload_bytes + 1))}


def wrong_count(view: View) -> Fault:
    meta = rows.read_meta(view)
    return {rows.META: rows.pack_meta(replace(meta, entries=meta.entries + 1))}


def orphan_reader(view: View) -> Fault:
    return {rows.reader_key(RecordId("docs/7"), STRAY): b""}


def orphan_edge(view: View) -> Fault:
    return {rows.child_key(_get(view), STRAY): b""}


def missing_reader(view: View) -> Fault:
    return {rows.reader_key(RecordId("docs/1"), Node(GET, 0)): None}


def missing_edge(view: View) -> Fault:
    return {rows.child_key(_get(view), Node(ANSWER, 0)): None}


def dangling_derivation(view: View) -> Fault:
    return {rows.derivation_key(STRAY): view.get(rows.derivation_key(Node(ANSWER, 0)))}


def missing_derivation(view: View) -> Fault:
    return {rows.derivation_key(Node(ANSWER, 0)): None}


def missing_producer(view: View) -> Fault:
    return {rows.entry_key(GET): None}


def stale_read_set(view: View) -> Fault:
    return {rows.written_key(RecordId("docs/1")): rows.pack_version(Version(1, 9))}


def missing_payload(view: View) -> Fault:
    return {rows.payload_key(GET): None}


def orphan_payload(view: View) -> Fault:
    return {rows.payload_key(STRAY.name): b"x"}


def cut_payload(view: View) -> Fault:
    return {rows.payload_key(GET): b"pass"}


def missing_history(view: View) -> Fault:
    return {rows.history_key(name_of("old"), 0): None}


def orphan_history(view: View) -> Fault:
    return {rows.history_key(STRAY.name, 5): view.get(rows.history_key(name_of("old"), 0))}


def entry_without_support(view: View) -> Fault:
    entry = rows.read_entry(view, ANSWER)
    assert entry is not None
    return {rows.entry_key(ANSWER): rows.pack_entry(replace(entry, derivations=()))}


def young_producer(view: View) -> Fault:
    entry = rows.read_entry(view, ANSWER)
    assert entry is not None
    return {rows.entry_key(ANSWER): rows.pack_entry(replace(entry, number=_get(view).number))}


@pytest.mark.promise("C1.check")
@pytest.mark.parametrize(
    "plant",
    [
        wrong_bytes,
        wrong_count,
        orphan_reader,
        orphan_edge,
        missing_reader,
        missing_edge,
        dangling_derivation,
        missing_derivation,
        missing_producer,
        stale_read_set,
        missing_payload,
        orphan_payload,
        cut_payload,
        missing_history,
        orphan_history,
        entry_without_support,
        young_producer,
    ],
)
def test_a_planted_fault_is_found(plant: Callable[[View], Fault]) -> None:
    library = a_store()
    library.store.apply(Batch(plant(library.store)))
    assert list(consistency.violations(library.store))


@pytest.mark.promise("I3")
def test_a_stale_entry_is_not_served_even_if_the_cascade_had_missed_it() -> None:
    library = a_store()
    library.store.apply(Batch(stale_read_set(library.store)))
    library.demand("get", may_execute=False)
    counters = library.library.counters
    assert (counters.hits, counters.guard_misses) == (0, 1)
