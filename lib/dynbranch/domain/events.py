"""What gateways tell the controller."""

from __future__ import annotations

from dataclasses import dataclass

from dynbranch.domain.ids import DemandId, Name, UnixMs
from dynbranch.domain.reuse import Identity


@dataclass(frozen=True, slots=True)
class Selection:
    """What a decision point chose: several for parallel tool calls. ``ambiguous``: it can not be told."""

    decision_point: str
    chosen: tuple[str, ...] = ()
    ambiguous: bool = False


@dataclass(frozen=True, slots=True)
class StageTold:
    """What a gateway reads out of an arrival of a workflow type that has a template.

    ``values`` are the workflow's inputs that this request shows, ``selections`` what it resolves (a person's
    pick). ``forward_headers`` stay in memory while the workflow is open and are never logged.
    """

    stage: str
    index: int = 0
    values: tuple[tuple[str, str], ...] = ()
    selections: tuple[Selection, ...] = ()
    sharing_group: str = ""
    cache_scope: str = ""
    forward_headers: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class OutputTold:
    """The output of such a stage: the assistant message, or the tool's result, as JSON; empty when it is too
    large to tell."""

    stage: str
    index: int = 0
    selections: tuple[Selection, ...] = ()
    output_json: bytes = b""
    execution_ms: float = 0.0


@dataclass(frozen=True, slots=True)
class ArrivalSeen:
    """``traceparent`` names the request's span; empty where nobody records it. ``turn``: how many answers of
    the model the conversation holds already."""

    at: UnixMs
    demand_id: DemandId
    identity: Identity
    target: str
    name: Name | None
    streaming: bool
    told: StageTold | None = None
    traceparent: str = ""
    turn: int = 0


@dataclass(frozen=True, slots=True)
class OutcomeSeen:
    at: UnixMs
    demand_id: DemandId
    outcome: str
    latency_ms: float
    saved_ms: float = 0.0
    failed: bool = False
    input_tokens: int = 0
    output_tokens: int = 0
    told: OutputTold | None = None


@dataclass(frozen=True, slots=True)
class ChoiceSeen:
    """A choice became visible in a decode that goes on. ``closed``: nothing that follows can change it.
    ``spoken``: it only speaks of what it might choose."""

    at: UnixMs
    demand_id: DemandId
    identity: Identity
    stage: str
    index: int
    selection: Selection
    closed: bool
    items: int
    spoken: bool = False


GatewayEvent = ArrivalSeen | OutcomeSeen | ChoiceSeen


@dataclass(frozen=True, slots=True)
class EventBatch:
    """``first_number`` counts a reporter's events from 0, so that a redelivered batch is recognised."""

    reporter: str
    first_number: int
    events: tuple[GatewayEvent, ...]


@dataclass(frozen=True, slots=True)
class ControllerSummary:
    arrivals: int = 0
    outcomes: tuple[tuple[str, int], ...] = ()
    saved_ms: float = 0.0
    workflows: int = 0
    duplicates: int = 0
    lost: int = 0
    branches: int = 0
    open_branches: int = 0
    fills: int = 0
    promoted: int = 0
    adopted: int = 0
    discarded: int = 0
