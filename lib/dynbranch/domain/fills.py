"""Values of C2 between the controller and the store: the leave to run a fill, and what became of it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from dynbranch.domain.ids import Digest, FillId, Name, UnixMs
from dynbranch.domain.reuse import FillOrigin, GenerationRef, Identity, Incarnation, Lease, Level, ReadScope

SUPERSEDED = "superseded"
"""The reason of a Conflict: a newer controller has this store, and there is one at a time."""


@dataclass(frozen=True, slots=True)
class BeginFill:
    """Asks for the leave to run one stage of a fill. It confirms nothing and is no demand.

    ``producers`` are earlier stages of the same fill, confirmed or shadows, whose results this stage was
    rendered from. The store gives the generation an id of its own at the place that ``intended`` names.
    ``reader_epoch`` says which controller asks.
    """

    origin: FillOrigin
    name: Name
    identity: Identity
    scope: ReadScope
    intended: GenerationRef
    input_digests: tuple[Digest, ...] = ()
    producers: tuple[Incarnation, ...] = ()
    once: bool = False
    shadow_ttl_ms: int = 60_000
    reader_epoch: int = 0


@dataclass(frozen=True, slots=True)
class FillGranted:
    """Run it and commit under this lease."""

    lease: Lease


@dataclass(frozen=True, slots=True)
class FillKnown:
    """The result stands already, confirmed or as a shadow: the chain goes on from it without running.

    For rendering the next stage, never for an answer to a harness.
    """

    incarnation: Incarnation
    payload: bytes
    shadow: bool
    level: Level
    execution_ms: float


@dataclass(frozen=True, slots=True)
class FillLive:
    """The name is executing already."""

    generation: GenerationRef


class FillRefusal(Enum):
    """Why a fill may not run. LOST: it was discarded before it began."""

    LOST = "lost"
    FULL = "full"
    ONCE_TAKEN = "once_taken"
    NOT_STORABLE = "not_storable"


@dataclass(frozen=True, slots=True)
class FillRefused:
    reason: FillRefusal
    detail: str = ""


FillOutcome = FillGranted | FillKnown | FillLive | FillRefused


class DiscardReason(Enum):
    LOST = "lost"
    EXPIRED = "expired"
    CANCELLED = "cancelled"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class DiscardFills:
    """Takes fills away, known ones and such as will only begin later. Promoted and adopted work is immune."""

    fill_ids: tuple[FillId, ...]
    reason: DiscardReason


@dataclass(frozen=True, slots=True)
class DiscardResult:
    """``abort`` names executions that may commit nothing any more, ``immune`` fills of which some stage was
    promoted, adopted or consumed: that stage stands."""

    abort: tuple[GenerationRef, ...] = ()
    discarded_shadows: int = 0
    immune: frozenset[FillId] = frozenset()


class SettlementKind(Enum):
    """One change of one stage of a fill. STALE: a write felled the shadow or closed the lease. SERVED: what
    was adopted is not stored, and serves nobody but those who followed it. FAILED: what was adopted came to
    nothing. Rows number them by this order."""

    SHADOWED = "shadowed"
    PROMOTED = "promoted"
    ADOPTED = "adopted"
    CONFIRMED = "confirmed"
    CONSUMED = "consumed"
    DISCARDED = "discarded"
    STALE = "stale"
    SERVED = "served"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Settlement:
    """A row of the store's outbox, delivered at least once: known by (trial, fill, stage, kind).

    ``demanded_by`` is set for promoted, adopted and consumed; ``generation`` where it may still run.
    """

    number: int
    kind: SettlementKind
    origin: FillOrigin
    at: UnixMs
    name: Name
    demanded_by: Identity | None = None
    execution_ms: float = 0.0
    generation: GenerationRef | None = None
    reason: str = ""
