"""The life of a request as a table: state and event in, effects out.

The shell performs one effect and reports one event, until the state is final. Nothing here waits or knows
the time.
``python -m dynbranch.gateway.core.life`` prints the diagram of the table.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from enum import Enum

from dynbranch.domain.engine import Aborted, Completed, Failed, GenerationEnd
from dynbranch.domain.ids import GenerationId
from dynbranch.domain.reuse import DemandOutcome, GenerationRef, Hit, Lease, Live, Miss
from dynbranch.gateway.core.pool import Pool, choose_member

MAX_FAILED_ATTACHES = 3
"""After so many generations that could not be followed, the request executes on its own, without store."""


class State(Enum):
    NEW = "new"
    DEMANDING = "demanding"  # the store was asked
    ATTACHING = "attaching"  # another's generation was asked for, nothing heard
    EXECUTING = "executing"  # an order was sent, nothing heard: the agent may not have it
    FOLLOWING = "following"  # messages come, the client has seen nothing of them
    SHOWING = "showing"  # the client has seen a part: nothing may be tried again
    LEAVING = "leaving"  # the client left, the store's answer is still to come
    SERVED = "served"
    REFUSED = "refused"  # an error in place of an answer
    BROKEN = "broken"  # an error after a part of the answer
    ASIDE = "aside"  # raw bypass to the engine
    LEFT = "left"


FINAL = frozenset({State.SERVED, State.REFUSED, State.BROKEN, State.ASIDE, State.LEFT})


# -- events ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Begin:
    pass


@dataclass(frozen=True, slots=True)
class Answered:
    """The store's answer to the demand."""

    outcome: DemandOutcome


@dataclass(frozen=True, slots=True)
class Unanswered:
    """The store did not answer within its budget, refused, or was not asked (its breaker is open)."""

    reason: str


@dataclass(frozen=True, slots=True)
class Heard:
    """The first message of a generation: the agent has it."""


@dataclass(frozen=True, slots=True)
class Shown:
    """A part of the answer went to the client."""


@dataclass(frozen=True, slots=True)
class Ended:
    end: GenerationEnd


@dataclass(frozen=True, slots=True)
class Lost:
    """The generation can not be followed. ``ran``: False only if it surely never started there.
    ``unreachable``: the agent itself does not answer."""

    reason: str
    ran: bool
    unreachable: bool = False


@dataclass(frozen=True, slots=True)
class Stalled:
    """An adopted fill gave nothing for as long as one waits for it. Only where ``may_abandon``."""


@dataclass(frozen=True, slots=True)
class Left:
    """The client is gone."""


Event = Begin | Answered | Unanswered | Heard | Shown | Ended | Lost | Stalled | Left


# -- effects -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Ask:
    """Demand the name from the store, naming where it would run. ``may_execute`` False: nobody could run
    it."""

    intended: GenerationRef
    exclude: frozenset[GenerationId]
    may_execute: bool = True


@dataclass(frozen=True, slots=True)
class ServeRecorded:
    hit: Hit


@dataclass(frozen=True, slots=True)
class Attach:
    """``adopts``: it is a fill, which this request takes over."""

    generation: GenerationRef
    adopts: bool = False


@dataclass(frozen=True, slots=True)
class Execute:
    generation: GenerationRef
    lease: Lease | None


@dataclass(frozen=True, slots=True)
class Release:
    """Nobody runs under this lease."""

    lease: Lease


@dataclass(frozen=True, slots=True)
class Settle:
    """The client left before the agent was heard: release the lease unless the agent has the order."""

    lease: Lease


@dataclass(frozen=True, slots=True)
class StandAside:
    """Forward the raw request to the engine."""

    reason: str


@dataclass(frozen=True, slots=True)
class Refuse:
    """An error before anything was shown; ``failed`` is the engine's own, if it gave one."""

    reason: str
    failed: Failed | None = None


@dataclass(frozen=True, slots=True)
class BreakOff:
    """An error after a part was shown."""

    reason: str
    failed: Failed | None = None


@dataclass(frozen=True, slots=True)
class Finish:
    completed: Completed


Effect = Ask | ServeRecorded | Attach | Execute | Release | Settle | StandAside | Refuse | BreakOff | Finish


@dataclass(frozen=True, slots=True)
class Plan:
    """How this request may live.

    ``demands``: the store is asked. ``repeatable``: running it twice does no harm (a model call, or a tool
    with a declared source). ``may_stand_aside``: a raw path to the engine is known. ``once``: it samples, so
    that only a fill of its own may serve it, whatever that fill gives. ``resumes``: the generation that the
    same request left behind when its client lost the connection.
    """

    pool: Pool
    demands: bool
    repeatable: bool = True
    may_stand_aside: bool = False
    once: bool = False
    resumes: GenerationRef | None = None


class IllegalMove(AssertionError):
    """A bug of the shell: the state has no such event."""


@dataclass(slots=True)
class RequestLife:
    """One request. ``new_generation_id`` is its source of chance; ``choose`` says whom to try next."""

    plan: Plan
    new_generation_id: Callable[[], GenerationId]
    choose: Callable[[Pool, Collection[str]], str | None] = choose_member
    state: State = State.NEW
    generation: GenerationRef | None = None
    lease: Lease | None = None
    owns: bool = False  # the generation followed is this request's own
    joined: bool = False  # the answer comes from another's generation
    adopted: bool = False  # which was a fill before this request took it over
    tried: set[str] = field(default_factory=set)
    excluded: set[GenerationId] = field(default_factory=set)
    failed_attaches: int = 0
    demand_allowed: bool = True

    @property
    def final(self) -> bool:
        return self.state in FINAL

    @property
    def may_abandon(self) -> bool:
        """Whether a stall of what is followed leads elsewhere. A sampled result is never given up for what it
        is or how long it takes: another draw in its place would not be an independent one."""
        return self.adopted and not self.plan.once and self.choose(self.plan.pool, self.tried) is not None

    def handle(self, event: Event) -> tuple[Effect, ...]:
        """Raises IllegalMove for a pair that the table does not have."""
        move = TABLE.get((self.state, type(event)))
        if move is None:
            raise IllegalMove(f"{type(event).__name__} in state {self.state.value}")
        return move.action(self, event)

    # -- starting, and starting again ----------------------------------------------------------------------

    def _start(self, reason: str) -> tuple[Effect, ...]:
        address = self.choose(self.plan.pool, self.tried)
        if address is None:
            return self._only_look(reason)
        self.generation = GenerationRef(self.new_generation_id(), address)
        self.lease = None
        if self.plan.demands and self.demand_allowed:
            self.state = State.DEMANDING
            return (Ask(self.generation, frozenset(self.excluded)),)
        return self._execute(None)

    def _only_look(self, reason: str) -> tuple[Effect, ...]:
        """Nobody can execute, but a recorded result is as good as ever."""
        if not self.plan.demands or self.state is not State.NEW:
            return self._give_up(reason)
        self.generation, self.state = None, State.DEMANDING
        return (Ask(GenerationRef(self.new_generation_id(), ""), frozenset(), may_execute=False),)

    def _execute(self, lease: Lease | None) -> tuple[Effect, ...]:
        assert self.generation is not None
        if lease is not None:
            # The lease says where followers look: the order goes to that very place.
            self.generation = lease.generation
        self.state, self.lease = State.EXECUTING, lease
        self.owns, self.joined, self.adopted = True, False, False
        return (Execute(self.generation, lease),)

    def _give_up(self, reason: str, failed: Failed | None = None) -> tuple[Effect, ...]:
        engine_spoke = failed is not None and failed.http_status != 0
        if self.plan.may_stand_aside and not engine_spoke:
            self.state = State.ASIDE
            return (StandAside(reason),)
        self.state = State.REFUSED
        return (Refuse(reason, failed),)

    def _elsewhere(
        self, reason: str, failed: Failed | None = None, *, unreachable: bool = False
    ) -> tuple[Effect, ...]:
        """What was followed came to nothing, and the client has seen nothing: try again, or give up."""
        assert self.generation is not None
        self.excluded.add(self.generation.generation_id)
        if self.owns or unreachable:
            self.tried.add(self.generation.agent_address)
        if not self.owns:
            self.failed_attaches += 1
            self.demand_allowed = self.failed_attaches < MAX_FAILED_ATTACHES
        released = self._released()
        if self.choose(self.plan.pool, self.tried) is None:
            return released + self._give_up(reason, failed)
        return released + self._start(reason)

    def _released(self) -> tuple[Effect, ...]:
        lease, self.lease = self.lease, None
        return () if lease is None else (Release(lease),)

    # -- one function per kind of move ---------------------------------------------------------------------

    def _begin(self, event: Event) -> tuple[Effect, ...]:
        if self.plan.resumes is None:
            return self._start("no agent is ready")
        self.state, self.generation = State.ATTACHING, self.plan.resumes
        self.owns, self.joined, self.adopted = False, True, False
        return (Attach(self.generation),)

    def _answered(self, event: Event) -> tuple[Effect, ...]:
        assert isinstance(event, Answered)
        match event.outcome:
            case Hit() as hit:
                self.state = State.SERVED
                return (ServeRecorded(hit),)
            case Live(generation, adopted):
                self.state, self.generation = State.ATTACHING, generation
                self.owns, self.joined, self.adopted = False, True, adopted is not None
                return (Attach(generation, self.adopted),)
            case Miss(lease):
                return self._execute(lease) if self.generation else self._give_up("no agent is ready")

    def _unanswered(self, event: Event) -> tuple[Effect, ...]:
        if self.generation is None:
            return self._give_up("no agent is ready")
        # If the store grants a lease yet, nobody finds this generation by it: what it reads may be older.
        self.demand_allowed = False
        return self._execute(None)

    def _heard(self, event: Event) -> tuple[Effect, ...]:
        self.state = State.FOLLOWING
        return ()

    def _shown(self, event: Event) -> tuple[Effect, ...]:
        self.state = State.SHOWING
        return ()

    def _ended(self, event: Event) -> tuple[Effect, ...]:
        assert isinstance(event, Ended)
        match event.end:
            case Completed() as completed:
                self.state = State.SERVED
                return (Finish(completed),)
            case Failed() as failed if self.adopted and self.plan.once:
                # The draw was made, and this is what came of it.
                self.state = State.REFUSED
                return (Refuse("the engine failed", failed),)
            case Failed() as failed if self.adopted:
                return self._elsewhere("the fill failed", failed)
            case Failed(may_retry=True) as failed if self.plan.repeatable:
                return self._elsewhere("the engine failed", failed)
            case Failed() as failed:
                self.state = State.REFUSED
                return (Refuse("the engine failed", failed),)
            case Aborted(reason) if self.plan.repeatable:
                return self._elsewhere(f"the generation was aborted: {reason}")
            case Aborted(reason):
                self.state = State.REFUSED
                return (Refuse(f"the call was aborted, and may have been made: {reason}"),)

    def _ended_showing(self, event: Event) -> tuple[Effect, ...]:
        assert isinstance(event, Ended)
        match event.end:
            case Completed() as completed:
                self.state = State.SERVED
                return (Finish(completed),)
            case Failed() as failed:
                self.state = State.BROKEN
                return (BreakOff("the engine failed", failed),)
            case Aborted(reason):
                self.state = State.BROKEN
                return (BreakOff(f"the generation was aborted: {reason}"),)

    def _lost(self, event: Event) -> tuple[Effect, ...]:
        assert isinstance(event, Lost)
        if event.ran and self.owns and not self.plan.repeatable:
            self.state = State.REFUSED
            unknown = f"it is not known whether the call was made: {event.reason}"
            return (*self._released(), Refuse(unknown))
        return self._elsewhere(event.reason, unreachable=event.unreachable)

    def _stalled(self, event: Event) -> tuple[Effect, ...]:
        assert self.may_abandon, "it is followed to its end"
        return self._elsewhere("the fill makes no progress")

    def _lost_showing(self, event: Event) -> tuple[Effect, ...]:
        assert isinstance(event, Lost)
        self.state = State.BROKEN
        return (BreakOff(event.reason),)

    def _left(self, event: Event) -> tuple[Effect, ...]:
        self.state = State.LEFT
        return ()

    def _left_demanding(self, event: Event) -> tuple[Effect, ...]:
        self.state = State.LEAVING
        return ()

    def _left_executing(self, event: Event) -> tuple[Effect, ...]:
        self.state = State.LEFT
        return (Settle(self.lease),) if self.lease is not None else ()

    def _answered_leaving(self, event: Event) -> tuple[Effect, ...]:
        assert isinstance(event, Answered)
        self.state = State.LEFT
        match event.outcome:
            case Miss(lease=Lease() as lease):
                return (Release(lease),)
            case Miss() | Hit() | Live():
                return ()

    def _unanswered_leaving(self, event: Event) -> tuple[Effect, ...]:
        self.state = State.LEFT
        return ()

    def _stay(self, event: Event) -> tuple[Effect, ...]:
        return ()


@dataclass(frozen=True, slots=True)
class Move:
    action: Callable[[RequestLife, Event], tuple[Effect, ...]]
    to: tuple[State, ...]


_ANEW = (State.DEMANDING, State.EXECUTING, State.ASIDE, State.REFUSED)

TABLE: dict[tuple[State, type[Event]], Move] = {
    (State.NEW, Begin): Move(RequestLife._begin, (*_ANEW, State.ATTACHING)),
    (State.NEW, Left): Move(RequestLife._left, (State.LEFT,)),
    (State.DEMANDING, Answered): Move(
        RequestLife._answered,
        (State.SERVED, State.ATTACHING, State.EXECUTING, State.ASIDE, State.REFUSED),
    ),
    (State.DEMANDING, Unanswered): Move(
        RequestLife._unanswered, (State.EXECUTING, State.ASIDE, State.REFUSED)
    ),
    (State.DEMANDING, Left): Move(RequestLife._left_demanding, (State.LEAVING,)),
    (State.LEAVING, Answered): Move(RequestLife._answered_leaving, (State.LEFT,)),
    (State.LEAVING, Unanswered): Move(RequestLife._unanswered_leaving, (State.LEFT,)),
    (State.ATTACHING, Heard): Move(RequestLife._heard, (State.FOLLOWING,)),
    (State.ATTACHING, Lost): Move(RequestLife._lost, _ANEW),
    (State.ATTACHING, Stalled): Move(RequestLife._stalled, (State.DEMANDING, State.EXECUTING)),
    (State.ATTACHING, Left): Move(RequestLife._left, (State.LEFT,)),
    (State.EXECUTING, Heard): Move(RequestLife._heard, (State.FOLLOWING,)),
    (State.EXECUTING, Lost): Move(RequestLife._lost, _ANEW),
    (State.EXECUTING, Left): Move(RequestLife._left_executing, (State.LEFT,)),
    (State.FOLLOWING, Shown): Move(RequestLife._shown, (State.SHOWING,)),
    (State.FOLLOWING, Ended): Move(RequestLife._ended, (State.SERVED, *_ANEW)),
    (State.FOLLOWING, Lost): Move(RequestLife._lost, _ANEW),
    (State.FOLLOWING, Stalled): Move(RequestLife._stalled, (State.DEMANDING, State.EXECUTING)),
    (State.FOLLOWING, Left): Move(RequestLife._left, (State.LEFT,)),
    (State.SHOWING, Ended): Move(RequestLife._ended_showing, (State.SERVED, State.BROKEN)),
    (State.SHOWING, Lost): Move(RequestLife._lost_showing, (State.BROKEN,)),
    (State.SHOWING, Left): Move(RequestLife._left, (State.LEFT,)),
    **{(state, Left): Move(RequestLife._stay, (state,)) for state in FINAL},
}


def diagram() -> str:
    """The table as Mermaid text, for the documentation."""
    arrows: dict[tuple[State, State], list[str]] = {}
    for (state, event), move in TABLE.items():
        for to in move.to if state not in FINAL else ():
            arrows.setdefault((state, to), []).append(event.__name__)
    lines = ["stateDiagram-v2", f"    [*] --> {State.NEW.value}"]
    lines += [f"    {at.value} --> {to.value}: {', '.join(events)}" for (at, to), events in arrows.items()]
    lines += [f"    {state.value} --> [*]" for state in State if state in FINAL]
    return "\n".join(lines)


if __name__ == "__main__":
    print(diagram())
