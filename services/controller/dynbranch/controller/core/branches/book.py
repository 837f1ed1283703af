"""The book of branches: every decision point's open instances, from the first event to the last settlement.

Pure. Events and the time come in, effects go out; what each event costs does not depend on how many other
branches there are. Resolving a branch costs its candidates, settling one its fills.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import assert_never

from dynbranch.controller.core.branches.admission import Admission
from dynbranch.controller.core.branches.experience import (
    EngineLost,
    FillDemanded,
    LoadSeen,
    StageExecuted,
    StageSized,
    TimeWent,
)
from dynbranch.controller.core.branches.filling import DEMANDED, Filling
from dynbranch.controller.core.branches.instances import Bounds, OpenBranches
from dynbranch.controller.core.branches.messages import (
    CandidatesProposed,
    ChoiceShown,
    Effect,
    EngineGone,
    EngineSeen,
    Event,
    FillsDiscarded,
    Settled,
    StageAnswered,
    StageArrived,
    StageBegan,
    StageEnded,
    StagePrepared,
    TimePassed,
    workflow_of,
)
from dynbranch.controller.core.branches.records import Branch, Fill
from dynbranch.controller.core.branches.reservations import Quota
from dynbranch.controller.core.branches.workflows import Arrived, Occurrence, Workflow, Workflows
from dynbranch.domain.events import Selection
from dynbranch.domain.fills import DiscardReason, Settlement
from dynbranch.domain.ids import DemandId, Instant, UnixMs
from dynbranch.domain.template import (
    DecisionPoint,
    Moment,
    MomentKind,
    Origin,
    Window,
)

MAX_EARLY = 4096
"""Answers and choices that came before their arrival, of all workflows."""


class BranchBook:
    def __init__(
        self, admission: Admission, *, bounds: Bounds | None = None, quota: Quota | None = None
    ) -> None:
        self.bounds = bounds or Bounds()
        self.admission = admission
        self.filling = Filling(quota or Quota())
        self.workflows = Workflows(most=self.bounds.workflows, ttl_s=self.bounds.workflow_ttl_s)
        self.branches = OpenBranches(admission, self.filling, self.bounds)
        self._early: OrderedDict[DemandId, list[StageAnswered | ChoiceShown]] = OrderedDict()
        self.turned_away = 0
        """Openings for which there was no room, or no complete workflow."""
        self.late_openings = 0

    # -- hearing -------------------------------------------------------------------------------------------

    def handle(self, event: Event, now: Instant) -> list[Effect]:
        out: list[Effect] = []
        match event:
            case StageArrived():
                self._arrived(event, now, out)
            case StageAnswered():
                self._answered(event, now, out)
            case ChoiceShown():
                self._shown(event, now, out)
            case CandidatesProposed():
                self.branches.proposed(event, now, out)
            case Settled(settlement):
                self._settlement(settlement, now, out)
            case EngineSeen() | EngineGone():
                self._engine(event, now, out)
            case TimePassed():
                self._pass(now, out)
                self.admission.hear(TimeWent(), now)
            case _:
                self._stage(event, now, out)
        return out

    def _stage(
        self,
        event: StagePrepared | StageBegan | StageEnded | FillsDiscarded,
        now: Instant,
        out: list[Effect],
    ) -> None:
        match event:
            case StagePrepared():
                self.filling.prepared(event, now, out)
                fill = self.filling.get(event.key.fill_id)
                if fill is not None:
                    self._size(fill, event, now)
                self.branches.look_at(fill, now, out)
            case StageBegan():
                self.filling.began(event, now, out)
            case StageEnded():
                self.branches.look_at(self.filling.ended(event, now, out), now, out)
            case FillsDiscarded():
                branch = None if event.branch_id is None else self.branches.get(event.branch_id)
                if branch is not None:
                    branch.abort_ms.extend(event.abort_ms)
                for fill in self.filling.discarded(event, out):
                    self.branches.look_at(fill, now, out)
            case _:
                assert_never(event)

    def _size(self, fill: Fill, event: StagePrepared, now: Instant) -> None:
        workflow_type_id, stage = fill.branch.workflow.workflow_type_id, fill.chain[event.key.number]
        self.admission.hear(StageSized(workflow_type_id, stage, event.prepared.tokens), now)

    def _engine(self, event: EngineSeen | EngineGone, now: Instant, out: list[Effect]) -> None:
        match event:
            case EngineSeen():
                self.filling.reservations.see(event)
                self.admission.hear(LoadSeen(self.filling.reservations.load_of(event.address)), now)
            case EngineGone(address):
                self.filling.lose_engine(address, out)
                self.admission.hear(EngineLost(address), now)
            case _:
                assert_never(event)

    def _pass(self, now: Instant, out: list[Effect]) -> None:
        self.branches.pass_time(now, out)
        for workflow in self.workflows.silent(now):
            self._end_workflow(workflow, now, out)

    # -- workflows -----------------------------------------------------------------------------------------

    def _arrived(self, event: StageArrived, now: Instant, out: list[Effect]) -> None:
        key = workflow_of(event.identity, event.passport.holder)
        if not key.workflow_id:
            return
        workflow = self.workflows.hear(key, event.template, now)
        if event.demand_id in workflow.arrivals:
            return
        workflow.passport = event.passport
        workflow.inputs.update(event.values)
        agent_id = event.identity.agent_id
        arrived = workflow.arrive(event.demand_id, event.stage, agent_id)
        self.workflows.remember(workflow, event.demand_id)
        for selection in event.selections:
            self._picked(workflow, arrived, selection, now, out)
        for point in workflow.template.decision_points:
            if point.stage == event.stage:
                self._occur(workflow, point, event.demand_id, arrived)
        moment = Moment(MomentKind.ARRIVAL, event.stage)
        self._open_all(workflow, moment, event.demand_id, arrived, event.at, now, out)
        for early in self._early.pop(event.demand_id, ()):
            out.extend(self.handle(early, now))

    def _occur(self, workflow: Workflow, point: DecisionPoint, demand_id: DemandId, arrived: Arrived) -> None:
        """The decision's own stage begins: a branch that opened early is this one's."""
        occurrence = workflow.occur(point, demand_id, arrived)
        waiting = [place for place in workflow.early if place[0] == point.name]
        own = (point.name, arrived.agent_id)
        # One agent may have opened what another decides: a researcher reports, its lead goes on.
        for place in [own] * (own in waiting) + [place for place in waiting if place != own]:
            branch = self.branches.unsettled(workflow.early.pop(place))
            if branch is not None and branch.unresolved:
                branch.demand_id = demand_id
                occurrence.branch_id = branch.branch_id
                return

    def _picked(
        self, workflow: Workflow, arrived: Arrived, selection: Selection, now: Instant, out: list[Effect]
    ) -> None:
        """A person's pick shows in a request: it decides what that agent was last asked."""
        point = _point(workflow, selection.decision_point)
        if point is None or point.resolved_by.origin is not Origin.REQUEST:
            return
        occurrence = workflow.last_undecided(point.name, arrived.number, arrived.agent_id)
        self._decide(workflow, occurrence, arrived.number, selection, "pick", now, out)

    def _answered(self, event: StageAnswered, now: Instant, out: list[Effect]) -> None:
        workflow = self.workflows.of_demand(event.demand_id)
        if workflow is None:
            self._keep_early(event.demand_id, event)
            return
        arrived = workflow.arrivals[event.demand_id]
        if arrived.answered:
            return
        arrived.answered = True
        self.workflows.touch(workflow, now)
        answer = None if event.failed else event.answer
        if answer is None:
            self._unreadable(workflow, event, arrived, now, out)
            return
        if event.outcome == "miss" and answer.execution_ms > 0:
            kind = workflow.key.workflow_type_id
            self.admission.hear(StageExecuted(kind, arrived.stage, answer.execution_ms), now)
        if answer.output is not None:
            workflow.put_output(arrived.stage, arrived.number, answer.output)
        else:
            workflow.incomplete = workflow.incomplete or f"an output of {arrived.stage} was too large to tell"
        told = {selection.decision_point: selection for selection in answer.selections}
        for point in workflow.template.decision_points:
            if point.resolved_by.origin is Origin.OUTPUT and point.resolved_by.name == arrived.stage:
                occurrence = workflow.occurrence_of(point.name, event.demand_id)
                if occurrence is None:
                    occurrence = workflow.last_undecided(point.name, arrived.number + 1, arrived.agent_id)
                # No selection at all is one, too: nothing of what was offered follows.
                selection = told.get(point.name, Selection(point.name))
                self._decide(workflow, occurrence, arrived.number, selection, event.outcome, now, out)
        moment = Moment(MomentKind.OUTPUT, arrived.stage)
        self._open_all(workflow, moment, event.demand_id, arrived, event.at, now, out)

    def _unreadable(
        self, workflow: Workflow, event: StageAnswered, arrived: Arrived, now: Instant, out: list[Effect]
    ) -> None:
        if not event.failed:
            workflow.incomplete = workflow.incomplete or f"an output of {arrived.stage} could not be read"
        for point in workflow.template.decision_points:
            occurrence = workflow.occurrence_of(point.name, event.demand_id)
            if occurrence is not None:
                lost = Selection(point.name, ambiguous=True)
                self._decide(workflow, occurrence, arrived.number, lost, event.outcome, now, out)

    def _shown(self, event: ChoiceShown, now: Instant, out: list[Effect]) -> None:
        workflow = self.workflows.of_demand(event.demand_id)
        if workflow is None:
            self._keep_early(event.demand_id, event)
            return
        self.workflows.touch(workflow, now)
        selection = event.selection
        occurrence = workflow.occurrence_of(selection.decision_point, event.demand_id)
        if occurrence is None or occurrence.over:
            return
        branch = self._branch_of(occurrence)
        if branch is not None and not selection.ambiguous:
            show = self.branches.hear_of if event.spoken else self.branches.see
            show(branch, selection.chosen, now, out)
        if event.closed and not event.spoken:
            number = workflow.arrivals[event.demand_id].number
            self._decide(workflow, occurrence, number, selection, "stream", now, out)

    def _keep_early(self, demand_id: DemandId, event: StageAnswered | ChoiceShown) -> None:
        kept = self._early.setdefault(demand_id, [])
        if len(kept) < 16 and event not in kept:
            kept.append(event)
        while len(self._early) > MAX_EARLY:
            self._early.popitem(last=False)

    def _branch_of(self, occurrence: Occurrence) -> Branch | None:
        return self.branches.unsettled(occurrence.branch_id)

    # -- opening -------------------------------------------------------------------------------------------

    def _open_all(
        self,
        workflow: Workflow,
        moment: Moment,
        demand_id: DemandId,
        arrived: Arrived,
        at: UnixMs,
        now: Instant,
        out: list[Effect],
    ) -> None:
        for point in workflow.template.decision_points:
            if moment not in point.opens:
                continue
            place = self._place(workflow, point, moment, demand_id, arrived)
            if isinstance(place, bool):
                continue
            if workflow.incomplete or self.branches.is_full:
                self.turned_away += 1
                continue
            # The window runs already, and a recorded answer would be told at once.
            held = moment == Moment(MomentKind.ARRIVAL, point.stage) and point.window is Window.DECODE
            not_before = Instant(now + self.bounds.hold_s) if held else now
            branch = self.branches.open(workflow, point, demand_id, arrived, at, now)
            if place is None:
                workflow.early[point.name, arrived.agent_id] = branch.branch_id
            else:
                place.branch_id, branch.demand_id = branch.branch_id, place.demand_id
            self.branches.ask(workflow, branch, not_before, out)

    def _place(
        self, workflow: Workflow, point: DecisionPoint, moment: Moment, demand_id: DemandId, arrived: Arrived
    ) -> Occurrence | bool | None:
        """The occurrence that an opening at this moment is for; None: one that is still to come; False: there
        is nothing to open."""
        if moment.stage == point.stage:
            occurrence = workflow.occurrence_of(point.name, demand_id)
        else:
            occurrence = workflow.next_occurrence(point.name, arrived.number, arrived.agent_id)
        if occurrence is None:
            known = self.branches.unsettled(workflow.early.get((point.name, arrived.agent_id)))
            return False if known is not None and known.unresolved else None
        if occurrence.over:
            self.late_openings += occurrence.branch_id is None
            return False
        return False if occurrence.branch_id is not None else occurrence

    # -- resolution ----------------------------------------------------------------------------------------

    def _decide(
        self,
        workflow: Workflow,
        occurrence: Occurrence | None,
        number: int,
        selection: Selection,
        how: str,
        now: Instant,
        out: list[Effect],
    ) -> None:
        if selection.chosen and not selection.ambiguous:
            workflow.put_selection(selection.decision_point, number, selection.chosen)
        if occurrence is None or occurrence.over:
            return
        occurrence.over = True
        branch = self._branch_of(occurrence)
        if branch is None or not branch.unresolved:
            return
        if selection.ambiguous:
            self.branches.blur(branch, how, now, out)
        else:
            self.branches.resolve(branch, selection.chosen, how, now, out)

    # -- settlement ----------------------------------------------------------------------------------------

    def _settlement(self, settlement: Settlement, now: Instant, out: list[Effect]) -> None:
        duplicates = self.filling.duplicates
        fill = self.filling.settle(settlement, now, out)
        if settlement.kind in DEMANDED and self.filling.duplicates == duplicates:
            origin = settlement.origin
            saved_ms = settlement.execution_ms if fill is None else fill.stages[origin.stage].saved_ms
            self.admission.hear(FillDemanded(origin.trial_id, origin.fill_id, origin.stage, saved_ms), now)
        if fill is None:
            return
        branch, by = fill.branch, settlement.demanded_by
        implied = (
            by is not None
            # Whoever found it by its name shares its holder.
            and workflow_of(by, branch.workflow.holder) == branch.workflow
            and branch.unresolved
            and branch.demand_id is not None
            and not branch.point.several
            # Of a request that two selections lead to, it does not say which was made.
            and not any(one is not fill and settlement.name in one.names() for one in branch.fills.values())
        )
        if implied:
            # Whoever demands what follows a selection has made it.
            self._close_occurrence(branch)
            self.branches.resolve(branch, (fill.selection,), "demand", now, out)
        self.branches.look_at(fill, now, out)

    def _close_occurrence(self, branch: Branch) -> None:
        workflow = self.workflows.get(branch.workflow)
        if workflow is None or branch.demand_id is None:
            return
        occurrence = workflow.occurrence_of(branch.point.name, branch.demand_id)
        if occurrence is not None:
            occurrence.over = True

    # -- time ----------------------------------------------------------------------------------------------

    def _end_workflow(self, workflow: Workflow, now: Instant, out: list[Effect]) -> None:
        self.workflows.end(workflow)
        for branch_id in tuple(workflow.branches):
            branch = self.branches.unsettled(branch_id)
            if branch is not None:
                self.branches.expire(branch, "the workflow is silent", DiscardReason.CANCELLED, now, out)

    def validate_state(self) -> None:
        self.admission.validate_state()
        self.filling.validate_state()
        self.workflows.validate_state()
        self.branches.validate_state()
        assert len(self._early) <= MAX_EARLY


def _point(workflow: Workflow, name: str) -> DecisionPoint | None:
    return next((point for point in workflow.template.decision_points if point.name == name), None)
