"""A gateway as a simulated process: the production life of a request, its breaker and its choice of agents.

Effects are performed as the conductor performs them: one at a time, each on the network.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, MutableMapping
from dataclasses import dataclass
from random import Random

from dynbranch.clients.ports import Unreachable
from dynbranch.csl.core.events import ReleaseLeases
from dynbranch.domain.engine import Completed, GenerationEvents, GenerationOrder, ModelDescription
from dynbranch.domain.errors import DomainError, InvalidRequest, NotFound
from dynbranch.domain.ids import DemandId, Digest, GenerationId
from dynbranch.domain.reuse import Demand, DemandOutcome, Fingerprint, GenerationRef, Hit, Identity, Lease
from dynbranch.gateway.core import life as lives
from dynbranch.gateway.core.breaker import Breaker, BreakerPolicy, CallEnd
from dynbranch.gateway.core.life import Plan, RequestLife
from dynbranch.gateway.core.pool import Member, Pool
from dynbranch.naming.chunks import decode_payload
from dynbranch.sim.agent_node import AgentNode
from dynbranch.sim.cores import Cores
from dynbranch.sim.csl_node import CslNode
from dynbranch.sim.heap import EventHeap
from dynbranch.sim.judge import Floor, Truth, Violation, check_answer, check_fresh_execution
from dynbranch.sim.network import ClientEnd, Failure, Network, Node, ServerEnd
from dynbranch.sim.stages import Output, Wanted, Workload
from dynbranch.sim.trace import Trace

BUDGET_S = 0.25
RESEND_AFTER_S = 0.08
ATTACH_WAIT_S = 0.05
IDLE_S = 4.0
RELEASE_S = 2.0
SUSPECTED_S = 0.5

EXECUTOR = ModelDescription("sim", Fingerprint((("engine", "sim"),)))
FINGERPRINT = Digest(b"f" * 32)

Stream = ClientEnd[GenerationEvents]


@dataclass(frozen=True, slots=True)
class Asked:
    """One request as it comes in. ``stream``: the client sees parts as they come."""

    wanted: Wanted
    identity: Identity
    stream: bool
    may_hit: bool


@dataclass(frozen=True, slots=True)
class Answer:
    """``output`` None: an error. ``how``: hit, joined or miss. ``registered``: the store answered a demand of
    it.
    """

    output: Output | None
    how: str
    registered: bool


class GatewayNode(Node):
    def __init__(
        self,
        name: str,
        heap: EventHeap,
        rng: Random,
        network: Network,
        csl: CslNode,
        agents: Mapping[str, AgentNode],
        truth: Truth,
        workload: Workload,
        requests: MutableMapping[bytes, Wanted],
        cores: Cores,
        trace: Trace,
        detach_grace_ms: int,
    ) -> None:
        super().__init__(name, heap)
        self.rng = rng
        self.network = network
        self.csl = csl
        self.agents = agents
        self.truth = truth
        self.workload = workload
        self.requests = requests
        self.cores = cores
        self.trace = trace
        self.detach_grace_ms = detach_grace_ms
        self.outcomes: dict[str, int] = {}
        self._start()

    def _start(self) -> None:
        self.breaker = Breaker(BreakerPolicy(open_s=0.5))
        self.serving: dict[Serving, None] = {}
        self.in_flight = dict.fromkeys(self.agents, 0)
        self.suspected_until = dict.fromkeys(self.agents, 0.0)

    def restart(self) -> None:
        super().restart()
        self.trace.note(self.name, "restart")
        self._start()

    def serve(self, asked: Asked, answered: Callable[[Answer], None]) -> Serving:
        serving = Serving(self, asked, answered)
        self.serving[serving] = None
        serving.begin()
        return serving

    def new_id(self) -> bytes:
        return self.rng.getrandbits(128).to_bytes(16, "big")

    def pool(self) -> Pool:
        now = self.heap.now
        members = tuple(
            Member(name, self.in_flight[name]) for name in self.agents if self.suspected_until[name] <= now
        )
        return Pool(EXECUTOR, FINGERPRINT, members or tuple(Member(name, 0) for name in self.agents))

    def release(self, lease: Lease) -> None:
        event = ReleaseLeases((lease.lease_id,))
        self.network.call(self, self.csl, event, self.csl.release, _ignore, timeout_s=RELEASE_S)

    def settle(self, lease: Lease) -> None:
        """The order may never have reached the agent. If the agent has it, the lease is the agent's."""
        generation = lease.generation

        def lost(failure: Failure) -> None:
            if isinstance(failure, NotFound):
                self.release(lease)

        agent = self.agents[generation.agent_address]
        look: Stream = self.network.open(
            self,
            agent,
            lambda end: agent.attach(generation.generation_id, 0.0, end),
            lambda message: look.close(),
            lost,
        )
        self.later(RELEASE_S, look.close)

    def idle(self) -> list[str]:
        """What is still held, when nobody asks for anything any more."""
        held = [f"{self.name}: {len(self.serving)} requests"] if self.serving else []
        busy = sum(self.in_flight.values())
        return held + ([f"{self.name}: {busy} counted in flight"] if busy else [])


class Serving:
    """One request on its way. ``floor`` is what was acknowledged when its last demand started."""

    def __init__(self, gateway: GatewayNode, asked: Asked, answered: Callable[[Answer], None]) -> None:
        self._gateway = gateway
        self._asked = asked
        self._answered = answered
        plan = Plan(gateway.pool(), demands=True)
        self._life: RequestLife = gateway.cores.life(plan, lambda: GenerationId(gateway.new_id()))
        self._demand_id = DemandId(gateway.new_id())
        self._stream: Stream | None = None
        self._at = ""
        self._items: list[bytes] = []
        self._floor: Floor = {}
        self._how = "miss"
        self._faults = gateway.network.faults
        self._gone = False
        self._registered = False

    def begin(self) -> None:
        self._floor = self._gateway.truth.floor()
        self._drive(lives.Begin())

    def leave(self) -> None:
        """The client is gone."""
        if not self._gone and not self._life.final:
            self._gone = True
            self._drop_stream()
            self._drive(lives.Left())

    def _drive(self, event: lives.Event) -> None:
        for effect in self._life.handle(event):
            self._perform(effect)
        if self._life.final:
            self._gateway.serving.pop(self, None)

    def _perform(self, effect: lives.Effect) -> None:
        match effect:
            case lives.Ask():
                self._ask(effect)
            case lives.Attach(generation):
                self._how = "joined"
                self._attach(generation)
            case lives.Execute(generation, lease):
                self._how = "miss"
                self._execute(generation, lease)
            case lives.Release(lease):
                self._gateway.release(lease)
            case lives.Settle(lease):
                self._gateway.settle(lease)
            case lives.ServeRecorded(hit):
                self._say(self._gateway.workload.of_payload(hit.payload), "hit")
            case lives.Finish():
                self._say(self._gateway.workload.of_items(tuple(self._items)), self._how)
            case lives.Refuse(reason) | lives.BreakOff(reason) | lives.StandAside(reason):
                self._fail(reason)

    # The store

    def _ask(self, effect: lives.Ask) -> None:
        gateway, asked = self._gateway, self._asked
        self._floor = gateway.truth.floor()
        started = gateway.heap.now
        gateway.breaker, admitted = gateway.breaker.admit(started)
        if not admitted:
            gateway.later(0.0, lambda: self._drive(lives.Unanswered("the breaker is open")))
            return
        demand = Demand(
            demand_id=self._demand_id if not effect.exclude else DemandId(gateway.new_id()),
            name=asked.wanted.name,
            identity=asked.identity,
            scope=asked.wanted.scope,
            intended=effect.intended,
            input_digests=asked.wanted.inputs,
            exclude_generations=effect.exclude,
            may_execute=effect.may_execute,
            may_hit=asked.may_hit,
        )

        def done(outcome: DemandOutcome | Failure) -> None:
            now = gateway.heap.now
            bad = isinstance(outcome, Unreachable) or (
                isinstance(outcome, DomainError) and not isinstance(outcome, InvalidRequest)
            )
            gateway.breaker = gateway.breaker.ended(CallEnd.BAD if bad else CallEnd.GOOD, now, now - started)
            self._registered = self._registered or not bad
            self._drive(_event(outcome))

        call = gateway.network.open_call(gateway, gateway.csl, gateway.csl.demand, done, timeout_s=BUDGET_S)
        call.send(demand)
        resend = gateway.network.weather.resend
        if resend and gateway.rng.random() < resend:
            gateway.later(RESEND_AFTER_S, lambda: None if call.over else call.send(demand))

    # A generation

    def _attach(self, generation: GenerationRef) -> None:
        agent = self._gateway.agents[generation.agent_address]
        self._follow(agent, lambda end: agent.attach(generation.generation_id, ATTACH_WAIT_S, end))

    def _execute(self, generation: GenerationRef, lease: Lease | None) -> None:
        gateway, wanted = self._gateway, self._asked.wanted
        body = f"{wanted.stage.key}\n{wanted.text}\n{wanted.declared}".encode()
        gateway.requests[body] = wanted
        order = GenerationOrder(
            generation_id=generation.generation_id,
            protocol=wanted.stage.protocol,
            target=wanted.stage.key,
            body=body,
            fingerprint_digest=FINGERPRINT,
            identity=self._asked.identity,
            lease=lease,
            detach_grace_ms=gateway.detach_grace_ms,
        )
        order = _carried(gateway.network, order)
        agent = gateway.agents[generation.agent_address]
        self._follow(agent, lambda end: agent.generate(order, end))

    def _follow(self, agent: AgentNode, serve: Callable[[ServerEnd[GenerationEvents]], None]) -> None:
        self._at = agent.name
        self._gateway.in_flight[agent.name] += 1
        self._items = []
        stream: Stream
        heard_at = [self._gateway.heap.now]

        def heard(message: GenerationEvents) -> None:
            heard_at[0] = self._gateway.heap.now
            if self._stream is stream:
                self._relay(message)

        def lost(failure: Failure) -> None:
            if self._stream is stream:
                self._lost(failure)

        def silent() -> None:
            if stream.closed:
                return
            left = heard_at[0] + IDLE_S - self._gateway.heap.now
            if left > 0:
                self._gateway.later(left, silent)
            else:
                stream.close()
                lost(Unreachable("no message for too long"))

        stream = self._gateway.network.open(self._gateway, agent, serve, heard, lost)
        self._stream = stream
        self._gateway.later(IDLE_S, silent)

    def _relay(self, message: GenerationEvents) -> None:
        life = self._life
        if life.state in (lives.State.ATTACHING, lives.State.EXECUTING):
            life.handle(lives.Heard())
        if message.from_item != len(self._items):
            raise Violation("I1", f"items from {message.from_item} after {len(self._items)}")
        self._items.extend(message.items)
        if message.items and self._asked.stream and life.state is lives.State.FOLLOWING:
            life.handle(lives.Shown())
        if message.end is not None:
            self._drop_stream(finished=True)
            if not isinstance(message.end, Completed):
                self._forget()
            self._drive(lives.Ended(message.end))

    def _lost(self, failure: Failure) -> None:
        self._drop_stream(finished=True)
        self._forget()
        if isinstance(failure, Unreachable):
            self._gateway.network.faults += 1
            self._gateway.suspected_until[self._at] = self._gateway.heap.now + SUSPECTED_S
            self._drive(lives.Lost("the agent does not answer", ran=True))
        else:
            if not isinstance(failure, NotFound):
                self._gateway.network.faults += 1  # full, or engine gone: the agent's own word
            self._drive(lives.Lost(failure.reason, ran=False))

    def _forget(self) -> None:
        if self._life.state is not lives.State.SHOWING:
            self._items = []

    def _drop_stream(self, *, finished: bool = False) -> None:
        stream, self._stream = self._stream, None
        if stream is not None:
            self._gateway.in_flight[self._at] -= 1
            if finished:
                stream.finished()
            else:
                stream.close()

    # The end

    def _say(self, output: Output | None, how: str) -> None:
        gateway, wanted = self._gateway, self._asked.wanted
        gateway.outcomes[how] = gateway.outcomes.get(how, 0) + 1
        gateway.trace.note(gateway.name, how, wanted.stage.key, output.seen if output else "?")
        check_answer(wanted, output, self._floor, gateway.truth, how)
        if output is not None and how == "miss":
            check_fresh_execution(wanted, output, self._floor)
        self._answered(Answer(output, how, self._registered))

    def _fail(self, reason: str) -> None:
        gateway = self._gateway
        gateway.outcomes["failed"] = gateway.outcomes.get("failed", 0) + 1
        gateway.trace.note(gateway.name, "failed", self._asked.wanted.stage.key, reason)
        if gateway.network.faults == self._faults:
            raise Violation("I5", f"a request failed although no agent and no engine did: {reason}")
        self._answered(Answer(None, "failed", self._registered))


def _event(outcome: DemandOutcome | Failure) -> lives.Answered | lives.Unanswered:
    match outcome:
        case Unreachable() | DomainError():
            return lives.Unanswered(f"the store did not answer: {outcome}")
        case Hit(payload=payload):
            decode_payload(payload)
    return lives.Answered(outcome)


def _carried(network: Network, order: GenerationOrder) -> GenerationOrder:
    carried = network.carry(order)
    assert isinstance(carried, GenerationOrder)
    return carried


def _ignore(outcome: object) -> None:
    """A release that fails is made up for by time."""
