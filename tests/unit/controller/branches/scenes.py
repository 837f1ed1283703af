"""A book of branches under a script: small templates, short events, an obedient shell."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import count
from typing import TypeVar

from dynbranch.controller.core.branches.admission import Admission, Always
from dynbranch.controller.core.branches.book import BranchBook
from dynbranch.controller.core.branches.instances import Bounds
from dynbranch.controller.core.branches.messages import (
    Answer,
    CandidatesProposed,
    ChoiceShown,
    Effect,
    Ending,
    EngineSeen,
    Event,
    FillsDiscarded,
    Passport,
    PredictorAnswer,
    Prepared,
    PrepareStage,
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
)
from dynbranch.controller.core.branches.records import Branch, Fill, StageRun
from dynbranch.controller.core.branches.reservations import Quota
from dynbranch.domain.engine import WireProtocol
from dynbranch.domain.events import Selection
from dynbranch.domain.fills import Settlement, SettlementKind
from dynbranch.domain.ids import BranchId, DemandId, Digest, GenerationId, Instant, Name, UnixMs
from dynbranch.domain.reuse import GenerationRef, Identity
from dynbranch.domain.template import (
    Branching,
    Candidates,
    DecisionPoint,
    Moment,
    MomentKind,
    Origin,
    Output,
    PredictorUse,
    Speculable,
    Stage,
    StageKind,
    Template,
    Where,
    Window,
)

E = TypeVar("E")


def stage(name: str, speculable: Speculable = Speculable.YES) -> Stage:
    return Stage(name, StageKind.CHAT, request=name, speculable=speculable, repeats=True)


def routed(
    *,
    branching: Branching = Branching.EXCLUSIVE,
    opens: tuple[Moment, ...] = (Moment(MomentKind.ARRIVAL, "route"),),
    then: tuple[str, ...] = ("work", "finish"),
    speculable: Speculable = Speculable.YES,
    several: bool = False,
    unused: bool = False,
    expires_s: float = 60.0,
) -> Template:
    """A model writes which way to go; then ``work`` and ``finish`` run."""
    point = DecisionPoint(
        name="way",
        stage="route",
        resolved_by=Where(Origin.OUTPUT, "route"),
        window=Window.DECODE,
        branching=branching,
        opens=opens,
        candidates=Candidates((PredictorUse("history"),), unused=unused),
        then=then,
        several=several,
        expires_s=expires_s,
    )
    stages = (stage("route"), stage("work", speculable), stage("finish"), stage("sum", Speculable.NO))
    return Template("routing", 1, (), stages, (point,), "d1")


def picked(*, branching: Branching = Branching.INDEPENDENT, expires_s: float = 60.0) -> Template:
    """A person is asked by ``offer`` and picks in ``act``."""
    point = DecisionPoint(
        name="pick",
        stage="offer",
        resolved_by=Where(Origin.REQUEST, "act"),
        window=Window.WAIT,
        branching=branching,
        opens=(Moment(MomentKind.OUTPUT, "offer"),),
        candidates=Candidates((PredictorUse("offer"),)),
        then=("act", "tell"),
        expires_s=expires_s,
    )
    return Template("menus", 1, (), (stage("offer"), stage("act"), stage("tell")), (point,), "d2")


WORKFLOW = Identity("t", "routing", "w1", "main")


@dataclass
class Scene:
    """Drives a book and checks it after every event."""

    template: Template = field(default_factory=routed)
    admission: Admission = field(default_factory=lambda: Always(3))
    bounds: Bounds = field(default_factory=Bounds)
    quota: Quota = field(default_factory=lambda: Quota(slots=8))
    slots: int = 8
    now: float = 100.0

    def __post_init__(self) -> None:
        self.book = BranchBook(self.admission, bounds=self.bounds, quota=self.quota)
        self.effects: list[Effect] = []
        self.numbers = count(1)
        self.do(EngineSeen("e1", self.slots, 0, 0, fill_slots=self.slots))

    # -- driving -------------------------------------------------------------------------------------------

    def do(self, event: Event) -> list[Effect]:
        out = self.book.handle(event, Instant(self.now))
        self.book.validate_state()
        self.effects.extend(out)
        return out

    def later(self, seconds: float) -> list[Effect]:
        self.now += seconds
        return self.do(TimePassed())

    def arrive(
        self,
        stage_name: str,
        demand: str,
        *,
        identity: Identity = WORKFLOW,
        selections: Iterable[Selection] = (),
    ) -> list[Effect]:
        return self.do(
            StageArrived(
                UnixMs(1),
                DemandId(demand.encode()),
                identity,
                self.template,
                stage_name,
                {"q": "question"},
                tuple(selections),
                Passport("group", "scope", (("authorization", "secret"),)),
            )
        )

    def answer(
        self,
        demand: str,
        *,
        chosen: Iterable[str] | None = None,
        point: str = "way",
        text: str = "out",
        outcome: str = "miss",
        failed: bool = False,
        ambiguous: bool = False,
    ) -> list[Effect]:
        told = () if chosen is None and not ambiguous else (Selection(point, tuple(chosen or ()), ambiguous),)
        answer = Answer(Output(text), told, 10.0)
        return self.do(StageAnswered(UnixMs(2), DemandId(demand.encode()), outcome, failed, answer))

    def choice(
        self,
        demand: str,
        *chosen: str,
        closed: bool = False,
        spoken: bool = False,
        point: str = "way",
        identity: Identity = WORKFLOW,
    ) -> list[Effect]:
        told = Selection(point, chosen)
        return self.do(ChoiceShown(DemandId(demand.encode()), identity, told, closed, spoken))

    def propose(self, branch: Branch, *ranked: str) -> list[Effect]:
        answer = PredictorAnswer("history", "ranked", 2.0, ranked)
        return self.do(CandidatesProposed(branch.branch_id, ranked, 2.0, (answer,)))

    # -- the shell's part ----------------------------------------------------------------------------------

    def prepare(self, fill: Fill, *, members: tuple[str, ...] = ("e1",)) -> RunStage | None:
        out = self.do(StagePrepared(fill.stages[-1].key, prepared_for(fill.stages[-1].key, members)))
        return next((effect for effect in out if isinstance(effect, RunStage)), None)

    def begin(self, fill: Fill) -> StageKey:
        key = fill.stages[-1].key
        self.do(StageBegan(key, GenerationRef(GenerationId(b"g%d" % next(self.numbers)), "e1")))
        return key

    def run(self, fill: Fill) -> StageKey:
        assert self.prepare(fill) is not None
        return self.begin(fill)

    def end(
        self, key: StageKey, how: Ending = Ending.STORED, *, ms: float = 50.0, text: str = "result"
    ) -> list[Effect]:
        output = Output(text) if how in (Ending.STORED, Ending.KNOWN, Ending.JOINED) else None
        return self.do(StageEnded(key, how, ms, output, "" if output else how.value))

    def settle(
        self,
        stage_run: StageRun,
        fill: Fill,
        kind: SettlementKind,
        *,
        by: Identity | None = None,
        ms: float = 50.0,
        reason: str = "",
        generation: GenerationRef | None = None,
    ) -> list[Effect]:
        number = next(self.numbers)
        origin = fill.origin(stage_run.key.number)
        name = stage_run.name or Name(b"?" * 32)
        row = Settlement(number, kind, origin, UnixMs(3), name, by, ms, generation, reason)
        return self.do(Settled(row))

    def discarded(self, *fills: Fill, immune: Iterable[Fill] = ()) -> list[Effect]:
        immune_ids = frozenset(fill.fill_id for fill in immune)
        return self.do(
            FillsDiscarded(
                self.branch.branch_id, tuple(fill.fill_id for fill in fills), immune_ids, True, (3.0,)
            )
        )

    def run_ahead(self, branch: Branch, *, took_s: float) -> None:
        """Every fill of one stage, to its shadow."""
        for fill in list(branch.fills.values()):
            key = self.run(fill)
            self.now += took_s
            self.settle(fill.stages[0], fill, SettlementKind.SHADOWED, ms=900.0)
            self.end(key, Ending.STORED, ms=900.0)

    def decide(self, branch: Branch, demand: str, chosen: str, who: Identity) -> None:
        """The demand of what was chosen takes its shadow; the others are lost."""
        self.answer(demand, chosen=[chosen])
        for selection, fill in branch.fills.items():
            if selection == chosen:
                self.settle(fill.stages[0], fill, SettlementKind.PROMOTED, by=who, ms=900.0)
            else:
                self.discarded(fill)
                self.settle(fill.stages[0], fill, SettlementKind.DISCARDED)

    # -- looking -------------------------------------------------------------------------------------------

    @property
    def branch(self) -> Branch:
        """The newest."""
        return self.book.branches.listed("", 1)[0]

    @property
    def reserved(self) -> int:
        return len(self.book.filling.reservations)

    def told(self, branch_id: BranchId) -> list[str]:
        return [e.mark.value for e in self.effects if isinstance(e, Told) and e.branch_id == branch_id]


def prepared_for(key: StageKey, members: tuple[str, ...] = ("e1",)) -> Prepared:
    name = Name(key.fill_id + key.number.to_bytes(16, "big"))
    body = b"{}" + b" " * 600
    return Prepared(name, WireProtocol.CHAT_COMPLETIONS, "m", body, Digest(b"f" * 32), members, 100)


def of(kind: type[E], effects: Iterable[object]) -> list[E]:
    return [effect for effect in effects if isinstance(effect, kind)]


def started(effects: Iterable[object]) -> list[str]:
    return [f"{effect.stage}:{effect.selection}" for effect in of(PrepareStage, effects)]
