"""What is known of one branch, its candidates and its fills."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from dynbranch.controller.core.branches.admission import Decision
from dynbranch.controller.core.branches.lifecycle import (
    BRANCH,
    FILL,
    FILL_ENDS,
    UNRESOLVED,
    USED,
    BranchMove,
    BranchState,
    FillMove,
    FillState,
    moved,
)
from dynbranch.controller.core.branches.messages import Passport, PredictorAnswer, StageKey, WorkflowKey
from dynbranch.controller.core.predictors.port import Coordinate
from dynbranch.domain.ids import BranchId, DemandId, FillId, Instant, Name, TrialId, UnixMs
from dynbranch.domain.reuse import FillOrigin, GenerationRef
from dynbranch.domain.template import DecisionPoint, Template, WorkflowContext


@dataclass(slots=True)
class StageRun:
    """One stage of a fill. ``active``: the shell works on it, and will say that it has ended. ``used_ms`` is
    engine time spent for it, ``saved_ms`` what a demand did not have to wait for."""

    key: StageKey
    stage: str
    state: FillState = FillState.ADMITTED
    active: bool = True
    engine: str = ""
    name: Name | None = None
    once: bool = False
    generation: GenerationRef | None = None
    began: Instant | None = None
    ended: bool = False
    adopted: Instant | None = None
    adoption_over: Instant | None = None
    used_ms: float = 0.0
    saved_ms: float = 0.0
    reason: str = ""

    def move(self, move: FillMove) -> None:
        self.state = moved(FILL, self.state, move)

    def may(self, move: FillMove) -> bool:
        return (self.state, move) in FILL

    @property
    def is_over(self) -> bool:
        return self.state in FILL_ENDS and not self.active


@dataclass(slots=True)
class Fill:
    """``chain`` are the stages that it may run, ``stages`` those that were begun, ``priced_at`` an engine.
    ``lost``: no further one begins. ``immune``: it was demanded before the store heard of its loss.
    ``spared``: its selection lost, but what it runs is what the one that won would have run."""

    fill_id: FillId
    branch: Branch
    selection: str
    chain: tuple[str, ...]
    context: WorkflowContext
    priced_at: str = ""
    stages: list[StageRun] = field(default_factory=list)
    lost: str = ""
    immune: bool = False
    spared: bool = False
    told: bool = False
    learned: bool = False

    @property
    def is_over(self) -> bool:
        for stage in self.stages:  # noqa: SIM110 -- asked at every turn of a branch
            if stage.active or stage.state not in FILL_ENDS:
                return False
        return True

    @property
    def consumed(self) -> bool:
        return any(stage.state in USED for stage in self.stages)

    @property
    def state(self) -> str:
        """The furthest stage's, for people."""
        return self.stages[-1].state.value if self.stages else FillState.ADMITTED.value

    @property
    def used_ms(self) -> float:
        return sum(stage.used_ms for stage in self.stages)

    @property
    def saved_ms(self) -> float:
        return sum(stage.saved_ms for stage in self.stages)

    @property
    def discarded_ms(self) -> float:
        return sum(s.used_ms for s in self.stages if s.state in FILL_ENDS and s.state not in USED)

    def names(self) -> frozenset[Name]:
        """Of the requests that it runs, or has run."""
        return frozenset(stage.name for stage in self.stages if stage.name is not None)

    def leaned_on(self) -> frozenset[Name]:
        """Of those that another fill runs, or may: this one passes them over."""
        leaning = (FillState.ADMITTED, FillState.PASSED)
        return frozenset(s.name for s in self.stages if s.name is not None and s.state in leaning)

    def spare(self) -> None:
        """It ends where it stands, by a demand or by its time."""
        self.spared = True
        self.chain = self.chain[: len(self.stages)]

    def origin(self, number: int) -> FillOrigin:
        return FillOrigin(self.branch.branch_id, self.branch.trial_id, self.fill_id, number)


@dataclass(slots=True)
class CandidateRecord:
    """``selected`` is None until the branch has resolved. ``predicted``: it was in the ranking, not only
    seen or ``spoken`` of in the decode. ``guessed``: if it was admitted, then as a guess."""

    selection: str
    rank: int
    seen: bool = False
    spoken: bool = False
    guessed: bool = True
    predicted: bool = True
    admitted: bool = False
    reason: str = ""
    numbers: tuple[tuple[str, float], ...] = ()
    selected: bool | None = None


@dataclass(slots=True)
class Branch:
    """``demand_id`` is the arrival of the decision's own stage, None while a branch that opened early waits
    for it."""

    branch_id: BranchId
    trial_id: TrialId
    workflow: WorkflowKey
    agent_id: str
    template: Template
    point: DecisionPoint
    passport: Passport
    context: WorkflowContext
    opened: Instant
    opened_at: UnixMs
    expires: Instant
    decision: Decision
    number: int = 0
    """Counts the openings."""
    demand_id: DemandId | None = None
    state: BranchState = BranchState.OPENING
    proposed: bool = False
    candidates: list[CandidateRecord] = field(default_factory=list)
    fills: dict[str, Fill] = field(default_factory=dict)
    selections: tuple[str, ...] | None = None
    resolved: Instant | None = None
    resolved_by: str = ""
    spent_ms: float = 0.0
    answers: tuple[PredictorAnswer, ...] = ()
    settled: Instant | None = None
    abort_ms: list[float] = field(default_factory=list)

    def move(self, move: BranchMove) -> None:
        self.state = moved(BRANCH, self.state, move)

    @property
    def unresolved(self) -> bool:
        return self.state in UNRESOLVED

    @property
    def coordinate(self) -> Coordinate:
        return Coordinate(self.workflow.tenant, self.workflow.workflow_type_id, self.point.name)

    @property
    def consumed(self) -> int:
        return sum(fill.consumed for fill in self.fills.values())

    def let_go(self) -> None:
        """What only a fill needs is kept no longer than one may run: headers above all."""
        self.passport, self.context = Passport(), WorkflowContext()
        for fill in self.fills.values():
            fill.context = self.context

    def known(self, selection: str) -> CandidateRecord | None:
        return next((one for one in self.candidates if one.selection == selection), None)

    def stages(self) -> Iterator[StageRun]:
        for fill in self.fills.values():
            yield from fill.stages
