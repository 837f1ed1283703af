"""What the book of branches hears, and what it wants done."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from dynbranch.domain.engine import WireProtocol
from dynbranch.domain.events import Selection
from dynbranch.domain.fills import DiscardReason, Settlement
from dynbranch.domain.ids import BranchId, DemandId, Digest, FillId, Instant, Name, UnixMs
from dynbranch.domain.reuse import PURE, FillOrigin, GenerationRef, Identity, Incarnation, ReadScope
from dynbranch.domain.template import DecisionPoint, Output, Template, WorkflowContext


@dataclass(frozen=True, slots=True, order=True)
class StageKey:
    """One stage of one fill, from 0."""

    fill_id: FillId
    number: int


@dataclass(frozen=True, slots=True)
class Passport:
    """What a fill must carry to be named and executed as the harness's own request would be."""

    sharing_group: str = ""
    cache_scope: str = ""
    forward_headers: tuple[tuple[str, str], ...] = field(default=(), repr=False)

    @property
    def holder(self) -> str:
        """Tells apart those whose requests reach an engine under different keys, and shows none of them."""
        if not self.forward_headers:
            return self.sharing_group
        told = repr((self.sharing_group, self.forward_headers))
        return hashlib.sha256(told.encode()).hexdigest()


@dataclass(frozen=True, slots=True, order=True)
class WorkflowKey:
    """``holder``: two that share a tenant and a workflow's id, but no key, are two workflows. What one has
    said is never sent under the other's key."""

    tenant: str
    workflow_type_id: str
    workflow_id: str
    holder: str = ""


def workflow_of(identity: Identity, holder: str) -> WorkflowKey:
    return WorkflowKey(identity.tenant, identity.workflow_type_id, identity.workflow_id, holder)


# Events from gateways


@dataclass(frozen=True, slots=True)
class StageArrived:
    """A request of a stage. ``values`` are the workflow's inputs that it shows."""

    at: UnixMs
    demand_id: DemandId
    identity: Identity
    template: Template
    stage: str
    values: Mapping[str, Any] = field(default_factory=dict)
    selections: tuple[Selection, ...] = ()
    passport: Passport = Passport()


@dataclass(frozen=True, slots=True)
class Answer:
    """``output`` is None where it was too large to tell."""

    output: Output | None
    selections: tuple[Selection, ...] = ()
    execution_ms: float = 0.0


@dataclass(frozen=True, slots=True)
class StageAnswered:
    """``answer`` is None where the gateway could not read it."""

    at: UnixMs
    demand_id: DemandId
    outcome: str
    failed: bool = False
    answer: Answer | None = None


@dataclass(frozen=True, slots=True)
class ChoiceShown:
    """A choice shows in a decode that goes on. ``closed``: nothing that follows can change it. ``spoken``:
    the decode only speaks of it, and may choose another."""

    demand_id: DemandId
    identity: Identity
    selection: Selection
    closed: bool
    spoken: bool = False


# Events from the controller's own work


@dataclass(frozen=True, slots=True)
class PredictorAnswer:
    """What one predictor said, its best first, and how it came: ``ranked``, ``nothing``, ``late``, …"""

    predictor: str
    how: str
    spent_ms: float
    ranking: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class CandidatesProposed:
    """``answers`` say how each predictor fared, for people."""

    branch_id: BranchId
    ranked: tuple[str, ...]
    spent_ms: float = 0.0
    answers: tuple[PredictorAnswer, ...] = ()


@dataclass(frozen=True, slots=True)
class Prepared:
    """One stage as the engine shall receive it. ``members`` may run it; ``tokens`` is what it may hold."""

    name: Name
    protocol: WireProtocol
    target: str
    body: bytes
    fingerprint: Digest
    members: tuple[str, ...]
    tokens: int
    scope: ReadScope = PURE
    input_digests: tuple[Digest, ...] = ()
    once: bool = False


@dataclass(frozen=True, slots=True)
class StagePrepared:
    key: StageKey
    prepared: Prepared


@dataclass(frozen=True, slots=True)
class StageBegan:
    """The store gave the leave; the generation is about to run."""

    key: StageKey
    generation: GenerationRef


class Ending(Enum):
    """STORED: it ran, and the store took the result. NOT_STORED: it ran for nothing that can be reused.
    KNOWN: it stood already. JOINED: it ran already, and was followed. REFUSED: it did not begin."""

    STORED = "stored"
    NOT_STORED = "not_stored"
    KNOWN = "known"
    JOINED = "joined"
    REFUSED = "refused"
    FAILED = "failed"
    ABORTED = "aborted"


@dataclass(frozen=True, slots=True)
class StageEnded:
    """Comes once for every ``PrepareStage``, whatever happened. ``output`` is what the chain goes on with."""

    key: StageKey
    how: Ending
    execution_ms: float = 0.0
    output: Output | None = None
    detail: str = ""


@dataclass(frozen=True, slots=True)
class FillsDiscarded:
    """The answer to ``DiscardRuns``. ``immune``: some stage was demanded, and stands. ``confirmed`` is False
    where the store could not be told. ``abort_ms``: until each engine had confirmed."""

    branch_id: BranchId | None
    fills: tuple[FillId, ...]
    immune: frozenset[FillId] = frozenset()
    confirmed: bool = True
    abort_ms: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class Settled:
    settlement: Settlement


@dataclass(frozen=True, slots=True)
class EngineSeen:
    """``running`` and ``waiting`` count everybody's work there, ``fills`` what of it runs ahead. The agent's
    own limits for fills: ``fill_slots`` (0: it tells none) and ``fill_tokens`` (None: it has none)."""

    address: str
    slots: int
    running: int
    waiting: int
    fills: int = 0
    serves_models: bool = True
    fill_slots: int = 0
    fill_tokens: int | None = None


@dataclass(frozen=True, slots=True)
class EngineGone:
    address: str


@dataclass(frozen=True, slots=True)
class TimePassed:
    """Nothing but time."""


Event = (
    StageArrived
    | StageAnswered
    | ChoiceShown
    | CandidatesProposed
    | StagePrepared
    | StageBegan
    | StageEnded
    | FillsDiscarded
    | Settled
    | EngineSeen
    | EngineGone
    | TimePassed
)


# Effects


@dataclass(frozen=True, slots=True)
class Propose:
    """Ask the predictors, and answer by ``CandidatesProposed``, not before ``not_before``: a decision that
    was recorded falls within milliseconds, and then nothing need run."""

    branch_id: BranchId
    workflow: WorkflowKey
    template: Template
    point: DecisionPoint
    context: WorkflowContext
    trail: tuple[str, ...]
    not_before: Instant
    sharing_group: str = ""


@dataclass(frozen=True, slots=True)
class PrepareStage:
    """Write the stage's request and name it; then ``StagePrepared``, or ``StageEnded``."""

    key: StageKey
    branch_id: BranchId
    template: Template
    stage: str
    selection: str
    context: WorkflowContext
    passport: Passport


@dataclass(frozen=True, slots=True)
class RunStage:
    """Ask the store for the leave and run it at ``engine``; then ``StageBegan`` where it runs, and
    ``StageEnded``. ``continues``: its output is wanted for the next stage."""

    key: StageKey
    engine: str
    prepared: Prepared
    origin: FillOrigin
    identity: Identity
    producers: tuple[Incarnation, ...]
    shadow_ttl_ms: int
    continues: bool
    passport: Passport


@dataclass(frozen=True, slots=True)
class Detach:
    """Stop what is being done for this stage; its ``StageEnded`` comes all the same."""

    key: StageKey


@dataclass(frozen=True, slots=True)
class DiscardRuns:
    """Tell the store, abort what it names, then detach from ``keys``; answer by ``FillsDiscarded``."""

    branch_id: BranchId | None
    fills: tuple[FillId, ...]
    keys: tuple[StageKey, ...]
    reason: DiscardReason


@dataclass(frozen=True, slots=True)
class AbortGeneration:
    generation: GenerationRef
    reason: str


@dataclass(frozen=True, slots=True)
class Learn:
    """What the branch came to: for every candidate that was proposed, admitted or not."""

    branch_id: BranchId
    selections: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Unlearn:
    """The branch will never tell its selection."""

    branch_id: BranchId


class Mark(Enum):
    """What is worth telling of a branch's life, to traces, metrics and people."""

    OPENED = "opened"
    REFUSED = "refused"
    PROPOSED = "proposed"
    PRICED = "priced"
    SEEN = "seen"
    SPOKEN = "spoken of"
    RESOLVED = "resolved"
    AMBIGUOUS = "ambiguous"
    EXPIRED = "expired"
    STAGE_BEGAN = "stage began"
    STAGE_MOVED = "stage moved"
    FILL_ENDED = "fill ended"
    SETTLED = "settled"


Fact = tuple[str, str | float | bool]


@dataclass(frozen=True, slots=True)
class Told:
    branch_id: BranchId
    mark: Mark
    facts: tuple[Fact, ...] = ()
    fill_id: FillId | None = None


Effect = Propose | PrepareStage | RunStage | Detach | DiscardRuns | AbortGeneration | Learn | Unlearn | Told
