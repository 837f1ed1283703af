"""The write cascade (paper §3.2, Prop. A.5).

A write removes every derivation that read a written record, every entry left without a derivation, and
every derivation that needed such an entry, transitively. Producer numbers are always smaller than their
children's, so the graph has no cycle and an entry that still has a derivation is truly supported.

Planning only reads and costs O(|W| + |A| + |E_A|); removing costs O(|R_A|) more and may be cut into slices,
once the condemned nodes are durable.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from dynbranch.csl.core import graph, history, rows
from dynbranch.csl.core.rows import EntryRow, Meta, Node
from dynbranch.csl.core.store import Transaction, View
from dynbranch.domain.ids import Name, RecordId, UnixMs, Version, is_whole, source_of, whole
from dynbranch.domain.reuse import Incarnation, Invalidation

Cause = RecordId | Incarnation
"""Why a derivation fell: the record that it read, or the producer that it needed."""

_CONDEMNED_HEAD = struct.Struct(">32sQBH")
_U16 = struct.Struct(">H")


@dataclass(frozen=True, slots=True)
class Condemned:
    """One life of an entry that loses ``derivations``; with ``whole`` it goes altogether."""

    incarnation: Incarnation
    whole: bool
    derivations: tuple[int, ...]


@dataclass(slots=True)
class Fallout:
    """What one write fells. ``dead`` keeps the order in which entries were found, nearest to the write
    first.
    """

    dead: dict[Name, Cause] = field(default_factory=dict)
    lost: dict[Name, set[int]] = field(default_factory=dict)
    entries: dict[Name, EntryRow] = field(default_factory=dict)

    def condemned(self) -> Iterator[Condemned]:
        for name, lost in self.lost.items():
            number = self.entries[name].number
            yield Condemned(Incarnation(name, number), name in self.dead, tuple(sorted(lost)))


def direct_readers(view: View, records: Iterable[RecordId]) -> Iterator[tuple[Node, RecordId]]:
    """Every derivation that read one of the records, with the written record that fells it."""
    sources = {source_of(record) for record in records if is_whole(record)}
    for source in sorted(sources):
        for _, node in graph.readers_of_source(view, source):
            yield node, whole(source)
    rest = [record for record in records if source_of(record) not in sources]
    for record in rest:
        for node in graph.readers(view, record):
            yield node, record
    for source, record in {source_of(record): record for record in rest}.items():
        for node in graph.readers(view, whole(source)):
            yield node, record


def plan(view: View, direct: Iterable[tuple[Node, Cause]]) -> Fallout:
    """Follow the loss of derivations to everything left without one."""
    fallout = Fallout()
    pending: list[tuple[Node, Cause]] = list(direct)
    pending.reverse()
    while pending:
        node, cause = pending.pop()
        name = node.name
        lost = fallout.lost.get(name)
        if lost is None:
            fallout.entries[name] = graph.require_entry(view, name)
            lost = fallout.lost[name] = set()
        lost.add(node.derivation)
        entry = fallout.entries[name]
        if name in fallout.dead or len(lost) < len(entry.derivations):
            continue
        fallout.dead[name] = cause
        itself = Incarnation(name, entry.number)
        pending.extend((child, itself) for child in graph.children(view, itself))
    return fallout


def remember(
    transaction: Transaction,
    meta: Meta,
    fallout: Fallout,
    *,
    version: Version,
    at: UnixMs,
    reporter: str,
    max_rows: int,
    max_new: int,
) -> Meta:
    """Write down why entries went, for at most ``max_new`` of them."""
    for name, cause in list(fallout.dead.items())[:max_new]:
        entry = fallout.entries[name]
        row = Invalidation(
            incarnation_number=entry.number,
            at=at,
            version=version,
            record=None if isinstance(cause, Incarnation) else cause,
            lost_producer=cause if isinstance(cause, Incarnation) else None,
            label=entry.label,
            reporter=reporter,
        )
        meta = history.append(transaction, meta, name, row, max_rows=max_rows)
    return meta


def remove(transaction: Transaction, meta: Meta, condemned: Iterable[Condemned]) -> Meta:
    """Delete the rows of condemned nodes. What is gone already, or lives again under a new number, is left
    alone.
    """
    removed: list[EntryRow] = []
    for node in condemned:
        name = node.incarnation.name
        entry = rows.read_entry(transaction, name)
        if entry is None or entry.number != node.incarnation.number:
            continue
        if node.whole:
            graph.remove_entry(transaction, name, entry)
            removed.append(entry)
            continue
        gone = set(node.derivations) & set(entry.derivations)
        for derivation in sorted(gone):
            graph.remove_derivation(transaction, Node(name, derivation))
        left = tuple(number for number in entry.derivations if number not in gone)
        transaction.put(rows.entry_key(name), rows.pack_entry(replace(entry, derivations=left)))
    return graph.without(meta, *removed)


# Condemned nodes as rows, so that a restart finishes what a write began.


def pack_condemned(nodes: Sequence[Condemned]) -> bytes:
    parts: list[bytes] = []
    for node in nodes:
        numbers = () if node.whole else node.derivations
        parts.append(
            _CONDEMNED_HEAD.pack(node.incarnation.name, node.incarnation.number, node.whole, len(numbers))
        )
        parts.extend(map(_U16.pack, numbers))
    return b"".join(parts)


def unpack_condemned(data: bytes) -> tuple[Condemned, ...]:
    nodes: list[Condemned] = []
    at = 0
    while at < len(data):
        name, number, complete, count = _CONDEMNED_HEAD.unpack_from(data, at)
        at += _CONDEMNED_HEAD.size
        numbers = tuple(_U16.unpack_from(data, at + 2 * index)[0] for index in range(count))
        at += 2 * count
        nodes.append(Condemned(Incarnation(Name(name), number), bool(complete), numbers))
    return tuple(nodes)


def pending(view: View) -> Mapping[int, tuple[Condemned, ...]]:
    """Slices that a write condemned and that are not deleted yet, by slice number."""
    found = view.scan(rows.CONDEMNED)
    return {int.from_bytes(key[1:], "big"): unpack_condemned(value) for key, value in found}
