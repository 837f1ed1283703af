"""Whether the gateway lives, whether it can serve, and what it counts."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from dynbranch.domain.ids import Instant
from dynbranch.gateway.core.breaker import Position
from dynbranch.gateway.csl_gate import CslGate
from dynbranch.gateway.directory import Directory
from dynbranch.gateway.edge.exchange import Exchange
from dynbranch.gateway.edge.inflight import InFlight
from dynbranch.gateway.observer import Metrics
from dynbranch.gateway.protocols.errors import JSON
from dynbranch.gateway.protocols.members import dump
from dynbranch.gateway.reporter import Reporter
from dynbranch.gateway.templates import Templates
from dynbranch.runtime.clock import Clock
from prometheus_client import generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST

_LOOK_S = 0.25
_ALONE_S = 2.0
"""No agent was reached for so long after the start: who starts with this gateway would be there by now."""


class Readiness:
    """Ready means that requests can be served.

    In the first ``grace_s`` after the start everything that is configured is waited for, so that nobody's
    first request meets half a system. Later, a part that is gone degrades the service and no more, since
    every part but the last engine can be done without: with no agent, requests go raw to an engine whose
    address is configured or was told by an agent. If no agent at all can be reached and the configured engine
    answers, that is enough at once.
    """

    def __init__(
        self,
        *,
        engine_url: str,
        gate: CslGate | None,
        directory: Directory,
        clock: Clock,
        grace_s: float,
        templates: Templates | None = None,
    ) -> None:
        self._templates = templates
        self._engine_url = engine_url
        self._gate = gate
        self._directory = directory
        self._clock = clock
        self._grace_until = Instant(clock.now() + grace_s)
        self._alone_from = Instant(clock.now() + _ALONE_S)
        self._was_complete = False
        self._engine_answers = False
        self.stopping = False

    def missing(self) -> list[str]:
        """What keeps the gateway from being ready; empty when it is."""
        if self.stopping:
            return ["stopping"]
        absent = self.absent()
        self._was_complete = self._was_complete or not absent
        settled = self._was_complete or self._clock.now() >= self._grace_until
        if not settled:
            return [] if self._engine_answers and self._is_alone() else absent
        return [] if self._can_serve() else absent or ["no engine is known"]

    def absent(self) -> list[str]:
        """Every part that is not there."""
        parts = [
            f"agent {agent.address}: {agent.why_not_available()}"
            for agent in self._directory.agents
            if not agent.available
        ]
        if self._gate is not None and not self._gate.reached:
            parts.append("csl: unreachable")
        elif self._gate is not None and self._gate.breaker.position is not Position.CLOSED:
            parts.append("csl: its breaker is open")
        if self._templates is not None and not self._templates.reached:
            parts.append("controller: unreachable")
        return parts

    async def look_for_engine(self, answers: Callable[[str], Awaitable[bool]]) -> None:
        """While agents are waited for and none can be reached, ask the configured engine whether it is
        there."""
        while self._engine_url and not self._engine_answers and self._clock.now() < self._grace_until:
            await self._clock.sleep(_LOOK_S)
            if self._is_alone():
                self._engine_answers = await answers(self._engine_url)

    def _is_alone(self) -> bool:
        agents = self._directory.agents
        lost = bool(agents) and all(agent.tried and not agent.reachable for agent in agents)
        return lost and self._clock.now() >= self._alone_from

    def _can_serve(self) -> bool:
        if any(agent.available for agent in self._directory.agents):
            return True
        return bool(self._engine_url or self._directory.engine_urls())


class ProbeEndpoints:
    def __init__(
        self,
        *,
        readiness: Readiness,
        metrics: Metrics,
        in_flight: InFlight,
        gate: CslGate | None,
        reporter: Reporter | None,
        directory: Directory,
    ) -> None:
        self._readiness = readiness
        self._metrics = metrics
        self._in_flight = in_flight
        self._gate = gate
        self._reporter = reporter
        self._directory = directory

    async def health(self, exchange: Exchange, _: str) -> None:
        await exchange.respond(200, JSON, dump({"status": "ok"}), [])

    async def ready(self, exchange: Exchange, _: str) -> None:
        missing, absent = self._readiness.missing(), self._readiness.absent()
        body = {"ready": not missing, "degraded": bool(absent), "missing": missing, "absent": absent}
        await exchange.respond(503 if missing else 200, JSON, dump(body), [])

    async def metrics(self, exchange: Exchange, _: str) -> None:
        self._gauge()
        await exchange.respond(200, CONTENT_TYPE_LATEST.encode(), generate_latest(self._metrics.registry), [])

    def _gauge(self) -> None:
        self._metrics.in_flight.set(len(self._in_flight))
        self._metrics.agents_available.set(sum(agent.available for agent in self._directory.agents))
        self._metrics.agents_mute.set(self._directory.count_mute())
        if self._gate is not None:
            breaker = self._gate.breaker
            self._metrics.breaker_open.set(breaker.position is not Position.CLOSED)
            self._metrics.breaker_openings.set(breaker.openings)
        if self._reporter is not None:
            self._metrics.events_dropped.set(self._reporter.dropped)
