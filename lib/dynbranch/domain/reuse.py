"""Values of C1: what a demand asks, what a lease allows, what a commit stores."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from dynbranch.domain.ids import (
    BranchId,
    DemandId,
    Digest,
    FillId,
    GenerationId,
    LeaseId,
    Name,
    RecordId,
    TrialId,
    UnixMs,
    Version,
)


class Level(Enum):
    """How far I1 reaches for a result."""

    SAMPLED = "sampled"
    GREEDY = "greedy"
    BATCH_INVARIANT = "batch_invariant"
    SOURCED = "sourced"


@dataclass(frozen=True, slots=True)
class Identity:
    """Who asks. An empty string means not told. ``parent_id`` is the agent that started this one."""

    tenant: str = "default"
    workflow_type_id: str = ""
    workflow_id: str = ""
    agent_id: str = ""
    stage: str = ""
    parent_id: str = ""


@dataclass(frozen=True, slots=True, order=True)
class Read:
    """One record and the newest version of it that the reader may have seen."""

    record: RecordId
    as_of: Version


@dataclass(frozen=True, slots=True)
class DeclaredRead:
    """A read that a harness declares before the stage runs; without a version it counts from the workflow's
    first arrival."""

    record: RecordId
    as_of: Version | None = None


@dataclass(frozen=True, slots=True)
class ReadScope:
    """What a stage may read, as far as it is known before it runs.

    ``sources`` empty: exactly the declared reads, none at all for a pure model call.
    ``sources`` given: any record of these sources; the backend tells which after it ran.
    """

    declared: tuple[DeclaredRead, ...] = ()
    sources: tuple[str, ...] = ()


PURE = ReadScope()


@dataclass(frozen=True, slots=True, order=True)
class Incarnation:
    """One life of an entry: a name that is stored again gets a new number."""

    name: Name
    number: int


@dataclass(frozen=True, slots=True)
class GenerationRef:
    """Where a generation runs, so that others can follow it. ``agent_address`` is host:port."""

    generation_id: GenerationId
    agent_address: str


@dataclass(frozen=True, slots=True, order=True)
class FillOrigin:
    """Which branch asked for a fill, and which stage of the fill's chain it is, from 0. ``traceparent`` names
    the fill's span where there is one; it tells no fill from another."""

    branch_id: BranchId
    trial_id: TrialId
    fill_id: FillId
    stage: int = 0
    traceparent: str = field(default="", compare=False)


@dataclass(frozen=True, slots=True)
class Lease:
    """The leave to commit one execution under one name.

    With ``fill`` the result becomes a shadow, unless a demand adopts the execution; ``once`` marks a sampled
    stage, whose shadow one demand may consume.
    """

    lease_id: LeaseId
    name: Name
    generation: GenerationRef
    read_token: Version
    scope: ReadScope
    producers: tuple[Incarnation, ...] = ()
    ttl_ms: int = 10_000
    fill: FillOrigin | None = None
    once: bool = False
    shadow_ttl_ms: int = 0


@dataclass(frozen=True, slots=True)
class Demand:
    """A canonical request for one stage, the only thing that authorises reuse.

    ``once``: a sampled request, served by a fill of its own kind that nobody has consumed, or by nothing.
    """

    demand_id: DemandId
    name: Name
    identity: Identity
    scope: ReadScope
    intended: GenerationRef
    input_digests: tuple[Digest, ...] = ()
    exclude_generations: frozenset[GenerationId] = frozenset()
    may_execute: bool = True
    may_hit: bool = True
    once: bool = False


@dataclass(frozen=True, slots=True)
class Hit:
    """A stored result. ``promoted`` is the fill whose shadow this very demand promoted or consumed."""

    incarnation: Incarnation
    payload: bytes
    level: Level
    execution_ms: float
    created: UnixMs
    promoted: FillOrigin | None = None


@dataclass(frozen=True, slots=True)
class Live:
    """The same generation runs already: attach to it. ``adopted`` is the fill that this demand took over."""

    generation: GenerationRef
    adopted: FillOrigin | None = None


@dataclass(frozen=True, slots=True)
class Miss:
    """Execute. Without a lease the result is not stored."""

    lease: Lease | None


DemandOutcome = Hit | Live | Miss


@dataclass(frozen=True, slots=True)
class Commit:
    """One completed execution. ``reads`` is None where the lease's scope says everything."""

    lease: Lease
    payload: bytes
    payload_digest: Digest
    level: Level
    execution_ms: float
    label: str = ""
    reads: tuple[RecordId, ...] | None = None
    output_digests: tuple[Digest, ...] = ()


class Refusal(Enum):
    """Why a result was not stored. It is served all the same."""

    STALE_READ = "stale_read"
    LOST_PRODUCER = "lost_producer"
    LEASE_CLOSED = "lease_closed"
    UNKNOWN_FIRST_ARRIVAL = "unknown_first_arrival"
    DIFFERS = "differs"
    DISABLED = "disabled"
    TOO_LARGE = "too_large"
    OUTSIDE_SCOPE = "outside_scope"
    UNAVAILABLE = "unavailable"


@dataclass(frozen=True, slots=True)
class Committed:
    incarnation: Incarnation


@dataclass(frozen=True, slots=True)
class Refused:
    reason: Refusal
    detail: str = ""


CommitOutcome = Committed | Refused


@dataclass(frozen=True, slots=True)
class WriteResult:
    """What one acknowledged write did. ``invalidated_names`` holds at most the first hundred."""

    version: Version
    invalidated_entries: int
    closed_leases: int
    invalidated_names: tuple[Name, ...] = ()


@dataclass(frozen=True, slots=True)
class Derivation:
    """One recorded execution that supports an entry: it needs all its reads and producers."""

    read_token: Version
    reads: tuple[Read, ...]
    producers: tuple[Incarnation, ...]


@dataclass(frozen=True, slots=True)
class EntryView:
    incarnation: Incarnation
    label: str
    level: Level
    payload_bytes: int
    payload_digest: Digest
    created: UnixMs
    execution_ms: float
    derivations: tuple[Derivation, ...] = ()


@dataclass(frozen=True, slots=True)
class Invalidation:
    """Why an entry went: the record that was written, or the producer that it lost."""

    incarnation_number: int
    at: UnixMs
    version: Version
    record: RecordId | None
    lost_producer: Incarnation | None
    label: str
    reporter: str


@dataclass(frozen=True, slots=True)
class Inspection:
    entry: EntryView | None
    history: tuple[Invalidation, ...] = ()
    live: tuple[GenerationRef, ...] = ()


@dataclass(frozen=True, slots=True)
class StoreStats:
    version: Version
    entries: int = 0
    payload_bytes: int = 0
    leases: int = 0
    hits: int = 0
    joins: int = 0
    misses: int = 0
    commits: int = 0
    refused_commits: int = 0
    writes: int = 0
    invalidated_entries: int = 0
    shadows: int = 0
    fills: int = 0
    promotions: int = 0
    adoptions: int = 0
    discarded_shadows: int = 0


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """Everything about an executor that determines its output, as named facts."""

    facts: tuple[tuple[str, str], ...] = field(default=())
    level: Level = Level.GREEDY
