"""The agent: events in, effects out. It runs the engine, serves followers, keeps leases and engine alive."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import count
from types import TracebackType
from typing import Self, assert_never

from dynbranch.clients.ports import Csl, Unreachable
from dynbranch.domain.engine import (
    AbortResult,
    AgentDescription,
    AgentKind,
    AttachOrder,
    Failed,
    GenerationEvents,
    GenerationOrder,
    Occupancy,
)
from dynbranch.domain.errors import DomainError, NotReady
from dynbranch.domain.ids import GenerationId, Instant, LeaseId
from dynbranch.domain.reuse import Committed, Level, Refused
from dynbranch.engine_agent.aborting import Aborts
from dynbranch.engine_agent.committing import commit_of
from dynbranch.engine_agent.core.lifecycle import State
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
    LeasesUnknown,
    Left,
    Ordered,
    ReleaseLeases,
    RenewLeases,
    StartEngine,
    Ticked,
    Wake,
)
from dynbranch.engine_agent.core.recent_prompts import RecentPrompts
from dynbranch.engine_agent.core.registry import ENGINE_LOST_BODY, FILL_LIMIT, Generation, Limits, Registry
from dynbranch.engine_agent.engines.port import (
    Engine,
    EngineError,
    EngineFacts,
    EngineUnavailable,
    Items,
)
from dynbranch.engine_agent.following import Follower, events_of
from dynbranch.engine_agent.looking import Looks
from dynbranch.engine_agent.observing import AgentMetrics, GenerationSpans
from dynbranch.engine_agent.orders import prepare
from dynbranch.engine_agent.waiting import set_within
from dynbranch.naming.chunks import MalformedLog
from dynbranch.runtime.clock import Clock
from dynbranch.runtime.tasks import Tasks
from prometheus_client import CollectorRegistry

_log = logging.getLogger(__name__)

Wakes = Callable[[], None]

MAX_ATTACH_WAIT_S = 0.05
MAX_ATTACH_WAITERS = 1024
_AGENT_FAILED_BODY = b'{"error":{"message":"the engine agent failed","type":"agent_error"}}'
LARGE_LOG_ITEMS = 256
"""A log of this size is made compact beside the event loop."""


@dataclass(frozen=True, slots=True)
class Timings:
    commit_s: float = 5.0
    release_s: float = 2.0
    abort_confirm_s: float = 10.0
    """How long an abort waits for the engine's own count; then the slot counts as free all the same."""
    first_back_off_s: float = 0.1
    last_back_off_s: float = 10.0
    stable_s: float = 30.0
    """An engine that lived so long starts its back-off anew."""


@dataclass(slots=True)
class _Run:
    """A generation on the engine. ``epoch`` counts the engine's lives: a result never outlives its own."""

    task: asyncio.Task[None]
    epoch: int
    level: Level


@dataclass(slots=True)
class _EngineState:
    facts: EngineFacts = field(default_factory=lambda: EngineFacts(0, ""))
    not_ready_reason: str = "starting"
    epoch: int = 0
    revision: int = 1


class Agent:
    """Implements ``ports.EngineAgent`` in process; ``server.py`` puts gRPC before it.

    Use as an async context manager: it owns the engine and every task.
    """

    def __init__(
        self,
        engine: Engine,
        csl: Csl | None,
        clock: Clock,
        *,
        limits: Limits | None = None,
        timings: Timings | None = None,
        metrics: CollectorRegistry | None = None,
    ) -> None:
        self.tasks = Tasks()
        self.registry = Registry(limits)
        self.metrics = AgentMetrics(metrics or CollectorRegistry())
        self.metrics.running.set_function(lambda: self.registry.slots.used)
        self.metrics.waiting.set_function(lambda: len(self.registry.slots.waiting))
        self.metrics.leases.set_function(lambda: len(self.registry.leases.held))
        self.metrics.followers.set_function(lambda: sum(map(len, self._following.values())))
        self.metrics.fills.set_function(lambda: self.registry.speculation.slots)
        self.metrics.speculative_tokens.set_function(lambda: self.registry.speculation.tokens)
        self._engine = engine
        self._csl = csl
        self._clock = clock
        self._timings = timings or Timings()
        self._spans = GenerationSpans()
        self._state = _EngineState()
        self._runs: dict[GenerationId, _Run] = {}
        self._followers = count(1)
        self._following: dict[GenerationId, set[Follower]] = {}
        self._aborts = Aborts(
            engine, self.registry, clock, self.metrics, confirm_s=self._timings.abort_confirm_s
        )
        self._newcomers: dict[GenerationId, asyncio.Event] = {}
        self._watchers: set[asyncio.Event] = set()
        self._idle = asyncio.Event()
        self._retime = asyncio.Event()
        self._timed_for: Instant | None = None
        self._looks = Looks(engine, self.registry.slots, clock)
        self._prompts = RecentPrompts()
        self._closing = False

    # ---- its own life ----

    async def __aenter__(self) -> Self:
        await self.tasks.__aenter__()
        self.tasks.spawn(self._keep_time(), name="agent timers")
        self.tasks.spawn(self._keep_engine(), name="engine keeper")
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._closing = True
        held = tuple(self.registry.leases.held)
        try:
            await self.tasks.__aexit__(kind, error, trace)
        finally:
            for followers in self._following.values():
                for follower in followers:
                    follower.wake()
            if held:
                await self._release(held)
            self._spans.close()
            await self._engine.close()

    async def until_ready(self) -> None:
        """Returns when the engine is ready."""
        changed = asyncio.Event()
        self._watchers.add(changed)
        try:
            while self._state.not_ready_reason:
                await changed.wait()
                changed.clear()
        finally:
            self._watchers.discard(changed)

    # ---- ports.EngineAgent ----

    async def describe(self, *, timeout_s: float = 0.0) -> AgentDescription:
        facts, reason = self._state.facts, self._not_ready_reason()
        return AgentDescription(
            kind=self.kind,
            revision=self._state.revision,
            bypass_url=facts.bypass_url,
            ready=not reason,
            not_ready_reason=reason,
            models=facts.models,
            tools=facts.tools,
            slots=facts.slots,
        )

    @property
    def kind(self) -> AgentKind:
        return self._engine.kind

    def order(self, order: GenerationOrder, wake: Wakes) -> Follower:
        """Run this, and follow it from its first item. Raises NotReady, NotFound, Conflict and
        InvalidRequest."""
        if self._closing:
            raise _stopping()
        if reason := self._not_ready_reason():
            raise NotReady("engine_not_ready", reason, advice="ask another engine or later")
        prepared = prepare(order, self._state.facts)
        follower = FollowerId(next(self._followers))
        try:
            self._apply(Ordered(prepared.order, follower, prepared.width), opening=prepared.order)
        except NotReady as refusal:
            if refusal.reason == FILL_LIMIT:
                self.metrics.fill_refusals.inc()
            raise
        generation = self.registry.find(order.generation_id)
        assert generation is not None
        self._prompts.add(order.prompt_hint)
        return self._followed_by(Follower(generation, follower, 0, wake, self._left, quiet=order.quiet))

    async def known_within(self, generation: GenerationId, wait_ms: int) -> None:
        """A follower may arrive before the generation that it was told of."""
        if self.registry.find(generation) is None:
            await self._wait_for(generation, min(wait_ms / 1000, MAX_ATTACH_WAIT_S))

    def join(self, order: AttachOrder, wake: Wakes) -> Follower:
        """Raises NotFound when the generation is unknown, or has no result to follow."""
        follower = FollowerId(next(self._followers))
        self._apply(Attached(order.generation_id, follower, order.adopts))
        known = self.registry.find(order.generation_id)
        assert known is not None
        traceparent = self._spans.traceparent(known.id)
        return self._followed_by(
            Follower(known, follower, order.from_item, wake, self._left, traceparent, quiet=order.quiet)
        )

    async def generate(
        self, order: GenerationOrder, *, idle_s: float = 0.0
    ) -> AsyncGenerator[GenerationEvents]:
        """``order``, as ports.EngineAgent has it."""
        wake = asyncio.Event()
        async with aclosing(events_of(self.order(order, wake.set), wake, self.next_of)) as events:
            async for message in events:
                yield message

    async def attach(self, order: AttachOrder) -> AsyncGenerator[GenerationEvents]:
        """``join``, as ports.EngineAgent has it."""
        await self.known_within(order.generation_id, order.wait_ms)
        wake = asyncio.Event()
        joined = self.join(order, wake.set)
        async with aclosing(events_of(joined, wake, self.next_of)) as events:
            async for message in events:
                yield message

    async def abort(
        self, generation: GenerationId, *, reason: str, timeout_s: float = 0.0, only_speculative: bool = False
    ) -> AbortResult:
        """As ports.EngineAgent has it."""
        known = self.registry.find(generation)
        if known is None or known.state not in (State.ADMITTED, State.RUNNING):
            return AbortResult(aborted=False)
        self._apply(AbortAsked(generation, reason, only_speculative))
        if known.state in (State.ADMITTED, State.RUNNING):
            return AbortResult(aborted=False)
        return AbortResult(True, await self._aborts.over(generation))

    async def drain(self, *, deadline_s: float) -> int:
        """Takes no new generation; returns how many still run when all have ended or the deadline came."""
        self._apply(DrainAsked())
        self._changed()
        deadline = self._clock.now() + deadline_s
        while self._busy() and (left_s := deadline - self._clock.now()) > 0:
            self._idle.clear()
            await set_within(self._idle, left_s, self._clock)
        return self._busy()

    async def watch_occupancy(self, *, interval_ms: int) -> AsyncGenerator[Occupancy]:
        """One report at once, then one per interval, and one whenever the description has changed."""
        changed = asyncio.Event()
        self._watchers.add(changed)
        read = 0
        try:
            while not self._closing:
                changed.clear()
                hints, read = self._prompts.since(read), self._prompts.count
                yield replace(await self._occupancy(), prompt_hints=hints)
                await set_within(changed, max(interval_ms, 10) / 1000, self._clock)
        finally:
            self._watchers.discard(changed)

    async def close(self) -> None:
        """The agent ends with its context manager; a caller's handle has nothing to close."""

    async def restart_engine(self) -> None:
        await self._engine.restart()

    # ---- followers ----

    def next_of(self, follower: Follower) -> GenerationEvents | None:
        """What is there for it. Raises NotReady when nothing more will come."""
        message = follower.next()
        if message is None and self._closing:
            raise _stopping()
        return message

    def _followed_by(self, follower: Follower) -> Follower:
        self._following.setdefault(follower.generation.id, set()).add(follower)
        return follower

    def _left(self, follower: Follower) -> None:
        generation = follower.generation.id
        others = self._following[generation]
        others.discard(follower)
        if not others:
            del self._following[generation]
        if not self._closing:
            self._apply(Left(generation, follower.id))

    async def _wait_for(self, generation: GenerationId, seconds: float) -> None:
        newcomer = self._newcomers.get(generation)
        if newcomer is None:
            if len(self._newcomers) >= MAX_ATTACH_WAITERS:
                return
            newcomer = self._newcomers[generation] = asyncio.Event()
        try:
            await set_within(newcomer, seconds, self._clock)
        finally:
            if self._newcomers.get(generation) is newcomer:
                del self._newcomers[generation]

    # ---- events in, effects out ----

    def _apply(self, event: Event, opening: GenerationOrder | None = None) -> None:
        effects = self.registry.handle(event, self._clock.now())
        if opening is not None:
            self._spans.start(opening, self.kind.value)
            if (newcomer := self._newcomers.get(opening.generation_id)) is not None:
                newcomer.set()
        for effect in effects:
            self._perform(effect)
        due = self.registry.next_deadline()
        if due is not None and (self._timed_for is None or due < self._timed_for):
            self._retime.set()

    def _perform(self, effect: Effect) -> None:
        match effect:
            case Wake(generation):  # first, since it comes with every token
                for follower in self._following.get(generation, ()):
                    follower.wake()
            case StartEngine(order):
                self._start(order)
            case AbortEngine(generation):
                self._aborts.begin(generation)
                run = self._runs[generation]
                self.tasks.spawn(self._abort_engine(generation, run), name=f"abort {generation.hex()}")
            case CommitResult(generation):
                run = self._runs[generation]
                self.tasks.spawn(self._commit(effect, run), name=f"commit {generation.hex()}")
            case ReleaseLeases(leases):
                self.tasks.spawn(self._release(leases), name="release of leases")
            case RenewLeases():
                self.tasks.spawn(self._renew(effect), name="renewal of leases")
            case Ended(generation):
                self._ended(generation)
            case _:
                assert_never(effect)

    def _ended(self, generation_id: GenerationId) -> None:
        self._idle.set()
        generation = self.registry.find(generation_id)
        if generation is not None:
            self.metrics.ended(generation)
            self._spans.end(generation)

    async def _keep_time(self) -> None:
        while True:
            self._retime.clear()
            self._timed_for = self.registry.next_deadline()
            if self._timed_for is None:
                await self._retime.wait()
            elif not await set_within(self._retime, self._timed_for - self._clock.now(), self._clock):
                self._apply(Ticked())

    # ---- the engine ----

    def _start(self, order: GenerationOrder) -> None:
        level = self._level_of(order)
        task = self.tasks.spawn(self._run(order), name=f"generation {order.generation_id.hex()}")
        self._runs[order.generation_id] = _Run(task, self._state.epoch, level)

    async def _run(self, order: GenerationOrder) -> None:
        try:
            self._apply(await self._ending_of(order))
        finally:
            self._runs.pop(order.generation_id, None)

    async def _ending_of(self, order: GenerationOrder) -> Event:
        generation = order.generation_id
        try:
            with self._spans.current(generation):
                end = await self._engine.run(order, partial(self._heard, generation))
            return EngineEnded(generation, end.unstorable, end.reads)
        except EngineError as error:
            return EngineFailed(generation, error.failure)
        except EngineUnavailable as error:
            _log.warning("generation %s found no engine: %s", generation.hex(), error)
            return EngineFailed(generation, Failed(503, ENGINE_LOST_BODY, may_retry=True))
        # Nobody foresees all that a request and an answer may hold: it fails alone, and the others run on.
        except Exception:  # noqa: BLE001
            _log.exception("generation %s failed within the agent", generation.hex())
            return EngineFailed(generation, Failed(500, _AGENT_FAILED_BODY, may_retry=False))

    def _heard(self, generation: GenerationId, items: Items) -> None:
        """With every token: no timer is ever due sooner because of it."""
        for effect in self.registry.items_arrived(generation, items, self._clock.now()):
            self._perform(effect)

    async def _abort_engine(self, generation: GenerationId, run: _Run) -> None:
        await self._aborts.stop(generation, run.task)
        self._runs.pop(generation, None)  # a task that never began could not do it
        self._apply(EngineLetGo(generation))
        self._aborts.end(generation)

    async def _keep_engine(self) -> None:
        """Start the engine, wait until it is lost, start it again; ever slower while it keeps failing."""
        back_off_s = self._timings.first_back_off_s
        while True:
            began = self._clock.now()
            try:
                facts = await self._engine.start()
            except EngineUnavailable as error:
                self._engine_gone(str(error))
            else:
                self._engine_is_ready(facts)
                reason = await self._engine.lost()
                self.metrics.losses.inc()
                self._engine_gone(reason)
                if self._clock.now() - began >= self._timings.stable_s:
                    back_off_s = self._timings.first_back_off_s
            await self._clock.sleep(back_off_s)
            back_off_s = min(back_off_s * 2, self._timings.last_back_off_s)

    def _engine_is_ready(self, facts: EngineFacts) -> None:
        self._state.facts, self._state.not_ready_reason = facts, ""
        self._state.epoch += 1
        _log.info(
            "engine ready: %d slots, %d models, %d tools", facts.slots, len(facts.models), len(facts.tools)
        )
        self._apply(EngineReady(facts.slots))
        self._changed()

    def _engine_gone(self, reason: str) -> None:
        _log.warning("engine not available: %s", reason)
        self._state.not_ready_reason = reason or "the engine is not available"
        self._apply(EngineLost(reason))
        self._changed()

    def _changed(self) -> None:
        self._state.revision += 1
        for watcher in self._watchers:
            watcher.set()

    def _not_ready_reason(self) -> str:
        return self._state.not_ready_reason or ("draining" if self.registry.draining else "")

    def _level_of(self, order: GenerationOrder) -> Level:
        if order.lease is not None and order.lease.once:
            return Level.SAMPLED
        facts = self._state.facts
        for model in facts.models:
            if order.target == model.id or order.target in model.aliases:
                return model.fingerprint.level
        return Level.SOURCED

    async def _occupancy(self) -> Occupancy:
        view, registry = await self._looks.view(), self.registry
        slots = registry.slots
        at_engine = view.fused(slots.used)
        return Occupancy(
            revision=self._state.revision,
            ready=not self._not_ready_reason(),
            slots=self._state.facts.slots,
            running=slots.used,
            waiting=len(slots.waiting),
            engine_running=None if at_engine is None else at_engine[0],
            engine_waiting=None if at_engine is None else at_engine[1],
            kv_used_share=view.kv_used_share,
            fills=registry.speculation.slots,
            drafts=registry.drafts,
            speculative_tokens=registry.speculation.tokens,
            fill_slots=registry.fill_slots,
            fill_kv_tokens=registry.limits.fill_kv_tokens,
        )

    def _busy(self) -> int:
        """Generations that are not over, their commits included."""
        return self.registry.open_count + sum(
            self.registry.generations[id_].commit_in_flight for id_ in self.registry.finished
        )

    # ---- the store ----

    async def _commit(self, effect: CommitResult, run: _Run) -> None:
        generation = self.registry.find(effect.generation)
        assert generation is not None
        answer, released = await self._commit_answer(effect, generation, run)
        self.metrics.commits.labels(answer=answer).inc()
        self._apply(CommitAnswered(effect.generation, answer, release=released))
        self._idle.set()

    async def _commit_answer(
        self, effect: CommitResult, generation: Generation, run: _Run
    ) -> tuple[str, bool]:
        """The word for the response's end, and whether the store may still know the lease."""
        if self._csl is None:
            return "unavailable", False
        try:
            order, origin = generation.order, self._spans.traceparent(generation.id)
            if len(generation.items) > LARGE_LOG_ITEMS:
                items = tuple(generation.items)
                commit = await asyncio.to_thread(commit_of, effect, order, items, run.level, origin)
            else:
                commit = commit_of(effect, order, generation.items, run.level, origin)
        except MalformedLog as error:
            _log.warning("a log can not be stored: %s", error)
            return "malformed_log", True
        except Exception:  # noqa: BLE001  # as a run that fails: it was served, and only is not stored
            _log.exception("the log of generation %s can not be stored", generation.id.hex())
            return "malformed_log", True
        if run.epoch != self._state.epoch or not await self._engine.unchanged():
            return "executor_changed", True
        try:
            with self._spans.commit(generation.id):
                outcome = await self._csl.commit(commit, timeout_s=self._timings.commit_s)
        except Unreachable as error:
            _log.info("a result is not stored: %s", error)
            return "unavailable", True
        except DomainError as error:
            _log.warning("a commit failed: %s: %s", error.reason, error)
            return error.reason, True
        match outcome:
            case Committed():
                return "committed", False
            case Refused(reason):
                return reason.value, True
            case _:
                assert_never(outcome)

    async def _release(self, leases: tuple[LeaseId, ...]) -> None:
        if self._csl is None:
            return
        try:
            await self._csl.release_leases(leases, timeout_s=self._timings.release_s)
        except (Unreachable, DomainError) as error:
            # The store forgets them itself when their time is over.
            _log.info("%d leases are left to expire: %s", len(leases), error)

    async def _renew(self, effect: RenewLeases) -> None:
        if self._csl is None:
            return
        try:
            unknown = await self._csl.renew_leases(
                effect.leases, ttl_ms=effect.ttl_ms, timeout_s=effect.ttl_ms / 3000
            )
        except (Unreachable, DomainError) as error:
            _log.info("%d leases are not renewed: %s", len(effect.leases), error)
            return
        if unknown:
            self.metrics.unknown_leases.inc(len(unknown))
            self._apply(LeasesUnknown(unknown))


def _stopping() -> NotReady:
    return NotReady("stopping", "this agent is stopping", advice="ask another engine")
