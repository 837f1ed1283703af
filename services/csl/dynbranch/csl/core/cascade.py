"""Removing what a write condemned; planning.py finds it.

It costs O(|R_A|), the rows of the fallen nodes, and may be cut into slices once the condemned nodes are
durable.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from dynbranch.csl.core import graph, rows
from dynbranch.csl.core.rows import EntryRow, Meta, Node
from dynbranch.csl.core.store import Inconsistent, Transaction, View
from dynbranch.domain.ids import Name
from dynbranch.domain.reuse import Incarnation

_CONDEMNED_HEAD = struct.Struct(">32sQBH")
_U16 = struct.Struct(">H")


@dataclass(frozen=True, slots=True)
class Condemned:
    """One life of an entry that loses ``derivations``; with ``whole`` it goes altogether."""

    incarnation: Incarnation
    whole: bool
    derivations: tuple[int, ...]


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
    """Raises Inconsistent."""
    nodes: list[Condemned] = []
    at = 0
    try:
        while at < len(data):
            name, number, complete, count = _CONDEMNED_HEAD.unpack_from(data, at)
            at += _CONDEMNED_HEAD.size
            numbers = tuple(_U16.unpack_from(data, at + 2 * index)[0] for index in range(count))
            at += 2 * count
            nodes.append(Condemned(Incarnation(Name(name), number), bool(complete), numbers))
    except struct.error:
        raise Inconsistent("a row of condemned nodes is shorter than its format") from None
    return tuple(nodes)


def pending(view: View) -> Mapping[int, tuple[Condemned, ...]]:
    """Slices that a write condemned and that are not deleted yet, by slice number."""
    found = view.scan(rows.CONDEMNED)
    return {int.from_bytes(key[1:], "big"): unpack_condemned(value) for key, value in found}
