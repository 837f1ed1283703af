"""What the controller is told of requests whose workflow type has a template.

A gateway reads one request or one answer at a time: inputs and picks out of requests, selections out of
answers. How they belong together is the controller's to know.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import dataclass

from dynbranch.domain.events import OutputTold, Selection, StageTold
from dynbranch.domain.template import (
    Ambiguous,
    DecisionPoint,
    Origin,
    Output,
    Speculable,
    Stage,
    StageKind,
    Template,
    Window,
    WorkflowContext,
)
from dynbranch.naming.document import Json
from dynbranch.rendering.following import Follower, Resolution
from dynbranch.rendering.selectors import Selector
from dynbranch.rendering.telling import told_output, told_values

_log = logging.getLogger(__name__)

MAX_TOLD_BYTES = 2**18
"""Of one request's inputs, and of one output. What is larger is not told."""

STREAM = "stream"
"""The predictor that reads a decode along: where a decision point uses it, gateways do its part."""

_NOTHING_KNOWN = WorkflowContext()


class TemplateInForce:
    """One template, made ready to read requests and answers with. Raises BadPath or ValueError."""

    def __init__(self, template: Template) -> None:
        self.template = template
        self.follower = Follower(template)
        self.deciding: dict[str, dict[str, Selector]] = {}
        """By stage: the decision points that its output resolves."""
        for point in template.decision_points:
            if point.resolved_by.origin is Origin.OUTPUT:
                of_stage = self.deciding.setdefault(point.resolved_by.name, {})
                of_stage[point.name] = self.follower.selectors[point.name]
        self.speaking: dict[str, tuple[DecisionPoint, ...]] = {}
        """By stage: the decision points of its output at which names that it speaks of are told."""
        for point in template.decision_points:
            if _speaks(point):
                named = point.resolved_by.name
                self.speaking[named] = (*self.speaking.get(named, ()), point)
        self._failures = 0
        self.has_once = any(stage.speculable is Speculable.ONCE for stage in template.stages)

    def failed(self) -> None:
        """To be called where an exception is handled. Not every request fills the log."""
        self._failures += 1
        if self._failures == 1 or self._failures % 1000 == 0:
            name = self.template.workflow_type
            _log.exception("the template of %s can not be used, for the %dth time", name, self._failures)


def _speaks(point: DecisionPoint) -> bool:
    decodes = point.window is Window.DECODE and point.resolved_by.origin is Origin.OUTPUT
    return decodes and any(use.name == STREAM for use in point.candidates.predictors)


@dataclass(frozen=True, slots=True)
class Recognised:
    """A request of a workflow type that has a template. ``stage`` is None where it is none of its stages, or
    could be several."""

    template: TemplateInForce
    stage: Stage | None

    @property
    def may_be_once(self) -> bool:
        """Whether a sampled fill may have been run for it."""
        if self.stage is None:
            return self.template.has_once
        return self.stage.speculable is Speculable.ONCE


def recognise(
    template: TemplateInForce, kind: StageKind, target: str, body: bytes, declared: str
) -> Recognised:
    """``body`` as the harness sent it; ``declared`` is its stage header."""
    return Recognised(template, template.follower.recogniser.stage_of(kind, target, body, declared))


def stage_told(
    template: TemplateInForce,
    stage: Stage,
    body: Json,
    *,
    sharing_group: str,
    cache_scope: str,
    forward_headers: tuple[tuple[str, str], ...],
) -> StageTold:
    arrived = template.follower.arrived(_NOTHING_KNOWN, stage.name, body)
    return StageTold(
        stage=stage.name,
        values=_within_bounds(told_values(arrived.context.inputs)),
        selections=tuple(_selections(arrived.resolutions)),
        sharing_group=sharing_group,
        cache_scope=cache_scope,
        forward_headers=forward_headers,
    )


def output_told(
    template: TemplateInForce, stage: Stage, output: Output | None, execution_ms: float
) -> OutputTold:
    """``output`` is None where it was too large to be read: what it decided is not known then."""
    if output is None:
        lost = (Selection(point, ambiguous=True) for point in template.deciding.get(stage.name, ()))
        return OutputTold(stage.name, selections=tuple(lost), execution_ms=execution_ms)
    gave = template.follower.gave(_NOTHING_KNOWN, stage.name, output)
    told = told_output(output, stage.kind)
    return OutputTold(
        stage=stage.name,
        selections=tuple(_selections(gave.resolutions)),
        output_json=told if len(told) <= MAX_TOLD_BYTES else b"",
        execution_ms=execution_ms,
    )


def _selections(resolutions: Iterable[Resolution]) -> Iterable[Selection]:
    for resolution in resolutions:
        match resolution.selected:
            case Ambiguous():
                yield Selection(resolution.point, ambiguous=True)
            case tuple() as chosen:
                yield Selection(resolution.point, chosen)
            case None:
                pass


def _within_bounds(values: tuple[tuple[str, str], ...]) -> tuple[tuple[str, str], ...]:
    kept, left = [], MAX_TOLD_BYTES
    for name, text in values:
        left -= len(text)
        if left >= 0:
            kept.append((name, text))
    return tuple(kept)
