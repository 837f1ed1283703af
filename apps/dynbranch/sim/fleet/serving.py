"""DynBranch before a simulated fleet: the production cores, and the shells played on virtual time.

The store's library names what stands, the controller's book of branches decides what runs ahead, engines are
models. Nothing here decides anything.

Of a gateway: a request is demanded the moment it comes, its arrival told to the controller just before, its
answer told when it is given. Of an agent: a result is in the store when its execution ends. Aborts are
immediate. A canonical request runs where the fewest canonical ones are, as in every arm.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Final, assert_never

from dynbranch.controller.core.branches.admission import Admission, PolicyName
from dynbranch.controller.core.branches.controls import Controls, controlled
from dynbranch.controller.core.branches.instances import Bounds
from dynbranch.controller.core.branches.messages import (
    Answer,
    ChoiceShown,
    Passport,
    StageAnswered,
    StageArrived,
)
from dynbranch.controller.core.pricing.gate import Gate
from dynbranch.domain.events import Selection
from dynbranch.domain.ids import DemandId, RecordId
from dynbranch.domain.reuse import Demand, Hit, Identity, Lease, Live, Miss
from dynbranch.domain.template import Origin, Template, Window
from dynbranch.sim.fleet.accounts import Accounts
from dynbranch.sim.fleet.agents import Agents, End, Generation
from dynbranch.sim.fleet.controlling import OUTPUT, Ahead, Place
from dynbranch.sim.fleet.engines import Fleet
from dynbranch.sim.fleet.playing import Play, Records, Served, Then
from dynbranch.sim.fleet.store import NOWHERE, Names, Store, scope_of
from dynbranch.sim.fleet.workflows import Step, Turn, Workload, Write

ADDED_S: Final = 0.00184
"""What a request takes longer that DynBranch can not help: ``added_p50_ms`` of
bench/results/pass_through.json."""
HIT_S: Final = 0.00173
"""What a request takes whose result stands: ``p50_ms_c1`` of bench/results/hit_path.json."""
AGENT: Final = "main"
PASSPORT: Final = Passport("group", "scope")


@dataclass(slots=True, eq=False)
class _Asked:
    """One request of a harness under way."""

    demand_id: DemandId
    place: Place
    then: Then
    outcome: str = "miss"


class DynBranch:
    """``admission`` None: nothing runs ahead, and no controller is there. ``reuse``: results serve other
    workflows of their tenant; without it a workflow's names are its own. ``foreseen``: predictors are always
    right, at no time. ``streams``: choices are seen in decodes; ``speaks``: and names that are only spoken
    of, which tell nothing to who foresees."""

    def __init__(
        self,
        fleet: Fleet,
        records: Records,
        template: Template,
        admission: Admission | None,
        *,
        reuse: bool = True,
        foreseen: bool = False,
        streams: bool = True,
        speaks: bool = True,
        bounds: Bounds | None = None,
    ) -> None:
        self.ahead: Ahead | None = None
        self.store = Store(fleet.heap)
        self.agents = Agents(fleet, records, self.store, self._settle)
        self._fleet = fleet
        self._heap = fleet.heap
        self._template = template
        self._stages = {stage.name: stage for stage in template.stages}
        self._points = {point.name: point for point in template.decision_points}
        self._names = Names(shared=reuse)
        self._streams = streams
        self._speaks = speaks and not foreseen
        self._demands = 0
        if admission is not None:
            self.ahead = Ahead(
                fleet,
                self.agents,
                self.store,
                self._names,
                template,
                admission,
                foreseen=foreseen,
                bounds=bounds or Bounds(),
            )

    @property
    def accounts(self) -> Accounts:
        return Accounts() if self.ahead is None else self.ahead.accounts

    @property
    def is_quiet(self) -> bool:
        """Nothing runs, nothing is leased, nothing is reserved."""
        reserved = 0 if self.ahead is None else self.ahead.reserved
        return not (self.agents.running or self.store.leases or reserved)

    def validate_state(self) -> None:
        self._fleet.validate_state()
        self.store.validate_state()
        self.agents.validate_state()
        if self.ahead is not None:
            self.ahead.validate_state()

    # -- harnesses -----------------------------------------------------------------------------------------

    def begins(self, play: Play) -> float | None:
        return None

    def waits(self, play: Play, turn: Turn) -> None:
        pass

    def ends(self, play: Play) -> None:
        pass

    def write(self, write: Write) -> None:
        self.store.write(tuple(RecordId(record) for record in write.records))
        self._settle()

    def call(self, play: Play, step: Step, then: Then) -> None:
        call = step.call
        self._demands += 1
        demand_id = DemandId(self._demands.to_bytes(16, "big"))
        identity = Identity(play.workflow.tenant, self._template.workflow_type, play.name, AGENT)
        asked = _Asked(demand_id, Place(play, play.turn, play.step), then)
        if self.ahead is not None:
            picked = self._picked(asked.place)
            at = self.store.unix_ms
            arrived = StageArrived(at, demand_id, identity, self._template, call.stage, {}, picked, PASSPORT)
            self.ahead.tell(arrived, asked.place)
        scope = scope_of(self._stages.get(call.stage), call.reads)
        outcome = self.store.demand(Demand(demand_id, self._names.of(play, call), identity, scope, NOWHERE))
        match outcome:
            case Hit(payload=payload, execution_ms=execution_ms, promoted=promoted):
                asked.outcome = "hit" if promoted is None else "promoted"
                self._heap.after(HIT_S, partial(self._answer, asked, payload.decode(), execution_ms))
            case Live(generation=generation, adopted=adopted):
                asked.outcome = "joined" if adopted is None else "adopted"
                followed = self.agents.running[generation.generation_id]
                self.agents.follow(followed, partial(self._ended, asked), demanded=True)
                self._watch(asked, identity, followed)
            case Miss(lease=lease):
                self._execute(asked, identity, lease)
            case _:
                assert_never(outcome)
        self._settle()

    def _settle(self) -> None:
        if self.ahead is not None:
            self.ahead.drain()

    # -- one request ---------------------------------------------------------------------------------------

    def _execute(self, asked: _Asked, identity: Identity, lease: Lease | None) -> None:
        step = asked.place.here
        generation = self.agents.execute(
            self._fleet.least_canonical(),
            step.call,
            lease,
            partial(self._ended, asked),
            marks=tuple(dict.fromkeys(mark for mark, _ in self._shown_in(step))),
        )
        self._watch(asked, identity, generation)

    def _watch(self, asked: _Asked, identity: Identity, generation: Generation) -> None:
        decision = asked.place.here.decision
        for mark, name in self._shown_in(asked.place.here):
            assert self.ahead is not None and decision is not None
            told = Selection(decision.point, decision.picked if name is None else (name,))
            final = decision.final and name is None
            event = ChoiceShown(asked.demand_id, identity, told, final, spoken=name is not None)
            self.agents.watch(generation, mark, partial(self.ahead.tell, event))

    def _shown_in(self, step: Step) -> list[tuple[int, str | None]]:
        """What can be read in the step's decode and from which token on, if anybody looks: names that are
        spoken of, and the choice itself (None)."""
        decision = step.decision
        if self.ahead is None or not self._streams or decision is None:
            return []
        if self._points[decision.point].window is not Window.DECODE:
            return []
        marks: list[tuple[int, str | None]] = [*decision.spoken] if self._speaks else []
        if decision.shown_at is not None and decision.picked:
            marks.append((decision.shown_at, None))
        return marks

    def _ended(self, asked: _Asked, end: End) -> None:
        assert end.value is not None, "what is waited for is not aborted"
        self._heap.after(ADDED_S, partial(self._answer, asked, end.value, end.execution_ms))

    def _answer(self, asked: _Asked, value: str, execution_ms: float) -> None:
        if self.ahead is not None:
            answer = Answer(OUTPUT, self._selected(asked.place.here), execution_ms)
            told = StageAnswered(self.store.unix_ms, asked.demand_id, asked.outcome, answer=answer)
            self.ahead.tell(told, asked.place)
        asked.then(Served(asked.outcome, value))

    def _selected(self, step: Step) -> tuple[Selection, ...]:
        """What its output decides."""
        decision = step.decision
        if decision is None or self._points[decision.point].resolved_by.origin is not Origin.OUTPUT:
            return ()
        return (Selection(decision.point, decision.picked),)

    def _picked(self, place: Place) -> tuple[Selection, ...]:
        """What a person chose before this turn: its first request shows it."""
        if place.step or not place.turn:
            return ()
        before = place.play.workflow.turns[place.turn - 1].steps
        decided = [step.decision for step in before if step.decision is not None and step.decision.picked]
        return tuple(
            Selection(decision.point, decision.picked)
            for decision in decided
            if self._points[decision.point].resolved_by.origin is Origin.REQUEST
        )


@dataclass(frozen=True, slots=True)
class DynBranchArm:
    """``policy`` OFF: no controller is there. ``foreseen`` makes it an oracle: what will be picked is known,
    and everything else is as it is. ``judges``, ``fixed_threshold`` and ``exact`` as in ``Gate``."""

    name: str = "dynbranch"
    policy: PolicyName = PolicyName.PRICED
    reuse: bool = True
    foreseen: bool = False
    streams: bool = True
    speaks: bool = True
    width: int = 3
    judges: bool = True
    fixed_threshold: float | None = None
    exact: bool = False
    branches: int = 4096

    def __call__(self, fleet: Fleet, records: Records, workload: Workload, seed: int) -> DynBranch:
        return DynBranch(
            fleet,
            records,
            workload.template,
            self.admission(seed),
            reuse=self.reuse,
            foreseen=self.foreseen,
            streams=self.streams,
            speaks=self.speaks,
            bounds=Bounds(branches=self.branches),
        )

    def admission(self, seed: int) -> Admission | None:
        """As the controller makes it of its settings."""
        if self.policy is PolicyName.OFF:
            return None
        gate = Gate(seed=seed, exact=self.exact, judges=self.judges, fixed_threshold=self.fixed_threshold)
        return controlled(Controls(policy=self.policy, width=self.width), gate)


C1: Final = DynBranchArm("c1", PolicyName.OFF)
C2: Final = DynBranchArm("c2", reuse=False)
DYNBRANCH: Final = DynBranchArm()
ALWAYS: Final = DynBranchArm("always", PolicyName.ALWAYS)
STATIC: Final = DynBranchArm("static", PolicyName.STATIC)
ORACLE: Final = DynBranchArm("oracle", foreseen=True)
ORACLE_C2: Final = DynBranchArm("c2-oracle", reuse=False, foreseen=True)
ARMS: Final = (C1, C2, DYNBRANCH, ALWAYS, STATIC, ORACLE, ORACLE_C2)
