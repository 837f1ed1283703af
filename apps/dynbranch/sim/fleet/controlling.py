"""The controller before a simulated fleet: the production book of branches, and its shell on virtual time.

Predictors are not run: a workload says what they say. The shell does what ``controller.branching`` and
``controller.running`` do, with calls that take no time.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from functools import partial
from typing import Final, assert_never

from dynbranch.controller.core.branches.admission import Admission
from dynbranch.controller.core.branches.book import BranchBook
from dynbranch.controller.core.branches.instances import Bounds
from dynbranch.controller.core.branches.lifecycle import USED
from dynbranch.controller.core.branches.messages import (
    AbortGeneration,
    CandidatesProposed,
    Detach,
    DiscardRuns,
    Effect,
    Ending,
    EngineSeen,
    Event,
    FillsDiscarded,
    Learn,
    Mark,
    Prepared,
    PrepareStage,
    Propose,
    RunStage,
    Settled,
    StageBegan,
    StageEnded,
    StageKey,
    StagePrepared,
    TimePassed,
    Told,
    Unlearn,
)
from dynbranch.controller.core.branches.reservations import Placement, Quota
from dynbranch.domain.engine import WireProtocol
from dynbranch.domain.fills import BeginFill, FillGranted, FillKnown, FillLive, FillRefused
from dynbranch.domain.ids import BranchId, Digest, FillId, GenerationId, Instant
from dynbranch.domain.reuse import GenerationRef, Lease
from dynbranch.domain.template import Branching, Output, Template
from dynbranch.sim.fleet.accounts import Account, Accounts, Price
from dynbranch.sim.fleet.agents import Agents, End, Generation
from dynbranch.sim.fleet.engines import Fleet
from dynbranch.sim.fleet.playing import Play
from dynbranch.sim.fleet.store import Names, Store, scope_of
from dynbranch.sim.fleet.workflows import Call, Decision, Step
from dynbranch.sim.heap import Timer

READING_S: Final = 0.25
"""Agents report their occupancy four times a second."""
TICK_LOOKS: Final = 4
"""What has waited for its time is looked at once a second."""
FINGERPRINT: Final = Digest(bytes(32))
OUTPUT: Final = Output("output")
"""No next request is written from it: the workload has them all."""
BODY: Final = b""
"""Too short to compare beginnings by: no engine holds more of it than another."""


@dataclass(frozen=True, slots=True)
class Place:
    """A step of a workflow under way."""

    play: Play
    turn: int
    step: int

    @property
    def here(self) -> Step:
        return self.play.workflow.turns[self.turn].steps[self.step]

    def decision_at(self, point: str, *, later: bool) -> Decision | None:
        """Of this step, or of the first ``later`` one that decides there."""
        turns = self.play.workflow.turns
        first = self.step + later
        for turn in range(self.turn, len(turns)):
            for step in turns[turn].steps[first:]:
                if step.decision is not None and step.decision.point == point:
                    return step.decision
                if not later:
                    return None
            first = 0
        return None

    def steps_after(self) -> list[Step]:
        turns = self.play.workflow.turns
        rest = [step for turn in turns[self.turn + 1 :] for step in turn.steps]
        return [*turns[self.turn].steps[self.step + 1 :], *rest]


@dataclass(slots=True)
class Branch:
    """What one branch decides, for as long as it has not settled. ``decision`` None: its workflow ends
    first."""

    place: Place
    decision: Decision | None


@dataclass(slots=True)
class Work:
    """One stage that is being filled or waited for. ``timer`` while it retrieves what it needs."""

    ask: RunStage
    call: Call
    timer: Timer | None = None
    generation: Generation | None = None


class Ahead:
    """``foreseen``: what a branch comes to is known, at no time."""

    def __init__(
        self,
        fleet: Fleet,
        agents: Agents,
        store: Store,
        names: Names,
        template: Template,
        admission: Admission,
        *,
        foreseen: bool,
        bounds: Bounds,
    ) -> None:
        self.accounts = Accounts()
        # Where a fill runs is a question of load alone.
        self.book = BranchBook(admission, bounds=bounds, quota=Quota(placement=Placement.LEAST_LOADED))
        self._fleet = fleet
        self._heap = fleet.heap
        self._agents = agents
        self._store = store
        self._names = names
        self._stages = {stage.name: stage for stage in template.stages}
        self._points = {point.name: point for point in template.decision_points}
        self._foreseen = foreseen
        self._addresses = tuple(f"e{number:05}" for number in range(len(fleet.places)))
        self._numbers = {address: number for number, address in enumerate(self._addresses)}
        self._branches: dict[BranchId, Branch] = {}
        self._work: dict[StageKey, Work] = {}
        self._slot_s: dict[StageKey, float] = {}
        self._began: set[FillId] = set()
        self._events: deque[tuple[Event, Place | None]] = deque()
        self._telling = False
        self._looks = 0
        self._reported: dict[int, tuple[int, int, int]] = {}
        fleet.stirred.update(range(len(fleet.places)))
        self._look()

    @property
    def reserved(self) -> int:
        """Stages of fills that hold something of an engine."""
        return len(self.book.filling.reservations)

    def validate_state(self) -> None:
        """Raises AssertionError."""
        self.book.validate_state()
        for key, work in self._work.items():
            assert work.ask.key == key and (work.timer is None or work.generation is None)

    def tell(self, event: Event, place: Place | None = None) -> None:
        """Effects that lead to further events have them told after this one. ``place``: where its workflow
        stands with the request that it is about."""
        if self._store.settled:
            self._take()
        self._events.append((event, place))
        if not self._telling:
            self._drain()

    def drain(self) -> None:
        """Hear what the store has settled."""
        if self._store.settled and not self._telling:
            self._take()
            self._drain()

    def _drain(self) -> None:
        self._telling = True
        events, handle = self._events, self.book.handle
        while events:
            event, place = events.popleft()
            for effect in handle(event, self._heap.now):
                self._perform(effect, place)
            if self._store.settled:
                self._take()
        self._telling = False

    def _take(self) -> None:
        found, self._store.settled = self._store.settled, []
        for one in found:
            self._events.append((Settled(one), None))

    # -- engines -------------------------------------------------------------------------------------------

    def _look(self) -> None:
        """Reports of occupancy, where something has changed: a reading holds until the next, so that to say
        it again would change no price. Once a second, time for the book and for the store."""
        places, parameters = self._fleet.places, self._fleet.parameters
        stirred, self._fleet.stirred = self._fleet.stirred, set()
        for number in sorted(stirred):
            place = places[number]
            gauges = place.model.gauges
            # Fills wait behind everybody else.
            fills = min(place.ahead, gauges.running)
            told = (gauges.running, max(0, gauges.waiting - (place.ahead - fills)), fills)
            if told == self._reported.get(number):
                continue
            self._reported[number] = told
            seen = EngineSeen(
                self._addresses[number],
                parameters.slots,
                *told,
                fill_slots=max(1, parameters.slots // 2),
                fill_tokens=parameters.kv_pool_tokens // 2,
            )
            self.tell(seen)
        self._looks += 1
        if self._looks % TICK_LOOKS == 0:
            self.tell(TimePassed())
            self._store.sweep()
        self._heap.after(READING_S, self._look)

    # -- doing ---------------------------------------------------------------------------------------------

    def _perform(self, effect: Effect, place: Place | None) -> None:
        match effect:
            case Told():
                self._told(effect, place)
            case Propose():
                self._propose(effect)
            case PrepareStage():
                self._prepare(effect)
            case RunStage():
                self._retrieve(effect)
            case DiscardRuns():
                self._discard(effect)
            case AbortGeneration(generation):
                self._agents.abort(generation.generation_id)
            case Detach(key):
                self._leave(key)
            case Learn() | Unlearn():
                pass
            case _:
                assert_never(effect)

    def _propose(self, ask: Propose) -> None:
        branch = self._branches[ask.branch_id]
        decision = branch.decision
        self.accounts.workflows[branch.place.play.workflow.number].predictions += 1
        ranked: tuple[str, ...] = ()
        spent_s = 0.0
        if decision is not None and self._foreseen:
            ranked = self._foresee(branch, decision)
        elif decision is not None:
            ranked, spent_s = decision.ranked, decision.spent_s
        told = CandidatesProposed(ask.branch_id, ranked, spent_s * 1000)
        at = max(ask.not_before, Instant(self._heap.now + spent_s))
        self._heap.at(at, partial(self.tell, told))

    def _foresee(self, branch: Branch, decision: Decision) -> tuple[str, ...]:
        """What is picked; of independent offers everything that the workflow demands yet, in its order."""
        if self._points[decision.point].branching is Branching.EXCLUSIVE:
            return decision.picked
        first = {calls[0].content: offer for offer, calls in decision.chains.items() if calls}
        later = [first.get(step.call.content) for step in branch.place.steps_after()]
        return tuple(dict.fromkeys([*decision.picked, *(offer for offer in later if offer is not None)]))

    def _prepare(self, ask: PrepareStage) -> None:
        call = self._call(ask.branch_id, ask.selection, ask.key.number)
        if call is None:
            self.tell(StageEnded(ask.key, Ending.REFUSED, detail="nothing can be written"))
            return
        prepared = Prepared(
            self._names.of(self._branches[ask.branch_id].place.play, call),
            WireProtocol.CHAT_COMPLETIONS,
            "m",
            BODY,
            FINGERPRINT,
            self._addresses,
            call.prompt_tokens + call.output_tokens,
            scope_of(self._stages.get(call.stage), call.reads),
        )
        self.tell(StagePrepared(ask.key, prepared))

    def _call(self, branch_id: BranchId, selection: str, number: int) -> Call | None:
        decision = self._branches[branch_id].decision
        chain = () if decision is None else decision.chains.get(selection, ())
        return chain[number] if number < len(chain) else None

    def _retrieve(self, ask: RunStage) -> None:
        """What its request is written from takes as long as it takes the harness."""
        fill = self.book.filling.get(ask.key.fill_id)
        assert fill is not None
        call = self._call(ask.origin.branch_id, fill.selection, ask.key.number)
        assert call is not None
        work = self._work[ask.key] = Work(ask, call)
        if call.before_s:
            work.timer = self._heap.after(call.before_s, partial(self._begin, work))
        else:
            self._begin(work)

    def _begin(self, work: Work) -> None:
        work.timer = None
        ask = work.ask
        begin = BeginFill(
            origin=ask.origin,
            name=ask.prepared.name,
            identity=ask.identity,
            scope=ask.prepared.scope,
            intended=GenerationRef(GenerationId(b""), ask.engine),
            producers=ask.producers,
            shadow_ttl_ms=ask.shadow_ttl_ms,
        )
        outcome = self._store.begin_fill(begin)
        match outcome:
            case FillGranted(lease):
                self._run(work, lease)
            case FillKnown(execution_ms=execution_ms):
                self._end(work, Ending.KNOWN, execution_ms, OUTPUT)
            case FillLive(generation):
                self._join(work, generation.generation_id)
            case FillRefused(reason):
                self._end(work, Ending.REFUSED, detail=reason.value)
            case _:
                assert_never(outcome)

    def _run(self, work: Work, lease: Lease) -> None:
        key = work.ask.key
        self.tell(StageBegan(key, lease.generation))
        self._began_fill(key, work.ask.origin.branch_id)
        engine = self._numbers[work.ask.engine]
        work.generation = self._agents.fill(engine, work.call, lease, partial(self._ran, work))

    def _ran(self, work: Work, end: End) -> None:
        """Unless it was let go: what a demand took over ran on for that."""
        key = work.ask.key
        if self._work.get(key) is not work:
            return
        self._slot_s[key] = end.slot_s
        if end.value is None:
            self._end(work, Ending.ABORTED, end.execution_ms)
        else:
            self._end(work, Ending.STORED if end.stored else Ending.NOT_STORED, end.execution_ms, OUTPUT)

    def _join(self, work: Work, generation_id: GenerationId) -> None:
        if not work.ask.continues:
            self._end(work, Ending.JOINED, detail="runs already")
            return
        generation = self._agents.running[generation_id]
        self._agents.follow(generation, partial(self._joined, work), demanded=False)

    def _joined(self, work: Work, end: End) -> None:
        if self._work.get(work.ask.key) is work:
            self._end(work, Ending.JOINED, output=None if end.value is None else OUTPUT)

    def _end(
        self,
        work: Work,
        how: Ending,
        execution_ms: float = 0.0,
        output: Output | None = None,
        detail: str = "",
    ) -> None:
        del self._work[work.ask.key]
        self.tell(StageEnded(work.ask.key, how, execution_ms, output, detail))

    def _discard(self, ask: DiscardRuns) -> None:
        """The store decides what is lost, then engines end what it names; nobody waits for the rest."""
        result = self._store.discard(ask.fills, ask.reason)
        for generation in result.abort:
            self._agents.abort(generation.generation_id)
        for key in ask.keys:
            self._leave(key)
        self.tell(FillsDiscarded(ask.branch_id, ask.fills, result.immune))

    def _leave(self, key: StageKey) -> None:
        """What a demand took over runs on."""
        work = self._work.pop(key, None)
        if work is not None and work.timer is not None:
            work.timer.cancel()
        self.tell(StageEnded(key, Ending.ABORTED, detail="let go"))

    # -- accounts ------------------------------------------------------------------------------------------

    def _told(self, told: Told, place: Place | None) -> None:
        match told.mark:
            case Mark.OPENED:
                assert place is not None, "a branch opens with a request or an answer"
                self._opened(told, place)
            case Mark.REFUSED:
                self._account(told.branch_id).refused += 1
            case Mark.PRICED:
                facts = dict(told.facts)
                threshold = facts.get("threshold")
                if isinstance(threshold, float):
                    price = Price(self._heap.now, threshold, bool(facts["admitted"]))
                    self.accounts.prices.append(price)
            case Mark.FILL_ENDED:
                self._fill_ended(told)
            case Mark.SETTLED:
                del self._branches[told.branch_id]
            case _:
                pass

    def _account(self, branch_id: BranchId) -> Account:
        return self.accounts.workflows[self._branches[branch_id].place.play.workflow.number]

    def _opened(self, told: Told, place: Place) -> None:
        point = self._points[str(dict(told.facts)["decision_point"])]
        own = place.here.call.stage == point.stage
        decision = place.decision_at(point.name, later=not own)
        self._branches[told.branch_id] = Branch(place, decision)
        self._account(told.branch_id).opened += 1

    def _began_fill(self, key: StageKey, branch_id: BranchId) -> None:
        account = self._account(branch_id)
        account.stages += 1
        if key.fill_id not in self._began:
            self._began.add(key.fill_id)
            account.fills += 1

    def _fill_ended(self, told: Told) -> None:
        assert told.fill_id is not None
        facts, branch = dict(told.facts), self.book.branches.get(told.branch_id)
        assert branch is not None
        self._began.discard(told.fill_id)
        account = self._account(told.branch_id)
        account.consumed += bool(facts["consumed"])
        for stage in branch.fills[str(facts["selection"])].stages:
            # Of what was let go nobody heard the end.
            slot_s = self._slot_s.pop(stage.key, stage.used_ms / 1000)
            account.used_s += slot_s
            if stage.state not in USED:
                account.discarded_s += slot_s
