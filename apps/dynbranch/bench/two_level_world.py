"""The controller's own core before simulated engines on virtual time: its book of branches with its gates,
the store's library, and batch engines. Shells are played here, harnesses too; none of them decides anything.

Each workflow's names are its own, so that nothing but what runs ahead can help it (reuse across workflows is
off, as in the paper's comparison). Predictions take their time beside the engines.
"""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final, assert_never, cast

from dynbranch.bench.two_level_traffic import (
    ANSWER,
    KIND,
    NOTE,
    POINT,
    TEMPLATE,
    THINK,
    Hop,
    Question,
    Size,
    Traffic,
)
from dynbranch.controller.core.branches.admission import Admission
from dynbranch.controller.core.branches.book import BranchBook
from dynbranch.controller.core.branches.instances import Bounds
from dynbranch.controller.core.branches.messages import (
    AbortGeneration,
    Answer,
    CandidatesProposed,
    Detach,
    DiscardRuns,
    Effect,
    Ending,
    EngineSeen,
    Event,
    FillsDiscarded,
    Learn,
    Passport,
    Prepared,
    PrepareStage,
    Propose,
    RunStage,
    Settled,
    StageAnswered,
    StageArrived,
    StageBegan,
    StageEnded,
    StageKey,
    StagePrepared,
    TimePassed,
    Told,
    Unlearn,
)
from dynbranch.csl.core import founding
from dynbranch.csl.core.events import AcknowledgeSettlements
from dynbranch.csl.core.events import Event as StoreEvent
from dynbranch.csl.core.events import Moment as StoreMoment
from dynbranch.csl.core.library import Library
from dynbranch.csl.core.limits import Limits
from dynbranch.csl.key_value import MemoryKeyValue
from dynbranch.domain.engine import WireProtocol
from dynbranch.domain.events import Selection
from dynbranch.domain.fills import (
    BeginFill,
    DiscardFills,
    DiscardResult,
    FillGranted,
    FillKnown,
    FillLive,
    FillOutcome,
    FillRefused,
)
from dynbranch.domain.ids import BranchId, DemandId, Digest, GenerationId, Name, UnixMs
from dynbranch.domain.reuse import (
    PURE,
    Commit,
    Committed,
    Demand,
    DemandOutcome,
    GenerationRef,
    Hit,
    Identity,
    Lease,
    Level,
    Live,
    Miss,
)
from dynbranch.domain.template import Output
from dynbranch.enginemodel import messages as engine
from dynbranch.enginemodel.batch import BatchEngine
from dynbranch.enginemodel.parameters import BatchParameters
from dynbranch.sim.heap import EventHeap, Timer

ENGINES: Final = 4
READING_S: Final = 0.25
"""Agents report their occupancy four times a second."""
LEASE_MS: Final = 3_600_000
"""Agents renew leases for as long as a generation runs; here nobody dies."""
FINGERPRINT: Final = Digest(bytes(32))
PASSPORT: Final = Passport("group", "scope")


@dataclass(slots=True)
class Finished:
    """One workflow, from its arrival to its answer, and how its requests were served."""

    number: int
    at: float
    latency_s: float
    outcomes: tuple[str, ...]


@dataclass(slots=True)
class _Running:
    """A generation at an engine. ``key``: the fill's stage that it runs for; ``waiting``: whoever follows."""

    engine: int
    began: float
    lease: Lease | None
    key: StageKey | None
    waiting: list[Callable[[float], None]] = field(default_factory=list)


@dataclass(slots=True)
class _Engine:
    model: BatchEngine
    wake: Timer | None = None
    canonical: int = 0
    fills: int = 0


@dataclass(slots=True)
class _Play:
    """One workflow under way."""

    question: Question
    identity: Identity
    outcomes: list[str] = field(default_factory=list)
    demands: int = 0


class World:
    """``admission`` None: nothing runs ahead, and no controller is there."""

    def __init__(
        self,
        admission: Admission | None,
        parameters: BatchParameters,
        traffic: Traffic,
        engines: int = ENGINES,
    ) -> None:
        self.heap = EventHeap()
        self.finished: list[Finished] = []
        self.fills: list[int] = []
        """Of every fill that ran, the workflow's number."""
        self.drafts: list[int] = []
        """The same, of every branch that was predicted for."""
        self.book = None if admission is None else BranchBook(admission, bounds=Bounds())
        self._parameters = parameters
        self._traffic = traffic
        self._engines = [_Engine(BatchEngine(parameters)) for _ in range(engines)]
        self._running: dict[GenerationId, _Running] = {}
        self._branches: dict[BranchId, tuple[Identity, int]] = {}
        self._plays: dict[str, _Play] = {}
        self._events: deque[Event] = deque()
        self._telling = False
        self._made = 0
        self._rows = MemoryKeyValue()
        self._rows.apply(founding.found(1))
        limits = Limits(lease_ttl_ms=LEASE_MS, max_lease_ttl_ms=LEASE_MS)
        self._library = Library(limits=limits, new_id=self._new_id, view=self._rows)

    def run(self, asked: Sequence[Question]) -> list[Finished]:
        """Until every question is answered."""
        for question in asked:
            self.heap.at(question.at, partial(self._begin, question))
        if self.book is not None:
            self._look()
        while len(self.finished) < len(asked):
            assert self.heap.step(), "a workflow does not end"
        return self.finished

    @property
    def reserved(self) -> int:
        """Stages of fills that hold something of an engine."""
        return 0 if self.book is None else len(self.book.filling.reservations)

    def validate_state(self) -> None:
        if self.book is not None:
            self.book.validate_state()
        for number, at in enumerate(self._engines):
            at.model.validate_state()
            there = [one for one in self._running.values() if one.engine == number]
            ahead = sum(one.key is not None and not one.waiting for one in there)
            gauges = at.model.gauges
            assert (at.fills, at.canonical) == (ahead, len(there) - ahead)
            assert gauges.running + gauges.waiting == len(there)

    # -- harnesses -----------------------------------------------------------------------------------------

    def _begin(self, question: Question) -> None:
        identity = Identity(f"tenant {question.tenant}", KIND, f"w{question.number}", "main")
        play = self._plays[identity.workflow_id] = _Play(question, identity)
        self._think(play, 0)

    def _think(self, play: _Play, place: int) -> None:
        hop = play.question.hops[place]
        demand_id = self._arrive(play, THINK)

        def thought(execution_ms: float) -> None:
            play.outcomes.append("miss")
            chosen = (hop.chosen,) if hop.chosen else ()
            answer = Answer(Output(hop.chosen), (Selection(POINT, chosen),), execution_ms)
            self._answer(demand_id, "miss", answer)
            if hop.chosen:
                self.heap.after(self._traffic.retrieval_ms / 1000, partial(self._note, play, place))
            else:
                self._finish(play)

        self._execute(hop.think, None, thought)

    def _note(self, play: _Play, place: int) -> None:
        hop = play.question.hops[place]
        demand_id = self._arrive(play, NOTE)

        def noted(outcome: str, execution_ms: float) -> None:
            play.outcomes.append(outcome)
            self._answer(demand_id, outcome, Answer(Output(hop.chosen), (), execution_ms))
            self._think(play, place + 1)

        name, nowhere = name_of(play.identity, hop.chosen), GenerationRef(GenerationId(b""), "")
        outcome = cast(DemandOutcome, self._ask(Demand(demand_id, name, play.identity, PURE, nowhere)))
        match outcome:
            case Hit(execution_ms=execution_ms):
                noted("promoted", execution_ms)
            case Live(generation):
                self._adopt(self._running[generation.generation_id], partial(noted, "adopted"))
            case Miss(lease):
                self._execute(hop.note, lease, partial(noted, "miss"))
            case _:
                assert_never(outcome)

    def _finish(self, play: _Play) -> None:
        demand_id = self._arrive(play, ANSWER)

        def answered(execution_ms: float) -> None:
            self._answer(demand_id, "miss", Answer(Output("answer"), (), execution_ms))
            question = play.question
            del self._plays[play.identity.workflow_id]
            latency_s = self.heap.now - question.at
            self.finished.append(Finished(question.number, question.at, latency_s, tuple(play.outcomes)))

        self._execute(play.question.answer, None, answered)

    def _arrive(self, play: _Play, stage: str) -> DemandId:
        play.demands += 1
        demand_id = DemandId(f"{play.identity.workflow_id} {play.demands}".encode())
        if self.book is not None:
            self._tell(StageArrived(self._unix, demand_id, play.identity, TEMPLATE, stage, {}, (), PASSPORT))
        return demand_id

    def _answer(self, demand_id: DemandId, outcome: str, answer: Answer) -> None:
        if self.book is not None:
            self._tell(StageAnswered(self._unix, demand_id, outcome, answer=answer))

    def _adopt(self, running: _Running, then: Callable[[float], None]) -> None:
        """What ran ahead is waited for now."""
        at = self._engines[running.engine]
        if running.key is not None and not running.waiting:
            at.fills -= 1
            at.canonical += 1
        running.waiting.append(then)

    # -- engines -------------------------------------------------------------------------------------------

    def _execute(self, size: Size, lease: Lease | None, then: Callable[[float], None]) -> None:
        """A canonical request, at the engine where the fewest of its kind are."""
        number = min(range(len(self._engines)), key=lambda at: (self._engines[at].canonical, at))
        generation = GenerationId(self._new_id()) if lease is None else lease.generation.generation_id
        running = _Running(number, self.heap.now, lease, None, [then])
        self._engines[number].canonical += 1
        self._submit(generation, running, size, priority=0)

    def _submit(self, generation: GenerationId, running: _Running, size: Size, *, priority: int) -> None:
        self._running[generation] = running
        order = engine.Submit(generation, size.prompt_tokens, size.output_tokens, priority=priority)
        self._drive(running.engine, order)

    def _drive(self, number: int, event: engine.Event) -> None:
        at = self._engines[number]
        effects = at.model.handle(event, self.heap.now)
        if at.wake is not None:
            at.wake.cancel()
        wake = at.model.next_wake()
        at.wake = None if wake is None else self.heap.at(wake, partial(self._drive, number, engine.WAKE))
        for effect in effects:
            if isinstance(effect, engine.Finished):
                self._ended(cast(GenerationId, effect.request))
            assert not isinstance(effect, engine.Refused), "a request is larger than the engine"

    def _ended(self, generation: GenerationId) -> None:
        running = self._running.pop(generation, None)
        if running is None:
            # It was given up at this very moment.
            return
        at = self._engines[running.engine]
        execution_ms = (self.heap.now - running.began) * 1000
        if running.key is not None and not running.waiting:
            at.fills -= 1
        else:
            at.canonical -= 1
        stored = running.lease is not None and isinstance(
            self._ask(Commit(running.lease, b"note", FINGERPRINT, Level.GREEDY, execution_ms)), Committed
        )
        if running.key is not None:
            how = Ending.STORED if stored else Ending.NOT_STORED
            self._tell(StageEnded(running.key, how, execution_ms, Output("note")))
        for then in running.waiting:
            then(execution_ms)

    def _abort(self, generation: GenerationId) -> None:
        running = self._running.pop(generation, None)
        if running is None:
            return
        assert running.key is not None and not running.waiting, "somebody waits for it"
        self._engines[running.engine].fills -= 1
        self._drive(running.engine, engine.Abort(generation))
        used_ms = (self.heap.now - running.began) * 1000
        self._tell(StageEnded(running.key, Ending.ABORTED, used_ms))

    def _look(self) -> None:
        """Reports of occupancy, and time for the book."""
        for number, at in enumerate(self._engines):
            gauges = at.model.gauges
            # Fills wait behind everybody else.
            fills = min(at.fills, gauges.running)
            self._tell(
                EngineSeen(
                    f"e{number}",
                    self._parameters.slots,
                    gauges.running,
                    max(0, gauges.waiting - (at.fills - fills)),
                    fills,
                    fill_slots=self._parameters.slots // 2,
                    fill_tokens=self._parameters.kv_pool_tokens // 2,
                )
            )
        self._tell(TimePassed())
        self.heap.after(READING_S, self._look)

    # -- the store -----------------------------------------------------------------------------------------

    def _ask(self, event: StoreEvent) -> object:
        decision = self._library.handle(event, self._rows, self._moment)
        self._rows.apply(decision.batch)
        settled = self._library.settlements(self._rows, after=0, at_most=1000)
        if settled:
            gone = self._library.handle(AcknowledgeSettlements(settled[-1].number), self._rows, self._moment)
            self._rows.apply(gone.batch)
            for one in settled:
                self._tell(Settled(one))
        return decision.reply

    @property
    def _moment(self) -> StoreMoment:
        return StoreMoment(self.heap.now, self._unix)

    @property
    def _unix(self) -> UnixMs:
        return UnixMs(1_000_000 + round(self.heap.now * 1000))

    def _new_id(self) -> bytes:
        self._made += 1
        return self._made.to_bytes(16, "big")

    # -- the controller's shell ----------------------------------------------------------------------------

    def _tell(self, event: Event) -> None:
        """Effects that lead to further events have them told after this one."""
        assert self.book is not None
        self._events.append(event)
        if self._telling:
            return
        self._telling = True
        while self._events:
            for effect in self.book.handle(self._events.popleft(), self.heap.now):
                self._perform(effect)
        self._telling = False

    def _perform(self, effect: Effect) -> None:
        match effect:
            case Propose():
                self.drafts.append(self._number(effect.workflow.workflow_id))
                # A branch is of the thought that follows all those that were told when it opened.
                place = len(effect.context.selections.get(POINT, ()))
                identity = Identity(effect.workflow.tenant, KIND, effect.workflow.workflow_id, "main")
                self._branches[effect.branch_id] = (identity, place)
                self.heap.at(
                    effect.not_before + self._traffic.draft_ms / 1000, partial(self._propose, effect)
                )
            case PrepareStage():
                self._prepare(effect)
            case RunStage():
                self.heap.after(self._traffic.retrieval_ms / 1000, partial(self._begin_fill, effect))
            case DiscardRuns():
                result = cast(DiscardResult, self._ask(DiscardFills(effect.fills, effect.reason)))
                for one in result.abort:
                    self._abort(one.generation_id)
                self._tell(FillsDiscarded(effect.branch_id, effect.fills, result.immune))
            case AbortGeneration(generation):
                self._abort(generation.generation_id)
            case Detach(key):
                self._tell(StageEnded(key, Ending.ABORTED))
            case Learn() | Unlearn() | Told():
                pass
            case _:
                assert_never(effect)

    def _propose(self, ask: Propose) -> None:
        hop = self._hop(ask.branch_id)
        self._tell(
            CandidatesProposed(ask.branch_id, () if hop is None else hop.ranked, self._traffic.draft_ms)
        )

    def _prepare(self, ask: PrepareStage) -> None:
        hop = self._hop(ask.branch_id)
        if hop is None:
            self._tell(StageEnded(ask.key, Ending.FAILED))
            return
        prepared = Prepared(
            name_of(self._branches[ask.branch_id][0], ask.selection),
            WireProtocol.CHAT_COMPLETIONS,
            "m",
            # Shorter than what is compared of beginnings: no engine holds more of it than another.
            b"note",
            FINGERPRINT,
            tuple(f"e{number}" for number in range(len(self._engines))),
            hop.note.prompt_tokens + hop.note.output_tokens,
        )
        self._tell(StagePrepared(ask.key, prepared))

    def _begin_fill(self, ask: RunStage) -> None:
        """When what it reads has been retrieved."""
        begin = BeginFill(
            origin=ask.origin,
            name=ask.prepared.name,
            identity=ask.identity,
            scope=ask.prepared.scope,
            intended=GenerationRef(GenerationId(b""), ask.engine),
            producers=ask.producers,
            shadow_ttl_ms=ask.shadow_ttl_ms,
        )
        outcome = cast(FillOutcome, self._ask(begin))
        match outcome:
            case FillGranted(lease):
                self._run_fill(ask, lease)
            case FillKnown() | FillLive():
                self._tell(StageEnded(ask.key, Ending.KNOWN))
            case FillRefused(reason):
                self._tell(StageEnded(ask.key, Ending.REFUSED, detail=reason.value))
            case _:
                assert_never(outcome)

    def _run_fill(self, ask: RunStage, lease: Lease) -> None:
        hop = self._hop(ask.origin.branch_id)
        assert hop is not None
        number, generation = int(ask.engine.removeprefix("e")), lease.generation.generation_id
        self.fills.append(self._number(ask.identity.workflow_id))
        self._engines[number].fills += 1
        self._tell(StageBegan(ask.key, lease.generation))
        self._submit(generation, _Running(number, self.heap.now, lease, ask.key), hop.note, priority=1)

    def _hop(self, branch_id: BranchId) -> Hop | None:
        """What a branch decides. None: its workflow has ended."""
        identity, place = self._branches[branch_id]
        play = self._plays.get(identity.workflow_id)
        return None if play is None else play.question.hops[place]

    @staticmethod
    def _number(workflow_id: str) -> int:
        return int(workflow_id.removeprefix("w"))


def name_of(identity: Identity, selection: str) -> Name:
    return Name(hashlib.sha256(f"{identity.workflow_id} {selection}".encode()).digest())
