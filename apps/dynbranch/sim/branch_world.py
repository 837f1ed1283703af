"""A branch with everybody in it: the controller's book, the store's library, an engine's registry, and shells
that hold messages back until they are told to let one go.

``branch_steps`` says what may happen next, ``take`` makes one of it happen.
"""

from __future__ import annotations

from typing import cast

from dynbranch.controller.core.branches.messages import (
    Answer,
    CandidatesProposed,
    Ending,
    FillsDiscarded,
    Prepared,
    Settled,
    StageAnswered,
    StageBegan,
    StageEnded,
    StageKey,
    StagePrepared,
)
from dynbranch.csl.core.events import AcknowledgeSettlements, ReleaseLeases, Write
from dynbranch.csl.fake import digest
from dynbranch.domain.engine import Aborted, Completed, Failed, WireProtocol, WorkClass
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
)
from dynbranch.domain.ids import DemandId, Digest, GenerationId, LeaseId, RecordId, UnixMs
from dynbranch.domain.reuse import (
    PURE,
    Commit,
    CommitOutcome,
    Committed,
    Demand,
    DemandOutcome,
    GenerationRef,
    Hit,
    Level,
    Live,
    Miss,
    ReadScope,
)
from dynbranch.domain.template import Output
from dynbranch.engine_agent.core import messages as agent
from dynbranch.sim.branch_acts import past_key, settlement_in
from dynbranch.sim.branch_cast import (
    ENGINE,
    EXPIRES_S,
    RECORD,
    SOURCE,
    At,
    Phase,
    Step,
    follower_of,
    key_at,
    name_of,
    order_of,
    orphaned,
    request_text,
)
from dynbranch.sim.branch_state import ROUTE, BranchState
from dynbranch.sim.branch_writes import delete_slice, look_further, plan


class BranchWorld(BranchState):
    """What each step does."""

    def take(self, step: Step) -> None:
        kind, *whom = step
        name = " ".join(step)
        if kind == At.ASKING.name.lower():
            name += f" {self.requests[int(whom[0])].attempt}"
        self.ids.begin(name)
        getattr(self, "_do_" + kind.replace(" ", "_"))(*whom)

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
        write = Write((RecordId(RECORD),), "backend")
        if not self.scenario.sliced:
            self.ask(write)
            self.acknowledged = self.version
            return
        now = self.moment
        self.store.do(("plan", now), lambda side: plan(side, write, now))
        self.writing = self.version

    def _do_look(self) -> None:
        """One step further. It is acknowledged when what was found has fallen."""
        assert self.writing is not None
        if self.store.do("look", look_further):
            self.acknowledged, self.writing = self.writing, None

    def _do_slice(self) -> None:
        self.store.do("slice", delete_slice)

    def _do_settle(self, number: str) -> None:
        row = self.store.look(("row", number), lambda side: settlement_in(side, int(number)))
        self._tell(Settled(row))
        if not self.scenario.acknowledges:
            self.told.add(int(number))
            return
        self.ask(AcknowledgeSettlements(int(number)))
        self.past = {**self.past, past_key(row, self.past): row}

    # The engine

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
