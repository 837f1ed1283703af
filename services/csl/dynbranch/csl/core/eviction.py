"""Eviction by recency, frequency and milliseconds saved per byte, on sampled candidates (paper §3.2).

Eviction is not invalidation: the children of an evicted entry stay. Their derivations inherit its reads and
producers in the same batch, so a later write still reaches them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import islice

from dynbranch.csl.core import graph, rows
from dynbranch.csl.core.heat import Heat
from dynbranch.csl.core.limits import Limits
from dynbranch.csl.core.rows import DerivationRow, EntryRow, Meta, Node
from dynbranch.csl.core.store import Transaction, View
from dynbranch.domain.ids import Instant, Name, RecordId, Version
from dynbranch.domain.reuse import Incarnation, Read

ROW_OVERHEAD_BYTES = 512
"""What the rows of an entry take beside its payload, roughly."""

IDLE_HALF_S = 60.0
"""An entry idle for this long is worth half as much as one just hit."""


def worth(entry: EntryRow, *, frequency: int, idle_s: float) -> float:
    """Expected milliseconds saved per byte kept: the lowest goes first."""
    per_byte = (entry.execution_ms + 1.0) / (entry.payload_bytes + ROW_OVERHEAD_BYTES)
    return per_byte * (1 + frequency) / (1.0 + idle_s / IDLE_HALF_S)


def make_room(
    transaction: Transaction,
    meta: Meta,
    *,
    incoming_bytes: int,
    keep: frozenset[Name],
    limits: Limits,
    heat: Heat,
    now: Instant,
    new_id: Callable[[], bytes],
) -> Meta:
    """Evict until one more entry fits or the attempts are used up. The caller looks whether it fits."""
    for _ in range(limits.eviction_attempts):
        if fits(meta, incoming_bytes, limits):
            break
        candidates = [
            (worth(entry, frequency=heat.frequency(name), idle_s=heat.idle_s(name, now)), name, entry)
            for name, entry in _sample(transaction, (new_id() + new_id())[: rows.NAME_BYTES], limits)
            if name not in keep
        ]
        for _, name, entry in sorted(candidates, key=lambda candidate: candidate[:2]):
            evicted = evict(transaction, meta, name, entry, limits)
            if evicted is not None:
                meta = evicted
                break
        else:
            break
    return meta


def fits(meta: Meta, incoming_bytes: int, limits: Limits) -> bool:
    return (
        meta.entries < limits.max_entries and meta.payload_bytes + incoming_bytes <= limits.max_stored_bytes
    )


def _sample(view: View, start: bytes, limits: Limits) -> Iterator[tuple[Name, EntryRow]]:
    """Names are uniform digests, so neighbours in key order are a random sample."""
    found = list(islice(view.scan(rows.ENTRIES, start), limits.eviction_sample))
    if len(found) < limits.eviction_sample:
        wrapped = islice(view.scan(rows.ENTRIES), limits.eviction_sample - len(found))
        found += [row for row in wrapped if row[0] < rows.ENTRIES + start]
    for key, value in found:
        entry = rows.unpack_entry(value)
        if not entry.is_shadow:
            # Shadows have a bound and an age of their own.
            yield Name(key[1:]), entry


def evict(
    transaction: Transaction,
    meta: Meta,
    name: Name,
    entry: EntryRow,
    limits: Limits,
    *,
    partly: bool = False,
) -> Meta | None:
    """Remove an entry and splice it out of its children's derivations. None: too much hangs on it; with
    ``partly``, as many children as are allowed at once are off it then.
    """
    itself = Incarnation(name, entry.number)
    children = list(islice(graph.children(transaction, itself), limits.max_spliced_children + 1))
    all_at_once = len(children) <= limits.max_spliced_children
    if not all_at_once and not partly:
        return None
    children = children[: limits.max_spliced_children]
    own = [rows.read_derivation(transaction, Node(name, number)) for number in entry.derivations]
    spliced: list[tuple[Node, tuple[DerivationRow, ...]]] = []
    for child in children:
        derivation = rows.read_derivation(transaction, child)
        merged = tuple(_splice(derivation, itself, support) for support in own)
        allowed = tuple(
            one
            for one in merged
            if len(one.reads) <= limits.max_reads and len(one.producers) <= limits.max_producers
        )
        if not allowed:
            return None
        spliced.append((child, allowed))
    for child, derivations in spliced:
        _replace(transaction, child, derivations, limits)
    if not all_at_once:
        return None
    graph.remove_entry(transaction, name, entry)
    return graph.without(meta, entry)


def _splice(child: DerivationRow, gone: Incarnation, support: DerivationRow) -> DerivationRow:
    reads: dict[RecordId, Version] = {}
    for read in (*child.reads, *support.reads):
        reads[read.record] = min(read.as_of, reads.get(read.record, read.as_of))
    producers = ({*child.producers} - {gone}) | {*support.producers}
    return DerivationRow(
        read_token=min(child.read_token, support.read_token),
        reads=tuple(Read(record, as_of) for record, as_of in sorted(reads.items())),
        producers=tuple(sorted(producers)),
    )


def _replace(
    transaction: Transaction, child: Node, derivations: tuple[DerivationRow, ...], limits: Limits
) -> None:
    """Put derivations in the place of one. At least one fits, whatever the bound says."""
    entry = graph.require_entry(transaction, child.name)
    graph.remove_derivation(transaction, child)
    left = [number for number in entry.derivations if number != child.derivation]
    following = entry.next_derivation
    room = max(1, min(limits.max_derivations - len(left), 1 + rows.MAX_DERIVATION - following))
    for derivation in derivations[:room]:
        number = child.derivation if derivation is derivations[0] else following
        following += derivation is not derivations[0]
        graph.put_derivation(transaction, Node(child.name, number), derivation)
        left.append(number)
    updated = replace(entry, derivations=tuple(sorted(left)), next_derivation=following)
    transaction.put(rows.entry_key(child.name), rows.pack_entry(updated))
