"""What becomes of branches and engines, as a policy that learns hears it. Each once, in any order."""

from __future__ import annotations

from dataclasses import dataclass

from dynbranch.controller.core.predictors.port import Coordinate
from dynbranch.controller.core.pricing.trials import StageUse
from dynbranch.domain.ids import FillId, TrialId


@dataclass(frozen=True, slots=True)
class EngineLoad:
    """One engine as a fill would find it. ``canonical`` counts what harnesses wait for, ``fills`` everything
    that runs ahead, ``reserved`` this controller's own part of it, also what has not begun yet. The narrowest
    limits for fills: ``fill_slots``, and ``kv_budget`` in tokens (0: none), of which ``kv_tokens`` are
    reserved."""

    address: str
    slots: int
    canonical: int
    waiting: int
    fills: int
    reserved: int
    serves_models: bool = True
    fill_slots: int = 0
    kv_tokens: int = 0
    kv_budget: int = 0

    @property
    def free(self) -> int:
        return max(0, self.slots - self.canonical - max(self.fills, self.reserved))


@dataclass(frozen=True, slots=True)
class LoadSeen:
    load: EngineLoad


@dataclass(frozen=True, slots=True)
class EngineLost:
    address: str


@dataclass(frozen=True, slots=True)
class StageExecuted:
    """A harness waited for it."""

    workflow_type_id: str
    stage: str
    execution_ms: float


@dataclass(frozen=True, slots=True)
class StageSized:
    workflow_type_id: str
    stage: str
    tokens: int


@dataclass(frozen=True, slots=True)
class SetupSpent:
    """On prediction and expansion."""

    trial_id: TrialId
    spent_ms: float


@dataclass(frozen=True, slots=True)
class SelectionTold:
    """Of every predicted candidate its rank, None for what showed in the decode, and whether it was
    selected. ``spoken``: the same of every one that the decode spoke of."""

    coordinate: Coordinate
    chosen_by_rank: tuple[tuple[int | None, bool], ...]
    spoken: tuple[bool, ...] = ()


@dataclass(frozen=True, slots=True)
class BranchOver:
    """``selections`` and ``window_ms`` are None where the selection can not be told. ``recorded``: the
    decision stood already, so that there was nothing to wait for."""

    trial_id: TrialId
    selections: tuple[str, ...] | None = None
    window_ms: float | None = None
    recorded: bool = False


@dataclass(frozen=True, slots=True)
class FillDemanded:
    """At promotion or adoption of one of its stages, whoever demanded it."""

    trial_id: TrialId
    fill_id: FillId
    stage: int
    saved_ms: float


@dataclass(frozen=True, slots=True)
class FillOver:
    """Its branch has resolved, too. ``selected`` is None where the selection can not be told. ``ran``: at
    least one stage was executed for it."""

    trial_id: TrialId
    fill_id: FillId
    coordinate: Coordinate
    stages: tuple[StageUse, ...]
    selected: bool | None
    consumed: bool
    saved_ms: float
    ran: bool

    @property
    def used_ms(self) -> float:
        return sum(stage.used_ms for stage in self.stages)


@dataclass(frozen=True, slots=True)
class TimeWent:
    """Nothing but time."""


Experience = (
    LoadSeen
    | EngineLost
    | StageExecuted
    | StageSized
    | SetupSpent
    | SelectionTold
    | BranchOver
    | FillDemanded
    | FillOver
    | TimeWent
)
