"""What the registry is told, and what it wants done."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NewType

from dynbranch.domain.engine import Failed, GenerationOrder
from dynbranch.domain.ids import GenerationId, LeaseId, RecordId
from dynbranch.domain.reuse import Lease

FollowerId = NewType("FollowerId", int)


@dataclass(frozen=True, slots=True)
class Ordered:
    """Run this, and attach ``follower`` at its first item. ``width``: how many engine slots it takes."""

    order: GenerationOrder
    follower: FollowerId
    width: int = 1


@dataclass(frozen=True, slots=True)
class Attached:
    """``adopts``: a demand takes the fill over. Of anything but a fill it changes nothing."""

    generation: GenerationId
    follower: FollowerId
    adopts: bool = False


@dataclass(frozen=True, slots=True)
class Left:
    generation: GenerationId
    follower: FollowerId


@dataclass(frozen=True, slots=True)
class AbortAsked:
    """``only_speculative``: canonical work, and what a demand took over, is left alone."""

    generation: GenerationId
    reason: str
    only_speculative: bool = False


@dataclass(frozen=True, slots=True)
class ItemsArrived:
    generation: GenerationId
    items: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class EngineEnded:
    """The engine ended cleanly. ``unstorable``: empty, or why the result may not be stored.
    ``reads``: what a tool's backend says it read; None for models."""

    generation: GenerationId
    unstorable: str = ""
    reads: tuple[RecordId, ...] | None = None


@dataclass(frozen=True, slots=True)
class EngineFailed:
    generation: GenerationId
    failure: Failed


@dataclass(frozen=True, slots=True)
class EngineLetGo:
    """The engine no longer works on an aborted generation."""

    generation: GenerationId


@dataclass(frozen=True, slots=True)
class CommitAnswered:
    """``commit``: "committed", or why not. ``release``: the store may still know the lease."""

    generation: GenerationId
    commit: str
    release: bool = False


@dataclass(frozen=True, slots=True)
class LeasesUnknown:
    """The store knows these no longer: what runs under them commits nothing, as far as can be told."""

    leases: frozenset[LeaseId]


@dataclass(frozen=True, slots=True)
class EngineLost:
    """The engine died or stopped answering: what waits for it fails; what runs ends by its own stream."""

    reason: str


@dataclass(frozen=True, slots=True)
class EngineReady:
    slots: int


@dataclass(frozen=True, slots=True)
class DrainAsked:
    pass


@dataclass(frozen=True, slots=True)
class Ticked:
    """Time has passed."""


Event = (
    Ordered
    | Attached
    | Left
    | AbortAsked
    | ItemsArrived
    | EngineEnded
    | EngineFailed
    | EngineLetGo
    | CommitAnswered
    | LeasesUnknown
    | EngineLost
    | EngineReady
    | DrainAsked
    | Ticked
)


@dataclass(frozen=True, slots=True)
class StartEngine:
    order: GenerationOrder


@dataclass(frozen=True, slots=True)
class AbortEngine:
    """Stop the engine's work, confirm by its own count, then say ``EngineLetGo``."""

    generation: GenerationId


@dataclass(frozen=True, slots=True)
class CommitResult:
    """Store this generation's log under its lease, then say ``CommitAnswered``."""

    generation: GenerationId
    lease: Lease
    execution_ms: float
    reads: tuple[RecordId, ...] | None


@dataclass(frozen=True, slots=True)
class ReleaseLeases:
    leases: tuple[LeaseId, ...]


@dataclass(frozen=True, slots=True)
class RenewLeases:
    leases: tuple[LeaseId, ...]
    ttl_ms: int


@dataclass(frozen=True, slots=True)
class Wake:
    """Followers of this generation have something to read."""

    generation: GenerationId


@dataclass(frozen=True, slots=True)
class Ended:
    """The generation is over, for metrics and spans."""

    generation: GenerationId


Effect = StartEngine | AbortEngine | CommitResult | ReleaseLeases | RenewLeases | Wake | Ended
