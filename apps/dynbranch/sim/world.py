"""One run: gateways, agents, a CSL, a backend and clients on one heap, some bad weather, and a calm end."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from random import Random

from dynbranch.sim.agent_node import AgentNode
from dynbranch.sim.backend import Backend
from dynbranch.sim.carriage import over_the_wire, unchanged
from dynbranch.sim.cores import Cores
from dynbranch.sim.csl_node import CslNode
from dynbranch.sim.gateway_node import GatewayNode
from dynbranch.sim.harness import PATIENCE_S, Harness, Writer
from dynbranch.sim.heap import EventHeap
from dynbranch.sim.judge import Truth, Violation
from dynbranch.sim.network import Network, Node
from dynbranch.sim.stages import Wanted, Workload
from dynbranch.sim.trace import Trace
from dynbranch.sim.weather import Weather, draw_weather

AGENTS = 2
GATEWAYS = 2
LONGEST_RETENTION_S = 10.0
"""After that much calm nothing may be held: longer than any lease, log or deadline."""

WIRE_SHARE = 0.05
"""Runs whose every message passes the wire codecs. They cost several times as much."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """``violation`` empty: every promise held in every step."""

    seed: int
    steps: int
    violation: str
    promise: str
    counts: Counter[str]
    tail: tuple[str, ...] = ()


@dataclass(slots=True)
class Plan:
    """``steps`` is when the weather calms down; the run then goes on until nothing is left to happen."""

    seed: int
    steps: int
    weather: Weather | None = None
    cores: Cores = field(default_factory=Cores)
    wire: bool | None = None
    trace_lines: int = 400


class World:
    """``rng``: another source of chance than the seed's, for scenarios without any."""

    def __init__(self, plan: Plan, rng: Random | None = None) -> None:
        self.rng = rng = rng or Random(plan.seed)
        drawn = draw_weather(rng)
        self.weather = weather = plan.weather or drawn
        wire = rng.random() < WIRE_SHARE
        self.wire = wire if plan.wire is None else plan.wire
        self.plan = plan
        self.heap = heap = EventHeap()
        self.trace = trace = Trace(heap, plan.trace_lines)
        self.truth = truth = Truth()
        self.workload = load = Workload(weather.names)
        self.requests: dict[bytes, Wanted] = {}
        self.network = net = Network(heap, rng, weather, over_the_wire if self.wire else unchanged)
        cores = plan.cores
        self.csl = CslNode(heap, rng, weather, cores, trace)
        self.agents = [
            AgentNode(
                f"agent{n}:1",
                heap,
                rng,
                net,
                self.csl,
                truth,
                load,
                self.requests,
                cores,
                trace,
                weather.execution_ms,
            )
            for n in range(AGENTS)
        ]
        by_name = {agent.name: agent for agent in self.agents}
        self.gateways = [
            GatewayNode(
                f"gateway{n}",
                heap,
                rng,
                net,
                self.csl,
                by_name,
                truth,
                load,
                self.requests,
                cores,
                trace,
                weather.detach_grace_ms,
            )
            for n in range(GATEWAYS)
        ]
        self.backend = Backend(heap, rng, net, self.csl, truth, trace)
        self.clients = [
            Harness(n, heap, rng, net, self.gateways, self.backend, truth, load, trace)
            for n in range(weather.clients)
        ]
        self.writer = Writer(heap, rng, net, self.backend, trace)
        self._plan_faults()

    # Faults

    def _plan_faults(self) -> None:
        weather = self.weather
        if weather.csl_dead:
            self.csl.lose(power=True)
        else:
            self._recurring(lambda: self.network.weather.csl_crash_every_s, self._crash_csl)
        for agent in self.agents:
            self._recurring(self._engine_losses, partial(self._lose_engine, agent))
            self._recurring(lambda: self.network.weather.agent_crash_every_s, partial(self._crash, agent))
        for gateway in self.gateways:
            self._recurring(lambda: self.network.weather.gateway_crash_every_s, partial(self._crash, gateway))

    def _engine_losses(self) -> float:
        return self.network.weather.engine_loss_every_s

    def _recurring(self, every_s: Callable[[], float], happen: Callable[[], None]) -> None:
        if every_s() <= 0:
            return

        def strike() -> None:
            if every_s() > 0:
                happen()
                self._recurring(every_s, happen)

        self.heap.after(self.rng.expovariate(1.0) * every_s(), strike)

    def _crash_csl(self) -> None:
        if self.csl.up:
            self.csl.lose(power=self.rng.random() < self.weather.power_loss_share)
            self.heap.after(self.rng.random() * self.weather.down_s, self.csl.restart)

    def _crash(self, node: Node) -> None:
        if node.up:
            self.network.faults += 1
            self.trace.note(node.name, "crash")
            node.crash()
            self.heap.after(self.rng.random() * self.weather.down_s, node.restart)

    def _lose_engine(self, agent: AgentNode) -> None:
        if agent.up and not agent.registry.not_ready_reason:
            self.network.faults += 1
            agent.lose_engine(self.rng.random() * self.weather.down_s)

    # A run

    def run(self) -> Outcome:
        violation = promise = ""
        try:
            self._live()
            self._calm_down()
        except Violation as found:
            violation, promise = str(found), found.promise
        except AssertionError as found:
            # A core's own check: of a conservation law, or of a move that its table does not have.
            violation, promise = f"{type(found).__name__}: {found}", "I4"
        tail = tuple(self.trace.lines()) if violation else ()
        return Outcome(self.plan.seed, self.heap.steps, violation, promise, self.counts(), tail)

    def _live(self) -> None:
        while self.heap.steps < self.plan.steps and self.heap.step():
            pass

    def _calm_down(self) -> None:
        """No new faults, no new requests. What runs must end, and leave nothing behind."""
        self.network.weather = self.network.weather.calm()
        self.writer.stopped = True
        for client in self.clients:
            client.stopped = True
        patience = self.heap.now + PATIENCE_S
        while self._busy():
            if not self.heap.step() or self.heap.now > patience:
                raise Violation("I5", f"after {PATIENCE_S:g} s of calm: {'; '.join(self._busy())}")
        until = self.heap.now + LONGEST_RETENTION_S
        while self.heap.now < until and self.heap.step():
            pass
        self._check_quiet()

    def _busy(self) -> list[str]:
        waiting = [client.name for client in self.clients if client.waiting]
        if self.weather.csl_dead:
            return waiting
        return waiting + ([f"{self.backend.unreported} unreported writes"] if self.backend.unreported else [])

    def _check_quiet(self) -> None:
        held = [what for agent in self.agents if agent.up for what in agent.idle()]
        held += [what for gateway in self.gateways if gateway.up for what in gateway.idle()]
        if self.csl.up:
            held += self.csl.idle()
            self.csl.check()
        if held:
            raise Violation("I4", f"still held when all is quiet: {'; '.join(held)}")

    def counts(self) -> Counter[str]:
        counts = Counter(self.csl.outcomes)
        for gateway in self.gateways:
            counts.update({f"served {how}": number for how, number in gateway.outcomes.items()})
        counts["requests"] = sum(client.requests for client in self.clients)
        counts["writes"] = self.writer.writes
        counts["executions"] = sum(sum(agent.executions.values()) for agent in self.agents)
        counts["runs over the wire"] = int(self.wire)
        return counts


def simulate(plan: Plan) -> Outcome:
    return World(plan).run()
