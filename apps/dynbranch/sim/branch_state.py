"""What a world with a branch holds: three cores, what their shells have in hand, and what is under way.

``branch_world`` makes steps of it happen. Nothing depends on chance, so that every interleaving can be tried.
"""

from __future__ import annotations

import hashlib
import marshal
from collections import Counter
from copy import copy
from typing import Self, assert_never, cast

from dynbranch.controller.core.branches.admission import Always
from dynbranch.controller.core.branches.instances import Bounds
from dynbranch.controller.core.branches.messages import (
    AbortGeneration,
    Detach,
    DiscardRuns,
    EngineSeen,
    Learn,
    Mark,
    Passport,
    PrepareStage,
    Propose,
    RunStage,
    StageArrived,
    StageEnded,
    StageKey,
    TimePassed,
    Told,
    Unlearn,
)
from dynbranch.controller.core.branches.messages import Event as BookEvent
from dynbranch.controller.core.branches.reservations import Quota
from dynbranch.csl.core.events import Event as StoreEvent
from dynbranch.csl.core.events import Moment, RenewLeases, SweepShadows
from dynbranch.domain.engine import GenerationEnd, WorkClass
from dynbranch.domain.errors import NotFound
from dynbranch.domain.fills import Settlement
from dynbranch.domain.ids import (
    BranchId,
    DemandId,
    FillId,
    GenerationId,
    Instant,
    LeaseId,
    Name,
    UnixMs,
)
from dynbranch.domain.reuse import DemandOutcome, Lease
from dynbranch.engine_agent.core import messages as agent
from dynbranch.engine_agent.core.lifecycle import State
from dynbranch.engine_agent.core.registry import Limits as AgentLimits
from dynbranch.sim.branch_acts import asked, form_of, heard, store_side, worked
from dynbranch.sim.branch_cast import (
    ENGINE,
    LEASE_S,
    LINGER_S,
    OWN,
    BranchCores,
    Discarding,
    Ids,
    Phase,
    Request,
    Scenario,
    Work,
    follower_of,
    template_of,
)
from dynbranch.sim.branch_parts import Part, Tables

SLOTS = 8
ROUTE = DemandId(b"route")


Ordering = tuple[Lease | None, WorkClass, str, int]
"""An order on its way: under which lease, as what, what is asked, and who follows."""


class BranchState:
    """One branch of one workflow, from the moment when its candidates are asked for. ``writing``: the version
    that the write under way tells of, where it is looked for in steps what that fells."""

    def __init__(self, scenario: Scenario, cores: BranchCores | None = None) -> None:
        cores = cores or BranchCores()
        tables = Tables(scenario)
        self.tables = tables
        self.scenario = scenario
        self.now = 100.0
        self.ids = Ids()
        self.store = Part(tables.stores, tables.stores.put(store_side(cores, sliced=scenario.sliced)))
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
        self.orders: dict[GenerationId, Ordering] = {}
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
        self.writing: int | None = None
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

    @property
    def slices(self) -> int:
        """Those that a write condemned and that are still there."""
        return self.store.look("slices", lambda side: len(side.library.slices))

    # -- keeping it ----------------------------------------------------------------------------------------

    def copy(self) -> Self:
        twin = self.__new__(type(self))
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

    # -- its cores -----------------------------------------------------------------------------------------

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

    def _leave(self, key: StageKey) -> None:
        work = self.work.pop(key, None)
        if work is None:
            return
        if work.phase is Phase.FOLLOWING and work.generation is not None:
            self.lefts.append((work.generation.generation_id, follower_of(key)))
        self.let_go.append(key)

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

    def pass_time(self, seconds: float) -> None:
        self.now += seconds
        self._agent(agent.Ticked())
        self._tell(TimePassed())

    def sweep(self) -> None:
        while self.ask(SweepShadows()):
            pass


_COPIED = (dict, list, set, Counter, Part, Ids)
_FIXED = frozenset({"tables", "scenario", "ids", "answered"})
