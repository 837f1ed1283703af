"""Who takes part in an exhaustive run of branches: scenario, cores, and what shells hold in between."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from enum import Enum
from functools import cache

from dynbranch.controller.core.branches.book import BranchBook
from dynbranch.controller.core.branches.messages import DiscardRuns, PrepareStage, RunStage, StageKey
from dynbranch.csl.core.library import Library
from dynbranch.domain.engine import GenerationOrder, WireProtocol, WorkClass
from dynbranch.domain.fills import FillOutcome
from dynbranch.domain.ids import Digest, FillId, GenerationId, Name
from dynbranch.domain.reuse import GenerationRef, Identity, Lease
from dynbranch.domain.template import (
    Branching,
    Candidates,
    DecisionPoint,
    Moment,
    MomentKind,
    Origin,
    PredictorUse,
    Speculable,
    Stage,
    StageKind,
    Template,
    Where,
    Window,
)
from dynbranch.engine_agent.core.registry import Registry

RECORD = "s/1"
SOURCE = "s"
ENGINE = "e1"
EXPIRES_S = 60.0
GRACE_MS = 2000
LEASE_S = 1000.0
LINGER_S = 1_000_000.0

Step = tuple[str, ...]
"""What happens, and to whom."""

OWN = Identity("t", "routing", "w1", "main")
OTHER = Identity("t", "routing", "w2", "main")


@dataclass(frozen=True, slots=True)
class Wanted:
    """A canonical request for what follows a selection. ``after``: it is built from what this earlier one was
    served. ``foreign``: of another workflow."""

    selection: str
    foreign: bool = False
    after: int | None = None


@dataclass(frozen=True, slots=True)
class Scenario:
    """What may happen, each in its own time: ``selections`` are what the decision may turn out to be, "" is
    one that can not be told. ``eager`` kinds of steps are taken as soon as they can be, before all else."""

    candidates: tuple[str, ...] = ("a", "b")
    wanted: tuple[Wanted, ...] = (Wanted("a"),)
    writes: int = 0
    selections: tuple[str, ...] = ("a",)
    expires: bool = False
    failures: int = 0
    chain: int = 1
    branching: Branching = Branching.EXCLUSIVE
    shared: bool = False
    """All candidates' requests are one and the same."""
    reads: bool = True
    once: bool = False
    """The stage is sampled: each execution gives another result, and each result serves one request."""
    restarts: int = 0
    """Of the controller, which then knows nothing."""
    any_order: bool = False
    """Settlements overtake one another."""
    sliced: bool = False
    """A write looks in steps for what it fells, and deletes it in slices."""
    eager: frozenset[str] = frozenset()

    @property
    def acknowledges(self) -> bool:
        """Whether the store may let go of what the controller was told. Then it does not matter any more in
        which order it came; a new controller would be told it again."""
        return not self.any_order and not self.restarts


@dataclass(frozen=True, slots=True)
class BranchCores:
    book: type[BranchBook] = BranchBook
    library: type[Library] = Library
    registry: type[Registry] = Registry


class Ids:
    """Ids that say in which step they were made: the same step makes the same ones in whatever order."""

    def __init__(self) -> None:
        self.step = ""
        self.made = 0

    def begin(self, step: str) -> None:
        self.step, self.made = step, 0

    def copy(self) -> Ids:
        twin = Ids()
        twin.step, twin.made = self.step, self.made
        return twin

    def __call__(self) -> bytes:
        self.made += 1
        return hashlib.blake2b(f"{self.step}#{self.made}".encode(), digest_size=16).digest()


class Phase(Enum):
    PREPARING = "preparing"
    LEAVING = "leaving"
    JOINING = "joining"
    FOLLOWING = "following"


@dataclass(slots=True)
class Work:
    """What the controller's shell does for one stage. ``reply`` is the store's, on its way."""

    phase: Phase
    prepare: PrepareStage | None = None
    ask: RunStage | None = None
    reply: FillOutcome | None = None
    generation: GenerationRef | None = None


@dataclass(slots=True)
class Discarding:
    """A discard that the shell carries out: asked of the store, then of the engines, then told."""

    ask: DiscardRuns
    handled: bool = False
    orphan: bool = False
    """Whoever asked for it is gone."""
    immune: frozenset[FillId] = frozenset()
    aborting: frozenset[GenerationId] = frozenset()


def orphaned(discards: dict[str, Discarding]) -> dict[str, Discarding]:
    """Those of a controller that is gone which the store has still to hear of."""
    asked = [one.ask for one in discards.values() if not one.handled]
    return {f"old {number}": Discarding(ask, orphan=True) for number, ask in enumerate(asked)}


class At(Enum):
    """Where a canonical request stands."""

    HOME = "not begun"
    ASKING = "asking the store"
    ATTACHING = "attaching"
    WAITING = "waiting for its end"
    SERVED = "served"


@dataclass(slots=True)
class Request:
    """``floor`` is the version whose write was acknowledged before it began."""

    wanted: Wanted
    at: At = At.HOME
    text: str = ""
    floor: int = 0
    attempt: int = 0
    adopts: bool = False
    excluded: frozenset[GenerationId] = frozenset()
    generation: GenerationId | None = None
    served: bytes = b""

    @property
    def identity(self) -> Identity:
        return OTHER if self.wanted.foreign else OWN

    def follower(self, number: str) -> int:
        """Of this attempt. ``number`` is this request's."""
        return 100 * (int(number) + 1) + self.attempt

    def ask_again(self) -> None:
        """Of the store, for another generation than the one that did not end well."""
        assert self.generation is not None
        self.excluded |= {self.generation}
        self.attempt += 1
        self.at = At.ASKING


def order_of(generation: GenerationId, lease: Lease | None, work: WorkClass) -> GenerationOrder:
    return GenerationOrder(
        generation, WireProtocol.CHAT_COMPLETIONS, "m", b"", Digest(b"f" * 32), OWN, lease,
        detach_grace_ms=GRACE_MS, work=work,
    )  # fmt: skip


def name_of(text: str) -> Name:
    return Name(hashlib.sha256(text.encode()).digest())


def request_text(scenario: Scenario, selection: str, number: int, before: str) -> str:
    """What a stage is asked: it names the stage alone, or in a chain also what the stage before gave."""
    way = "all" if scenario.shared else selection
    return f"{way}{number}" + (f" after {before}" if before else "")


def version_in(payload: bytes) -> int:
    """The oldest version of the record that a result was made from."""
    return min(int(part.partition(b" ")[0]) for part in payload.split(b"@")[1:])


@cache
def template_of(scenario: Scenario) -> Template:
    then = tuple(f"do{number}" for number in range(scenario.chain))
    speculable = Speculable.ONCE if scenario.once else Speculable.YES
    point = DecisionPoint(
        name="way",
        stage="route",
        resolved_by=Where(Origin.OUTPUT, "route"),
        window=Window.DECODE,
        branching=scenario.branching,
        opens=(Moment(MomentKind.ARRIVAL, "route"),),
        candidates=Candidates((PredictorUse("history"),)),
        then=then,
        expires_s=EXPIRES_S,
    )
    stages = [Stage(name, StageKind.CHAT, request=name, speculable=speculable) for name in ("route", *then)]
    return Template("routing", 1, (), tuple(stages), (point,), "d1")


def place_of(key: StageKey) -> str:
    return f"{key.fill_id.hex()}.{key.number}"


def key_at(place: str) -> StageKey:
    fill, _, number = place.partition(".")
    return StageKey(FillId(bytes.fromhex(fill)), int(number))


def follower_of(key: StageKey) -> int:
    return 1_000_000 + int.from_bytes(key.fill_id[:4], "big") * 10 + key.number
