"""The generation registry: who follows what; who holds a slot, a place in the queue or a lease; until when.

``handle(event, now)`` decides and returns effects; it does nothing itself and knows no clock.
"""

from __future__ import annotations

import heapq
from collections import OrderedDict
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import assert_never

from dynbranch.domain.engine import Aborted, Completed, Failed, GenerationEnd, GenerationOrder, WorkClass
from dynbranch.domain.errors import Conflict, NotFound, NotReady
from dynbranch.domain.ids import GenerationId, Instant, LeaseId
from dynbranch.engine_agent.core.ledger import Leases, Share, Slots, Speculation
from dynbranch.engine_agent.core.lifecycle import HOLDS_SLOT, TERMINAL, Move, State, moved
from dynbranch.engine_agent.core.messages import (
    AbortAsked,
    AbortEngine,
    Attached,
    CommitAnswered,
    CommitResult,
    DrainAsked,
    Effect,
    Ended,
    EngineEnded,
    EngineFailed,
    EngineLetGo,
    EngineLost,
    EngineReady,
    Event,
    FollowerId,
    ItemsArrived,
    LeasesUnknown,
    Left,
    Ordered,
    ReleaseLeases,
    RenewLeases,
    StartEngine,
    Ticked,
    Wake,
)

NOT_ASKED = "not_asked"
PENDING = "pending"

FILL_LIMIT = "fill_limit"
"""Why a fill or draft is refused: there is no room that canonical work can spare."""

GAVE_WAY = "gave_way"
"""How a fill ends whose slot canonical work needs."""

LEASE_UNKNOWN = "lease_unknown"
"""How a fill ends that the store has closed."""

ENGINE_LOST_BODY = b'{"error":{"message":"the engine is not available","type":"engine_lost"}}'

RETENTION_STEP_S = 0.25
"""How long a finished log may outlive its time, so that many are forgotten at once."""

OVERHEAD_BYTES = 1024
"""What a finished generation holds besides its log and body, roughly."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds of what an agent holds in memory."""

    waiting: int = 64
    """Generations that may wait for a slot; more are refused, so that the gateway asks another engine."""
    log_bytes: int = 32 * 2**20
    """The largest log of one generation; a longer one is aborted and fails."""
    retention_s: float = 5.0
    """How long a finished log can still be followed: longer than a demand needs that was told it is live."""
    retention_bytes: int = 64 * 2**20
    """All finished logs together; the oldest go first."""
    commit_budget_s: float = 0.1
    """How long the end of a response may wait for its commit. Within it, the same request again is a hit."""
    fill_slots: int | None = None
    """Slots for fills and drafts together; None: half of the engine's, at least one."""
    fill_kv_tokens: int | None = None
    """Tokens of KV cache that fills and drafts may reserve together; None: their slots are limit enough."""
    fills_give_way: bool = True
    """Whether the newest fill is aborted when canonical work would wait for its slot."""


@dataclass(slots=True)
class Generation:
    """One generation and its log. Followers keep a reference and read ``items`` and ``end`` at their pace."""

    order: GenerationOrder
    admitted_at: Instant
    state: State = State.ADMITTED
    items: list[bytes] = field(default_factory=list)
    log_bytes: int = 0
    followers: set[FollowerId] = field(default_factory=set)
    end: GenerationEnd | None = None
    started_at: Instant | None = None
    first_item_at: Instant | None = None
    execution_ms: float = 0.0
    commit_in_flight: bool = False
    grace_until: Instant | None = None
    terminal_at: Instant | None = None
    adopted: bool = False

    @property
    def id(self) -> GenerationId:
        return self.order.generation_id

    @property
    def is_speculative(self) -> bool:
        """Nobody waits for it yet: a draft, or a fill that no demand has taken over."""
        return self.order.work is not WorkClass.CANONICAL and not self.adopted


class Timer(Enum):
    GRACE = 0
    BUDGET = 1
    RETENTION = 2


class Registry:
    """All generations of one agent."""

    def __init__(self, limits: Limits | None = None) -> None:
        self.limits = limits or Limits()
        self.slots = Slots(0)
        self.speculation = Speculation()
        self.not_ready_reason = "starting"
        self.leases = Leases()
        self.draining = False
        self.generations: dict[GenerationId, Generation] = {}
        self.finished: OrderedDict[GenerationId, int] = OrderedDict()
        self.finished_bytes = 0
        self._timers: list[tuple[Instant, int, GenerationId]] = []
        self._retention_timed = False

    def find(self, generation: GenerationId) -> Generation | None:
        return self.generations.get(generation)

    @property
    def open_count(self) -> int:
        """Generations that are not over."""
        return len(self.generations) - len(self.finished)

    @property
    def fill_slots(self) -> int:
        """How many slots fills and drafts may hold together."""
        if self.limits.fill_slots is not None:
            return self.limits.fill_slots
        return max(1, self.slots.total // 2)

    @property
    def drafts(self) -> int:
        """How many of the slots of fills and drafts hold drafts."""
        held = self.speculation.held.items()
        return sum(s.slots for id_, s in held if self.generations[id_].order.work is WorkClass.DRAFT)

    def next_deadline(self) -> Instant | None:
        """When ``Ticked`` is due next; None: nothing waits for time to pass."""
        renewal = self.leases.renew_at
        if not self._timers:
            return renewal
        timer = self._timers[0][0]
        return timer if renewal is None or timer < renewal else renewal

    def handle(self, event: Event, now: Instant) -> list[Effect]:  # noqa: C901 - one flat, exhaustive match
        """Raises NotReady, Conflict (Ordered) and NotFound (Attached) before anything has changed."""
        match event:
            case ItemsArrived(generation, items):
                return self.items_arrived(generation, items, now)
            case Ordered():
                return self._ordered(event, now)
            case Attached():
                return self._attached(event, now)
            case Left(generation, follower):
                return self._left(generation, follower, now)
            case AbortAsked():
                return self._abort_asked(event, now)
            case EngineEnded():
                return self._engine_ended(event, now)
            case EngineFailed(generation, failure):
                return self._engine_failed(generation, failure, now)
            case EngineLetGo(generation):
                return self._engine_let_go(generation, now)
            case CommitAnswered():
                return self._commit_answered(event, now)
            case LeasesUnknown(leases):
                return self._leases_unknown(leases, now)
            case EngineLost(reason):
                return self._engine_lost(reason, now)
            case EngineReady(slots):
                self.slots.total, self.not_ready_reason = slots, ""
                return self._start_waiting(now)
            case DrainAsked():
                self.draining = True
                return []
            case Ticked():
                return self._ticked(now)
            case _:
                assert_never(event)

    # ---- coming and going ----

    def _ordered(self, event: Ordered, now: Instant) -> list[Effect]:
        order = event.order
        if self.draining:
            raise NotReady("draining", "this agent takes no new generation", advice="ask another engine")
        if self.not_ready_reason:
            raise NotReady("engine_not_ready", self.not_ready_reason, advice="ask another engine or later")
        if order.generation_id in self.generations:
            raise Conflict(
                "generation_exists", "a generation of this id exists", advice="use a new id or attach"
            )
        if order.lease is not None and order.lease.lease_id in self.leases.held:
            raise Conflict("lease_in_use", "another generation holds this lease", advice="demand again")
        width = min(max(1, event.width), self.slots.total)
        if order.work is not WorkClass.CANONICAL:
            self._check_fill(width, order.reserve_tokens)
            self.speculation.reserve(order.generation_id, Share(width, order.reserve_tokens))
        else:
            self._check_queue(width)
        generation = Generation(order, now, followers={event.follower})
        self.generations[generation.id] = generation
        self.slots.enqueue(generation.id, event.width)
        if order.lease is not None:
            self.leases.hold(order.lease, now)
        return self._start_waiting(now)

    def _check_queue(self, width: int) -> None:
        free = self.slots.total - self.slots.used
        if self.limits.fills_give_way:
            free += sum(self.speculation.held[id_].slots for id_ in self._running_fills())
        if len(self.slots.waiting) >= self.limits.waiting and (self.slots.waiting or width > free):
            raise NotReady(
                "queue_full",
                f"{self.limits.waiting} generations wait already",
                advice="ask another engine or later",
            )

    def _check_fill(self, width: int, tokens: int) -> None:
        """A fill starts at once or not at all: in the queue it would stand before canonical work."""
        budget = self.limits.fill_kv_tokens
        if self.slots.waiting or width > self.slots.total - self.slots.used:
            reason = "canonical work has all slots"
        elif self.speculation.slots + width > self.fill_slots:
            reason = f"fills and drafts hold {self.speculation.slots} of {self.fill_slots} slots"
        elif budget is not None and self.speculation.tokens + tokens > budget:
            reason = f"fills and drafts have reserved {self.speculation.tokens} of {budget} tokens"
        else:
            return
        raise NotReady(FILL_LIMIT, reason, advice="ask another engine or later")

    def _attached(self, event: Attached, now: Instant) -> list[Effect]:
        generation = self.generations.get(event.generation)
        if generation is None:
            raise NotFound("unknown_generation", "no such generation here", advice="demand again")
        if generation.state in (State.ABORTING, State.ABORTED, State.FAILED):
            raise NotFound("generation_lost", "the generation has no result to follow", advice="demand again")
        generation.followers.add(event.follower)
        generation.grace_until = None
        if event.adopts and not generation.adopted and generation.order.work is WorkClass.FILL:
            generation.adopted = True
            if generation.state is State.RUNNING:
                self.speculation.release(generation.id)
            elif generation.state is State.COMMITTING:
                self._set_timer(Instant(now + self.limits.commit_budget_s), Timer.BUDGET, generation)
        return []

    def _left(self, generation_id: GenerationId, follower: FollowerId, now: Instant) -> list[Effect]:
        generation = self.generations.get(generation_id)
        if generation is None:
            return []
        generation.followers.discard(follower)
        if generation.followers or generation.state not in (State.ADMITTED, State.RUNNING):
            return []
        if generation.order.detach_grace_ms <= 0:
            return self._abort(generation, Aborted("nobody_attached"), now)
        generation.grace_until = Instant(now + generation.order.detach_grace_ms / 1000)
        self._set_timer(generation.grace_until, Timer.GRACE, generation)
        return []

    def _abort_asked(self, event: AbortAsked, now: Instant) -> list[Effect]:
        generation = self.generations.get(event.generation)
        if generation is None or generation.state not in (State.ADMITTED, State.RUNNING):
            return []
        if event.only_speculative and not generation.is_speculative:
            return []
        return self._abort(generation, Aborted(event.reason), now)

    # ---- the engine ----

    def _start_waiting(self, now: Instant) -> list[Effect]:
        effects: list[Effect] = []
        while not self.not_ready_reason and (ready := self.slots.next_ready()) is not None:
            generation = self.generations[ready]
            generation.state = moved(generation.state, Move.START)
            generation.started_at = now
            self.slots.occupy(ready)
            effects.append(StartEngine(generation.order))
        return [*effects, *self._make_way(now)] if self.slots.waiting else effects

    def _running_fills(self) -> list[GenerationId]:
        """Fills and drafts that are on the engine, oldest first; not such as it is letting go of."""
        return [id_ for id_ in self.speculation.held if self.generations[id_].state is State.RUNNING]

    def _make_way(self, now: Instant) -> list[Effect]:
        """Abort the newest fills where that gets what waits a slot; fewest first, none in vain."""
        fills = self._running_fills() if self.limits.fills_give_way and self.slots.waiting else []
        if not fills:
            return []
        effects: list[Effect] = []
        held = self.slots.held
        coming = sum(held[id_] for id_ in held if self.generations[id_].state is State.ABORTING)
        free = self.slots.total - self.slots.used + coming
        for wanted in list(self.slots.waiting.values()):
            width = min(wanted, self.slots.total)
            if width > free + sum(held[id_] for id_ in fills):
                break
            while width > free:
                newest = fills.pop()
                free += held[newest]
                effects += self._stop(self.generations[newest], Aborted(GAVE_WAY), now)
            free -= width
        return effects

    def items_arrived(
        self, generation_id: GenerationId, items: tuple[bytes, ...], now: Instant
    ) -> list[Effect]:
        """As ``handle`` does it: there is one of these for each token."""
        generation = self.generations[generation_id]
        if generation.state is not State.RUNNING:
            return []  # an abort is on its way to the engine
        size = sum(map(len, items))
        if generation.log_bytes + size > self.limits.log_bytes:
            body = (
                b'{"error":{"message":"the result is larger than this agent keeps","type":"log_too_large"}}'
            )
            return self._abort(generation, Failed(502, body, may_retry=False), now)
        if generation.first_item_at is None:
            generation.first_item_at = now
        generation.items.extend(items)
        generation.log_bytes += size
        return [Wake(generation_id)]

    def _engine_ended(self, event: EngineEnded, now: Instant) -> list[Effect]:
        generation = self.generations[event.generation]
        if generation.state is not State.RUNNING:
            return []
        lease = generation.order.lease
        self._stop_clock(generation, now)
        self._free(generation)
        if lease is not None and not event.unstorable:
            generation.state = moved(generation.state, Move.FINISH)
            generation.commit_in_flight = True
            if not generation.is_speculative:
                self._set_timer(Instant(now + self.limits.commit_budget_s), Timer.BUDGET, generation)
            # Of a fill nobody awaits the end but whoever goes on from what is stored.
            commit = CommitResult(generation.id, lease, generation.execution_ms, event.reads)
            return [commit, *self._start_waiting(now)]
        commit_word = event.unstorable if lease is not None and event.unstorable else NOT_ASKED
        effects = self._release_lease(generation)
        end = Completed(commit_word, generation.execution_ms)
        return [*effects, *self._over(generation, Move.FINISH_UNSTORED, end, now), *self._start_waiting(now)]

    def _engine_failed(self, generation_id: GenerationId, failure: Failed, now: Instant) -> list[Effect]:
        generation = self.generations[generation_id]
        if generation.state is not State.RUNNING:
            return []
        self._stop_clock(generation, now)
        self._free(generation)
        return [*self._fail(generation, failure, now), *self._start_waiting(now)]

    def _engine_let_go(self, generation_id: GenerationId, now: Instant) -> list[Effect]:
        generation = self.generations[generation_id]
        generation.state = moved(generation.state, Move.LET_GO)
        self._free(generation)
        self._keep_finished(generation, now)
        return [Ended(generation_id), *self._start_waiting(now)]

    def _free(self, generation: Generation) -> None:
        """The engine works on it no longer."""
        self.slots.release(generation.id)
        if generation.is_speculative:
            self.speculation.release(generation.id)

    def _engine_lost(self, reason: str, now: Instant) -> list[Effect]:
        effects: list[Effect] = []
        self.not_ready_reason = reason or "the engine is not available"
        for generation_id in list(self.slots.waiting):
            self.slots.leave_queue(generation_id)
            effects += self._fail(
                self.generations[generation_id], Failed(503, ENGINE_LOST_BODY, may_retry=True), now
            )
        return effects

    # ---- the store ----

    def _commit_answered(self, event: CommitAnswered, now: Instant) -> list[Effect]:
        generation = self.generations.get(event.generation)
        assert generation is not None and generation.commit_in_flight, "only a commit in flight is answered"
        lease = generation.order.lease
        assert lease is not None
        generation.commit_in_flight = False
        self.leases.settle(lease)
        release: list[Effect] = [ReleaseLeases((lease.lease_id,))] if event.release else []
        end = Completed(event.commit, generation.execution_ms)
        if generation.state is State.COMMITTING:
            return [*release, *self._over(generation, Move.SETTLE, end, now)]
        generation.end = end  # the response ended as "pending"; late followers learn the answer
        self._evict(now)
        return release

    def _leases_unknown(self, leases: frozenset[LeaseId], now: Instant) -> list[Effect]:
        """A fill that can not become a shadow is of no use; what somebody waits for is served anyway."""
        effects: list[Effect] = []
        for generation_id in self._running_fills():
            generation = self.generations[generation_id]
            lease = generation.order.lease
            if lease is not None and lease.lease_id in leases:
                effects += self._stop(generation, Aborted(LEASE_UNKNOWN), now)
        return [*effects, *self._make_way(now)]

    # ---- time ----

    def _ticked(self, now: Instant) -> list[Effect]:
        effects: list[Effect] = [
            RenewLeases(lease_ids, ttl_ms) for ttl_ms, lease_ids in self.leases.due(now).items()
        ]
        while self._timers and self._timers[0][0] <= now:
            at, timer, generation_id = heapq.heappop(self._timers)
            generation = self.generations.get(generation_id)
            if timer == Timer.RETENTION.value:
                # It is for all of them, also when the one that it was set for has gone before.
                self._retention_over(now)
            elif generation is not None:
                effects += self._timer_fired(Timer(timer), generation, at, now)
        return effects

    def _timer_fired(self, timer: Timer, generation: Generation, at: Instant, now: Instant) -> list[Effect]:
        match timer:
            case Timer.GRACE:
                if generation.grace_until == at and generation.state in (State.ADMITTED, State.RUNNING):
                    return self._abort(generation, Aborted("nobody_attached"), now)
            case Timer.BUDGET:
                if generation.state is State.COMMITTING:
                    return self._over(
                        generation, Move.HURRY, Completed(PENDING, generation.execution_ms), now
                    )
            case Timer.RETENTION:
                raise AssertionError("no timer of one generation")
            case _:
                assert_never(timer)
        return []

    def _set_timer(self, at: Instant, timer: Timer, generation: Generation) -> None:
        heapq.heappush(self._timers, (at, timer.value, generation.id))

    # ---- endings ----

    def _abort(self, generation: Generation, end: Aborted | Failed, now: Instant) -> list[Effect]:
        """``end`` is what followers see at once; a slot is only free when the engine says so."""
        if generation.state is not State.ADMITTED:
            return [*self._stop(generation, end, now), *self._make_way(now)]
        generation.grace_until = None
        effects = self._release_lease(generation)
        self.slots.leave_queue(generation.id)
        # The head of the queue may have gone, and the next may fit.
        return [*effects, *self._over(generation, Move.ABORT, end, now), *self._start_waiting(now)]

    def _stop(self, generation: Generation, end: Aborted | Failed, now: Instant) -> list[Effect]:
        generation.grace_until = None
        effects = self._release_lease(generation)
        self._stop_clock(generation, now)
        generation.state = moved(generation.state, Move.ABORT)
        generation.end = _timed(end, generation.execution_ms)
        return [*effects, AbortEngine(generation.id), Wake(generation.id)]

    def _fail(self, generation: Generation, failure: Failed, now: Instant) -> list[Effect]:
        effects = self._release_lease(generation)
        return [*effects, *self._over(generation, Move.FAIL, failure, now)]

    def _over(self, generation: Generation, move: Move, end: GenerationEnd, now: Instant) -> list[Effect]:
        generation.state = moved(generation.state, move)
        generation.end = _timed(end, generation.execution_ms)
        self._keep_finished(generation, now)
        return [Wake(generation.id), Ended(generation.id)]

    def _release_lease(self, generation: Generation) -> list[Effect]:
        lease = generation.order.lease
        if lease is None:
            return []
        self.leases.settle(lease)
        return [ReleaseLeases((lease.lease_id,))]

    @staticmethod
    def _stop_clock(generation: Generation, now: Instant) -> None:
        assert generation.started_at is not None
        generation.execution_ms = (now - generation.started_at) * 1000

    # ---- finished logs ----

    def _keep_finished(self, generation: Generation, now: Instant) -> None:
        generation.terminal_at = now
        held_bytes = generation.log_bytes + len(generation.order.body) + OVERHEAD_BYTES
        self.finished[generation.id] = held_bytes
        self.finished_bytes += held_bytes
        if not self._retention_timed:
            self._time_retention(now + self.limits.retention_s, generation)
        self._evict(now)

    def _time_retention(self, at: float, oldest: Generation) -> None:
        """One timer for all finished logs: a turn of the clock for each would cost more than its end did."""
        self._retention_timed = True
        self._set_timer(Instant(at), Timer.RETENTION, oldest)

    def _retention_over(self, now: Instant) -> None:
        self._retention_timed = False
        self._evict(now)
        oldest = next(iter(self.finished), None)
        if oldest is not None:
            generation = self.generations[oldest]
            assert generation.terminal_at is not None
            due = generation.terminal_at + self.limits.retention_s
            self._time_retention(max(due, now + RETENTION_STEP_S), generation)

    def _evict(self, now: Instant) -> None:
        """Forget finished logs that are too old or too many. Followers keep the one that they read."""
        victims: list[GenerationId] = []
        excess_bytes = self.finished_bytes - self.limits.retention_bytes
        for generation_id, held_bytes in self.finished.items():
            generation = self.generations[generation_id]
            assert generation.terminal_at is not None
            if excess_bytes <= 0 and now < generation.terminal_at + self.limits.retention_s:
                break
            if not generation.commit_in_flight:
                victims.append(generation_id)
                excess_bytes -= held_bytes
        for generation_id in victims:
            self.finished_bytes -= self.finished.pop(generation_id)
            del self.generations[generation_id]

    # ---- what always holds ----

    def validate_state(self) -> None:
        """Assertions over the whole registry: reservations match states (invariant I4)."""
        by_state: dict[State, set[GenerationId]] = {state: set() for state in State}
        for generation in self.generations.values():
            by_state[generation.state].add(generation.id)
        assert set(self.slots.waiting) == by_state[State.ADMITTED]
        assert set(self.slots.held) == by_state[State.RUNNING] | by_state[State.ABORTING]
        assert not self.slots.waiting or self.slots.next_ready() is None, "a slot is free and somebody waits"
        speculative = {id_ for id_ in self.slots.held if self.generations[id_].is_speculative}
        assert set(self.speculation.held) == speculative, "fills on the engine, and no others, hold a share"
        assert all(share.slots == self.slots.held[id_] for id_, share in self.speculation.held.items())
        assert not any(self.generations[id_].is_speculative for id_ in self.slots.waiting), "no fill waits"
        assert not (self.not_ready_reason and self.slots.waiting), "nobody waits for a dead engine"
        assert set(self.finished) == set().union(*(by_state[state] for state in TERMINAL))
        assert self.finished_bytes == sum(self.finished.values())
        leased = {
            generation.order.lease.lease_id
            for generation in self.generations.values()
            if generation.order.lease is not None
            and (generation.state in (State.ADMITTED, State.RUNNING) or generation.commit_in_flight)
        }
        assert set(self.leases.held) == leased
        assert (self.leases.renew_at is not None) == bool(leased)
        for generation in self.generations.values():
            ended = generation.state in TERMINAL or generation.state is State.ABORTING
            assert (generation.end is not None) == ended
            if generation.state in HOLDS_SLOT:
                assert generation.started_at is not None


def _timed(end: GenerationEnd, execution_ms: float) -> GenerationEnd:
    match end:
        case Completed(commit):
            return Completed(commit, execution_ms)
        case Failed():
            return replace(end, execution_ms=execution_ms)
        case Aborted(reason):
            return Aborted(reason, execution_ms)
        case _:
            assert_never(end)
