"""An engine agent as a simulated process: the production registry over a scripted engine.

The engine's output is a function of the request and of the record versions that it saw, each at a moment of
its own while the execution runs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import count
from random import Random

from dynbranch.clients.ports import Unreachable
from dynbranch.csl.core.events import ReleaseLeases as ReleaseEvent
from dynbranch.csl.core.events import RenewLeases as RenewEvent
from dynbranch.domain.engine import Failed, GenerationEvents, GenerationOrder
from dynbranch.domain.errors import DomainError
from dynbranch.domain.ids import GenerationId, LeaseId, RecordId, whole
from dynbranch.domain.reuse import CommitOutcome, Committed, Level
from dynbranch.engine_agent.committing import commit_of
from dynbranch.engine_agent.core.messages import (
    AbortEngine,
    Attached,
    CommitAnswered,
    CommitResult,
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
    Left,
    Ordered,
    ReleaseLeases,
    RenewLeases,
    StartEngine,
    Ticked,
    Wake,
)
from dynbranch.engine_agent.core.registry import Generation, Limits
from dynbranch.sim.cores import Cores
from dynbranch.sim.csl_node import CslNode
from dynbranch.sim.heap import EventHeap, Timer
from dynbranch.sim.judge import Truth, Violation
from dynbranch.sim.network import Failure, Network, Node, ServerEnd
from dynbranch.sim.stages import Kind, Seen, Wanted, Workload
from dynbranch.sim.trace import Trace

SLOTS = 3
ATTACH_WAIT_S = 0.05
COMMIT_S = 5.0
RELEASE_S = 2.0
LET_GO_S = 0.005
LIMITS = Limits(waiting=4, retention_s=2.0)

Events = ServerEnd[GenerationEvents]


@dataclass(slots=True)
class _Run:
    """One execution on the engine. ``seen`` grows while it runs."""

    order: GenerationOrder
    wanted: Wanted
    seen: dict[RecordId, int] = field(default_factory=dict)
    over: bool = False


@dataclass(slots=True)
class _Follower:
    id: FollowerId
    generation: Generation
    end: Events
    cursor: int = 0


class AgentNode(Node):
    """``requests`` says what a body asks for."""

    def __init__(
        self,
        name: str,
        heap: EventHeap,
        rng: Random,
        network: Network,
        csl: CslNode,
        truth: Truth,
        workload: Workload,
        requests: Mapping[bytes, Wanted],
        cores: Cores,
        trace: Trace,
        execution_ms: float,
    ) -> None:
        super().__init__(name, heap)
        self._rng = rng
        self._network = network
        self._csl = csl
        self._truth = truth
        self._workload = workload
        self._requests = requests
        self._cores = cores
        self._trace = trace
        self._execution_s = execution_ms / 1000
        self._follower_ids = count(1)
        self.executions: dict[str, int] = {}
        self._start()

    def _start(self) -> None:
        self.registry = self._cores.registry(LIMITS)
        self._runs: dict[GenerationId, _Run] = {}
        self._followers: dict[GenerationId, list[_Follower]] = {}
        self._newcomers: dict[GenerationId, list[Callable[[], None]]] = {}
        self._timer: Timer | None = None
        self._timed_for = 0.0
        self._apply(EngineReady(SLOTS))

    def restart(self) -> None:
        super().restart()
        self._trace.note(self.name, "restart")
        self._start()

    def lose_engine(self, down_s: float) -> None:
        """Its runs fail, what waits fails, and after a while it is back."""
        self._trace.note(self.name, "engine lost")
        self._apply(EngineLost("the engine died"))
        for generation, run in list(self._runs.items()):
            if not run.over:
                self._end_run(run, EngineFailed(generation, _failure(run, self.registry.find(generation))))
        self.later(down_s, lambda: self._apply(EngineReady(SLOTS)))

    # What it is asked

    def generate(self, order: GenerationOrder, end: Events) -> None:
        follower = FollowerId(next(self._follower_ids))
        try:
            self._apply(Ordered(order, follower))
        except DomainError as error:
            self._trace.note(self.name, "refuses", order.generation_id, error.reason)
            end.refuse(error)
            return
        for arrived in self._newcomers.pop(order.generation_id, ()):
            arrived()
        self._follow(order.generation_id, follower, end)

    def attach(self, generation: GenerationId, wait_s: float, end: Events) -> None:
        """Waits a moment for a generation that is not known yet."""
        if self.registry.find(generation) is not None or wait_s <= 0:
            self._attach(generation, end)
            return
        arrival = _Once(lambda: self._attach(generation, end))
        self._newcomers.setdefault(generation, []).append(arrival)
        self.later(min(wait_s, ATTACH_WAIT_S), arrival)

    def _attach(self, generation: GenerationId, end: Events) -> None:
        if end.over:
            return
        follower = FollowerId(next(self._follower_ids))
        try:
            self._apply(Attached(generation, follower))
        except DomainError as error:
            end.refuse(error)
            return
        self._trace.note(self.name, "attached", generation)
        self._follow(generation, follower, end)

    def _follow(self, generation_id: GenerationId, id_: FollowerId, end: Events) -> None:
        generation = self.registry.find(generation_id)
        assert generation is not None
        follower = _Follower(id_, generation, end)
        self._followers.setdefault(generation_id, []).append(follower)
        end.cancelled = lambda: self._unfollow(follower)
        self._pump(follower)

    def _pump(self, follower: _Follower) -> None:
        generation = follower.generation
        items = tuple(generation.items[follower.cursor :])
        if follower.end.over or not (items or generation.end):
            return
        message = GenerationEvents(follower.cursor, items, generation.end)
        follower.cursor += len(items)
        follower.end.push(message, last=generation.end is not None)
        if generation.end is not None:
            self._unfollow(follower)

    def _unfollow(self, follower: _Follower) -> None:
        followers = self._followers.get(follower.generation.id, [])
        if follower in followers:
            followers.remove(follower)
            if not followers:
                del self._followers[follower.generation.id]
            self._apply(Left(follower.generation.id, follower.id))

    # Events in, effects out

    def _apply(self, event: Event) -> None:
        for effect in self.registry.handle(event, self.heap.now):
            self._perform(effect)
        self.registry.validate_state()
        due = self.registry.next_deadline()
        if due is not None and (self._timer is None or due < self._timed_for):
            if self._timer is not None:
                self._timer.cancel()
            self._timed_for = due
            self._timer = self.later(max(0.0, due - self.heap.now), self._tick)

    def _tick(self) -> None:
        self._timer = None
        self._apply(Ticked())

    def _perform(self, effect: Effect) -> None:
        match effect:
            case StartEngine(order):
                self._run(order)
            case AbortEngine(generation):
                self._runs[generation].over = True
                self.later(LET_GO_S * self._rng.random(), lambda: self._let_go(generation))
            case CommitResult():
                self.later(0.0, lambda: self._commit(effect))
            case ReleaseLeases(leases):
                self._release(leases)
            case RenewLeases(leases, ttl_ms):
                self._network.call(
                    self,
                    self._csl,
                    RenewEvent(leases, ttl_ms),
                    self._csl.renew,
                    _ignore,
                    timeout_s=ttl_ms / 3000,
                )
            case Wake(generation):
                for follower in tuple(self._followers.get(generation, ())):
                    self.later(0.0, _pumping(self, follower))
            case Ended():
                pass

    # The engine

    def _run(self, order: GenerationOrder) -> None:
        wanted = self._requests[order.body]
        run = _Run(order, wanted)
        self._runs[order.generation_id] = run
        key = wanted.stage.key
        self.executions[key] = self.executions.get(key, 0) + 1
        self._trace.note(self.name, "runs", key, order.generation_id)
        self.later(0.0, lambda: self._execute(run))

    def _execute(self, run: _Run) -> None:
        """Plan the reads and the end of an execution."""
        rng, wanted = self._rng, run.wanted
        duration = rng.expovariate(1.0) * self._execution_s
        run.seen.update(dict(wanted.declared))
        if wanted.stage.kind is Kind.TOOL:
            moment = rng.random()
            for record in wanted.stage.records:
                at = moment if wanted.stage.query else rng.random()
                self.later(at * duration, _reading(self._truth, run, record))
        failing = self._network.weather.engine_failure
        if failing and rng.random() < failing:
            sent = rng.randint(0, 2)
            self.later(duration, lambda: self._emit(run, 0, sent))
        else:
            self.later(duration, lambda: self._emit(run, 0, None))

    def _emit(self, run: _Run, position: int, fail_at: int | None) -> None:
        """Send one item after the other."""
        if run.over:
            return
        generation = run.order.generation_id
        if fail_at == position:
            self._end_run(run, EngineFailed(generation, _failure(run, self.registry.find(generation))))
            return
        seen: Seen = tuple(sorted(run.seen.items()))
        output = self._workload.output(run.wanted.stage, run.wanted.text, seen)
        if position == len(output.items):
            self._end_run(run, EngineEnded(generation, "", self._reads(run.wanted)))
            return
        self._apply(ItemsArrived(generation, (output.items[position],)))
        gap = self._rng.random() * self._execution_s / 4
        self.later(gap, lambda: self._emit(run, position + 1, fail_at))

    @staticmethod
    def _reads(wanted: Wanted) -> tuple[RecordId, ...] | None:
        stage = wanted.stage
        if stage.kind is not Kind.TOOL or not stage.tells:
            return None
        return (whole("notes"),) if stage.query else stage.records

    def _end_run(self, run: _Run, event: EngineEnded | EngineFailed) -> None:
        run.over = True
        if isinstance(event, EngineFailed):
            self._network.faults += 1
        if isinstance(event, EngineFailed) or run.order.lease is None:
            del self._runs[run.order.generation_id]  # else its commit still needs it
        self._apply(event)

    def _let_go(self, generation: GenerationId) -> None:
        del self._runs[generation]
        self._apply(EngineLetGo(generation))

    # The store

    def _commit(self, effect: CommitResult) -> None:
        run = self._runs.pop(effect.generation)
        generation = self.registry.find(effect.generation)
        assert generation is not None
        level = Level.SOURCED if run.wanted.stage.kind is Kind.TOOL else Level.GREEDY
        commit = commit_of(effect, run.order, generation.items, level)

        def answered(outcome: CommitOutcome | Failure) -> None:
            match outcome:
                case Committed():
                    word, release = "committed", False
                case Unreachable():
                    word, release = "unavailable", True
                case DomainError():
                    word, release = outcome.reason, True
                case _:
                    word, release = outcome.reason.value, True
            self._apply(CommitAnswered(effect.generation, word, release))

        self._network.call(self, self._csl, commit, self._csl.commit, answered, timeout_s=COMMIT_S)

    def _release(self, leases: tuple[LeaseId, ...]) -> None:
        event = ReleaseEvent(leases)
        self._network.call(self, self._csl, event, self._csl.release, _ignore, timeout_s=RELEASE_S)

    def idle(self) -> list[str]:
        """What is still held, when nobody asks for anything any more."""
        registry = self.registry
        held = {
            "slots": registry.slots.used,
            "places in the queue": len(registry.slots.waiting),
            "leases": len(registry.leases.held),
            "open generations": registry.open_count,
            "finished generations": len(registry.finished),
            "runs": len(self._runs),
            "followers": sum(map(len, self._followers.values())),
        }
        return [f"{self.name}: {number} {what}" for what, number in held.items() if number]


class _Once:
    def __init__(self, action: Callable[[], None]) -> None:
        self._action = action
        self._done = False

    def __call__(self) -> None:
        if not self._done:
            self._done = True
            self._action()


def _reading(truth: Truth, run: _Run, record: RecordId) -> Callable[[], None]:
    def read() -> None:
        if not run.over:
            run.seen[record] = truth.current[record]

    return read


def _pumping(agent: AgentNode, follower: _Follower) -> Callable[[], None]:
    return lambda: agent._pump(follower)


def _failure(run: _Run, generation: Generation | None) -> Failed:
    if generation is None:
        raise Violation("I4", f"the generation of a run of {run.wanted.stage.key} is gone")
    return Failed(500, b'{"error":{"message":"the engine failed"}}', may_retry=not generation.items)


def _ignore(outcome: object) -> None:
    """A renewal or a release that fails is made up for by time."""
