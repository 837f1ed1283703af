"""What an operator sets about admission: a policy per workflow type and tenant, a budget of engine time per
tenant, and deciding without running anything."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from dynbranch.controller.core.branches.admission import (
    Admission,
    Always,
    Asked,
    Decision,
    LoadView,
    Off,
    Offered,
    PolicyName,
    Static,
    Verdict,
)
from dynbranch.controller.core.branches.budgets import Budgeted, Ledger
from dynbranch.controller.core.branches.experience import (
    BranchOver,
    Experience,
    FillDemanded,
    FillOver,
    StageExecuted,
)
from dynbranch.controller.core.branches.priced import LoadPriced
from dynbranch.controller.core.predictors.port import Coordinate
from dynbranch.controller.core.pricing.gate import Gate
from dynbranch.controller.core.pricing.trials import StageUse
from dynbranch.domain.ids import Instant, TrialId
from dynbranch.domain.template import Branching

MOST_REHEARSED = 16_384
"""Branches under way whose fills would have run."""
MOST_STAGES = 4096
STAGE_MS = 1000.0
"""What a stage is taken to run that no harness has waited for yet."""


@dataclass(frozen=True, slots=True)
class Controls:
    """``policies`` by ``type@tenant``, ``@tenant`` or ``type``, in this order; else ``policy``.
    ``engine_s``: engine seconds that one tenant's fills may use an hour, None: no bound."""

    policy: PolicyName = PolicyName.PRICED
    width: int = 3
    policies: Mapping[str, PolicyName] = field(default_factory=dict)
    engine_s: float | None = None
    engine_s_of: Mapping[str, float] = field(default_factory=dict)
    dryrun: bool = False


def controlled(controls: Controls, gate: Gate | None = None, ledger: Ledger | None = None) -> Admission:
    gate = gate or Gate()
    names = {controls.policy, *controls.policies.values()}
    made = {name: _policy(name, controls.width, gate) for name in names}
    admission = made[controls.policy]
    if controls.policies:
        admission = PerPlace(admission, {place: made[name] for place, name in controls.policies.items()})
    ledger = ledger or Ledger(controls.engine_s, controls.engine_s_of)
    if ledger.bounds:
        admission = Budgeted(admission, ledger)
    return DryRun(admission) if controls.dryrun else admission


def _policy(name: PolicyName, width: int, gate: Gate) -> Admission:
    match name:
        case PolicyName.OFF:
            return Off()
        case PolicyName.ALWAYS:
            return Always(width)
        case PolicyName.STATIC:
            return Static(width)
        case PolicyName.PRICED:
            return LoadPriced(gate, width=width)


class PerPlace:
    """Each policy hears everything: what another one's branches come to teaches, too."""

    def __init__(self, default: Admission, places: Mapping[str, Admission]) -> None:
        self._default = default
        self._places = dict(places)
        distinct = {id(one): one for one in (default, *places.values())}
        self._all = tuple(distinct.values())

    def open(self, asked: Asked, load: LoadView) -> Decision:
        return self._at(asked.coordinate).open(asked, load)

    def admit(self, asked: Asked, offered: Sequence[Offered], load: LoadView) -> tuple[Verdict, ...]:
        return self._at(asked.coordinate).admit(asked, offered, load)

    def hear(self, news: Experience, now: Instant) -> None:
        for policy in self._all:
            policy.hear(news, now)

    def validate_state(self) -> None:
        for policy in self._all:
            policy.validate_state()

    def _at(self, where: Coordinate) -> Admission:
        kind, tenant = where.workflow_type_id, where.tenant
        for place in (f"{kind}@{tenant}", f"@{tenant}", kind):
            if place in self._places:
                return self._places[place]
        return self._default


@dataclass(slots=True)
class Rehearsed:
    """What would have become of fills, all together. ``cost_ms``: what they would have held up, by their
    price where they have one."""

    fills: int = 0
    consumed: int = 0
    saved_ms: float = 0.0
    used_ms: float = 0.0
    cost_ms: float = 0.0


@dataclass(frozen=True, slots=True)
class _Imagined:
    offered: Offered
    cost_ms: float
    after_ms: float
    """From the branch's opening to where it would have begun."""
    exclusive: bool
    coordinate: Coordinate


class DryRun:
    """Decides and records, and nothing runs. What is admitted is played in mind: it would have run as long as
    harnesses were seen to wait for its stages, and of that the window would have hidden what was left of it.
    The policy within learns from that as from what happens."""

    def __init__(self, inner: Admission) -> None:
        self._inner = inner
        self._imagined: OrderedDict[TrialId, list[_Imagined]] = OrderedDict()
        self._stages: OrderedDict[tuple[str, str], tuple[float, int]] = OrderedDict()
        self.total = Rehearsed()

    def open(self, asked: Asked, load: LoadView) -> Decision:
        return self._inner.open(asked, load)

    def admit(self, asked: Asked, offered: Sequence[Offered], load: LoadView) -> tuple[Verdict, ...]:
        guesses = sum(one.offered.guessed for one in self._imagined.get(asked.trial_id, ()))
        verdicts = self._inner.admit(replace(asked, admitted=guesses), offered, load)
        by_selection = {one.selection: one for one in offered}
        told = []
        for verdict in verdicts:
            if verdict.admitted:
                self._imagine(asked, by_selection[verdict.selection], verdict)
                verdict = replace(verdict, admitted=False, reason=f"dry run: {verdict.reason}")
            told.append(verdict)
        return tuple(told)

    def hear(self, news: Experience, now: Instant) -> None:
        self._inner.hear(news, now)
        match news:
            case StageExecuted(workflow_type_id, stage, execution_ms):
                total, count = self._stages.get((workflow_type_id, stage), (0.0, 0))
                self._stages[workflow_type_id, stage] = (total + execution_ms, count + 1)
                while len(self._stages) > MOST_STAGES:
                    self._stages.popitem(last=False)
            case BranchOver(trial_id):
                for one in self._imagined.pop(trial_id, ()):
                    self._play(one, news, now)
            case _:
                pass

    def validate_state(self) -> None:
        self._inner.validate_state()
        assert len(self._imagined) <= MOST_REHEARSED

    def _imagine(self, asked: Asked, offered: Offered, verdict: Verdict) -> None:
        one = _Imagined(
            offered,
            dict(verdict.numbers).get("cost_ms", 0.0),
            (asked.now - asked.opened) * 1000,
            asked.branching is Branching.EXCLUSIVE,
            asked.coordinate,
        )
        self._imagined.setdefault(asked.trial_id, []).append(one)
        while len(self._imagined) > MOST_REHEARSED:
            self._imagined.popitem(last=False)

    def _play(self, one: _Imagined, over: BranchOver, now: Instant) -> None:
        offered, kind = one.offered, one.coordinate.workflow_type_id
        runs_ms = [self._execution_ms(kind, stage) for stage in offered.chain]
        won = over.selections is not None and offered.selection in over.selections
        left_ms = 0.0 if over.window_ms is None else max(0.0, over.window_ms - one.after_ms)
        saved_ms = min(sum(runs_ms), left_ms) if won else 0.0
        stages, used_ms = [], 0.0
        for stage, run_ms in zip(offered.chain, runs_ms, strict=True):
            # A loser of an exclusive branch ends with it.
            if one.exclusive and not won:
                run_ms = min(run_ms, max(0.0, left_ms - used_ms))
            stages.append(StageUse(stage, run_ms))
            used_ms += run_ms
        total = self.total
        total.fills += 1
        total.consumed += won
        total.saved_ms += saved_ms
        total.used_ms += used_ms
        total.cost_ms += 0.0 if won else one.cost_ms
        if won:
            for number in range(len(stages)):
                part = saved_ms if number == 0 else 0.0
                self._inner.hear(FillDemanded(over.trial_id, offered.fill_id, number, part), now)
        selected = None if over.selections is None else won
        self._inner.hear(
            FillOver(
                over.trial_id,
                offered.fill_id,
                one.coordinate,
                tuple(stages),
                selected,
                won,
                saved_ms,
                ran=True,
            ),
            now,
        )

    def _execution_ms(self, workflow_type_id: str, stage: str) -> float:
        total, count = self._stages.get((workflow_type_id, stage), (0.0, 0))
        return total / count if count else STAGE_MS
