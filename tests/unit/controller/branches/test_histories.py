"""Random histories of branches against a small model of shell and store: events late, twice and reordered.

Whatever happens: what is reserved is what runs (I4), a loser does not outlive its branch by more than the
steps that were asked for (I2), each question to the predictors is closed once, and when all that is under way
has come to its end the book is empty.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace

import pytest
from dynbranch.controller.core.branches.admission import Always
from dynbranch.controller.core.branches.instances import Bounds
from dynbranch.controller.core.branches.lifecycle import BranchState
from dynbranch.controller.core.branches.messages import (
    AbortGeneration,
    CandidatesProposed,
    Detach,
    DiscardRuns,
    Effect,
    Ending,
    EngineGone,
    EngineSeen,
    FillsDiscarded,
    Learn,
    PrepareStage,
    Propose,
    RunStage,
    Settled,
    StageBegan,
    StageEnded,
    StageKey,
    StagePrepared,
    Told,
    Unlearn,
)
from dynbranch.controller.core.branches.priced import LoadPriced
from dynbranch.controller.core.branches.reservations import Quota
from dynbranch.controller.core.pricing.gate import Gate
from dynbranch.domain.fills import Settlement, SettlementKind
from dynbranch.domain.ids import BranchId, FillId, GenerationId, UnixMs
from dynbranch.domain.reuse import FillOrigin, GenerationRef, Identity
from dynbranch.domain.template import Branching, Moment, MomentKind, Output
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule
from unit.controller.branches.scenes import WORKFLOW, Scene, prepared_for, routed

WAYS = st.sampled_from(["a", "b", "c"])
WHO = st.sampled_from([WORKFLOW, replace(WORKFLOW, workflow_id="w2")])
PLACE = st.integers(0, 30)


@dataclass
class Ran:
    """One stage as the store and the engine know it."""

    ask: RunStage
    running: bool = True
    adopted: bool = False
    shadow: bool = False
    lost: bool = False


@dataclass
class Elsewhere:
    """The shell, the store and the engines: what they were asked, and have not answered yet."""

    scene: Scene
    proposals: list[Propose] = field(default_factory=list)
    prepares: list[PrepareStage] = field(default_factory=list)
    runs: list[RunStage] = field(default_factory=list)
    ran: dict[StageKey, Ran] = field(default_factory=dict)
    discards: list[DiscardRuns] = field(default_factory=list)
    outbox: list[Settlement] = field(default_factory=list)
    delivered: list[Settlement] = field(default_factory=list)
    buried: set[FillId] = field(default_factory=set)
    served: set[FillId] = field(default_factory=set)
    asked: Counter[BranchId] = field(default_factory=Counter)
    closed: Counter[BranchId] = field(default_factory=Counter)
    begun: Counter[StageKey] = field(default_factory=Counter)
    ended: Counter[StageKey] = field(default_factory=Counter)

    def perform(self, effects: list[Effect]) -> None:
        for effect in effects:
            match effect:
                case Propose():
                    self.proposals.append(effect)
                    self.asked[effect.branch_id] += 1
                case PrepareStage():
                    self.prepares.append(effect)
                    self.begun[effect.key] += 1
                case RunStage():
                    self.runs.append(effect)
                case DiscardRuns():
                    self.discards.append(effect)
                case Detach(key):
                    self.detach(key)
                case Learn(branch_id, _) | Unlearn(branch_id):
                    self.closed[branch_id] += 1
                case AbortGeneration() | Told():
                    pass

    def detach(self, key: StageKey) -> None:
        """Whatever is done for it ends, with one event."""
        self.prepares = [one for one in self.prepares if one.key != key]
        self.runs = [one for one in self.runs if one.key != key]
        ran = self.ran.get(key)
        if ran is not None and ran.running and not ran.adopted:
            ran.running = False
        if self.begun[key] > self.ended[key]:
            self.end(StageEnded(key, Ending.ABORTED, 1.0))

    def end(self, event: StageEnded) -> None:
        self.ended[event.key] += 1
        assert self.ended[event.key] == self.begun[event.key] == 1
        self.perform(self.scene.do(event))

    def settle(self, ran: Ran, kind: SettlementKind, by: Identity | None = None) -> None:
        number = len(self.outbox) + len(self.delivered) + 1
        origin: FillOrigin = ran.ask.origin
        row = Settlement(number, kind, origin, UnixMs(1), ran.ask.prepared.name, by, 5.0)
        self.outbox.append(row)


class Histories(RuleBasedStateMachine):
    @initialize(branching=st.sampled_from(Branching), early=st.booleans(), priced=st.booleans())
    def start(self, branching: Branching, early: bool, priced: bool) -> None:
        self.gate = Gate()
        opens = [Moment(MomentKind.ARRIVAL, "route")]
        if early:
            opens.append(Moment(MomentKind.OUTPUT, "work"))
        self.scene = Scene(
            routed(branching=branching, opens=tuple(opens)),
            admission=LoadPriced(self.gate, width=3) if priced else Always(3),
            quota=Quota(slots=3),
            bounds=Bounds(workflow_ttl_s=200, branches=6, history=4, workflows=2),
        )
        self.there = Elsewhere(self.scene)
        self.demands: list[str] = []

    # -- gateways ------------------------------------------------------------------------------------------

    @rule(stage=st.sampled_from(["route", "route", "work"]), who=WHO, ahead=st.booleans(), way=WAYS)
    def arrive(self, stage: str, who: Identity, ahead: bool, way: str) -> None:
        demand = f"d{len(self.demands)}"
        self.demands.append(demand)
        if ahead:
            # Its answer overtook it.
            self.there.perform(self.scene.answer(demand, chosen=[way]))
        self.there.perform(self.scene.arrive(stage, demand, identity=who))

    @rule(who=WHO, ranked=st.lists(WAYS, min_size=1, max_size=3, unique=True), began=st.booleans())
    def open(self, who: Identity, ranked: list[str], began: bool) -> None:
        """What mostly happens: candidates are there at once, and their fills begin."""
        self.arrive("route", who, False, "a")
        while self.there.proposals:
            self.propose(0, ranked)
        while began and self.there.prepares:
            self.prepare(0, True)

    @precondition(lambda self: self.demands)
    @rule(place=PLACE, who=WHO)
    def arrive_again(self, place: int, who: Identity) -> None:
        # A redelivery says the same; whoever says another workflow's demand is not believed either.
        demand = self.demands[place % len(self.demands)]
        workflow = self.scene.book.workflows.of_demand(demand.encode())  # type: ignore[arg-type]
        if workflow is not None:
            identity = replace(who, workflow_id=workflow.key.workflow_id)
            arrived = workflow.arrivals[demand.encode()].stage  # type: ignore[index]
            assert self.scene.arrive(arrived, demand, identity=identity) == []

    @precondition(lambda self: self.demands)
    @rule(place=PLACE, way=WAYS, how=st.sampled_from(["chosen", "none", "blur", "fail", "hit"]))
    def answer(self, place: int, way: str, how: str) -> None:
        demand = self.demands[place % len(self.demands)]
        chosen = [way] if how in ("chosen", "hit") else None
        outcome = "hit" if how == "hit" else "miss"
        effects = self.scene.answer(
            demand, chosen=chosen, outcome=outcome, failed=how == "fail", ambiguous=how == "blur"
        )
        self.there.perform(effects)

    @precondition(lambda self: self.demands)
    @rule(place=PLACE, way=WAYS, closed=st.booleans())
    def choose(self, place: int, way: str, closed: bool) -> None:
        self.there.perform(self.scene.choice(self.demands[place % len(self.demands)], way, closed=closed))

    # -- the shell -----------------------------------------------------------------------------------------

    @precondition(lambda self: self.there.proposals)
    @rule(place=PLACE, ranked=st.lists(WAYS, max_size=4))
    def propose(self, place: int, ranked: list[str]) -> None:
        ask = self.there.proposals.pop(place % len(self.there.proposals))
        self.there.perform(self.scene.do(CandidatesProposed(ask.branch_id, tuple(ranked))))

    @precondition(lambda self: self.there.prepares)
    @rule(place=PLACE, can=st.sampled_from([True, True, True, False]))
    def prepare(self, place: int, can: bool) -> None:
        ask = self.there.prepares.pop(place % len(self.there.prepares))
        if not can:
            self.there.end(StageEnded(ask.key, Ending.REFUSED, detail="can not be written"))
            return
        effects = self.scene.do(StagePrepared(ask.key, prepared_for(ask.key)))
        if not any(isinstance(effect, RunStage) for effect in effects):
            self.there.ended[ask.key] += 1
        self.there.perform(effects)

    @precondition(lambda self: self.there.runs)
    @rule(place=PLACE, how=st.sampled_from(["grant", "grant", "grant", "known", "joined", "lost", "down"]))
    def begin(self, place: int, how: str) -> None:
        ask = self.there.runs.pop(place % len(self.there.runs))
        if how == "lost" or ask.key.fill_id in self.there.buried:
            self.there.end(StageEnded(ask.key, Ending.REFUSED, detail="lost"))
        elif how == "down":
            self.there.end(StageEnded(ask.key, Ending.REFUSED, detail="the store is gone"))
        elif how in ("known", "joined"):
            self.there.end(StageEnded(ask.key, Ending(how), output=Output("stood")))
        else:
            self.there.ran[ask.key] = Ran(ask)
            there = GenerationRef(GenerationId(ask.key.fill_id), "e1")
            self.there.perform(self.scene.do(StageBegan(ask.key, there)))

    def _live(self) -> list[Ran]:
        return [one for one in self.there.ran.values() if one.running]

    @precondition(lambda self: self._live())
    @rule(place=PLACE, how=st.sampled_from([Ending.STORED, Ending.STORED, Ending.NOT_STORED, Ending.FAILED]))
    def finish(self, place: int, how: Ending) -> None:
        live = self._live()
        ran = live[place % len(live)]
        ran.running = False
        if ran.lost:
            how = Ending.ABORTED
        if how is Ending.STORED:
            ran.shadow = not ran.adopted
            self.there.settle(ran, SettlementKind.CONFIRMED if ran.adopted else SettlementKind.SHADOWED)
        key = ran.ask.key
        if self.there.ended[key] < self.there.begun[key]:
            output = Output("done") if how is Ending.STORED else None
            self.there.end(StageEnded(key, how, 7.0, output))

    @rule(place=PLACE, who=WHO)
    def demand(self, place: int, who: Identity) -> None:
        able = [one for one in self.there.ran.values() if not one.lost and (one.running or one.shadow)]
        able = [one for one in able if not one.adopted]
        if not able:
            return
        ran = able[place % len(able)]
        self.there.served.add(ran.ask.key.fill_id)
        if ran.running:
            ran.adopted = True
            self.there.settle(ran, SettlementKind.ADOPTED, who)
        else:
            ran.shadow = False
            self.there.settle(ran, SettlementKind.PROMOTED, who)

    @rule(place=PLACE)
    def write(self, place: int) -> None:
        able = [one for one in self.there.ran.values() if one.shadow or (one.running and not one.adopted)]
        if not able:
            return
        ran = able[place % len(able)]
        ran.shadow, ran.lost = False, True
        self.there.settle(ran, SettlementKind.STALE)

    @precondition(lambda self: self.there.outbox)
    @rule(twice=st.booleans())
    def deliver(self, twice: bool) -> None:
        row = self.there.outbox.pop(0)
        self.there.delivered.append(row)
        self.there.perform(self.scene.do(Settled(row)))
        if twice:
            assert self.scene.do(Settled(row)) == []

    @precondition(lambda self: self.there.delivered)
    @rule(place=PLACE)
    def deliver_again(self, place: int) -> None:
        row = self.there.delivered[place % len(self.there.delivered)]
        assert self.scene.do(Settled(row)) == []

    @precondition(lambda self: self.there.discards)
    @rule(place=PLACE, reached=st.sampled_from([True, True, True, False]))
    def discard(self, place: int, reached: bool) -> None:
        ask = self.there.discards.pop(place % len(self.there.discards))
        immune = frozenset(fill for fill in ask.fills if fill in self.there.served)
        if reached:
            self.there.buried.update(ask.fills)
            for ran in self.there.ran.values():
                if ran.ask.key.fill_id in ask.fills and not ran.adopted:
                    if ran.shadow or ran.running:
                        self.there.settle(ran, SettlementKind.DISCARDED)
                    ran.lost, ran.shadow = True, False
        for key in ask.keys:
            self.there.detach(key)
        event = FillsDiscarded(ask.branch_id, ask.fills, immune if reached else frozenset(), reached)
        self.there.perform(self.scene.do(event))

    # -- the world -----------------------------------------------------------------------------------------

    @rule(seconds=st.sampled_from([0.01, 1.0, 1.0, 1.0, 30.0, 70.0]))
    def wait(self, seconds: float) -> None:
        self.there.perform(self.scene.later(seconds))

    @rule(comes_back=st.sampled_from([True, True, False]))
    def lose_engine(self, comes_back: bool) -> None:
        self.there.perform(self.scene.do(EngineGone("e1")))
        if comes_back:
            self.find_engine()

    @rule()
    def find_engine(self) -> None:
        self.scene.do(EngineSeen("e1", 8, 0, 0, fill_slots=8))

    # -- what must hold ------------------------------------------------------------------------------------

    def check_invariants(
        self, settings: object = None, output: object = None, runtimes: object = None
    ) -> None:
        if not hasattr(self, "there"):
            return
        there = self.there
        working = {one.key for one in there.runs}
        working |= {key for key in there.ran if there.ended[key] < there.begun[key]}
        assert self.scene.reserved == len(working), "what is reserved is what runs"
        assert all(there.ended[key] <= times == 1 for key, times in there.begun.items())
        assert all(times <= 1 for times in there.closed.values())
        assert set(there.closed) <= set(there.asked)
        asked_away = {fill for ask in there.discards for fill in ask.fills}
        for branch in self.scene.book.branches.listed("", 99):
            if branch.state is not BranchState.RESOLVED or branch.point.branching is not Branching.EXCLUSIVE:
                continue
            for fill in branch.fills.values():
                if fill.selection in (branch.selections or ()) or fill.fill_id in asked_away:
                    continue
                # The loser was asked away: nothing of it runs on this branch's behalf.
                assert not any(stage.active for stage in fill.stages)

    def teardown(self) -> None:
        if not hasattr(self, "there"):
            return
        there = self.there
        for _ in range(200):
            if there.proposals:
                self.propose(0, [])
            elif there.prepares:
                self.prepare(0, True)
            elif there.runs:
                self.begin(0, "grant")
            elif self._live():
                self.finish(0, Ending.STORED)
            elif there.discards:
                self.discard(0, True)
            elif there.outbox:
                self.deliver(True)
            elif len(self.scene.book.filling) or self.scene.book.branches.unresolved:
                self.wait(70.0)
            else:
                break
        self.wait(300.0)
        assert len(self.scene.book.filling) == 0 and self.scene.reserved == 0
        assert self.scene.book.branches.unresolved == 0
        assert len(self.scene.book.workflows) == 0
        assert there.closed == there.asked, "each question is closed once"
        assert self.gate.trials.pending == 0
        assert all(
            fill.is_settled
            for branch in self.scene.book.branches.listed("", 99)
            if (trial := self.gate.trials.get(branch.trial_id)) is not None
            for fill in trial.fills.values()
        ), "each fill is settled with its trial"


@pytest.mark.promise("I2", "I4", "C2.late_events")
class TestHistories(Histories.TestCase):  # type: ignore[misc,valid-type]
    settings = settings(max_examples=100, stateful_step_count=60)
