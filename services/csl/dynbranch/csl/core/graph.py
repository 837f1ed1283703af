"""The rows of entries and derivations, put and removed together with everything that points to them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from dynbranch.csl.core import fill_rows, rows
from dynbranch.csl.core.rows import DerivationRow, EntryRow, Meta, Node
from dynbranch.csl.core.store import Inconsistent, Transaction, View
from dynbranch.domain.ids import Name
from dynbranch.domain.reuse import EntryView, Incarnation


def guarded_meta(transaction: Transaction) -> Meta:
    """What every batch builds on; it is refused when another one came in between."""
    meta = transaction.get_guarded(rows.META)
    assert meta is not None, "the store was not founded"
    return rows.unpack_meta(meta)


def put_entry(transaction: Transaction, meta: Meta, name: Name, entry: EntryRow, payload: bytes) -> Meta:
    transaction.put(rows.entry_key(name), rows.pack_entry(entry))
    transaction.put(rows.payload_key(name), payload)
    transaction.put(rows.age_key(entry.created, name), b"")
    return replace(
        meta,
        entries=meta.entries + 1,
        payload_bytes=meta.payload_bytes + entry.payload_bytes,
        shadows=meta.shadows + entry.is_shadow,
    )


def put_derivation(transaction: Transaction, node: Node, derivation: DerivationRow) -> None:
    """The derivation and its index rows. The entry's own list of derivations is the caller's."""
    transaction.put(rows.derivation_key(node), rows.pack_derivation(derivation))
    for read in derivation.reads:
        transaction.put(rows.reader_key(read.record, node), b"")
    for producer in derivation.producers:
        transaction.put(rows.child_key(producer, node), b"")


def remove_derivation(transaction: Transaction, node: Node) -> None:
    derivation = rows.read_derivation(transaction, node)
    for read in derivation.reads:
        transaction.delete(rows.reader_key(read.record, node))
    for producer in derivation.producers:
        transaction.delete(rows.child_key(producer, node))
    transaction.delete(rows.derivation_key(node))


def remove_entry(transaction: Transaction, name: Name, entry: EntryRow) -> None:
    """The entry with all its derivations. Edges to its children are theirs to remove."""
    for derivation in entry.derivations:
        remove_derivation(transaction, Node(name, derivation))
    transaction.delete(rows.entry_key(name))
    transaction.delete(rows.payload_key(name))
    transaction.delete(rows.age_key(entry.created, name))
    if entry.is_shadow:
        transaction.delete(fill_rows.shadow_key(name))


def without(meta: Meta, *gone: EntryRow) -> Meta:
    """The counters after entries were removed."""
    gone_bytes = sum(entry.payload_bytes for entry in gone)
    return replace(
        meta,
        entries=meta.entries - len(gone),
        payload_bytes=meta.payload_bytes - gone_bytes,
        shadows=meta.shadows - sum(entry.is_shadow for entry in gone),
    )


def children(view: View, producer: Incarnation) -> Iterator[Node]:
    for key, _ in view.scan(rows.children_prefix(producer)):
        yield rows.node_at_end(key)


def require_entry(view: View, name: Name) -> EntryRow:
    """The entry that an index row points to. Raises Inconsistent."""
    entry = rows.read_entry(view, name)
    if entry is None:
        raise Inconsistent(f"an index row points to {name.hex()}, which is not stored")
    return entry


def entry_view(view: View, name: Name, entry: EntryRow) -> EntryView:
    """The entry as people look at it."""
    return EntryView(
        incarnation=Incarnation(name, entry.number),
        label=entry.label,
        level=entry.level,
        payload_bytes=entry.payload_bytes,
        payload_digest=entry.payload_digest,
        created=entry.created,
        execution_ms=entry.execution_ms,
        derivations=tuple(rows.read_derivation(view, Node(name, number)) for number in entry.derivations),
    )
