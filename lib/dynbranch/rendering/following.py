"""What a workflow's arrivals and outputs tell: inputs, selections, openings and candidates.

Pure and cheap: gateways run it on what passes by, the controller and ``template check`` on what they
are told.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from dynbranch.domain.template import (
    DecisionPoint,
    Moment,
    MomentKind,
    Origin,
    Output,
    Selected,
    Template,
    WorkflowContext,
)
from dynbranch.naming.document import Json
from dynbranch.rendering.locating import Locator, scalar_text
from dynbranch.rendering.recognition import Recogniser
from dynbranch.rendering.selectors import Selector


@dataclass(frozen=True, slots=True)
class Resolution:
    """What one arrival or output said about one decision point."""

    point: str
    selected: Selected


@dataclass(frozen=True, slots=True)
class Followed:
    """The context after an arrival or an output, what it resolved, and the decision points that may open."""

    context: WorkflowContext
    resolutions: tuple[Resolution, ...] = ()
    opens: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Offered:
    """What predictors rank: a closed menu, or None where there is none, and texts to look in."""

    menu: tuple[str, ...] | None
    texts: tuple[str, ...]


class Follower:
    """Everything of a template that reads, compiled once. Raises BadPath or ValueError at construction."""

    def __init__(self, template: Template) -> None:
        self.template = template
        self.recogniser = Recogniser(template)
        self.selectors = {
            point.name: Selector(point.resolved_by, several=point.several)
            for point in template.decision_points
        }
        self._inputs = [(item, Locator(item.where)) for item in template.inputs]
        self._menus = {
            point.name: None if point.candidates.menu is None else Locator(point.candidates.menu)
            for point in template.decision_points
        }
        self._texts = {
            point.name: tuple(Locator(where) for where in point.candidates.texts)
            for point in template.decision_points
        }

    def inputs_in(self, stage: str, body: Json) -> dict[str, Any]:
        """The inputs that a request of this stage carries. Those that it lacks are left out."""
        found: dict[str, Any] = {}
        for item, locator in self._inputs:
            if item.where.origin is not Origin.REQUEST or item.where.name != stage:
                continue
            values = locator.in_json(body)
            if item.where.every:
                found[item.name] = values
            elif values:
                found[item.name] = values[0]
        return found

    def arrived(self, context: WorkflowContext, stage: str, body: Json) -> Followed:
        """A request of this stage has come. Its own output is not there yet."""
        context = context.with_inputs(self.inputs_in(stage, body))
        resolutions = tuple(
            Resolution(point.name, self.selectors[point.name].select_request(body))
            for point in self._resolved_by(Origin.REQUEST, stage)
        )
        return Followed(
            _with_selections(context, resolutions),
            resolutions,
            tuple(self._opened(Moment(MomentKind.ARRIVAL, stage))),
        )

    def gave(self, context: WorkflowContext, stage: str, output: Output) -> Followed:
        """A request of this stage has been answered."""
        context = context.with_output(stage, output)
        resolutions = tuple(
            Resolution(point.name, self.selectors[point.name].select(output))
            for point in self._resolved_by(Origin.OUTPUT, stage)
        )
        return Followed(
            _with_selections(context, resolutions),
            resolutions,
            tuple(self._opened(Moment(MomentKind.OUTPUT, stage))),
        )

    def offered(self, point: DecisionPoint, context: WorkflowContext, request: Json = None) -> Offered:
        """The candidates as far as they can be read. ``request``: the body that arrives now."""
        menu = self.menu(point, context, request)
        if menu is not None and point.candidates.unused:
            used = {s for selection in context.selections.get(point.name, ()) for s in selection}
            menu = tuple(item for item in menu if item not in used)
        texts = tuple(
            text for at in self._texts[point.name] for text in _texts_of(at.in_context(context, request))
        )
        return Offered(menu, texts)

    def menu(
        self, point: DecisionPoint, context: WorkflowContext, request: Json = None
    ) -> tuple[str, ...] | None:
        """The closed set of candidates as far as it can be read; None where there is none."""
        locator = self._menus[point.name]
        return None if locator is None else _texts_of(locator.in_context(context, request))

    def _resolved_by(self, origin: Origin, stage: str) -> Iterator[DecisionPoint]:
        for point in self.template.decision_points:
            if point.resolved_by.origin is origin and point.resolved_by.name == stage:
                yield point

    def _opened(self, moment: Moment) -> Iterator[str]:
        for point in self.template.decision_points:
            if moment in point.opens:
                yield point.name


def _with_selections(context: WorkflowContext, resolutions: tuple[Resolution, ...]) -> WorkflowContext:
    for resolution in resolutions:
        if isinstance(resolution.selected, tuple):
            context = context.with_selection(resolution.point, resolution.selected)
    return context


def _texts_of(values: list[Json]) -> tuple[str, ...]:
    """Each once, in their order. A list counts as its items."""
    flat = [item for value in values for item in (value if isinstance(value, list) else [value])]
    return tuple(dict.fromkeys(text for value in flat if (text := scalar_text(value)) is not None))
