"""controller.proto ⇄ domain. ``…_out`` makes a message of a value, ``…_in`` a value of a message."""

from __future__ import annotations

from typing import assert_never

from dynbranch.domain.events import (
    ArrivalSeen,
    ControllerSummary,
    EventBatch,
    GatewayEvent,
    OutcomeSeen,
)
from dynbranch.domain.ids import UnixMs
from dynbranch.v1 import controller_pb2 as pb
from dynbranch.wire import shared

MAX_REPORTER_BYTES = 256


def batch_out(batch: EventBatch) -> pb.ReportEventsRequest:
    return pb.ReportEventsRequest(
        reporter=batch.reporter,
        first_number=batch.first_number,
        events=[event_out(event) for event in batch.events],
    )


def batch_in(message: pb.ReportEventsRequest) -> EventBatch:
    if not 1 <= len(message.reporter.encode()) <= MAX_REPORTER_BYTES:
        raise shared.malformed(f"a reporter's name has 1 to {MAX_REPORTER_BYTES} bytes")
    return EventBatch(message.reporter, message.first_number, tuple(map(event_in, message.events)))


def event_out(event: GatewayEvent) -> pb.Event:
    match event:
        case ArrivalSeen():
            arrival = pb.ArrivalSeen(
                demand_id=event.demand_id,
                identity=shared.identity_out(event.identity),
                target=event.target,
                name=event.name or b"",
                streaming=event.streaming,
            )
            return pb.Event(at_unix_ms=event.at, arrival=arrival)
        case OutcomeSeen():
            outcome = pb.OutcomeSeen(
                demand_id=event.demand_id,
                outcome=event.outcome,
                latency_ms=event.latency_ms,
                saved_ms=event.saved_ms,
                failed=event.failed,
                input_tokens=event.input_tokens,
                output_tokens=event.output_tokens,
            )
            return pb.Event(at_unix_ms=event.at, outcome=outcome)
        case _:
            assert_never(event)


def event_in(message: pb.Event) -> GatewayEvent:
    at = UnixMs(message.at_unix_ms)
    match message.WhichOneof("event"):
        case "arrival":
            arrival = message.arrival
            return ArrivalSeen(
                at=at,
                demand_id=shared.demand_id_in(arrival.demand_id),
                identity=shared.identity_in(arrival.identity),
                target=arrival.target,
                name=shared.name_in(arrival.name) if arrival.name else None,
                streaming=arrival.streaming,
            )
        case "outcome":
            outcome = message.outcome
            return OutcomeSeen(
                at=at,
                demand_id=shared.demand_id_in(outcome.demand_id),
                outcome=outcome.outcome,
                latency_ms=shared.number_in(outcome.latency_ms, "latency_ms"),
                saved_ms=shared.number_in(outcome.saved_ms, "saved_ms"),
                failed=outcome.failed,
                input_tokens=outcome.input_tokens,
                output_tokens=outcome.output_tokens,
            )
        case None:
            raise shared.malformed("an event is neither an arrival nor an outcome")


def summary_out(summary: ControllerSummary) -> pb.SummaryResponse:
    return pb.SummaryResponse(
        arrivals=summary.arrivals,
        outcomes=dict(summary.outcomes),
        saved_ms=summary.saved_ms,
        workflows=summary.workflows,
        duplicates=summary.duplicates,
        lost=summary.lost,
    )


def summary_in(message: pb.SummaryResponse) -> ControllerSummary:
    return ControllerSummary(
        arrivals=message.arrivals,
        outcomes=tuple(sorted(message.outcomes.items())),
        saved_ms=message.saved_ms,
        workflows=message.workflows,
        duplicates=message.duplicates,
        lost=message.lost,
    )
