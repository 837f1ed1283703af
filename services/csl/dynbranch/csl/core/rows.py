"""The rows of the store: one byte of keyspace, then the key. Integers are big-endian, so that keys sort by
number.

    space  key                                  value
    -----  -----------------------------------  -----------------------------------------------------
    M      (nothing)                            Meta: format, epoch, write sequence, counters
    E      name                                 EntryRow: what is confirmed under the name
    P      name                                 the payload's bytes
    D      name, derivation                     DerivationRow: token, reads, producers
    R      record, NUL, name, derivation        empty: this derivation read the record
    C      producer, number, child, derivation  empty: this derivation of the child needs the producer
    A      unix ms, name                        empty: the entry was stored then
    W      record                               Version of the last write that named the record
    S      source                               Version of the last write to any record of the source
    F      workflow (16 bytes of SHA-256)       Version that stood when the workflow first arrived
    H      name, history number                 InvalidationRow: why an entry went
    Q      history number                       name: the oldest history goes first
    X      slice number                         nodes that a durable write condemned, still to be deleted
    G      name                                 ShadowRow: the fill that made the shadow (core/fill_rows.py)
    O      settlement number                    Settlement: what became of a stage of a fill, not taken in yet

A shadow is an entry that no serving path may read; its E row says so. A name is 32 bytes, a number 8 bytes, a
derivation 2 bytes. Bytes and texts inside a value carry their length in 2 bytes. ``FORMAT`` grows with every
change of this table.
"""

from __future__ import annotations

import hashlib
import struct
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache

from dynbranch.csl.core.packing import INCARNATION, U16, VERSION, Cursor, decoded, sized, text_bytes
from dynbranch.csl.core.store import Inconsistent, UnknownFormat, View
from dynbranch.domain.ids import (
    NEVER,
    WHOLE,
    Digest,
    InvalidId,
    Name,
    RecordId,
    UnixMs,
    Version,
    parse_record,
    source_of,
)
from dynbranch.domain.reuse import Derivation, Incarnation, Invalidation, Level, Read

FORMAT = 3
NAME_BYTES = 32
MAX_DERIVATION = 0xFFFF
_ARRIVAL_BYTES = 16

META = b"M"
ENTRIES, PAYLOADS, DERIVATIONS = b"E", b"P", b"D"
READERS, CHILDREN = b"R", b"C"
AGES = b"A"
WRITTEN, SOURCES = b"W", b"S"
ARRIVALS = b"F"
HISTORY, HISTORY_QUEUE = b"H", b"Q"
CONDEMNED = b"X"
SHADOWS, SETTLEMENTS = b"G", b"O"
SPACES = frozenset(b"MEPDRCAWSFHQXGO")
"""The first bytes that a key may have."""

_U32 = struct.Struct(">I")
_U64 = struct.Struct(">Q")
_META = struct.Struct(">HQQQQQQQQQQQQQQ")
_META_BEFORE_3 = struct.Struct(">HQQQQQQQQQQQ")
_ENTRY = struct.Struct(">QBQdQHH")
_DERIVATION = struct.Struct(">QQIH")
_NODE = struct.Struct(">32sH")
_INVALIDATION = struct.Struct(">QQQQB")

_LEVELS = (Level.SAMPLED, Level.GREEDY, Level.BATCH_INVARIANT, Level.SOURCED)
_LEVEL_NUMBER = {level: number for number, level in enumerate(_LEVELS)}


class Standing(Enum):
    """Who may be served an entry. SHADOW: nobody. ONCE: nobody, but one demand may consume it."""

    CONFIRMED = 0x00
    SHADOW = 0x80
    ONCE = 0xC0


_STANDINGS = {standing.value: standing for standing in Standing}
_STANDING_BITS = 0xC0


@dataclass(frozen=True, slots=True, order=True)
class Node:
    """One derivation of the entry under a name."""

    name: Name
    derivation: int


@dataclass(frozen=True, slots=True)
class Meta:
    """Where the store stands. Written with every batch, so that its counters are exact.

    ``floor``: no record is taken to be older than this at a commit; the rows of older writes may be gone.
    """

    epoch: int
    sequence: int = 0
    next_number: int = 1
    entries: int = 0
    payload_bytes: int = 0
    workflows: int = 0
    versions: int = 0
    history_first: int = 0
    history_next: int = 0
    floor: Version = NEVER
    shadows: int = 0
    settlements: int = 0
    next_settlement: int = 1

    @property
    def version(self) -> Version:
        return Version(self.epoch, self.sequence)


@dataclass(frozen=True, slots=True)
class EntryRow:
    """``derivations`` are the numbers of the derivations that support the entry, never empty."""

    number: int
    level: Level
    payload_bytes: int
    execution_ms: float
    created: UnixMs
    next_derivation: int
    derivations: tuple[int, ...]
    payload_digest: Digest
    label: str
    output_digests: tuple[Digest, ...]
    standing: Standing = Standing.CONFIRMED

    @property
    def is_shadow(self) -> bool:
        return self.standing is not Standing.CONFIRMED


DerivationRow = Derivation
InvalidationRow = Invalidation


# Keys


def entry_key(name: Name) -> bytes:
    return ENTRIES + name


def payload_key(name: Name) -> bytes:
    return PAYLOADS + name


def derivation_key(node: Node) -> bytes:
    return DERIVATIONS + _NODE.pack(node.name, node.derivation)


def readers_prefix(record: RecordId) -> bytes:
    return READERS + record.encode() + b"\0"


def readers_of_source_prefix(source: str) -> bytes:
    return READERS + source.encode() + b"/"


def reader_key(record: RecordId, node: Node) -> bytes:
    return readers_prefix(record) + _NODE.pack(node.name, node.derivation)


def children_prefix(producer: Incarnation) -> bytes:
    return CHILDREN + INCARNATION.pack(producer.name, producer.number)


def child_key(producer: Incarnation, node: Node) -> bytes:
    return children_prefix(producer) + _NODE.pack(node.name, node.derivation)


def age_key(created: UnixMs, name: bytes) -> bytes:
    return AGES + _U64.pack(created) + name


def written_key(record: RecordId) -> bytes:
    return WRITTEN + record.encode()


def source_key(source: str) -> bytes:
    return SOURCES + source.encode()


def arrival_key(tenant: str, workflow_id: str) -> bytes:
    text = f"{len(tenant)}:{tenant}{workflow_id}".encode("utf-8", "surrogatepass")
    return ARRIVALS + hashlib.sha256(text).digest()[:_ARRIVAL_BYTES]


def history_prefix(name: Name) -> bytes:
    return HISTORY + name


def history_key(name: Name, number: int) -> bytes:
    return HISTORY + name + _U64.pack(number)


def history_queue_key(number: int) -> bytes:
    return HISTORY_QUEUE + _U64.pack(number)


def condemned_key(number: int) -> bytes:
    return CONDEMNED + _U32.pack(number)


# Keys read back: all of them raise Inconsistent


def name_of_key(key: bytes) -> Name:
    """The name that is all of the key of an entry or a payload."""
    return Name(_of_size(key, NAME_BYTES)[1:])


def name_of_age(key: bytes) -> Name:
    return Name(_of_size(key, _U64.size + NAME_BYTES)[1 + _U64.size :])


def node_at_end(key: bytes) -> Node:
    """The node that an index row (R or C) points to."""
    if len(key) <= _NODE.size:
        raise _wrong_key(key)
    name, derivation = _NODE.unpack_from(key, len(key) - _NODE.size)
    return Node(Name(name), derivation)


def record_of_reader(key: bytes) -> RecordId:
    end = len(key) - _NODE.size - 1
    if end < 1 or key[end]:
        raise _wrong_key(key)
    return RecordId(_key_text(key, end))


def producer_of_child(key: bytes) -> Incarnation:
    name, number = INCARNATION.unpack_from(_of_size(key, INCARNATION.size + _NODE.size), 1)
    return Incarnation(Name(name), number)


def node_of_derivation(key: bytes) -> Node:
    return node_at_end(_of_size(key, _NODE.size))


def record_of_written(key: bytes) -> RecordId:
    try:
        return parse_record(_key_text(key, len(key)))
    except InvalidId:
        raise _wrong_key(key) from None


def source_of_key(key: bytes) -> str:
    """The source of a row of the last write to any of its records."""
    if b"/" in key:
        raise _wrong_key(key)
    return source_of(record_of_written(key + b"/" + WHOLE.encode()))


def check_arrival_key(key: bytes) -> None:
    _of_size(key, _ARRIVAL_BYTES)


def history_of_key(key: bytes) -> tuple[Name, int]:
    name, number = INCARNATION.unpack_from(_of_size(key, INCARNATION.size), 1)
    return Name(name), number


def number_of_queue(key: bytes) -> int:
    return int.from_bytes(_of_size(key, _U64.size)[1:], "big")


def number_of_condemned(key: bytes) -> int:
    return int.from_bytes(_of_size(key, _U32.size)[1:], "big")


def _of_size(key: bytes, size: int) -> bytes:
    if len(key) != 1 + size:
        raise _wrong_key(key)
    return key


def _key_text(key: bytes, end: int) -> str:
    try:
        return key[1:end].decode()
    except UnicodeDecodeError:
        raise _wrong_key(key) from None


def _wrong_key(key: bytes) -> Inconsistent:
    return Inconsistent(f"the key {key[:80].hex()} is not one of the keyspace {key[:1]!r}")


# Values


def pack_version(version: Version) -> bytes:
    return VERSION.pack(version.epoch, version.sequence)


def unpack_version(data: bytes) -> Version:
    cursor = Cursor(data)
    version = cursor.version()
    cursor.end()
    return version


def pack_meta(meta: Meta) -> bytes:
    return _META.pack(
        FORMAT,
        meta.epoch,
        meta.sequence,
        meta.next_number,
        meta.entries,
        meta.payload_bytes,
        meta.workflows,
        meta.versions,
        meta.history_first,
        meta.history_next,
        meta.floor.epoch,
        meta.floor.sequence,
        meta.shadows,
        meta.settlements,
        meta.next_settlement,
    )


def upgraded_meta(meta: bytes) -> bytes:
    """The first row of a store of format 1 or 2, as of today. Raises Inconsistent."""
    if len(meta) != _META_BEFORE_3.size:
        raise Inconsistent("the first row of the store has a wrong size")
    return U16.pack(FORMAT) + meta[U16.size :] + struct.pack(">QQQ", 0, 0, 1)


def format_of(meta: bytes) -> int:
    """The format of the store that begins with this row. Raises Inconsistent."""
    if len(meta) < U16.size:
        raise Inconsistent("the first row of the store is too short")
    return int(U16.unpack_from(meta)[0])


@lru_cache(maxsize=4)
def unpack_meta(data: bytes) -> Meta:
    """Every event reads it, most of them as the one before left it."""
    if len(data) < 2 or (found := U16.unpack_from(data)[0]) != FORMAT:
        raise UnknownFormat(f"the store has format {data[:2].hex()}, this program reads format {FORMAT}")
    if len(data) != _META.size:
        raise Inconsistent(f"the first row of the store (format {found}) has a wrong size")
    _, epoch, sequence, number, entries, size, workflows, versions, first, following, fe, fs, *fills = (
        _META.unpack(data)
    )
    return Meta(
        epoch=epoch,
        sequence=sequence,
        next_number=number,
        entries=entries,
        payload_bytes=size,
        workflows=workflows,
        versions=versions,
        history_first=first,
        history_next=following,
        floor=Version(fe, fs),
        shadows=fills[0],
        settlements=fills[1],
        next_settlement=fills[2],
    )


def pack_entry(entry: EntryRow) -> bytes:
    head = _ENTRY.pack(
        entry.number,
        _LEVEL_NUMBER[entry.level] | entry.standing.value,
        entry.payload_bytes,
        entry.execution_ms,
        entry.created,
        entry.next_derivation,
        len(entry.derivations),
    )
    parts = [head, *map(U16.pack, entry.derivations), sized(entry.payload_digest), text_bytes(entry.label)]
    parts.append(U16.pack(len(entry.output_digests)))
    parts.extend(map(sized, entry.output_digests))
    return b"".join(parts)


def unpack_entry(data: bytes) -> EntryRow:
    """Every hit and every step of a cascade does this, so it goes without a cursor."""
    try:
        number, level, size, execution_ms, created, following, count = _ENTRY.unpack_from(data)
        derivations = struct.unpack_from(f">{count}H", data, _ENTRY.size)
        digest, at = _slice(data, _ENTRY.size + 2 * count)
        label, at = _slice(data, at)
        outputs, outputs_left = [], U16.unpack_from(data, at)[0]
        at += 2
        for _ in range(outputs_left):
            output, at = _slice(data, at)
            outputs.append(Digest(output))
    except struct.error:
        raise Inconsistent("a row is shorter than its format") from None
    standing, level = _STANDINGS.get(level & _STANDING_BITS), level & ~_STANDING_BITS
    if at != len(data) or level >= len(_LEVELS) or standing is None:
        raise Inconsistent("the row of an entry has a wrong size or an unknown level")
    return EntryRow(
        number,
        _LEVELS[level],
        size,
        execution_ms,
        UnixMs(created),
        following,
        derivations,
        Digest(digest),
        decoded(label),
        tuple(outputs),
        standing,
    )


def entry_head(data: bytes) -> tuple[int, int]:
    """Number and count of derivations, all that a cascade asks of most entries."""
    if len(data) < _ENTRY.size:
        raise Inconsistent("a row is shorter than its format")
    head = _ENTRY.unpack_from(data)
    return head[0], head[6]


def _slice(data: bytes, at: int) -> tuple[bytes, int]:
    """The sized bytes at a position, and where they end."""
    start = at + 2
    end = start + U16.unpack_from(data, at)[0]
    if end > len(data):
        raise Inconsistent("a row is shorter than its format")
    return data[start:end], end


def pack_derivation(derivation: DerivationRow) -> bytes:
    token = derivation.read_token
    parts = [_DERIVATION.pack(token.epoch, token.sequence, len(derivation.reads), len(derivation.producers))]
    for read in derivation.reads:
        parts.append(text_bytes(read.record))
        parts.append(pack_version(read.as_of))
    parts.extend(INCARNATION.pack(producer.name, producer.number) for producer in derivation.producers)
    return b"".join(parts)


def unpack_derivation(data: bytes) -> DerivationRow:
    cursor = Cursor(data)
    epoch, sequence, reads, producers = cursor.take(_DERIVATION)
    assert isinstance(epoch, int) and isinstance(sequence, int)
    assert isinstance(reads, int) and isinstance(producers, int)
    derivation = DerivationRow(
        read_token=Version(epoch, sequence),
        reads=tuple(Read(RecordId(cursor.text()), cursor.version()) for _ in range(reads)),
        producers=tuple(cursor.incarnation() for _ in range(producers)),
    )
    cursor.end()
    return derivation


def pack_invalidation(row: InvalidationRow) -> bytes:
    lost = row.lost_producer
    head = _INVALIDATION.pack(
        row.incarnation_number,
        row.at,
        row.version.epoch,
        row.version.sequence,
        (1 if row.record is not None else 0) | (2 if lost is not None else 0),
    )
    parts = [head, text_bytes(row.record or ""), text_bytes(row.label), text_bytes(row.reporter)]
    if lost is not None:
        parts.append(INCARNATION.pack(lost.name, lost.number))
    return b"".join(parts)


def unpack_invalidation(data: bytes) -> InvalidationRow:
    cursor = Cursor(data)
    number, at, epoch, sequence, flags = cursor.take(_INVALIDATION)
    assert isinstance(number, int) and isinstance(at, int) and isinstance(epoch, int)
    assert isinstance(sequence, int) and isinstance(flags, int)
    record, label, reporter = cursor.text(), cursor.text(), cursor.text()
    row = InvalidationRow(
        incarnation_number=number,
        at=UnixMs(at),
        version=Version(epoch, sequence),
        record=RecordId(record) if flags & 1 else None,
        lost_producer=cursor.incarnation() if flags & 2 else None,
        label=label,
        reporter=reporter,
    )
    cursor.end()
    return row


# Rows read whole


def read_meta(view: View) -> Meta:
    data = view.get(META)
    if data is None:
        raise Inconsistent("the store has rows but no first row")
    return unpack_meta(data)


def read_entry(view: View, name: Name) -> EntryRow | None:
    data = view.get(entry_key(name))
    return None if data is None else unpack_entry(data)


def read_derivation(view: View, node: Node) -> DerivationRow:
    data = view.get(derivation_key(node))
    if data is None:
        raise Inconsistent(f"derivation {node.derivation} of {node.name.hex()} is missing")
    return unpack_derivation(data)
