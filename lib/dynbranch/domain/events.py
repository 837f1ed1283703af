"""What gateways tell the controller."""

from __future__ import annotations

from dataclasses import dataclass

from dynbranch.domain.ids import DemandId, Name, UnixMs
from dynbranch.domain.reuse import Identity


@dataclass(frozen=True, slots=True)
class ArrivalSeen:
    at: UnixMs
    demand_id: DemandId
    identity: Identity
    target: str
    name: Name | None
    streaming: bool


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


GatewayEvent = ArrivalSeen | OutcomeSeen


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
