"""Harnesses: they run workflows through gateways, leave in the middle, come back, and read records
themselves.
"""

from __future__ import annotations

from random import Random

from dynbranch.domain.ids import source_of, whole
from dynbranch.domain.reuse import PURE, DeclaredRead, Identity, ReadScope
from dynbranch.sim.backend import Backend
from dynbranch.sim.gateway_node import Answer, Asked, GatewayNode, Serving
from dynbranch.sim.heap import EventHeap, Timer
from dynbranch.sim.judge import Truth, Violation
from dynbranch.sim.network import Network, Node
from dynbranch.sim.stages import Kind, Output, Stage, Wanted, Workload, digest_of, text_of
from dynbranch.sim.trace import Trace

PATIENCE_S = 60.0
"""A request that has not ended by then never will."""

PAUSE_S = 0.02
THINK_S = 0.1
"""How old, at most, what a harness has read is when it asks."""

STAGES_OF_A_WORKFLOW = 5


class Harness(Node):
    """One client. It has one request open at a time."""

    def __init__(
        self,
        number: int,
        heap: EventHeap,
        rng: Random,
        network: Network,
        gateways: list[GatewayNode],
        backend: Backend,
        truth: Truth,
        workload: Workload,
        trace: Trace,
    ) -> None:
        super().__init__(f"client{number}", heap)
        self._rng = rng
        self._network = network
        self._gateways = gateways
        self._backend = backend
        self._truth = truth
        self._workload = workload
        self._trace = trace
        self._number = number
        self._workflows = 0
        self._left_in_workflow = 0
        self._arrived = False
        self._outputs: list[Output] = []
        self._open: _Open | None = None
        self.stopped = False
        self.requests = 0
        self.later(rng.random() * PAUSE_S, self._next)

    @property
    def waiting(self) -> bool:
        return self._open is not None

    def _next(self) -> None:
        if self.stopped:
            return
        if self._left_in_workflow == 0:
            self._workflows += 1
            self._left_in_workflow = STAGES_OF_A_WORKFLOW
            self._arrived, self._outputs = False, []
        self._left_in_workflow -= 1
        wanted = self._draw()
        think_s = self._rng.random() * THINK_S if wanted.declared else 0.0
        self.later(think_s, lambda: self._ask(wanted))

    def _draw(self) -> Wanted:
        rng, load = self._rng, self._workload
        kind = rng.choice((Kind.MODEL, Kind.TOOL, Kind.TOOL, Kind.TOOL, Kind.DECLARED, Kind.CHAIN))
        match kind:
            case Kind.CHAIN if self._outputs:
                return self._chain(rng.choice(load.chains), rng.choice(self._outputs))
            case Kind.DECLARED if self._arrived:
                return self._declared(rng.choice(load.declared))
            case Kind.TOOL | Kind.CHAIN:
                stage = rng.choice(load.tools)
                sources = tuple(sorted({source_of(record) for record in stage.records}))
                return Wanted(stage, load.name(stage, ""), ReadScope(sources=sources))
            case _:
                stage = rng.choice(load.models)
                return Wanted(stage, load.name(stage, ""), PURE)

    def _chain(self, stage: Stage, output: Output) -> Wanted:
        text = text_of(output)
        return Wanted(stage, self._workload.name(stage, text), PURE, text, (digest_of(output),))

    def _declared(self, stage: Stage) -> Wanted:
        """The harness reads now, and says what it knows of the version."""
        unversioned = self._network.weather.unversioned_reads and self._rng.random() < 0.5
        seen = tuple((record, self._truth.current[record]) for record in stage.records)
        declared = tuple(
            DeclaredRead(record, None if unversioned else self._backend.reported[record])
            for record in stage.records
        )
        name = self._workload.name(stage, "")
        return Wanted(stage, name, ReadScope(declared=declared), declared=seen)

    def _ask(self, wanted: Wanted) -> None:
        rng = self._rng
        asked = Asked(
            wanted,
            Identity(workflow_id=f"{self._number}.{self._workflows}"),
            stream=rng.random() < 0.5,
            may_hit=rng.random() >= self._network.weather.no_cache,
        )
        self.requests += 1
        self._open = _Open(self, asked)
        self._open.send(rng.choice(self._gateways))

    def done(self, opened: _Open, answer: Answer | None) -> None:
        """``answer`` None: this client left, or the gateway is gone."""
        if self._open is not opened:
            return
        self._open = None
        if answer is not None and answer.registered:
            self._arrived = True
        output = None if answer is None else answer.output
        if output is not None and output.stage.kind is Kind.TOOL:
            self._outputs.append(output)
        again = answer is None and self._rng.random() < 0.5
        wanted = opened.asked.wanted
        self.later(self._rng.random() * PAUSE_S, lambda: self._ask(wanted) if again else self._next())

    # For the request that is open

    @property
    def network(self) -> Network:
        return self._network

    @property
    def chance(self) -> Random:
        return self._rng


class _Open:
    """One HTTP request: ordered, so it is no call of the simulated network. It may be cut."""

    def __init__(self, harness: Harness, asked: Asked) -> None:
        self.asked = asked
        self._harness = harness
        self._serving: Serving | None = None
        self._over = False
        self._patience: Timer = harness.later(PATIENCE_S, self._never)

    def send(self, gateway: GatewayNode) -> None:
        harness, life = self._harness, gateway.life
        delay = harness.network.delay_s()

        def arrive() -> None:
            if not gateway.up or gateway.life != life:
                self._end(None)
            elif not self._over:
                self._serving = gateway.serve(self.asked, answered)

        def answered(answer: Answer) -> None:
            harness.heap.after(harness.network.delay_s(), lambda: self._end(answer))

        harness.heap.after(delay, arrive)
        self._watch(gateway, life)
        if harness.chance.random() < harness.network.weather.leave:
            harness.later(harness.chance.expovariate(1.0) * 0.05, lambda: self._leave(gateway, life))

    def _watch(self, gateway: GatewayNode, life: int) -> None:
        """A gateway that dies cuts the connection."""
        if self._over:
            return
        if not gateway.up or gateway.life != life:
            self._end(None)
        else:
            self._harness.later(0.25, lambda: self._watch(gateway, life))

    def _leave(self, gateway: GatewayNode, life: int) -> None:
        if self._over:
            return
        serving = self._serving
        self._end(None)
        if serving is not None:
            cut = self._harness.network.delay_s()
            self._harness.heap.after(
                cut, lambda: serving.leave() if gateway.up and gateway.life == life else None
            )

    def _end(self, answer: Answer | None) -> None:
        if not self._over:
            self._over = True
            self._patience.cancel()
            self._harness.done(self, answer)

    def _never(self) -> None:
        raise Violation("I5", f"a request for {self.asked.wanted.stage.key} did not end in {PATIENCE_S:g} s")


class Writer(Node):
    """Somebody who changes records."""

    def __init__(
        self, heap: EventHeap, rng: Random, network: Network, backend: Backend, trace: Trace
    ) -> None:
        super().__init__("writer", heap)
        self._rng = rng
        self._network = network
        self._backend = backend
        self._trace = trace
        self.stopped = False
        self.writes = 0
        self._plan()

    def _plan(self) -> None:
        every = self._network.weather.write_every_s
        self.later(self._rng.expovariate(1.0) * every, self._write)

    def _write(self) -> None:
        if self.stopped:
            return
        record = self._rng.choice(list(self._backend.reported))
        if self._rng.random() < self._network.weather.whole_write:
            record = whole(source_of(record))
        self.writes += 1
        self._backend.write(record, lambda: self._trace.note(self.name, "acknowledged", record))
        self._plan()
