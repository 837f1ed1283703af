"""A branch with everybody in it: the controller's book, the store's library, an engine's registry, and shells
that hold messages back until they are told to let one go.

``branch_steps`` says what may happen next, ``take`` makes one of it happen. Nothing depends on chance,
so that every interleaving can be tried.
"""

from __future__ import annotations

import hashlib
import marshal
from collections import Counter
from copy import copy
from typing import assert_never, cast

from dynbranch.controller.core.branches.admission import Always
from dynbranch.controller.core.branches.instances import Bounds
from dynbranch.controller.core.branches.messages import (
    AbortGeneration,
    Answer,
    CandidatesProposed,
    Detach,
    DiscardRuns,
    Ending,
    EngineSeen,
    FillsDiscarded,
    Learn,
    Mark,
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
from dynbranch.controller.core.branches.messages import Event as BookEvent
from dynbranch.controller.core.branches.reservations import Quota
from dynbranch.csl.core.events import (
    AcknowledgeSettlements,
    Moment,
    ReleaseLeases,
    RenewLeases,
    SweepShadows,
    Write,
)
from dynbranch.csl.core.events import Event as StoreEvent
from dynbranch.csl.fake import digest
from dynbranch.domain.engine import (
    Aborted,
    Completed,
    Failed,
    GenerationEnd,
    WireProtocol,
    WorkClass,
)
from dynbranch.domain.errors import NotFound
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
    Settlement,
)
from dynbranch.domain.ids import (
    BranchId,
    DemandId,
    Digest,
    FillId,
    GenerationId,
    Instant,
    LeaseId,
    Name,
    RecordId,
    UnixMs,
)
from dynbranch.domain.reuse import (
    PURE,
    Commit,
    CommitOutcome,
    Committed,
    Demand,
    DemandOutcome,
    GenerationRef,
    Hit,
    Lease,
    Level,
    Live,
    Miss,
    ReadScope,
)
from dynbranch.domain.template import Output
from dynbranch.engine_agent.core import messages as agent
from dynbranch.engine_agent.core.lifecycle import State
from dynbranch.engine_agent.core.registry import Limits as AgentLimits
from dynbranch.sim.branch_acts import asked, form_of, heard, past_key, settlement_in, store_side, worked
from dynbranch.sim.branch_cast import (
    ENGINE,
    EXPIRES_S,
    LEASE_S,
    LINGER_S,
    OWN,
    RECORD,
    SOURCE,
    At,
    BranchCores,
    Discarding,
    Ids,
    Phase,
    Request,
    Scenario,
    Step,
    Work,
    follower_of,
    key_at,
    name_of,
    order_of,
    orphaned,
    request_text,
    template_of,
)
from dynbranch.sim.branch_parts import Part, Tables

SLOTS = 8
ROUTE = DemandId(b"route")


_Ordering = tuple[Lease | None, WorkClass, str, int]
"""An order on its way: under which lease, as what, what is asked, and who follows."""


class BranchWorld:
    """One branch of one workflow, from the moment when its candidates are asked for."""

    def __init__(self, scenario: Scenario, cores: BranchCores | None = None) -> None:
        cores = cores or BranchCores()
        tables = Tables(scenario)
        self.tables = tables
        self.scenario = scenario
        self.now = 100.0
        self.ids = Ids()
        self.store = Part(tables.stores, tables.stores.put(store_side(cores)))
        # No response ends before its commit is answered: a fill that is cut short so is not told apart.
        registry = cores.registry(AgentLimits(fill_slots=SLOTS, commit_budget_s=LEASE_S))
        self.registry = Part(tables.registries, tables.registries.put(registry))
        book = cores.book(Always(SLOTS), bounds=Bounds(linger_s=LINGER_S), quota=Quota(slots=SLOTS))
        self.book = Part(tables.books, tables.books.put(book))
        self.new_book = self.book.number
        self.proposals: list[BranchId] = []
        self.work: dict[StageKey, Work] = {}
        self.let_go: list[StageKey] = []
        self.begins: dict[StageKey, RunStage] = {}
        self.discards: dict[str, Discarding] = {}
        self.aborts: set[GenerationId] = set()
        self.orders: dict[GenerationId, _Ordering] = {}
        self.lefts: list[tuple[GenerationId, int]] = []
        self.commits: dict[GenerationId, agent.CommitResult] = {}
        self.releases: set[LeaseId] = set()
        self.texts: dict[GenerationId, str] = {}
        self.made: dict[GenerationId, bytes] = {}
        self.ends: dict[GenerationId, GenerationEnd] = {}
        self.requests = [Request(wanted) for wanted in scenario.wanted]
        self.told: set[int] = set()
        self.past: dict[str, Settlement] = {}
        self.decided = self.expired = False
        self.version = self.acknowledged = self.changes = self.failures = self.restarts = 0
        # What only the judge reads.
        self.discarded: set[FillId] = set()
        self.adopters: dict[GenerationId, int] = {}
        self.demanded: set[Name] = set()
        self.reserved: set[StageKey] = set()
        self.moved: Counter[tuple[FillId, str, str]] = Counter()
        self.closed = 0
        self.answered: DemandOutcome | None = None
        self._begin()

    def _begin(self) -> None:
        self._agent(agent.EngineReady(SLOTS))
        self.see_engine()
        passport = Passport("group", "scope")
        template = template_of(self.scenario)
        self._tell(StageArrived(UnixMs(1), ROUTE, OWN, template, "route", {}, (), passport))

    def see_engine(self) -> None:
        self._tell(EngineSeen(ENGINE, SLOTS, 0, 0, fill_slots=SLOTS))

    def settlements(self) -> tuple[Settlement, ...]:
        return self.store.look(
            "settlements", lambda side: side.library.settlements(side.rows, after=0, at_most=1000)
        )

    @property
    def running(self) -> tuple[GenerationId, ...]:
        return self.registry.look(
            "running",
            lambda core: tuple(i for i, one in core.generations.items() if one.state is State.RUNNING),
        )

    # -- keeping it ----------------------------------------------------------------------------------------

    def copy(self) -> BranchWorld:
        twin = BranchWorld.__new__(BranchWorld)
        for name, value in vars(self).items():
            setattr(twin, name, value.copy() if isinstance(value, _COPIED) else value)
        twin.work = {key: copy(work) for key, work in self.work.items()}
        twin.discards = {key: copy(discarding) for key, discarding in self.discards.items()}
        twin.requests = [copy(request) for request in self.requests]
        return twin

    def mark(self) -> bytes:
        """The same for states that go on alike."""
        form = [form_of(value, self.tables.told) for name, value in vars(self).items() if name not in _FIXED]
        return hashlib.blake2b(marshal.dumps(form, 2), digest_size=16).digest()

    # -- making it happen ----------------------------------------------------------------------------------

    def take(self, step: Step) -> None:
        kind, *whom = step
        name = " ".join(step)
        if kind == At.ASKING.name.lower():
            name += f" {self.requests[int(whom[0])].attempt}"
        self.ids.begin(name)
        getattr(self, "_do_" + kind.replace(" ", "_"))(*whom)

    def _tell(self, event: BookEvent) -> None:
        if isinstance(event, StageEnded):
            self.reserved.discard(event.key)
        now = Instant(self.now)
        what = (now, "arrived" if isinstance(event, StageArrived) else event)
        for effect in self.book.do(what, lambda book: heard(book, event, now)):
            match effect:
                case Propose(branch_id):
                    self.proposals.append(branch_id)
                case PrepareStage(key):
                    self.work[key] = Work(Phase.PREPARING, prepare=effect)
                case RunStage(key):
                    self.work[key] = Work(Phase.LEAVING, ask=effect)
                    self.begins[key] = effect
                    self.reserved.add(key)
                case Detach(key):
                    self._leave(key)
                case DiscardRuns(reason=reason):
                    self.discards[f"{reason.value} {len(self.discards)}"] = Discarding(effect)
                case AbortGeneration(generation):
                    self.aborts.add(generation.generation_id)
                case Told():
                    self._note(effect)
                case Learn() | Unlearn():
                    self.closed += 1
                case _:
                    assert_never(effect)

    def _note(self, told: Told) -> None:
        if told.mark is Mark.STAGE_MOVED and told.fill_id is not None:
            facts = dict(told.facts)
            self.moved[told.fill_id, str(facts["stage"]), str(facts["state"])] += 1

    def ask(self, event: StoreEvent) -> object:
        now, step, made = self.moment, self.ids.step, self.ids.made
        what = (event, now, step, made)
        reply, self.ids.made = self.store.do(what, lambda side: asked(side, event, now, step, made))
        return reply

    @property
    def moment(self) -> Moment:
        return Moment(Instant(self.now), UnixMs(1_000_000 + round(self.now * 1000)))

    # The controller's shell

    def _do_propose(self) -> None:
        branch_id = self.proposals.pop(0)
        self._tell(CandidatesProposed(branch_id, self.scenario.candidates))

    def _do_prepare(self, place: str) -> None:
        key = key_at(place)
        ask = self.work.pop(key).prepare
        assert ask is not None
        before = ""
        if key.number:
            before = ask.context.outputs[f"do{key.number - 1}"][-1].text
        text = request_text(self.scenario, ask.selection, key.number, before)
        prepared = Prepared(
            name_of(text), WireProtocol.CHAT_COMPLETIONS, "m", text.encode(), Digest(b"f" * 32), (ENGINE,), 1,
            scope=self.scope, once=self.scenario.once,
        )  # fmt: skip
        self._tell(StagePrepared(key, prepared))

    @property
    def scope(self) -> ReadScope:
        return ReadScope(sources=(SOURCE,)) if self.scenario.reads else PURE

    def _do_granted(self, place: str) -> None:
        key = key_at(place)
        work = self.work[key]
        assert work.ask is not None
        match cast(FillOutcome, work.reply):
            case FillGranted(lease):
                self._tell(StageBegan(key, lease.generation))
                work.phase, work.generation = Phase.FOLLOWING, lease.generation
                text = work.ask.prepared.body.decode()
                generation = lease.generation.generation_id
                self.orders[generation] = (lease, WorkClass.FILL, text, follower_of(key))
            case FillKnown(payload=payload):
                self._end(key, StageEnded(key, Ending.KNOWN, output=self._output(key, payload)))
            case FillLive(generation):
                if work.ask.continues:
                    work.phase, work.generation = Phase.JOINING, generation
                else:
                    self._end(key, StageEnded(key, Ending.JOINED))
            case FillRefused(reason):
                self._end(key, StageEnded(key, Ending.REFUSED, detail=reason.value))

    def _output(self, key: StageKey, payload: bytes) -> Output | None:
        ask = self.work[key].ask
        return Output(payload.decode()) if ask is not None and ask.continues else None

    def _end(self, key: StageKey, event: StageEnded) -> None:
        self.work.pop(key, None)
        self._tell(event)

    def _do_join(self, place: str) -> None:
        key = key_at(place)
        work = self.work[key]
        assert work.generation is not None
        try:
            self._agent(agent.Attached(work.generation.generation_id, agent.FollowerId(follower_of(key))))
            work.phase = Phase.FOLLOWING
        except NotFound:
            self._end(key, StageEnded(key, Ending.JOINED, detail="could not be followed"))

    def _do_ended(self, place: str) -> None:
        key = key_at(place)
        work = self.work[key]
        assert work.generation is not None and work.ask is not None
        generation = work.generation.generation_id
        granted = isinstance(work.reply, FillGranted)
        match self.ends[generation]:
            case Completed(commit):
                output = self._output(key, self.made[generation])
                how = Ending.JOINED if not granted else Ending.STORED
                if granted and commit != "committed":
                    how, output = Ending.NOT_STORED, None
            case Failed():
                how, output = Ending.FAILED if granted else Ending.JOINED, None
            case Aborted():
                how, output = Ending.ABORTED if granted else Ending.JOINED, None
        self._end(key, StageEnded(key, how, 10.0, output))

    def _leave(self, key: StageKey) -> None:
        work = self.work.pop(key, None)
        if work is None:
            return
        if work.phase is Phase.FOLLOWING and work.generation is not None:
            self.lefts.append((work.generation.generation_id, follower_of(key)))
        self.let_go.append(key)

    def _do_let_go(self, place: str) -> None:
        key = key_at(place)
        self.let_go.remove(key)
        self._tell(StageEnded(key, Ending.ABORTED, detail="let go"))

    def _do_discarded(self, number: str) -> None:
        done = self.discards.pop(number)
        for key in done.ask.keys:
            self._leave(key)
        self._tell(FillsDiscarded(done.ask.branch_id, done.ask.fills, done.immune, True))

    # The store

    def _do_begin(self, place: str) -> None:
        key = key_at(place)
        ask = self.begins.pop(key)
        fill = BeginFill(
            origin=ask.origin,
            name=ask.prepared.name,
            identity=ask.identity,
            scope=ask.prepared.scope,
            intended=GenerationRef(GenerationId(b""), ask.engine),
            producers=ask.producers,
            once=ask.prepared.once,
            shadow_ttl_ms=ask.shadow_ttl_ms,
        )
        reply = cast(FillOutcome, self.ask(fill))
        work = self.work.get(key)
        if work is not None:
            work.reply = reply

    def _do_discard(self, number: str) -> None:
        discarding = self.discards[number]
        ask = discarding.ask
        result = cast(DiscardResult, self.ask(DiscardFills(ask.fills, ask.reason)))
        discarding.handled, discarding.immune = True, frozenset(result.immune)
        discarding.aborting = frozenset(one.generation_id for one in result.abort)
        self.aborts |= discarding.aborting
        self.discarded.update(ask.fills)
        if discarding.orphan:
            del self.discards[number]

    def _do_release(self, lease: str) -> None:
        lease_id = LeaseId(bytes.fromhex(lease))
        self.releases.discard(lease_id)
        self.ask(ReleaseLeases((lease_id,)))

    def _do_change(self) -> None:
        """The record changes where it lives; the store is told a little later."""
        self.version += 1
        self.changes += 1

    def _do_write(self) -> None:
        self.ask(Write((RecordId(RECORD),), "backend"))
        self.acknowledged = self.version

    def _do_settle(self, number: str) -> None:
        row = self.store.look(("row", number), lambda side: settlement_in(side, int(number)))
        self._tell(Settled(row))
        if not self.scenario.acknowledges:
            self.told.add(int(number))
            return
        self.ask(AcknowledgeSettlements(int(number)))
        self.past = {**self.past, past_key(row, self.past): row}

    # The engine

    def _agent(self, event: agent.Event) -> None:
        now = Instant(self.now)
        answer = self.registry.do((now, event), lambda registry: worked(registry, event, now))
        if isinstance(answer, NotFound):
            raise answer
        effects, ends = answer
        for effect in effects:
            match effect:
                case agent.StartEngine(order):
                    generation = order.generation_id
                    seen = f"@{self.version} " if self.scenario.reads else ""
                    drawn = f"#{generation.hex()}" if self.scenario.once else ""
                    self.made[generation] = f"{self.texts[generation]}{seen}{drawn}".encode()
                case agent.AbortEngine(generation):
                    self._agent(agent.EngineLetGo(generation))
                case agent.CommitResult(generation):
                    self.commits[generation] = effect
                case agent.ReleaseLeases(leases):
                    self.releases.update(leases)
                case agent.RenewLeases(leases, ttl_ms):
                    unknown = cast(frozenset[LeaseId], self.ask(RenewLeases(leases, ttl_ms)))
                    if unknown:
                        self._agent(agent.LeasesUnknown(unknown))
                case agent.Wake() | agent.Ended():
                    pass
                case _:
                    assert_never(effect)
        self.ends.update(ends)

    def _do_order(self, whom: str) -> None:
        generation = GenerationId(bytes.fromhex(whom))
        lease, work, text, follower = self.orders.pop(generation)
        order = order_of(generation, lease, work)
        self.texts[generation] = text
        self._agent(agent.Ordered(order, agent.FollowerId(follower)))

    def _do_run(self, whom: str) -> None:
        reads = (RecordId(RECORD),) if self.scenario.reads else None
        self._agent(agent.EngineEnded(GenerationId(bytes.fromhex(whom)), reads=reads))

    def _do_fail(self, whom: str) -> None:
        self.failures += 1
        self._agent(agent.EngineFailed(GenerationId(bytes.fromhex(whom)), Failed(500, b"", may_retry=True)))

    def _do_abort(self, whom: str) -> None:
        generation = GenerationId(bytes.fromhex(whom))
        self.aborts.discard(generation)
        self._agent(agent.AbortAsked(generation, "lost", only_speculative=True))
        for discarding in self.discards.values():
            discarding.aborting -= {generation}

    def _do_left(self, whom: str, follower: str) -> None:
        generation = GenerationId(bytes.fromhex(whom))
        self.lefts.remove((generation, int(follower)))
        self._agent(agent.Left(generation, agent.FollowerId(int(follower))))

    def _do_commit(self, whom: str) -> None:
        generation = GenerationId(bytes.fromhex(whom))
        asked = self.commits.pop(generation)
        payload = self.made[generation]
        output = digest(payload.decode())
        commit = Commit(
            asked.lease, payload, output, Level.SAMPLED if asked.lease.once else Level.GREEDY, 10.0,
            reads=asked.reads, output_digests=(output,),
        )  # fmt: skip
        outcome = cast(CommitOutcome, self.ask(commit))
        word = "committed" if isinstance(outcome, Committed) else outcome.reason.value
        self._agent(agent.CommitAnswered(generation, word))

    # Harnesses and their gateways

    def _do_demand(self, number: str) -> None:
        request = self.requests[int(number)]
        wanted = request.wanted
        stage, before = 0, ""
        if wanted.after is not None:
            stage, before = 1, self.requests[wanted.after].served.decode()
        request.text = request_text(self.scenario, wanted.selection, stage, before)
        request.floor = self.acknowledged
        request.at = At.ASKING

    def _do_asking(self, number: str) -> None:
        request = self.requests[int(number)]
        demand = Demand(
            demand_id=DemandId(f"d{number} {request.attempt}".encode()),
            name=name_of(request.text),
            identity=request.identity,
            scope=self.scope,
            intended=GenerationRef(GenerationId(b""), ENGINE),
            exclude_generations=request.excluded,
            once=self.scenario.once,
        )
        self.demanded.add(demand.name)
        self.answered = None
        outcome = cast(DemandOutcome, self.ask(demand))
        self.answered = outcome
        match outcome:
            case Hit(payload=payload):
                request.served, request.at = payload, At.SERVED
            case Live(generation, adopted):
                request.generation, request.adopts = generation.generation_id, adopted is not None
                request.at = At.ATTACHING
            case Miss(lease):
                generation_id = GenerationId(self.ids()) if lease is None else lease.generation.generation_id
                request.generation = generation_id
                follower = request.follower(number)
                self.orders[generation_id] = (lease, WorkClass.CANONICAL, request.text, follower)
                request.at = At.WAITING

    def _do_attaching(self, number: str) -> None:
        request = self.requests[int(number)]
        assert request.generation is not None
        follower = agent.FollowerId(request.follower(number))
        try:
            self._agent(agent.Attached(request.generation, follower, request.adopts))
            request.at = At.WAITING
        except NotFound:
            request.ask_again()

    def _do_served(self, number: str) -> None:
        request = self.requests[int(number)]
        assert request.generation is not None
        if isinstance(self.ends[request.generation], Completed):
            request.served, request.at = self.made[request.generation], At.SERVED
        else:
            request.ask_again()

    def _do_decide(self, selection: str) -> None:
        self.decided = True
        told = Selection("way", (selection,)) if selection else Selection("way", ambiguous=True)
        answer = Answer(Output(f"way {selection}"), (told,), 10.0)
        self._tell(StageAnswered(UnixMs(2), ROUTE, "miss", answer=answer))

    def _do_restart(self) -> None:
        """The controller stops, and another begins. What it has sent comes to others all the same."""
        self.restarts += 1
        following = [(key, work) for key, work in self.work.items() if work.phase is Phase.FOLLOWING]
        for key, work in following:
            assert work.generation is not None
            self.lefts.append((work.generation.generation_id, follower_of(key)))
        self.discards = orphaned(self.discards)
        self.work, self.let_go, self.proposals, self.reserved, self.told = {}, [], [], set(), set()
        self.book.number = self.new_book
        self.see_engine()

    # Time

    def _do_expire(self) -> None:
        self.expired = True
        self.pass_time(EXPIRES_S)

    def pass_time(self, seconds: float) -> None:
        self.now += seconds
        self._agent(agent.Ticked())
        self._tell(TimePassed())

    def sweep(self) -> None:
        while self.ask(SweepShadows()):
            pass


_COPIED = (dict, list, set, Counter, Part, Ids)
_FIXED = frozenset({"tables", "scenario", "ids", "answered"})
