"""Values that more than one service speaks of. Whatever is not what it should be raises InvalidRequest."""

from __future__ import annotations

import math
from collections.abc import Iterable

from dynbranch.domain.errors import InvalidRequest
from dynbranch.domain.ids import (
    BranchId,
    DemandId,
    Digest,
    FillId,
    GenerationId,
    InvalidId,
    LeaseId,
    Name,
    RecordId,
    TrialId,
    Version,
    parse_record,
)
from dynbranch.domain.reuse import (
    PURE,
    DeclaredRead,
    FillOrigin,
    GenerationRef,
    Identity,
    Incarnation,
    Lease,
    Level,
    Read,
    ReadScope,
)
from dynbranch.v1 import shared_pb2 as pb

DIGEST_BYTES = 32
MAX_ID_BYTES = 64
MAX_TRACEPARENT_CHARS = 128


def malformed(what: str) -> InvalidRequest:
    """The error for a message that no correct peer sends."""
    return InvalidRequest("malformed_message", what, advice="check that both sides run the same version")


# Scalars


def name_in(value: bytes) -> Name:
    if len(value) != DIGEST_BYTES:
        raise malformed(f"a name has {DIGEST_BYTES} bytes, not {len(value)}")
    return Name(value)


def digest_in(value: bytes) -> Digest:
    if len(value) != DIGEST_BYTES:
        raise malformed(f"a digest has {DIGEST_BYTES} bytes, not {len(value)}")
    return Digest(value)


def digests_in(values: Iterable[bytes]) -> tuple[Digest, ...]:
    return tuple(digest_in(value) for value in values)


def demand_id_in(value: bytes) -> DemandId:
    return DemandId(_opaque(value, "demand id"))


def lease_id_in(value: bytes) -> LeaseId:
    return LeaseId(_opaque(value, "lease id"))


def generation_id_in(value: bytes) -> GenerationId:
    return GenerationId(_opaque(value, "generation id"))


def branch_id_in(value: bytes) -> BranchId:
    return BranchId(_opaque(value, "branch id"))


def fill_id_in(value: bytes) -> FillId:
    return FillId(_opaque(value, "fill id"))


def _opaque(value: bytes, what: str) -> bytes:
    if not 1 <= len(value) <= MAX_ID_BYTES:
        raise malformed(f"a {what} has 1 to {MAX_ID_BYTES} bytes, not {len(value)}")
    return value


def record_in(text: str) -> RecordId:
    try:
        return parse_record(text)
    except InvalidId as error:
        raise InvalidRequest("invalid_record", str(error), advice="write a record as source/key") from None


def number_in(value: float, what: str) -> float:
    if not math.isfinite(value):
        raise malformed(f"{what} is {value}")
    return value


# Levels

_LEVELS: tuple[tuple[Level, pb.DeterminismLevel.ValueType], ...] = (
    (Level.SAMPLED, pb.DETERMINISM_LEVEL_SAMPLED),
    (Level.GREEDY, pb.DETERMINISM_LEVEL_GREEDY),
    (Level.BATCH_INVARIANT, pb.DETERMINISM_LEVEL_BATCH_INVARIANT),
    (Level.SOURCED, pb.DETERMINISM_LEVEL_SOURCED),
)


def level_out(level: Level) -> pb.DeterminismLevel.ValueType:
    return next(coded for known, coded in _LEVELS if known is level)


def level_in(coded: pb.DeterminismLevel.ValueType) -> Level:
    for level, known in _LEVELS:
        if known == coded:
            return level
    raise malformed(f"determinism level {coded} is not known")


# Messages


def version_out(version: Version) -> pb.Version:
    return pb.Version(epoch=version.epoch, sequence=version.sequence)


def version_in(message: pb.Version) -> Version:
    return Version(message.epoch, message.sequence)


def read_out(read: Read) -> pb.Read:
    return pb.Read(record=read.record, as_of=version_out(read.as_of))


def read_in(message: pb.Read) -> Read:
    if not message.HasField("as_of"):
        raise malformed(f"the read of {message.record[:80]!r} has no version")
    return Read(record_in(message.record), version_in(message.as_of))


def declared_out(read: DeclaredRead) -> pb.Read:
    as_of = None if read.as_of is None else version_out(read.as_of)
    return pb.Read(record=read.record, as_of=as_of)


def declared_in(message: pb.Read) -> DeclaredRead:
    as_of = version_in(message.as_of) if message.HasField("as_of") else None
    return DeclaredRead(record_in(message.record), as_of)


def incarnation_out(incarnation: Incarnation) -> pb.Incarnation:
    return pb.Incarnation(name=incarnation.name, number=incarnation.number)


def incarnation_in(message: pb.Incarnation) -> Incarnation:
    return Incarnation(name_in(message.name), message.number)


def identity_out(identity: Identity) -> pb.Identity:
    return pb.Identity(
        tenant=identity.tenant,
        workflow_type_id=identity.workflow_type_id,
        workflow_id=identity.workflow_id,
        agent_id=identity.agent_id,
        stage=identity.stage,
        parent_id=identity.parent_id,
    )


def identity_in(message: pb.Identity) -> Identity:
    """A tenant that was not told is the default one."""
    return Identity(
        tenant=message.tenant or Identity().tenant,
        workflow_type_id=message.workflow_type_id,
        workflow_id=message.workflow_id,
        agent_id=message.agent_id,
        stage=message.stage,
        parent_id=message.parent_id,
    )


def scope_out(scope: ReadScope) -> pb.ReadScope:
    return pb.ReadScope(
        pure=scope == PURE,
        declared=[declared_out(read) for read in scope.declared],
        sources=scope.sources,
    )


def scope_in(message: pb.ReadScope) -> ReadScope:
    """An empty scope would pass for "reads nothing", so purity must be said."""
    scope = ReadScope(tuple(declared_in(read) for read in message.declared), tuple(message.sources))
    if message.pure != (scope == PURE):
        raise malformed("a read scope is pure, or it names reads or sources; exactly one of the two")
    for source in scope.sources:
        if "/" in source:
            raise malformed(f"source {source[:80]!r} is a record")
        record_in(f"{source}/*")
    return scope


def generation_out(ref: GenerationRef) -> pb.GenerationRef:
    return pb.GenerationRef(generation_id=ref.generation_id, agent_address=ref.agent_address)


def generation_in(message: pb.GenerationRef) -> GenerationRef:
    return GenerationRef(generation_id_in(message.generation_id), message.agent_address)


def lease_out(lease: Lease) -> pb.Lease:
    return pb.Lease(
        lease_id=lease.lease_id,
        name=lease.name,
        generation=generation_out(lease.generation),
        read_token=version_out(lease.read_token),
        scope=scope_out(lease.scope),
        producers=[incarnation_out(producer) for producer in lease.producers],
        ttl_ms=lease.ttl_ms,
        fill=None if lease.fill is None else origin_out(lease.fill),
        once=lease.once,
        shadow_ttl_ms=lease.shadow_ttl_ms,
    )


def lease_in(message: pb.Lease) -> Lease:
    if not message.HasField("read_token"):
        raise malformed("a lease has no read token")
    return Lease(
        lease_id=lease_id_in(message.lease_id),
        name=name_in(message.name),
        generation=generation_in(message.generation),
        read_token=version_in(message.read_token),
        scope=scope_in(message.scope),
        producers=tuple(incarnation_in(producer) for producer in message.producers),
        ttl_ms=message.ttl_ms,
        fill=origin_in(message.fill) if message.HasField("fill") else None,
        once=message.once,
        shadow_ttl_ms=message.shadow_ttl_ms,
    )


def origin_out(origin: FillOrigin) -> pb.FillOrigin:
    return pb.FillOrigin(
        branch_id=origin.branch_id,
        trial_id=origin.trial_id,
        fill_id=origin.fill_id,
        stage=origin.stage,
        traceparent=origin.traceparent,
    )


def origin_in(message: pb.FillOrigin) -> FillOrigin:
    return FillOrigin(
        branch_id=branch_id_in(message.branch_id),
        trial_id=TrialId(_opaque(message.trial_id, "trial id")),
        fill_id=fill_id_in(message.fill_id),
        stage=message.stage,
        traceparent=traceparent_in(message.traceparent),
    )


def traceparent_in(text: str) -> str:
    """Only for links: what is too long to be one is none."""
    return text if len(text) <= MAX_TRACEPARENT_CHARS else ""
