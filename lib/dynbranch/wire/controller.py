"""controller.proto ⇄ domain. ``…_out`` makes a message of a value, ``…_in`` a value of a message."""

from __future__ import annotations

from collections.abc import Iterable
from typing import assert_never

from dynbranch.domain.branches import BranchSummary, TemplateSet, TemplateSource
from dynbranch.domain.events import (
    ArrivalSeen,
    ChoiceSeen,
    ControllerSummary,
    EventBatch,
    GatewayEvent,
    OutcomeSeen,
    OutputTold,
    Selection,
    StageTold,
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
            return pb.Event(at_unix_ms=event.at, arrival=_arrival_out(event))
        case OutcomeSeen():
            return pb.Event(at_unix_ms=event.at, outcome=_outcome_out(event))
        case ChoiceSeen():
            return pb.Event(at_unix_ms=event.at, choice=_choice_out(event))
        case _:
            assert_never(event)


def event_in(message: pb.Event) -> GatewayEvent:
    at = UnixMs(message.at_unix_ms)
    match message.WhichOneof("event"):
        case "arrival":
            return _arrival_in(at, message.arrival)
        case "outcome":
            return _outcome_in(at, message.outcome)
        case "choice":
            return _choice_in(at, message.choice)
        case None:
            raise shared.malformed("an event is no arrival, no outcome and no choice")


def _arrival_out(event: ArrivalSeen) -> pb.ArrivalSeen:
    message = pb.ArrivalSeen(
        demand_id=event.demand_id,
        identity=shared.identity_out(event.identity),
        target=event.target,
        name=event.name or b"",
        streaming=event.streaming,
        traceparent=event.traceparent,
        turn=event.turn,
    )
    told = event.told
    if told is not None:
        message.stage = told.stage
        message.stage_index = told.index
        message.values.update(told.values)
        message.selections.extend(map(_selection_out, told.selections))
        message.sharing_group = told.sharing_group
        message.cache_scope = told.cache_scope
        message.forward_headers.update(told.forward_headers)
    return message


def _arrival_in(at: UnixMs, message: pb.ArrivalSeen) -> ArrivalSeen:
    return ArrivalSeen(
        at=at,
        demand_id=shared.demand_id_in(message.demand_id),
        identity=shared.identity_in(message.identity),
        target=message.target,
        name=shared.name_in(message.name) if message.name else None,
        streaming=message.streaming,
        told=_stage_told_in(message) if message.stage else None,
        traceparent=shared.traceparent_in(message.traceparent),
        turn=message.turn,
    )


def _stage_told_in(message: pb.ArrivalSeen) -> StageTold:
    return StageTold(
        stage=message.stage,
        index=message.stage_index,
        values=tuple(sorted(message.values.items())),
        selections=tuple(map(_selection_in, message.selections)),
        sharing_group=message.sharing_group,
        cache_scope=message.cache_scope,
        forward_headers=tuple(sorted(message.forward_headers.items())),
    )


def _outcome_out(event: OutcomeSeen) -> pb.OutcomeSeen:
    message = pb.OutcomeSeen(
        demand_id=event.demand_id,
        outcome=event.outcome,
        latency_ms=event.latency_ms,
        saved_ms=event.saved_ms,
        failed=event.failed,
        input_tokens=event.input_tokens,
        output_tokens=event.output_tokens,
    )
    told = event.told
    if told is not None:
        message.stage = told.stage
        message.stage_index = told.index
        message.selections.extend(map(_selection_out, told.selections))
        message.output_json = told.output_json
        message.execution_ms = told.execution_ms
    return message


def _outcome_in(at: UnixMs, message: pb.OutcomeSeen) -> OutcomeSeen:
    return OutcomeSeen(
        at=at,
        demand_id=shared.demand_id_in(message.demand_id),
        outcome=message.outcome,
        latency_ms=shared.number_in(message.latency_ms, "latency_ms"),
        saved_ms=shared.number_in(message.saved_ms, "saved_ms"),
        failed=message.failed,
        input_tokens=message.input_tokens,
        output_tokens=message.output_tokens,
        told=_output_told_in(message) if message.stage else None,
    )


def _output_told_in(message: pb.OutcomeSeen) -> OutputTold:
    return OutputTold(
        stage=message.stage,
        index=message.stage_index,
        selections=tuple(map(_selection_in, message.selections)),
        output_json=message.output_json,
        execution_ms=shared.number_in(message.execution_ms, "execution_ms"),
    )


def _choice_out(event: ChoiceSeen) -> pb.ChoiceSeen:
    return pb.ChoiceSeen(
        demand_id=event.demand_id,
        identity=shared.identity_out(event.identity),
        stage=event.stage,
        stage_index=event.index,
        selection=_selection_out(event.selection),
        closed=event.closed,
        items=event.items,
        spoken=event.spoken,
    )


def _choice_in(at: UnixMs, message: pb.ChoiceSeen) -> ChoiceSeen:
    return ChoiceSeen(
        at=at,
        demand_id=shared.demand_id_in(message.demand_id),
        identity=shared.identity_in(message.identity),
        stage=message.stage,
        index=message.stage_index,
        selection=_selection_in(message.selection),
        closed=message.closed,
        items=message.items,
        spoken=message.spoken,
    )


def _selection_out(selection: Selection) -> pb.Selection:
    return pb.Selection(
        decision_point=selection.decision_point, chosen=selection.chosen, ambiguous=selection.ambiguous
    )


def _selection_in(message: pb.Selection) -> Selection:
    return Selection(message.decision_point, tuple(message.chosen), message.ambiguous)


def summary_out(summary: ControllerSummary) -> pb.SummaryResponse:
    return pb.SummaryResponse(
        arrivals=summary.arrivals,
        outcomes=dict(summary.outcomes),
        saved_ms=summary.saved_ms,
        workflows=summary.workflows,
        duplicates=summary.duplicates,
        lost=summary.lost,
        branches=summary.branches,
        open_branches=summary.open_branches,
        fills=summary.fills,
        promoted=summary.promoted,
        adopted=summary.adopted,
        discarded=summary.discarded,
    )


def summary_in(message: pb.SummaryResponse) -> ControllerSummary:
    return ControllerSummary(
        arrivals=message.arrivals,
        outcomes=tuple(sorted(message.outcomes.items())),
        saved_ms=message.saved_ms,
        workflows=message.workflows,
        duplicates=message.duplicates,
        lost=message.lost,
        branches=message.branches,
        open_branches=message.open_branches,
        fills=message.fills,
        promoted=message.promoted,
        adopted=message.adopted,
        discarded=message.discarded,
    )


def templates_out(templates: TemplateSet) -> pb.WatchTemplatesResponse:
    return pb.WatchTemplatesResponse(
        revision=templates.revision,
        templates=[
            pb.TemplateSource(workflow_type_id=one.workflow_type_id, text=one.text)
            for one in templates.templates
        ],
    )


def templates_unchanged_out(revision: int) -> pb.WatchTemplatesResponse:
    return pb.WatchTemplatesResponse(revision=revision, unchanged=True)


def templates_in(message: pb.WatchTemplatesResponse, last: TemplateSet | None = None) -> TemplateSet:
    """``last``: what the message before it said, if there was one."""
    if message.unchanged and last is not None:
        return last
    return TemplateSet(
        message.revision,
        tuple(TemplateSource(one.workflow_type_id, one.text) for one in message.templates),
    )


def branches_out(branches: Iterable[BranchSummary]) -> pb.ListBranchesResponse:
    return pb.ListBranchesResponse(branches=map(_branch_out, branches))


def branches_in(message: pb.ListBranchesResponse) -> tuple[BranchSummary, ...]:
    return tuple(map(_branch_in, message.branches))


def _branch_out(branch: BranchSummary) -> pb.BranchSummary:
    return pb.BranchSummary(
        branch_id=branch.branch_id,
        workflow_type_id=branch.workflow_type_id,
        workflow_id=branch.workflow_id,
        decision_point=branch.decision_point,
        state=branch.state,
        opened_unix_ms=branch.opened,
        candidates=branch.candidates,
        fills=branch.fills,
        consumed=branch.consumed,
    )


def _branch_in(message: pb.BranchSummary) -> BranchSummary:
    return BranchSummary(
        branch_id=shared.branch_id_in(message.branch_id),
        workflow_type_id=message.workflow_type_id,
        workflow_id=message.workflow_id,
        decision_point=message.decision_point,
        state=message.state,
        opened=UnixMs(message.opened_unix_ms),
        candidates=message.candidates,
        fills=message.fills,
        consumed=message.consumed,
    )
