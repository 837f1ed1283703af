"""The part of csl.proto that speaks of fills ⇄ domain. ``…_out`` makes a message of a value, ``…_in`` a value
of a message."""

from __future__ import annotations

from collections.abc import Iterable
from typing import assert_never

from dynbranch.domain.fills import (
    BeginFill,
    DiscardFills,
    DiscardReason,
    DiscardResult,
    FillGranted,
    FillKnown,
    FillLive,
    FillOutcome,
    FillRefusal,
    FillRefused,
    Settlement,
    SettlementKind,
)
from dynbranch.domain.ids import UnixMs
from dynbranch.v1 import csl_pb2 as pb
from dynbranch.wire import shared

# BeginFill


def begin_out(fill: BeginFill) -> pb.BeginFillRequest:
    return pb.BeginFillRequest(
        origin=shared.origin_out(fill.origin),
        name=fill.name,
        identity=shared.identity_out(fill.identity),
        scope=shared.scope_out(fill.scope),
        input_digests=fill.input_digests,
        producers=[shared.incarnation_out(producer) for producer in fill.producers],
        intended=shared.generation_out(fill.intended),
        once=fill.once,
        shadow_ttl_ms=fill.shadow_ttl_ms,
        reader_epoch=fill.reader_epoch,
    )


def begin_in(message: pb.BeginFillRequest) -> BeginFill:
    return BeginFill(
        origin=shared.origin_in(message.origin),
        name=shared.name_in(message.name),
        identity=shared.identity_in(message.identity),
        scope=shared.scope_in(message.scope),
        intended=shared.generation_in(message.intended),
        input_digests=shared.digests_in(message.input_digests),
        producers=tuple(map(shared.incarnation_in, message.producers)),
        once=message.once,
        shadow_ttl_ms=message.shadow_ttl_ms,
        reader_epoch=message.reader_epoch,
    )


def outcome_out(outcome: FillOutcome) -> pb.BeginFillResponse:
    match outcome:
        case FillGranted(lease):
            return pb.BeginFillResponse(granted=shared.lease_out(lease))
        case FillKnown():
            return pb.BeginFillResponse(known=_known_out(outcome))
        case FillLive(generation):
            return pb.BeginFillResponse(live=shared.generation_out(generation))
        case FillRefused(reason, detail):
            return pb.BeginFillResponse(refused=pb.FillRefusal(reason=reason.value, detail=detail))
        case _:
            assert_never(outcome)


def outcome_in(message: pb.BeginFillResponse) -> FillOutcome:
    match message.WhichOneof("outcome"):
        case "granted":
            return FillGranted(shared.lease_in(message.granted))
        case "known":
            return _known_in(message.known)
        case "live":
            return FillLive(shared.generation_in(message.live))
        case "refused":
            return _refused_in(message.refused)
        case None:
            raise shared.malformed("the answer to a fill has no outcome")


def _known_out(known: FillKnown) -> pb.KnownResult:
    return pb.KnownResult(
        incarnation=shared.incarnation_out(known.incarnation),
        payload=known.payload,
        shadow=known.shadow,
        level=shared.level_out(known.level),
        execution_ms=known.execution_ms,
    )


def _known_in(message: pb.KnownResult) -> FillKnown:
    return FillKnown(
        incarnation=shared.incarnation_in(message.incarnation),
        payload=message.payload,
        shadow=message.shadow,
        level=shared.level_in(message.level),
        execution_ms=shared.number_in(message.execution_ms, "execution_ms"),
    )


def _refused_in(message: pb.FillRefusal) -> FillRefused:
    try:
        return FillRefused(FillRefusal(message.reason), message.detail)
    except ValueError:
        raise shared.malformed(f"refusal {message.reason[:80]!r} of a fill is not known") from None


# DiscardFills


def discard_out(discard: DiscardFills) -> pb.DiscardFillsRequest:
    return pb.DiscardFillsRequest(fill_ids=discard.fill_ids, reason=discard.reason.value)


def discard_in(message: pb.DiscardFillsRequest) -> DiscardFills:
    try:
        reason = DiscardReason(message.reason)
    except ValueError:
        raise shared.malformed(f"reason {message.reason[:80]!r} to discard fills is not known") from None
    return DiscardFills(tuple(map(shared.fill_id_in, message.fill_ids)), reason)


def discarded_out(result: DiscardResult) -> pb.DiscardFillsResponse:
    return pb.DiscardFillsResponse(
        abort=[shared.generation_out(generation) for generation in result.abort],
        discarded_shadows=result.discarded_shadows,
        immune_fill_ids=sorted(result.immune),
    )


def discarded_in(message: pb.DiscardFillsResponse) -> DiscardResult:
    return DiscardResult(
        abort=tuple(map(shared.generation_in, message.abort)),
        discarded_shadows=message.discarded_shadows,
        immune=frozenset(map(shared.fill_id_in, message.immune_fill_ids)),
    )


# Settlements

_KINDS: tuple[tuple[SettlementKind, pb.SettlementKind.ValueType], ...] = (
    (SettlementKind.SHADOWED, pb.SETTLEMENT_KIND_SHADOWED),
    (SettlementKind.PROMOTED, pb.SETTLEMENT_KIND_PROMOTED),
    (SettlementKind.ADOPTED, pb.SETTLEMENT_KIND_ADOPTED),
    (SettlementKind.CONFIRMED, pb.SETTLEMENT_KIND_CONFIRMED),
    (SettlementKind.CONSUMED, pb.SETTLEMENT_KIND_CONSUMED),
    (SettlementKind.DISCARDED, pb.SETTLEMENT_KIND_DISCARDED),
    (SettlementKind.STALE, pb.SETTLEMENT_KIND_STALE),
    (SettlementKind.SERVED, pb.SETTLEMENT_KIND_SERVED),
    (SettlementKind.FAILED, pb.SETTLEMENT_KIND_FAILED),
)


def settlements_out(settlements: Iterable[Settlement]) -> pb.ReadSettlementsResponse:
    return pb.ReadSettlementsResponse(settlements=map(_settlement_out, settlements))


def settlements_in(message: pb.ReadSettlementsResponse) -> tuple[Settlement, ...]:
    return tuple(map(_settlement_in, message.settlements))


def _settlement_out(settlement: Settlement) -> pb.Settlement:
    by, generation = settlement.demanded_by, settlement.generation
    return pb.Settlement(
        number=settlement.number,
        kind=next(coded for kind, coded in _KINDS if kind is settlement.kind),
        origin=shared.origin_out(settlement.origin),
        at_unix_ms=settlement.at,
        name=settlement.name,
        demanded_by=None if by is None else shared.identity_out(by),
        execution_ms=settlement.execution_ms,
        generation=None if generation is None else shared.generation_out(generation),
        reason=settlement.reason,
    )


def _settlement_in(message: pb.Settlement) -> Settlement:
    kind = next((kind for kind, coded in _KINDS if coded == message.kind), None)
    if kind is None:
        raise shared.malformed(f"settlement kind {message.kind} is not known")
    return Settlement(
        number=message.number,
        kind=kind,
        origin=shared.origin_in(message.origin),
        at=UnixMs(message.at_unix_ms),
        name=shared.name_in(message.name),
        demanded_by=shared.identity_in(message.demanded_by) if message.HasField("demanded_by") else None,
        execution_ms=shared.number_in(message.execution_ms, "execution_ms"),
        generation=shared.generation_in(message.generation) if message.HasField("generation") else None,
        reason=message.reason,
    )
