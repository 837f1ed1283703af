"""The rows of fills: which shadow came of which fill, and what became of fills (keyspaces G and O)."""

from __future__ import annotations

import struct
from dataclasses import dataclass, replace

from dynbranch.csl.core.packing import Cursor, sized, text_bytes
from dynbranch.csl.core.rows import SETTLEMENTS, SHADOWS
from dynbranch.csl.core.store import Inconsistent
from dynbranch.domain.fills import Settlement, SettlementKind
from dynbranch.domain.ids import BranchId, FillId, GenerationId, Name, TrialId, UnixMs
from dynbranch.domain.reuse import FillOrigin, GenerationRef, Identity

_U64 = struct.Struct(">Q")
_SHADOW = struct.Struct(">IQB")
_SETTLEMENT = struct.Struct(">BIQdB")

_KINDS = tuple(SettlementKind)
_KIND_NUMBER = {kind: number for number, kind in enumerate(_KINDS)}


@dataclass(frozen=True, slots=True)
class ShadowRow:
    """``lost``: discarded, and only waiting to be taken away."""

    origin: FillOrigin
    expires: UnixMs
    lost: bool = False


def shadow_key(name: Name) -> bytes:
    return SHADOWS + name


def settlement_key(number: int) -> bytes:
    return SETTLEMENTS + _U64.pack(number)


def number_of_settlement(key: bytes) -> int:
    if len(key) != 1 + _U64.size:
        raise Inconsistent(f"the key {key[:80].hex()} is not one of a settlement")
    return int.from_bytes(key[1:], "big")


def _pack_origin(origin: FillOrigin) -> bytes:
    return sized(origin.branch_id) + sized(origin.trial_id) + sized(origin.fill_id)


def _unpack_origin(cursor: Cursor, stage: int) -> FillOrigin:
    return FillOrigin(BranchId(cursor.bytes()), TrialId(cursor.bytes()), FillId(cursor.bytes()), stage)


def pack_shadow(row: ShadowRow) -> bytes:
    """Where nobody traces, the fill's span is left out."""
    origin = row.origin
    packed = _SHADOW.pack(origin.stage, row.expires, row.lost) + _pack_origin(origin)
    return packed + text_bytes(origin.traceparent) if origin.traceparent else packed


def unpack_shadow(data: bytes) -> ShadowRow:
    cursor = Cursor(data)
    stage, expires, lost = cursor.take(_SHADOW)
    assert isinstance(stage, int) and isinstance(expires, int)
    origin = _unpack_origin(cursor, stage)
    if not cursor.at_end:
        origin = replace(origin, traceparent=cursor.text())
    cursor.end()
    return ShadowRow(origin, UnixMs(expires), bool(lost))


def pack_settlement(settlement: Settlement) -> bytes:
    """Everything but the number, which is the key."""
    by, generation = settlement.demanded_by, settlement.generation
    flags = (1 if by is not None else 0) | (2 if generation is not None else 0)
    kind, origin = _KIND_NUMBER[settlement.kind], settlement.origin
    parts = [
        _SETTLEMENT.pack(kind, origin.stage, settlement.at, settlement.execution_ms, flags),
        _pack_origin(origin),
        sized(settlement.name),
        text_bytes(settlement.reason),
    ]
    if by is not None:
        parts.extend(
            map(text_bytes, (by.tenant, by.workflow_type_id, by.workflow_id, by.agent_id, by.stage)),
        )
    if generation is not None:
        parts += [sized(generation.generation_id), text_bytes(generation.agent_address)]
    return b"".join(parts)


def unpack_settlement(number: int, data: bytes) -> Settlement:
    cursor = Cursor(data)
    kind, stage, at, execution_ms, flags = cursor.take(_SETTLEMENT)
    assert isinstance(kind, int) and isinstance(stage, int) and isinstance(at, int)
    assert isinstance(execution_ms, float) and isinstance(flags, int)
    if kind >= len(_KINDS):
        raise Inconsistent("the row of a settlement has an unknown kind")
    origin, name, reason = _unpack_origin(cursor, stage), Name(cursor.bytes()), cursor.text()
    by = Identity(*(cursor.text() for _ in range(5))) if flags & 1 else None
    generation = GenerationRef(GenerationId(cursor.bytes()), cursor.text()) if flags & 2 else None
    cursor.end()
    return Settlement(number, _KINDS[kind], origin, UnixMs(at), name, by, execution_ms, generation, reason)
