"""csl.proto ⇄ domain. ``…_out`` makes a message of a value, ``…_in`` a value of a message."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, assert_never

from dynbranch.domain.ids import LeaseId, Name, RecordId, UnixMs, whole
from dynbranch.domain.reuse import (
    Commit,
    CommitOutcome,
    Committed,
    Demand,
    DemandOutcome,
    Derivation,
    EntryView,
    FillOrigin,
    Hit,
    Inspection,
    Invalidation,
    Lease,
    Live,
    Miss,
    Refusal,
    Refused,
    StoreStats,
    WriteResult,
)
from dynbranch.v1 import csl_pb2 as pb
from dynbranch.v1 import shared_pb2
from dynbranch.wire import shared

# Many calls on one stream


def _carried(trace: Iterable[tuple[str, str]]) -> dict[str, Any]:
    """The W3C headers of the caller's span are fields of the same names."""
    return dict(trace)


def demand_ask(demand: Demand, trace: Iterable[tuple[str, str]] = ()) -> pb.StoreAsk:
    """The number of the call is not set yet."""
    return pb.StoreAsk(demand=demand_out(demand), fetches=True, **_carried(trace))


def commit_ask(commit: Commit, trace: Iterable[tuple[str, str]] = ()) -> pb.StoreAsk:
    """The number of the call is not set yet."""
    return pb.StoreAsk(commit=commit_out(commit), **_carried(trace))


def asks_out(asks: list[pb.StoreAsk]) -> pb.CslServiceConverseRequest:
    return pb.CslServiceConverseRequest(asks=asks)


def answers_in(message: pb.CslServiceConverseResponse) -> Iterator[tuple[int, pb.StoreAnswer]]:
    return ((answer.call, answer) for answer in message.answers)


# Demand


def demand_out(demand: Demand) -> pb.DemandRequest:
    return pb.DemandRequest(
        demand_id=demand.demand_id,
        name=demand.name,
        identity=shared.identity_out(demand.identity),
        scope=shared.scope_out(demand.scope),
        intended=shared.generation_out(demand.intended),
        input_digests=demand.input_digests,
        exclude_generations=sorted(demand.exclude_generations),
        may_execute=demand.may_execute,
        may_hit=demand.may_hit,
        once=demand.once,
    )


def demand_in(message: pb.DemandRequest) -> Demand:
    return Demand(
        demand_id=shared.demand_id_in(message.demand_id),
        name=shared.name_in(message.name),
        identity=shared.identity_in(message.identity),
        scope=shared.scope_in(message.scope),
        intended=shared.generation_in(message.intended),
        input_digests=shared.digests_in(message.input_digests),
        exclude_generations=frozenset(map(shared.generation_id_in, message.exclude_generations)),
        may_execute=message.may_execute,
        may_hit=message.may_hit,
        once=message.once,
    )


def demand_outcome_out(outcome: DemandOutcome) -> pb.DemandResponse:
    match outcome:
        case Hit():
            return pb.DemandResponse(hit=_hit_out(outcome), fill=_fill_out(outcome.promoted))
        case Live(generation, adopted):
            return pb.DemandResponse(live=shared.generation_out(generation), fill=_fill_out(adopted))
        case Miss(lease):
            # A miss without a lease is an empty one: execute, but do not store.
            return pb.DemandResponse(miss=shared_pb2.Lease() if lease is None else shared.lease_out(lease))
        case _:
            assert_never(outcome)


def demand_outcome_in(message: pb.DemandResponse) -> DemandOutcome:
    match message.WhichOneof("outcome"):
        case "hit":
            return _hit_in(message.hit, _fill_in(message))
        case "live":
            return Live(shared.generation_in(message.live), _fill_in(message))
        case "miss":
            return Miss(shared.lease_in(message.miss) if message.miss.lease_id else None)
        case None:
            raise shared.malformed("the answer to a demand has no outcome")


def _fill_out(origin: FillOrigin | None) -> shared_pb2.FillOrigin | None:
    return None if origin is None else shared.origin_out(origin)


def _fill_in(message: pb.DemandResponse) -> FillOrigin | None:
    return shared.origin_in(message.fill) if message.HasField("fill") else None


def _hit_out(hit: Hit) -> pb.Hit:
    return pb.Hit(
        incarnation=shared.incarnation_out(hit.incarnation),
        payload=hit.payload,
        level=shared.level_out(hit.level),
        execution_ms=hit.execution_ms,
        created_unix_ms=hit.created,
    )


def _hit_in(message: pb.Hit, promoted: FillOrigin | None) -> Hit:
    return Hit(
        incarnation=shared.incarnation_in(message.incarnation),
        payload=message.payload,
        level=shared.level_in(message.level),
        execution_ms=shared.number_in(message.execution_ms, "execution_ms"),
        created=UnixMs(message.created_unix_ms),
        promoted=promoted,
    )


# Commit


def commit_out(commit: Commit) -> pb.CommitRequest:
    return pb.CommitRequest(
        lease=shared.lease_out(commit.lease),
        reads=[shared_pb2.Read(record=record) for record in _reads_out(commit)],
        payload=commit.payload,
        payload_digest=commit.payload_digest,
        output_digests=commit.output_digests,
        level=shared.level_out(commit.level),
        execution_ms=commit.execution_ms,
        label=commit.label,
    )


def commit_in(message: pb.CommitRequest) -> Commit:
    lease = shared.lease_in(message.lease)
    return Commit(
        lease=lease,
        payload=message.payload,
        payload_digest=shared.digest_in(message.payload_digest),
        level=shared.level_in(message.level),
        execution_ms=shared.number_in(message.execution_ms, "execution_ms"),
        label=message.label,
        reads=_reads_in(lease, message.reads),
        output_digests=shared.digests_in(message.output_digests),
    )


def _reads_out(commit: Commit) -> Sequence[RecordId]:
    if not commit.lease.scope.sources:
        return ()
    if commit.reads is None:
        # Nothing told means anything of these sources; an empty list would say "read nothing".
        return [whole(source) for source in commit.lease.scope.sources]
    return commit.reads


def _reads_in(lease: Lease, reads: Iterable[shared_pb2.Read]) -> tuple[RecordId, ...] | None:
    if not lease.scope.sources:
        return None
    return tuple(shared.record_in(read.record) for read in reads)


def commit_outcome_out(outcome: CommitOutcome) -> pb.CommitResponse:
    match outcome:
        case Committed(incarnation):
            return pb.CommitResponse(committed=shared.incarnation_out(incarnation))
        case Refused(reason, detail):
            return pb.CommitResponse(refused=pb.CommitRefusal(reason=reason.value, detail=detail))
        case _:
            assert_never(outcome)


def commit_outcome_in(message: pb.CommitResponse) -> CommitOutcome:
    match message.WhichOneof("outcome"):
        case "committed":
            return Committed(shared.incarnation_in(message.committed))
        case "refused":
            return _refused_in(message.refused)
        case None:
            raise shared.malformed("the answer to a commit has no outcome")


def _refused_in(message: pb.CommitRefusal) -> Refused:
    try:
        return Refused(Refusal(message.reason), message.detail)
    except ValueError:
        raise shared.malformed(f"refusal {message.reason[:80]!r} is not known") from None


# Leases


def renew_out(leases: Iterable[LeaseId], ttl_ms: int) -> pb.RenewLeasesRequest:
    return pb.RenewLeasesRequest(lease_ids=leases, ttl_ms=ttl_ms)


def renew_in(message: pb.RenewLeasesRequest) -> tuple[tuple[LeaseId, ...], int]:
    """The leases and for how many milliseconds more they shall live."""
    return tuple(map(shared.lease_id_in, message.lease_ids)), message.ttl_ms


def unknown_leases_out(leases: Iterable[LeaseId]) -> pb.RenewLeasesResponse:
    return pb.RenewLeasesResponse(unknown_lease_ids=sorted(leases))


def unknown_leases_in(message: pb.RenewLeasesResponse) -> frozenset[LeaseId]:
    return frozenset(map(shared.lease_id_in, message.unknown_lease_ids))


def release_out(leases: Iterable[LeaseId]) -> pb.ReleaseLeasesRequest:
    return pb.ReleaseLeasesRequest(lease_ids=leases)


def release_in(message: pb.ReleaseLeasesRequest) -> tuple[LeaseId, ...]:
    return tuple(map(shared.lease_id_in, message.lease_ids))


# Write


def write_out(records: Iterable[RecordId], reporter: str) -> pb.WriteRequest:
    return pb.WriteRequest(records=records, reporter=reporter)


def write_in(message: pb.WriteRequest) -> tuple[tuple[RecordId, ...], str]:
    """The records written and who reports it."""
    if not message.records:
        raise shared.malformed("a write names no record")
    return tuple(map(shared.record_in, message.records)), message.reporter


def write_result_out(result: WriteResult) -> pb.WriteResponse:
    return pb.WriteResponse(
        version=shared.version_out(result.version),
        invalidated_entries=result.invalidated_entries,
        closed_leases=result.closed_leases,
        invalidated_names=result.invalidated_names,
    )


def write_result_in(message: pb.WriteResponse) -> WriteResult:
    return WriteResult(
        version=shared.version_in(message.version),
        invalidated_entries=message.invalidated_entries,
        closed_leases=message.closed_leases,
        invalidated_names=tuple(map(shared.name_in, message.invalidated_names)),
    )


# Inspect


def inspect_out(name: Name) -> pb.InspectRequest:
    return pb.InspectRequest(name=name)


def inspect_in(message: pb.InspectRequest) -> Name:
    return shared.name_in(message.name)


def inspection_out(inspection: Inspection) -> pb.InspectResponse:
    return pb.InspectResponse(
        entry=None if inspection.entry is None else _entry_out(inspection.entry),
        history=[_invalidation_out(gone) for gone in inspection.history],
        live=[shared.generation_out(ref) for ref in inspection.live],
    )


def inspection_in(message: pb.InspectResponse) -> Inspection:
    return Inspection(
        entry=_entry_in(message.entry) if message.HasField("entry") else None,
        history=tuple(_invalidation_in(gone) for gone in message.history),
        live=tuple(shared.generation_in(ref) for ref in message.live),
    )


def _entry_out(entry: EntryView) -> pb.EntryView:
    return pb.EntryView(
        incarnation=shared.incarnation_out(entry.incarnation),
        label=entry.label,
        level=shared.level_out(entry.level),
        payload_bytes=entry.payload_bytes,
        payload_digest=entry.payload_digest,
        created_unix_ms=entry.created,
        execution_ms=entry.execution_ms,
        derivations=[_derivation_out(derivation) for derivation in entry.derivations],
    )


def _entry_in(message: pb.EntryView) -> EntryView:
    return EntryView(
        incarnation=shared.incarnation_in(message.incarnation),
        label=message.label,
        level=shared.level_in(message.level),
        payload_bytes=message.payload_bytes,
        payload_digest=shared.digest_in(message.payload_digest),
        created=UnixMs(message.created_unix_ms),
        execution_ms=shared.number_in(message.execution_ms, "execution_ms"),
        derivations=tuple(_derivation_in(derivation) for derivation in message.derivations),
    )


def _derivation_out(derivation: Derivation) -> pb.DerivationView:
    return pb.DerivationView(
        read_token=shared.version_out(derivation.read_token),
        reads=[shared.read_out(read) for read in derivation.reads],
        producers=[shared.incarnation_out(producer) for producer in derivation.producers],
    )


def _derivation_in(message: pb.DerivationView) -> Derivation:
    return Derivation(
        read_token=shared.version_in(message.read_token),
        reads=tuple(shared.read_in(read) for read in message.reads),
        producers=tuple(shared.incarnation_in(producer) for producer in message.producers),
    )


def _invalidation_out(gone: Invalidation) -> pb.InvalidationView:
    lost = gone.lost_producer
    return pb.InvalidationView(
        incarnation_number=gone.incarnation_number,
        at_unix_ms=gone.at,
        version=shared.version_out(gone.version),
        record=gone.record or "",
        lost_producer=None if lost is None else shared.incarnation_out(lost),
        label=gone.label,
        reporter=gone.reporter,
    )


def _invalidation_in(message: pb.InvalidationView) -> Invalidation:
    lost = message.HasField("lost_producer")
    return Invalidation(
        incarnation_number=message.incarnation_number,
        at=UnixMs(message.at_unix_ms),
        version=shared.version_in(message.version),
        record=shared.record_in(message.record) if message.record else None,
        lost_producer=shared.incarnation_in(message.lost_producer) if lost else None,
        label=message.label,
        reporter=message.reporter,
    )


# Stats


def stats_out(stats: StoreStats) -> pb.StatsResponse:
    return pb.StatsResponse(
        version=shared.version_out(stats.version),
        entries=stats.entries,
        payload_bytes=stats.payload_bytes,
        leases=stats.leases,
        hits=stats.hits,
        joins=stats.joins,
        misses=stats.misses,
        commits=stats.commits,
        refused_commits=stats.refused_commits,
        writes=stats.writes,
        invalidated_entries=stats.invalidated_entries,
        shadows=stats.shadows,
        fills=stats.fills,
        promotions=stats.promotions,
        adoptions=stats.adoptions,
        discarded_shadows=stats.discarded_shadows,
    )


def stats_in(message: pb.StatsResponse) -> StoreStats:
    return StoreStats(
        version=shared.version_in(message.version),
        entries=message.entries,
        payload_bytes=message.payload_bytes,
        leases=message.leases,
        hits=message.hits,
        joins=message.joins,
        misses=message.misses,
        commits=message.commits,
        refused_commits=message.refused_commits,
        writes=message.writes,
        invalidated_entries=message.invalidated_entries,
        shadows=message.shadows,
        fills=message.fills,
        promotions=message.promotions,
        adoptions=message.adoptions,
        discarded_shadows=message.discarded_shadows,
    )
