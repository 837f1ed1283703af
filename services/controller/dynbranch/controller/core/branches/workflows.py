"""Running workflows: what each has shown, where its decisions fall, and which of them fell already."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Any

from dynbranch.controller.core.branches.messages import Passport, WorkflowKey
from dynbranch.domain.ids import BranchId, DemandId, Instant
from dynbranch.domain.template import DecisionPoint, Output, Template, WorkflowContext

MAX_ARRIVALS = 4096
"""Per workflow; the oldest go first. A hundred hops of ten stages are a long workflow."""

MAX_OCCURRENCES = 256
"""Per decision point of a workflow."""

MAX_OUTPUTS = 4096
"""Of a workflow. Each branch is rendered from all of them, so beyond it nothing is either."""

MAX_CONTEXT_CHARACTERS = 16 * 2**20
"""Of outputs that a workflow's later requests may quote. Beyond it nothing of it can be rendered any more."""


@dataclass(slots=True)
class Arrived:
    """``number`` counts the arrivals of a workflow."""

    stage: str
    number: int
    agent_id: str
    answered: bool = False


@dataclass(slots=True)
class Occurrence:
    """One time that a decision falls, from the arrival of its stage on. ``over`` without a branch is the
    tombstone that a late opening finds."""

    demand_id: DemandId
    number: int
    agent_id: str
    branch_id: BranchId | None = None
    over: bool = False


@dataclass(slots=True)
class Workflow:
    """``incomplete`` says why nothing of it can be rendered any more; empty while it can."""

    key: WorkflowKey
    template: Template
    last_heard: Instant
    passport: Passport = field(default_factory=Passport)
    inputs: dict[str, Any] = field(default_factory=dict)
    arrivals: OrderedDict[DemandId, Arrived] = field(default_factory=OrderedDict)
    occurrences: dict[str, list[Occurrence]] = field(default_factory=dict)
    early: dict[tuple[str, str], BranchId] = field(default_factory=dict)
    """Branches that wait for the arrival of their decision's stage, by point and agent."""
    branches: list[BranchId] = field(default_factory=list)
    incomplete: str = ""
    _outputs: dict[str, list[tuple[int, Output]]] = field(default_factory=dict)
    _selections: dict[str, list[tuple[int, tuple[str, ...]]]] = field(default_factory=dict)
    _characters: int = 0
    _count: int = 0
    _next: int = 0

    def arrive(self, demand_id: DemandId, stage: str, agent_id: str) -> Arrived:
        arrived = Arrived(stage, self._next, agent_id)
        self._next += 1
        self.arrivals[demand_id] = arrived
        return arrived

    def put_output(self, stage: str, number: int, output: Output) -> None:
        """In the order of arrivals, whatever order answers come in."""
        self._characters += len(output.text) + sum(len(call.arguments) for call in output.calls)
        self._count += 1
        if self._characters > MAX_CONTEXT_CHARACTERS:
            self._let_go(f"its outputs have more than {MAX_CONTEXT_CHARACTERS} characters")
            return
        if self._count > MAX_OUTPUTS:
            self._let_go(f"it has more than {MAX_OUTPUTS} outputs")
            return
        outputs = self._outputs.setdefault(stage, [])
        outputs.append((number, output))
        outputs.sort(key=lambda one: one[0])

    def _let_go(self, why: str) -> None:
        self.incomplete = why
        self._outputs.clear()
        self._selections.clear()

    def put_selection(self, point: str, number: int, chosen: tuple[str, ...]) -> None:
        if self.incomplete:
            return
        made = self._selections.setdefault(point, [])
        if any(known == number for known, _ in made):
            return
        made.append((number, chosen))
        made.sort(key=lambda one: one[0])

    def context(self) -> WorkflowContext:
        return WorkflowContext(
            dict(self.inputs),
            {stage: tuple(output for _, output in outputs) for stage, outputs in self._outputs.items()},
            {point: tuple(chosen for _, chosen in made) for point, made in self._selections.items()},
        )

    def trail(self) -> tuple[str, ...]:
        """Selections at any decision point, oldest first."""
        made = sorted(one for found in self._selections.values() for one in found)
        return tuple(selection for _, chosen in made for selection in chosen)

    # -- occurrences ---------------------------------------------------------------------------------------

    def occur(self, point: DecisionPoint, demand_id: DemandId, arrived: Arrived) -> Occurrence:
        found = self.occurrences.setdefault(point.name, [])
        occurrence = Occurrence(demand_id, arrived.number, arrived.agent_id)
        found.append(occurrence)
        del found[:-MAX_OCCURRENCES]
        return occurrence

    def occurrence_of(self, point: str, demand_id: DemandId) -> Occurrence | None:
        for occurrence in reversed(self.occurrences.get(point, ())):
            if occurrence.demand_id == demand_id:
                return occurrence
        return None

    def next_occurrence(self, point: str, number: int, agent_id: str) -> Occurrence | None:
        """The first one after an arrival of that number, of that agent if it has one."""
        later = [one for one in self.occurrences.get(point, ()) if one.number > number]
        own = [one for one in later if one.agent_id == agent_id]
        return next(iter(own or later), None)

    def last_undecided(self, point: str, number: int, agent_id: str) -> Occurrence | None:
        """The last one before an arrival of that number, of that agent if it has one."""
        before = [one for one in self.occurrences.get(point, ()) if one.number < number and not one.over]
        own = [one for one in before if one.agent_id == agent_id]
        return next(reversed(own or before), None)


class Workflows:
    """Bounded; the longest silent go first. ``silent`` gives those that are to be ended."""

    def __init__(self, *, most: int, ttl_s: float) -> None:
        self._most = most
        self._ttl_s = ttl_s
        self._known: OrderedDict[WorkflowKey, Workflow] = OrderedDict()
        self._of_demand: dict[DemandId, WorkflowKey] = {}

    def __len__(self) -> int:
        return len(self._known)

    def get(self, key: WorkflowKey) -> Workflow | None:
        return self._known.get(key)

    def of_demand(self, demand_id: DemandId) -> Workflow | None:
        key = self._of_demand.get(demand_id)
        return None if key is None else self._known.get(key)

    def hear(self, key: WorkflowKey, template: Template, now: Instant) -> Workflow:
        workflow = self._known.get(key)
        if workflow is None:
            workflow = self._known[key] = Workflow(key, template, now)
        self.touch(workflow, now)
        workflow.template = template
        return workflow

    def touch(self, workflow: Workflow, now: Instant) -> None:
        workflow.last_heard = now
        self._known.move_to_end(workflow.key)

    def remember(self, workflow: Workflow, demand_id: DemandId) -> None:
        """The demand's answer will come."""
        self._of_demand[demand_id] = workflow.key
        while len(workflow.arrivals) > MAX_ARRIVALS:
            forgotten, _ = workflow.arrivals.popitem(last=False)
            self._of_demand.pop(forgotten, None)

    def silent(self, now: Instant) -> list[Workflow]:
        found = []
        for number, workflow in enumerate(self._known.values()):
            too_many = len(self._known) - number > self._most
            if not too_many and now - workflow.last_heard <= self._ttl_s:
                break
            found.append(workflow)
        return found

    def end(self, workflow: Workflow) -> None:
        del self._known[workflow.key]
        for demand_id in workflow.arrivals:
            self._of_demand.pop(demand_id, None)

    def validate_state(self) -> None:
        heard = [workflow.last_heard for workflow in self._known.values()]
        assert heard == sorted(heard)
        known = {demand for workflow in self._known.values() for demand in workflow.arrivals}
        assert set(self._of_demand) == known
