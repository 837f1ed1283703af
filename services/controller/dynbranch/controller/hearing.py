"""What gateways tell, as the book of branches hears it."""

from __future__ import annotations

from dynbranch.controller.core.branches.messages import (
    Answer,
    ChoiceShown,
    Passport,
    StageAnswered,
    StageArrived,
)
from dynbranch.domain.errors import InvalidRequest
from dynbranch.domain.events import ArrivalSeen, ChoiceSeen, OutcomeSeen
from dynbranch.domain.template import Template
from dynbranch.rendering.telling import read_output, read_values


def arrived_of(event: ArrivalSeen, template: Template) -> StageArrived | None:
    """None for what this version of the template does not explain."""
    told = event.told
    if told is None or not _has(template, told.stage):
        return None
    try:
        values = read_values(told.values)
    except InvalidRequest:
        return None
    return StageArrived(
        at=event.at,
        demand_id=event.demand_id,
        identity=event.identity,
        template=template,
        stage=told.stage,
        values=values,
        selections=told.selections,
        passport=Passport(told.sharing_group, told.cache_scope, told.forward_headers),
    )


def answered_of(event: OutcomeSeen, template: Template) -> StageAnswered:
    answer, told = None, event.told
    if told is not None and _has(template, told.stage):
        output = read_output(told.output_json, template.stage(told.stage).kind)
        answer = Answer(output, told.selections, told.execution_ms)
    return StageAnswered(event.at, event.demand_id, event.outcome, event.failed, answer)


def shown_of(event: ChoiceSeen) -> ChoiceShown:
    return ChoiceShown(event.demand_id, event.identity, event.selection, event.closed, event.spoken)


def _has(template: Template, stage: str) -> bool:
    return any(one.name == stage for one in template.stages)
