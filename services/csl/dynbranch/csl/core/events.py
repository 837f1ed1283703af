"""What happens to the library, and what it wants done."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Generic, TypeVar

from dynbranch.csl.core.store import Batch
from dynbranch.domain.fills import BeginFill, DiscardFills
from dynbranch.domain.ids import Instant, LeaseId, Name, RecordId, UnixMs
from dynbranch.domain.reuse import Commit, Demand, Level


@dataclass(frozen=True, slots=True)
class Moment:
    """``instant`` orders and measures, ``unix_ms`` is written down for people."""

    instant: Instant
    unix_ms: UnixMs


@dataclass(frozen=True, slots=True)
class RenewLeases:
    lease_ids: tuple[LeaseId, ...]
    ttl_ms: int


@dataclass(frozen=True, slots=True)
class ReleaseLeases:
    lease_ids: tuple[LeaseId, ...]


@dataclass(frozen=True, slots=True)
class Write:
    records: tuple[RecordId, ...]
    reporter: str


@dataclass(frozen=True, slots=True)
class BeginEpoch:
    """After a restore: entries whose derivation reaches a read are dropped, old tokens never commit."""

    epoch: int


@dataclass(frozen=True, slots=True)
class Inspect:
    name: Name


@dataclass(frozen=True, slots=True)
class Stats:
    pass


@dataclass(frozen=True, slots=True)
class DeleteSlice:
    """Delete the rows of one slice that a durable write condemned."""

    number: int


@dataclass(frozen=True, slots=True)
class ForgetVersions:
    """Keep the version rows within their bound."""


@dataclass(frozen=True, slots=True)
class ExpireEntries:
    """Let go of entries older than their time."""


@dataclass(frozen=True, slots=True)
class SweepShadows:
    """Take away shadows that are lost or too old."""


@dataclass(frozen=True, slots=True)
class AcknowledgeSettlements:
    """Everything up to this number has been taken in."""

    through: int


Event = (
    Demand
    | Commit
    | BeginFill
    | DiscardFills
    | SweepShadows
    | AcknowledgeSettlements
    | RenewLeases
    | ReleaseLeases
    | Write
    | BeginEpoch
    | Inspect
    | Stats
    | DeleteSlice
    | ForgetVersions
    | ExpireEntries
)


@dataclass(frozen=True, slots=True)
class OutputsDiffer:
    """Two executions of one name gave different results. At level batch_invariant this breaks a promise."""

    name: Name
    level: Level


@dataclass(frozen=True, slots=True)
class GuardMissed:
    """A stored entry was not current, although writes cascade. It was not served; the code or the disk is
    wrong.
    """

    name: Name


@dataclass(frozen=True, slots=True)
class Cascaded:
    """What a write felled, and how many slices are left to delete."""

    direct: int
    entries: int
    derivations: int
    closed_leases: int
    slices: tuple[int, ...]


Effect = OutputsDiffer | GuardMissed | Cascaded

R = TypeVar("R", covariant=True)


@dataclass(frozen=True, slots=True)
class Decision(Generic[R]):
    """``reply`` may be sent when ``batch`` is applied; with ``durable``, not before it would survive power
    loss.
    """

    reply: R
    batch: Batch = field(default_factory=Batch)
    durable: bool = False
    effects: tuple[Effect, ...] = ()
