"""A check of the whole store: every index row has its derivation, every derivation its entry, and so on.

It runs over any view, also one of a copy on disk, and needs memory for the keys of entries and derivations
only.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from dynbranch.csl.core import cascade, fill_rows, rows, versions
from dynbranch.csl.core.rows import DerivationRow, EntryRow, Meta, Node
from dynbranch.csl.core.store import Inconsistent, View
from dynbranch.domain.ids import NEVER, Name, Version, source_of
from dynbranch.domain.reuse import Incarnation


def violations(view: View) -> Iterator[str]:
    """What is wrong with the store's rows; nothing, if it is whole.

    A row that can not be read is told as well, and ends the part of the check that met it. Raises
    Inconsistent, UnknownFormat when the first row can not be read.
    """
    meta = rows.read_meta(view)
    yield from _told(_strays(view, meta))
    try:
        condemned = _condemned(view)
        entries = {rows.name_of_key(key): rows.unpack_entry(value) for key, value in view.scan(rows.ENTRIES)}
    except Inconsistent as error:
        # Nothing else can be judged.
        yield error.message
        return
    doomed = {name for name, entry in entries.items() if _is_doomed(condemned, name, entry)}
    for part in (
        _counters(view, meta, entries),
        _lists(entries),
        _ages(view, entries),
        _payloads(view, entries),
        _derivations(view, meta, entries, condemned, doomed),
        _indexes(view),
        _written(view, meta),
        _arrivals(view, meta),
        _history(view, meta),
        _shadows(view, meta, entries),
        _settlements(view, meta),
    ):
        yield from _told(part)


def sampled(view: View, start: Name | bytes, at_most: int) -> Iterator[str]:
    """The same for a few entries from ``start`` on, and the shape of a few rows of every other kind.

    Raises Inconsistent for a row that can not be read.
    """
    meta = rows.read_meta(view)
    for key, value in _around(view, rows.ENTRIES, start, at_most):
        name, entry = rows.name_of_key(key), rows.unpack_entry(value)
        yield from _lists({name: entry})
        if entry.number >= meta.next_number:
            yield f"entry {name.hex()} has the number {entry.number}, which was not given out yet"
        payload = view.get(rows.payload_key(name))
        if payload is None or len(payload) != entry.payload_bytes:
            yield f"the payload of {name.hex()} is missing or has a wrong size"
        if view.get(rows.age_key(entry.created, name)) is None:
            yield f"entry {name.hex()} is not in the index of ages"
        for number in entry.derivations:
            node = Node(name, number)
            derivation = rows.read_derivation(view, node)
            yield from _index_rows(view, node, derivation)
            yield from _future_reads(meta, node, derivation)
    for key, _ in _around(view, rows.READERS, b"", at_most):
        rows.record_of_reader(key)
        yield from _points_somewhere(view, key)
    for key, _ in _around(view, rows.CHILDREN, start, at_most):
        rows.producer_of_child(key)
        yield from _points_somewhere(view, key)
    yield from _sampled_rest(view, meta, at_most)


def _points_somewhere(view: View, key: bytes) -> Iterator[str]:
    node = rows.node_at_end(key)
    if view.get(rows.derivation_key(node)) is None:
        yield f"an index row points to {node.name.hex()}, which is not stored"


def _sampled_rest(view: View, meta: Meta, at_most: int) -> Iterator[str]:
    for space in (rows.WRITTEN, rows.SOURCES, rows.ARRIVALS):
        for key, value in view.page(space, b"", at_most):
            yield from _not_after(meta, rows.unpack_version(value), key)
    for key, value in view.page(rows.HISTORY, b"", at_most):
        rows.history_of_key(key)
        rows.unpack_invalidation(value)
    for key, value in view.page(rows.HISTORY_QUEUE, b"", at_most):
        number = rows.number_of_queue(key)
        if view.get(rows.history_key(Name(value), number)) is None:
            yield f"history row {number} is missing"
    for key, value in view.page(rows.SHADOWS, b"", at_most):
        fill_rows.unpack_shadow(value)
        if view.get(rows.entry_key(rows.name_of_key(key))) is None:
            yield f"a fill names the shadow {key[1:].hex()}, which is not stored"
    for key, value in view.page(rows.SETTLEMENTS, b"", at_most):
        fill_rows.unpack_settlement(fill_rows.number_of_settlement(key), value)
    for key, _ in view.page(rows.AGES, b"", at_most):
        if view.get(rows.entry_key(rows.name_of_age(key))) is None:
            yield f"the index of ages names {key[-rows.NAME_BYTES :].hex()}, which is not stored"
    _condemned(view)


def _told(part: Iterator[str]) -> Iterator[str]:
    try:
        yield from part
    except Inconsistent as error:
        yield error.message


def _condemned(view: View) -> dict[tuple[Name, int], cascade.Condemned]:
    """Raises Inconsistent."""
    for key, _ in view.scan(rows.CONDEMNED):
        rows.number_of_condemned(key)
    return {
        (node.incarnation.name, node.incarnation.number): node
        for nodes in cascade.pending(view).values()
        for node in nodes
    }


def _strays(view: View, meta: Meta) -> Iterator[str]:
    """Rows outside every keyspace; a few looks, however many rows there are."""
    if meta.floor > meta.version:
        yield f"no write before {meta.floor} is remembered, and the store is at {meta.version}"
    for key, _ in view.page(rows.META, b"", 2):
        if key != rows.META:
            yield f"the row {key.hex()} is none of the first row's keyspace"
    space = b""
    while found := view.page(b"", space, 1):
        key = found[0][0]
        if not key or key[0] not in rows.SPACES:
            yield f"the row {key[:80].hex()} is in no keyspace"
        if key[:1] == b"\xff":
            break
        space = bytes([key[0] + 1]) if key else b"\0"


def _not_after(meta: Meta, version: Version, key: bytes) -> Iterator[str]:
    if version > meta.version:
        yield f"the row {key[:80].hex()} says {version}, and the store is at {meta.version}"


def _around(view: View, space: bytes, start: bytes, at_most: int) -> Iterator[tuple[bytes, bytes]]:
    """Rows from ``start`` on, and from the first one on where the end comes too soon."""
    page = list(view.page(space, start, at_most))
    yield from page
    if start and len(page) < at_most:
        yield from view.page(space, b"", at_most - len(page))


def _is_doomed(condemned: dict[tuple[Name, int], cascade.Condemned], name: Name, entry: EntryRow) -> bool:
    node = condemned.get((name, entry.number))
    return node is not None and node.whole


def _counters(view: View, meta: Meta, entries: dict[Name, EntryRow]) -> Iterator[str]:
    if meta.entries != len(entries):
        yield f"the store counts {meta.entries} entries and holds {len(entries)}"
    held = sum(entry.payload_bytes for entry in entries.values())
    if meta.payload_bytes != held:
        yield f"the store counts {meta.payload_bytes} payload bytes and holds {held}"
    workflows = sum(1 for _ in view.scan(rows.ARRIVALS))
    if meta.workflows != workflows:
        yield f"the store counts {meta.workflows} first arrivals and holds {workflows}"
    written = sum(1 for space in (rows.WRITTEN, rows.SOURCES) for _ in view.scan(space))
    if meta.versions != written:
        yield f"the store counts {meta.versions} version rows and holds {written}"
    given: set[int] = set()
    for name, entry in entries.items():
        if entry.number >= meta.next_number:
            yield f"entry {name.hex()} has the number {entry.number}, which was not given out yet"
        if entry.number in given:
            yield f"entry {name.hex()} has the number {entry.number}, which another one has too"
        given.add(entry.number)


def _payloads(view: View, entries: dict[Name, EntryRow]) -> Iterator[str]:
    seen: set[Name] = set()
    for key, value in view.scan(rows.PAYLOADS):
        name = rows.name_of_key(key)
        seen.add(name)
        entry = entries.get(name)
        if entry is None:
            yield f"payload {name.hex()} has no entry"
        elif entry.payload_bytes != len(value):
            yield f"payload {name.hex()} has {len(value)} bytes, its entry says {entry.payload_bytes}"
    for name in entries.keys() - seen:
        yield f"entry {name.hex()} has no payload"


def _ages(view: View, entries: dict[Name, EntryRow]) -> Iterator[str]:
    aged: set[Name] = set()
    for key, _ in view.scan(rows.AGES):
        name = rows.name_of_age(key)
        entry = entries.get(name)
        if entry is None or rows.age_key(entry.created, name) != key:
            yield f"the index of ages names {name.hex()}, which was not stored then"
        aged.add(name)
    for name in entries.keys() - aged:
        yield f"entry {name.hex()} is not in the index of ages"


def _lists(entries: dict[Name, EntryRow]) -> Iterator[str]:
    for name, entry in entries.items():
        if not entry.derivations:
            yield f"entry {name.hex()} has no derivation"
        if len(set(entry.derivations)) != len(entry.derivations):
            yield f"entry {name.hex()} lists a derivation twice"
        if any(number >= entry.next_derivation for number in entry.derivations):
            yield f"entry {name.hex()} has a derivation that was not given out yet"


def _derivations(
    view: View,
    meta: Meta,
    entries: dict[Name, EntryRow],
    condemned: dict[tuple[Name, int], cascade.Condemned],
    doomed: set[Name],
) -> Iterator[str]:
    listed = {Node(name, number) for name, entry in entries.items() for number in entry.derivations}
    for key, value in view.scan(rows.DERIVATIONS):
        node = rows.node_of_derivation(key)
        derivation = rows.unpack_derivation(value)
        if node not in listed:
            yield f"derivation {node.derivation} of {node.name.hex()} has no entry"
            continue
        listed.discard(node)
        yield from _index_rows(view, node, derivation)
        yield from _future_reads(meta, node, derivation)
        entry = entries[node.name]
        waiting = condemned.get((node.name, entry.number))
        if node.name in doomed or (waiting is not None and node.derivation in waiting.derivations):
            continue
        if not versions.is_current(view, derivation.reads):
            yield f"derivation {node.derivation} of {node.name.hex()} read an older version"
        if any(read.as_of.epoch != meta.epoch for read in derivation.reads):
            yield f"derivation {node.derivation} of {node.name.hex()} read in another epoch"
        yield from _producers(derivation.producers, node, entry, entries, doomed)
    for node in listed:
        yield f"derivation {node.derivation} of {node.name.hex()} is missing"


def _future_reads(meta: Meta, node: Node, derivation: DerivationRow) -> Iterator[str]:
    if any(at > meta.version for at in (derivation.read_token, *(read.as_of for read in derivation.reads))):
        yield f"derivation {node.derivation} of {node.name.hex()} read what is still to come"


def _index_rows(view: View, node: Node, derivation: DerivationRow) -> Iterator[str]:
    for read in derivation.reads:
        if view.get(rows.reader_key(read.record, node)) is None:
            yield f"the read of {read.record} by {node.name.hex()} is not in the reverse index"
    for producer in derivation.producers:
        if view.get(rows.child_key(producer, node)) is None:
            yield f"the edge {producer.name.hex()} → {node.name.hex()} is not in the index"


def _producers(
    producers: tuple[Incarnation, ...],
    node: Node,
    entry: EntryRow,
    entries: dict[Name, EntryRow],
    doomed: set[Name],
) -> Iterator[str]:
    for producer in producers:
        found = entries.get(producer.name)
        if found is None or found.number != producer.number or producer.name in doomed:
            yield f"derivation {node.derivation} of {node.name.hex()} has lost producer {producer.name.hex()}"
        if producer.number >= entry.number:
            yield f"producer {producer.name.hex()} is younger than its child {node.name.hex()}"


def _indexes(view: View) -> Iterator[str]:
    for key, _ in view.scan(rows.READERS):
        node = rows.node_at_end(key)
        record = rows.record_of_reader(key)
        value = view.get(rows.derivation_key(node))
        if value is None or all(read.record != record for read in rows.unpack_derivation(value).reads):
            yield f"the reverse index has {record} → {node.name.hex()}, which no derivation says"
    for key, _ in view.scan(rows.CHILDREN):
        node, producer = rows.node_at_end(key), rows.producer_of_child(key)
        value = view.get(rows.derivation_key(node))
        if value is None or producer not in rows.unpack_derivation(value).producers:
            yield f"the index has the edge {producer.name.hex()} → {node.name.hex()} of no derivation"


def _written(view: View, meta: Meta) -> Iterator[str]:
    """A source was last written no earlier than its records. Its row may be gone only behind the floor."""
    for key, value in view.scan(rows.SOURCES):
        rows.source_of_key(key)
        yield from _not_after(meta, rows.unpack_version(value), key)
    source, last = "", NEVER
    for key, value in view.scan(rows.WRITTEN):
        record, version = rows.record_of_written(key), rows.unpack_version(value)
        yield from _not_after(meta, version, key)
        if source_of(record) != source:
            source = source_of(record)
            found = view.get(rows.source_key(source))
            last = meta.floor if found is None else rows.unpack_version(found)
        if last < version:
            yield f"{record} was written at {version}, and its source last at {last}"


def _arrivals(view: View, meta: Meta) -> Iterator[str]:
    for key, value in view.scan(rows.ARRIVALS):
        rows.check_arrival_key(key)
        yield from _not_after(meta, rows.unpack_version(value), key)


def _shadows(view: View, meta: Meta, entries: dict[Name, EntryRow]) -> Iterator[str]:
    shadows = {name for name, entry in entries.items() if entry.is_shadow}
    if meta.shadows != len(shadows):
        yield f"the store counts {meta.shadows} shadows and holds {len(shadows)}"
    for key, value in view.scan(rows.SHADOWS):
        name = rows.name_of_key(key)
        fill_rows.unpack_shadow(value)
        if name not in shadows:
            yield f"a fill names the shadow {name.hex()}, which is none"
        shadows.discard(name)
    for name in shadows:
        yield f"shadow {name.hex()} has no row that names its fill"


def _settlements(view: View, meta: Meta) -> Iterator[str]:
    held = 0
    for key, value in view.scan(rows.SETTLEMENTS):
        number = fill_rows.number_of_settlement(key)
        fill_rows.unpack_settlement(number, value)
        held += 1
        if number >= meta.next_settlement:
            yield f"settlement {number} was not given out yet"
    if held != meta.settlements:
        yield f"the store counts {meta.settlements} settlements and holds {held}"


def _history(view: View, meta: Meta) -> Iterator[str]:
    queued: Counter[tuple[int, bytes]] = Counter()
    for key, value in view.scan(rows.HISTORY_QUEUE):
        number = rows.number_of_queue(key)
        queued[(number, value)] += 1
        if not meta.history_first <= number < meta.history_next:
            yield f"history number {number} is out of range"
        if view.get(rows.history_key(Name(value), number)) is None:
            yield f"history row {number} is missing"
    if len(queued) != meta.history_next - meta.history_first:
        yield f"the store holds {len(queued)} history rows, not {meta.history_next - meta.history_first}"
    for key, value in view.scan(rows.HISTORY):
        name, number = rows.history_of_key(key)
        yield from _not_after(meta, rows.unpack_invalidation(value).version, key)
        if (number, name) not in queued:
            yield f"history row {number} of {name.hex()} is in no queue"
