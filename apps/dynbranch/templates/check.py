"""A template held against recorded traffic: what it would have written, and what was sent."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final

from dynbranch.domain.errors import InvalidRequest
from dynbranch.domain.template import (
    Ambiguous,
    DecisionPoint,
    Origin,
    Output,
    RenderFailed,
    Stage,
    Template,
    Window,
    WorkflowContext,
)
from dynbranch.naming.document import Json, parse_body
from dynbranch.rendering.following import Followed, Follower
from dynbranch.rendering.jinja import JinjaRenderer
from dynbranch.rendering.outputs import Added
from dynbranch.rendering.slots import SlotRenderer
from dynbranch.templates.traffic import Exchange, by_workflow, events

AROUND_CHARACTERS: Final = 40
MAX_TOLD: Final = 20
"""Differences told in full, per stage."""


@dataclass(frozen=True, slots=True)
class Difference:
    """The first place where a rendered request is not what was sent. ``slot`` is the expression that wrote
    it, empty for constant text; ``problem`` says why nothing could be rendered."""

    workflow_id: str
    stage: str
    occurrence: int
    offset: int = 0
    sent: str = ""
    rendered: str = ""
    slot: str = ""
    problem: str = ""
    as_fill: bool = False


@dataclass(slots=True)
class StageCount:
    """``as_fill``: rendered as a fill would have been, from what was known when its branch could open.
    ``told_apart``: recognised without its header."""

    seen: int = 0
    equal: int = 0
    fills: int = 0
    fills_equal: int = 0
    told_apart: int = 0
    differences: list[Difference] = field(default_factory=list)


@dataclass(slots=True)
class PointCount:
    """``visible_after``: the share of each output's text that had to be read before the choice was closed."""

    asked: int = 0
    read: int = 0
    nothing: int = 0
    ambiguous: Counter[str] = field(default_factory=Counter)
    offered: int = 0
    in_menu: int = 0
    menu_sizes: list[int] = field(default_factory=list)
    visible_after: list[float] = field(default_factory=list)


@dataclass(slots=True)
class Report:
    workflows: int = 0
    requests: int = 0
    unrecognised: list[str] = field(default_factory=list)
    stages: dict[str, StageCount] = field(default_factory=dict)
    points: dict[str, PointCount] = field(default_factory=dict)

    @property
    def holds(self) -> bool:
        """Every request of the type was recognised and rendered byte-equal, as a demand and as a fill."""
        whole = all(s.seen == s.equal and s.fills == s.fills_equal for s in self.stages.values())
        return self.requests > 0 and not self.unrecognised and whole


def check(template: Template, exchanges: Iterable[Exchange]) -> Report:
    """Raises TemplateInvalid."""
    mine = [e for e in exchanges if e.workflow_type == template.workflow_type]
    checker = _Checker(template)
    for workflow_id, of_workflow in by_workflow(mine).items():
        checker.workflow(workflow_id, of_workflow)
    return checker.report


@dataclass(slots=True)
class _Chain:
    """A selection that was made, and the context that a fill of it would have had so far."""

    point: DecisionPoint
    selection: str
    context: WorkflowContext
    left: list[str]


class _Checker:
    def __init__(self, template: Template) -> None:
        self._template = template
        self._follower = Follower(template)
        self._renderer = JinjaRenderer(template)
        self._slots = SlotRenderer(template)
        self.report = Report(
            stages={stage.name: StageCount() for stage in template.stages},
            points={point.name: PointCount() for point in template.decision_points},
        )

    def workflow(self, workflow_id: str, exchanges: list[Exchange]) -> None:
        run = _Run(self, workflow_id)
        self.report.workflows += 1
        for event in events(exchanges):
            if event.answered:
                run.answered(event.number, event.exchange)
            else:
                run.arrived(event.number, event.exchange)

    def stage_of(self, exchange: Exchange) -> Stage | None:
        recogniser = self._follower.recogniser
        stage = recogniser.stage_of(exchange.kind, exchange.target, exchange.body, exchange.stage)
        if stage is not None:
            untagged = recogniser.stage_of(exchange.kind, exchange.target, exchange.body)
            self.report.stages[stage.name].told_apart += untagged is stage
        return stage

    def follow_arrival(self, context: WorkflowContext, stage: str, body: Json) -> Followed:
        return self._follower.arrived(context, stage, body)

    def follow_output(self, context: WorkflowContext, stage: str, output: Output) -> Followed:
        return self._follower.gave(context, stage, output)

    def points_at(self, origin: Origin, stage: str) -> Iterator[DecisionPoint]:
        for point in self._template.decision_points:
            if point.resolved_by.origin is origin and point.resolved_by.name == stage:
                yield point

    def windows_at(self, window: Window, stage: str) -> Iterator[DecisionPoint]:
        for point in self._template.decision_points:
            if point.window is window and point.stage == stage:
                yield point

    def count_offer(self, point: DecisionPoint, context: WorkflowContext, selected: tuple[str, ...]) -> None:
        offered = self._follower.offered(point, context)
        if offered.menu is None:
            return
        count = self.report.points[point.name]
        count.offered += 1
        count.menu_sizes.append(len(offered.menu))
        count.in_menu += set(selected) <= set(offered.menu)

    def count_visibility(self, point: DecisionPoint, output: Output) -> None:
        watch = self._follower.selectors[point.name].watch()
        pieces = tuple((i, call.name, call.arguments) for i, call in enumerate(output.calls))
        closed = [c for c in watch.feed(Added(output.text, pieces)) if c.closed]
        length = len(output.text) + sum(len(call.arguments) for call in output.calls)
        if closed and length:
            self.report.points[point.name].visible_after.append(min(1.0, closed[0].at / length))

    def compare(
        self,
        stage: Stage,
        context: WorkflowContext,
        exchange: Exchange,
        selections: tuple[str | None, ...],
        found: Difference,
    ) -> Difference | None:
        """None where one of the selections renders what was sent, and declares what was declared."""
        body = exchange.body
        told: Difference | None = None
        for selection in selections:
            try:
                rendered = self._renderer.render(stage.name, context, selection)
                reads = self._renderer.reads(stage.name, context, selection)
            except RenderFailed as error:
                told = told or _with(found, problem=error.message)
                continue
            if rendered == body:
                if exchange.reads is None or set(exchange.reads) == set(reads):
                    return None
                told = _with(found, problem=f"declared {sorted(exchange.reads)}, not {sorted(reads)}")
                continue
            told = told or self._difference(stage, context, selection, body, rendered, found)
        return told

    def _difference(
        self,
        stage: Stage,
        context: WorkflowContext,
        selection: str | None,
        body: bytes,
        rendered: bytes,
        found: Difference,
    ) -> Difference:
        sent, wrote = body.decode("utf-8", "replace"), rendered.decode()
        offset = next(
            (i for i, (a, b) in enumerate(zip(sent, wrote, strict=False)) if a != b),
            min(len(sent), len(wrote)),
        )
        slots = [s for s in self._slots.slots(stage.name, context, selection) if s.begin <= offset <= s.end]
        narrowest = min(slots, key=lambda s: s.end - s.begin, default=None)
        begin = max(0, offset - AROUND_CHARACTERS)
        return _with(
            found,
            offset=len(sent[:offset].encode()),
            sent=sent[begin : offset + AROUND_CHARACTERS],
            rendered=wrote[begin : offset + AROUND_CHARACTERS],
            slot="" if narrowest is None else narrowest.expression,
        )


class _Run:
    """One workflow of the traffic."""

    def __init__(self, checker: _Checker, workflow_id: str) -> None:
        self._checker = checker
        self._report = checker.report
        self._id = workflow_id
        self._context = WorkflowContext()
        self._stages: dict[int, Stage] = {}
        self._opened: dict[str, WorkflowContext] = {}
        self._chains: list[_Chain] = []
        self._chain_of: dict[int, _Chain] = {}
        self._seen: Counter[str] = Counter()

    def arrived(self, number: int, exchange: Exchange) -> None:
        self._report.requests += 1
        stage = self._checker.stage_of(exchange)
        if stage is None:
            tag = exchange.stage or f"{exchange.kind.value} {exchange.target}"
            self._report.unrecognised.append(f"{self._id}: {tag}")
            return
        self._stages[number] = stage
        try:
            body = parse_body(exchange.body).value
        except InvalidRequest as error:
            self._report.unrecognised.append(f"{self._id}: {stage.name}: {error.message}")
            return
        followed = self._checker.follow_arrival(self._context, stage.name, body)
        self._resolved(Origin.REQUEST, stage.name, followed)
        self._context = followed.context
        for point in self._checker.windows_at(Window.DECODE, stage.name):
            self._opened[point.name] = self._context
        as_fill = self._judge_fill(number, stage, exchange)
        if as_fill is None or isinstance(as_fill, Difference):
            equal = self._judge(stage, exchange)
            if equal and as_fill is not None:
                self._tell(stage, as_fill)
        else:
            # Of several chains at once only the chain itself knows which outputs are its own.
            self._report.stages[stage.name].seen += 1
            self._report.stages[stage.name].equal += 1
        self._seen[stage.name] += 1

    def answered(self, number: int, exchange: Exchange) -> None:
        stage = self._stages.get(number)
        if stage is None or exchange.output is None:
            return
        followed = self._checker.follow_output(self._context, stage.name, exchange.output)
        for point in self._checker.points_at(Origin.OUTPUT, stage.name):
            self._checker.count_visibility(point, exchange.output)
        self._resolved(Origin.OUTPUT, stage.name, followed)
        self._context = followed.context
        for point in self._checker.windows_at(Window.WAIT, stage.name):
            self._opened[point.name] = self._context
        chain = self._chain_of.get(number)
        if chain is not None:
            chain.context = chain.context.with_output(stage.name, exchange.output)

    def _resolved(self, origin: Origin, stage: str, followed: Followed) -> None:
        for resolution in followed.resolutions:
            count = self._report.points[resolution.point]
            count.asked += 1
            point = self._point(origin, stage, resolution.point)
            match resolution.selected:
                case None:
                    count.nothing += 1
                case Ambiguous(reason):
                    count.ambiguous[reason] += 1
                case selected:
                    count.read += 1
                    before = self._opened.get(point.name, self._context)
                    self._checker.count_offer(point, before, selected)
                    self._chains += [_Chain(point, s, before, [*point.then]) for s in selected]

    def _point(self, origin: Origin, stage: str, name: str) -> DecisionPoint:
        return next(p for p in self._checker.points_at(origin, stage) if p.name == name)

    def _judge(self, stage: Stage, exchange: Exchange) -> bool:
        """As the demand that it was: everything before it is known."""
        count = self._report.stages[stage.name]
        count.seen += 1
        found = Difference(self._id, stage.name, self._seen[stage.name])
        difference = self._checker.compare(stage, self._context, exchange, self._selections(stage), found)
        if difference is None:
            count.equal += 1
        else:
            self._tell(stage, difference)
        return difference is None

    def _tell(self, stage: Stage, difference: Difference) -> None:
        count = self._report.stages[stage.name]
        if len(count.differences) < MAX_TOLD:
            count.differences.append(difference)

    def _selections(self, stage: Stage) -> tuple[str | None, ...]:
        """Each of the last selection's parts where parallel calls chose several."""
        for chain in reversed(self._chains):
            if stage.name in chain.point.then:
                last = self._context.selections.get(chain.point.name, ((),))[-1]
                return last if len(last) > 1 else (None,)
        return (None,)

    def _judge_fill(self, number: int, stage: Stage, exchange: Exchange) -> Difference | bool | None:
        """As a fill: from what was known when the branch could open, and from the chain's own results, which
        are the recorded ones. True: equal; None: no chain leads here."""
        chains = [c for c in self._chains if c.left and c.left[0] == stage.name]
        if not chains:
            return None
        count = self._report.stages[stage.name]
        count.fills += 1
        told: Difference | None = None
        for chain in reversed(chains):
            found = Difference(self._id, stage.name, self._seen[stage.name], as_fill=True)
            difference = self._checker.compare(stage, chain.context, exchange, (chain.selection,), found)
            if difference is None:
                count.fills_equal += 1
                chain.left.pop(0)
                self._chain_of[number] = chain
                return True
            told = told or difference
        chains[-1].left.pop(0)
        self._chain_of[number] = chains[-1]
        return told


def _with(found: Difference, **known: str | int) -> Difference:
    values = {name: getattr(found, name) for name in Difference.__slots__}
    return Difference(**{**values, **known})
