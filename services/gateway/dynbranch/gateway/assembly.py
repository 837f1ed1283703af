"""The parts of the gateway, wired."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from dynbranch.clients.ports import Branches, Controller, Csl, EngineAgent
from dynbranch.gateway.app import App
from dynbranch.gateway.arrivals import ArrivalPolicy, Arrivals
from dynbranch.gateway.bypass import Bypass, new_session
from dynbranch.gateway.conductor import Adoption, Conductor
from dynbranch.gateway.config import GatewaySettings
from dynbranch.gateway.core.breaker import BreakerPolicy
from dynbranch.gateway.core.prompt_prefix import blocks_of_tokens
from dynbranch.gateway.core.recent_arrivals import RecentArrivals
from dynbranch.gateway.core.reuse_policy import ReusePolicy
from dynbranch.gateway.core.routing import Router
from dynbranch.gateway.csl_gate import CslGate
from dynbranch.gateway.desk import Desk
from dynbranch.gateway.directory import Directory
from dynbranch.gateway.edge.inflight import BodyRoom, InFlight
from dynbranch.gateway.edge.routes import ANY, Guard, Route, Routes
from dynbranch.gateway.endpoints.branches import BranchEndpoints
from dynbranch.gateway.endpoints.catalogue import CatalogueEndpoints
from dynbranch.gateway.endpoints.messages import MessagesEndpoints
from dynbranch.gateway.endpoints.probes import ProbeEndpoints, Readiness
from dynbranch.gateway.endpoints.responses import ResponsesEndpoints, no_socket
from dynbranch.gateway.endpoints.stages import StageEndpoints
from dynbranch.gateway.endpoints.stats import StatsEndpoint
from dynbranch.gateway.endpoints.store import StoreEndpoints
from dynbranch.gateway.kept_responses import KeptResponses
from dynbranch.gateway.observer import Metrics, Observer
from dynbranch.gateway.protocols.anthropic.dialect import MessagesDialect
from dynbranch.gateway.protocols.anthropic.errors import MESSAGES_PATH
from dynbranch.gateway.protocols.chat import ChatDialect
from dynbranch.gateway.protocols.dialect import Dialect
from dynbranch.gateway.protocols.responses.dialect import RESPONSES_PATH, ResponsesDialect
from dynbranch.gateway.reading import Reading
from dynbranch.gateway.recording import Recorder, RecordPolicy
from dynbranch.gateway.registrar import Registrar
from dynbranch.gateway.reporter import Reporter
from dynbranch.gateway.returning import Returning
from dynbranch.gateway.templates import Templates
from dynbranch.gateway.tenants import Tenants
from dynbranch.runtime.clock import Clock
from dynbranch.runtime.tasks import Tasks
from prometheus_client import CollectorRegistry


@dataclass(frozen=True, slots=True)
class Peers:
    """The services around the gateway. No store: nothing is reused. No controller: nothing is reported.
    ``branches`` is the controller too, as it tells templates and branches."""

    csl: Csl | None
    controller: Controller | None
    connect: Callable[[str], EngineAgent]
    branches: Branches | None = None


class Gateway:
    """An async context manager: within, ``app`` serves. It closes its own clients of agents, and not the
    peers that it was given."""

    def __init__(
        self,
        settings: GatewaySettings,
        peers: Peers,
        tenants: Tenants,
        *,
        clock: Clock,
        new_id: Callable[[], bytes],
        registry: CollectorRegistry,
    ) -> None:
        self._settings = settings
        self._clock = clock
        self._new_id = new_id
        self._tenants = tenants
        # Disabled means that the store is not even called, and the controller neither.
        self._csl = peers.csl if settings.enabled else None
        self._controller = peers.controller if settings.enabled else None
        self._branches = peers.branches if settings.enabled else None
        self._stack = AsyncExitStack()
        self.tasks = Tasks()
        self.desk = Desk()
        self.metrics = Metrics(registry)
        self.directory = Directory(
            settings.agents,
            peers.connect,
            router=Router(settings.routing, room_blocks=blocks_of_tokens(settings.engine_cache_tokens)),
            occupancy_interval_ms=settings.occupancy_interval_ms,
            silence_s=settings.agent_silence_s,
            mute_s=settings.agent_mute_s,
            clock=clock,
        )
        self.gate = self._new_gate()
        self.kept = self._new_kept()
        self.reporter = self._new_reporter()
        self.templates = self._new_templates()
        self.recent = RecentArrivals(max_bytes=settings.recent_bytes)
        self.recorder = self._new_recorder()
        self.readiness = Readiness(
            engine_url=settings.engine_url,
            gate=self.gate,
            directory=self.directory,
            clock=clock,
            grace_s=settings.ready_grace_s,
            templates=self.templates,
        )
        self.in_flight = InFlight(
            limit=settings.max_in_flight,
            keep_alive_s=settings.keep_alive_s,
            stall_s=settings.stall_s,
            clock=clock,
            tasks=self.tasks,
        )
        self._app: App | None = None

    @property
    def app(self) -> App:
        assert self._app is not None, "the gateway is not open"
        return self._app

    async def __aenter__(self) -> Self:
        self._stack.push_async_callback(self.directory.close)
        session = await self._stack.enter_async_context(new_session(self._settings.idle_s))
        self._stack.enter_context(self.desk)
        await self._stack.enter_async_context(self.tasks)
        self.directory.start(self.tasks)
        self.tasks.spawn(self.in_flight.watch(), name="in-flight watch")
        if self.gate is not None:
            self.tasks.spawn(self.gate.watch(), name="store watch")
        if self.reporter is not None:
            self.tasks.spawn(self.reporter.run(), name="reporter")
        if self.templates is not None:
            self.tasks.spawn(self.templates.run(), name="templates")
        if self.recorder is not None:
            self.tasks.spawn(self.recorder.run(), name="recorder")
        bypass = Bypass(session, hides_keys=self._tenants.has_keys)
        if self._settings.engine_url and self._settings.agents:
            self.tasks.spawn(self.readiness.look_for_engine(bypass.answers), name="engine looked for")
        self._app = self._new_app(bypass)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._stack.__aexit__(kind, error, trace)
        if self.reporter is not None:
            await self.reporter.flush()
        if self.recorder is not None:
            await self.recorder.flush()

    # -- parts ---------------------------------------------------------------------------------------------

    def _new_gate(self) -> CslGate | None:
        if self._csl is None:
            return None
        settings = self._settings
        policy = BreakerPolicy(
            bad_calls_to_open=settings.csl_bad_calls,
            open_s=settings.csl_open_ms / 1000,
            slow_s=settings.csl_slow_ms / 1000,
        )
        return CslGate(self._csl, budget_s=settings.csl_budget_ms / 1000, policy=policy, clock=self._clock)

    def _new_kept(self) -> KeptResponses | None:
        if self._csl is None or self.gate is None or not self._settings.keep_responses:
            return None
        return KeptResponses(
            self.gate,
            self._csl,
            budget_s=self._settings.csl_budget_ms / 1000,
            write_timeout_s=self._settings.write_timeout_s,
            new_id=self._new_id,
        )

    def _new_reporter(self) -> Reporter | None:
        if self._controller is None:
            return None
        return Reporter(self._controller, name=f"gateway-{self._new_id().hex()}", clock=self._clock)

    def _new_templates(self) -> Templates | None:
        # What templates are for is to tell the controller.
        if self._branches is None or self.reporter is None:
            return None
        templates = Templates(self._branches, clock=self._clock)
        self.metrics.templates.set_function(lambda: len(templates))
        self.metrics.templates_rejected.set_function(lambda: templates.rejected)
        return templates

    def _new_recorder(self) -> Recorder | None:
        settings = self._settings
        types = frozenset(settings.record_types)
        if not settings.record or not types:
            return None
        policy = RecordPolicy(
            Path(settings.record),
            types,
            settings.record_bodies,
            file_bytes=settings.record_file_bytes,
            files=settings.record_files,
        )
        recorder = Recorder(policy, self._clock)
        self.metrics.recorded.set_function(lambda: recorder.written)
        self.metrics.records_dropped.set_function(lambda: recorder.dropped)
        return recorder

    def _new_app(self, bypass: Bypass) -> App:
        policy = ArrivalPolicy(
            reuse=self._settings.reuse if self._csl is not None else ReusePolicy.OFF,
            shares_all=self._settings.sharing == "all",
            hides_keys=self._tenants.has_keys,
            engine_url=self._settings.engine_url,
            greedy_harnesses=frozenset(self._settings.greedy_harnesses),
        )
        arrivals = Arrivals(self.directory, policy, self.desk, self.templates)
        return App(
            routes=self._routes(arrivals, bypass),
            in_flight=self.in_flight,
            tenants=self._tenants,
            metrics=self.metrics,
            clock=self._clock,
            new_id=self._new_id,
            max_body_bytes=self._settings.max_body_bytes,
            room=BodyRoom(self._settings.max_buffered_bytes),
        )

    def _stages(self, arrivals: Arrivals, bypass: Bypass) -> StageEndpoints:
        returning = Returning(self.desk, self._clock, self._settings.detach_grace_ms)
        conductor = Conductor(
            registrar=Registrar(self.gate, new_id=self._new_id) if self.gate is not None else None,
            csl=self._csl,
            directory=self.directory,
            tasks=self.tasks,
            clock=self._clock,
            new_id=self._new_id,
            idle_s=self._settings.idle_s,
            adoption=Adoption(self._settings.adopt, self._settings.adopt_stall_ms / 1000),
            returning=returning,
        )
        observer = Observer(
            self.metrics,
            self.reporter,
            self._clock,
            desk=self.desk,
            tasks=self.tasks,
            recorder=self.recorder,
        )
        return StageEndpoints(
            enabled=self._settings.enabled,
            body_timeout_s=self._settings.body_timeout_s,
            arrivals=arrivals,
            desk=self.desk,
            reading=Reading(self.desk, self.kept),
            conductor=conductor,
            returning=returning,
            bypass=bypass,
            observer=observer,
            recent=self.recent,
            tenants=self._tenants,
            new_id=self._new_id,
        )

    def _routes(self, arrivals: Arrivals, bypass: Bypass) -> Routes:
        stages = self._stages(arrivals, bypass)
        catalogue = CatalogueEndpoints(self.directory, started_s=self._clock.unix_ms() // 1000)
        probes = ProbeEndpoints(
            readiness=self.readiness,
            metrics=self.metrics,
            in_flight=self.in_flight,
            gate=self.gate,
            reporter=self.reporter,
            directory=self.directory,
        )
        store = StoreEndpoints(
            enabled=self._settings.enabled,
            csl=self._csl,
            arrivals=arrivals,
            desk=self.desk,
            reading=Reading(self.desk, self.kept),
            directory=self.directory,
            tenants=self._tenants,
            recent=self.recent,
            metrics=self.metrics,
            recorder=self.recorder,
            body_timeout_s=self._settings.body_timeout_s,
            write_timeout_s=self._settings.write_timeout_s,
        )
        dialect = MessagesDialect()
        messages = MessagesEndpoints(
            arrivals=arrivals,
            desk=self.desk,
            bypass=bypass,
            dialect=dialect,
            raw=stages.raw,
            stands_aside=stages.stands_aside,
            body_timeout_s=self._settings.body_timeout_s,
            hides_keys=self._tenants.has_keys,
        )
        branches = BranchEndpoints(self._branches, self._tenants)
        stats = StatsEndpoint(self._csl, self._controller, self._tenants)
        dialects: dict[str, Dialect] = {
            "/v1/chat/completions": ChatDialect(),
            MESSAGES_PATH: dialect,
            RESPONSES_PATH: ResponsesDialect(self.kept),
        }
        responses = ResponsesEndpoints(self.kept, self._tenants)
        own = (
            Route("GET", "/v1/models", catalogue.models, Guard.TENANT),
            Route("GET", "/v1/models/…", catalogue.model, Guard.TENANT),
            Route("GET", RESPONSES_PATH, no_socket, Guard.TENANT),
            Route("GET", f"{RESPONSES_PATH}/…", responses.one),
            Route("DELETE", f"{RESPONSES_PATH}/…", responses.delete),
            Route("POST", f"{RESPONSES_PATH}/…", stages.raw),
        )
        return Routes(
            [
                *(Route("POST", path, stages.model(spoken)) for path, spoken in dialects.items()),
                *(
                    Route("POST", f"/dynbranch/v1/explain{path}", store.explain(spoken))
                    for path, spoken in dialects.items()
                ),
                Route("POST", f"{MESSAGES_PATH}/count_tokens", messages.count_tokens),
                Route("GET", "/", messages.root, Guard.OPEN),
                # Disabled, or with an engine alone, a harness sees what the engine itself has.
                *(own if self._settings.enabled and self._settings.agents else ()),
                Route(ANY, "/v1/…", stages.raw),
                Route("GET", "/dynbranch/v1/tools", catalogue.tools, Guard.TENANT),
                Route("POST", "/dynbranch/v1/tools/…", stages.tool),
                Route("POST", "/dynbranch/v1/writes", store.write),
                Route("GET", "/dynbranch/v1/entries/…", store.entry),
                Route("POST", "/dynbranch/v1/explain", store.explain(ChatDialect())),
                Route("GET", "/dynbranch/v1/branches", branches.all),
                Route("GET", "/dynbranch/v1/branches/…", branches.one),
                Route("GET", "/dynbranch/v1/stats", stats.all),
                Route("GET", "/healthz", probes.health, Guard.OPEN),
                Route("GET", "/readyz", probes.ready, Guard.OPEN),
                Route("GET", "/metrics", probes.metrics, Guard.OPEN),
            ]
        )
