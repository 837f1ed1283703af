"""What the gateway tells of its requests: Prometheus metrics, spans, and events for the controller."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

from dynbranch.domain.events import ArrivalSeen, ChoiceSeen, OutcomeSeen, OutputTold, Selection, StageTold
from dynbranch.domain.ids import DemandId, Name
from dynbranch.domain.reuse import Identity
from dynbranch.domain.template import Stage, StageKind
from dynbranch.gateway.arrivals import Arrival
from dynbranch.gateway.conductor import Account
from dynbranch.gateway.core.outcome import Outcome
from dynbranch.gateway.desk import Desk, is_light
from dynbranch.gateway.listening import ChoiceWatch, Listener, SpokenWatch
from dynbranch.gateway.recording import Came, Noted, Recorded, Recorder
from dynbranch.gateway.reporter import Reporter
from dynbranch.gateway.speaking import spoken_names
from dynbranch.gateway.telling import TemplateInForce, output_told, stage_told
from dynbranch.naming.chunks import MalformedLog, usage
from dynbranch.naming.document import Json
from dynbranch.runtime import telemetry
from dynbranch.runtime.clock import Clock
from dynbranch.runtime.tasks import Tasks
from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.trace import Span, SpanKind, StatusCode
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

Told = TypeVar("Told")

_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300)


class Metrics:
    """Every metric of the gateway."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.registry = registry
        self.requests = Counter(
            "dynbranch_gateway_requests", "Requests served.", ("kind", "outcome", "failed"), registry=registry
        )
        self.latency = Histogram(
            "dynbranch_gateway_latency_seconds",
            "From the arrival to the end of the response.",
            ("kind", "outcome"),
            buckets=_SECONDS,
            registry=registry,
        )
        self.saved_ms = Counter(
            "dynbranch_gateway_saved_milliseconds", "Execution time that hits spared.", registry=registry
        )
        self.left = Counter(
            "dynbranch_gateway_clients_left",
            "Clients that left before the end.",
            ("kind",),
            registry=registry,
        )
        self.errors = Counter(
            "dynbranch_gateway_errors", "Errors of the gateway's own.", ("code",), registry=registry
        )
        self.writes = Counter("dynbranch_gateway_writes", "Acknowledged writes.", registry=registry)
        self.in_flight = Gauge("dynbranch_gateway_in_flight", "Exchanges in flight.", registry=registry)
        self.breaker_open = Gauge(
            "dynbranch_gateway_csl_breaker_open", "1 while demands skip the store.", registry=registry
        )
        self.breaker_openings = Gauge(
            "dynbranch_gateway_csl_breaker_openings", "How often it has opened.", registry=registry
        )
        self.events_dropped = Gauge(
            "dynbranch_gateway_events_dropped", "Events the controller was not sent.", registry=registry
        )
        self.recorded = Gauge(
            "dynbranch_gateway_recorded", "Requests written to the recorded file.", registry=registry
        )
        self.records_dropped = Gauge(
            "dynbranch_gateway_records_dropped",
            "Requests that should have been recorded and were not.",
            registry=registry,
        )
        self.templates = Gauge(
            "dynbranch_gateway_templates", "Templates that requests are read with.", registry=registry
        )
        self.templates_rejected = Gauge(
            "dynbranch_gateway_templates_rejected", "Templates that could not be read.", registry=registry
        )
        self.agents_available = Gauge(
            "dynbranch_gateway_agents_available", "Agents that take work.", registry=registry
        )
        self.agents_mute = Gauge(
            "dynbranch_gateway_agents_mute", "Agents that owe answers and say nothing.", registry=registry
        )

    def refused(self, code: str) -> None:
        """An error of the gateway's own, by its code."""
        self.errors.labels(code).inc()


class Observer:
    """``desk`` and ``tasks`` are for what is told of large requests."""

    def __init__(
        self,
        metrics: Metrics,
        reporter: Reporter | None,
        clock: Clock,
        *,
        desk: Desk,
        tasks: Tasks,
        recorder: Recorder | None = None,
    ) -> None:
        self._metrics = metrics
        self._reporter = reporter
        self._clock = clock
        self._desk = desk
        self._tasks = tasks
        self._recorder = recorder
        self._tracer = telemetry.tracer("dynbranch.gateway")
        self._counted: dict[tuple[str, str, bool], tuple[Counter, Histogram]] = {}

    @contextmanager
    def arrival(self, account: Account, kind: str, headers: Mapping[str, str]) -> Iterator[Span]:
        """The span of one arrival, and its outcome when it ends, however it ends."""
        caller = telemetry.extract(headers) if "traceparent" in headers else Context()
        with telemetry.span(
            self._tracer, telemetry.SPAN_ARRIVAL, context=caller, kind=SpanKind.SERVER
        ) as span:
            served = False
            try:
                yield span
                served = True
            finally:
                # A hand-written error counts as failed; a client that left was served what it wanted.
                account.failed = account.failed or not (served or account.exchange.gone)
                self._ended(account, kind, span)

    def arrived(
        self,
        account: Account,
        identity: Identity,
        target: str,
        name: Name | None,
        *,
        streaming: bool,
        turn: int = 0,
    ) -> None:
        """The request is going to be served. Its second telling, by way of the raw path, is none."""
        if account.arrived:
            return
        account.arrived, account.outcome = True, Outcome.MISS
        if self._reporter is not None:
            self._reporter.report(
                ArrivalSeen(
                    self._clock.unix_ms(), account.demand_id, identity, target, name, streaming, turn=turn
                )
            )

    # -- workflow types with a template, or that are recorded ---------------------------------------------

    def served(self, account: Account, arrival: Arrival, body: bytes) -> None:
        """The request is going to be served by a stage of ours: as ``arrived``, and its answer is read
        along."""
        stage, streaming = arrival.stage, arrival.request.streaming
        recorder, known = self._recorder, arrival.recognised
        if recorder is not None and recorder.wants(stage.identity):
            account.recorded = recorder.note(_noted(arrival, body))
            account.listener = Listener(arrival.kind) if account.recorded is not None else None
        if self._reporter is None or known is None or known.stage is None:
            turn = arrival.request.turn
            self.arrived(account, stage.identity, stage.target, stage.name, streaming=streaming, turn=turn)
            return
        account.arrived, account.outcome, account.recognised = True, Outcome.MISS, known
        selectors = known.template.deciding.get(known.stage.name)
        tell = partial(self._choice, account.demand_id, stage.identity, known.stage.name)
        spoken = None
        if known.stage.name in known.template.speaking:
            spoken = SpokenWatch(partial(self._spoken, account, stage.identity, known.stage.name))
        begun = None if spoken is None else spoken.begun
        watch = ChoiceWatch(selectors, tell, begun) if selectors else None
        account.listener = Listener(arrival.kind, watch, spoken)
        event = ArrivalSeen(
            self._clock.unix_ms(),
            account.demand_id,
            stage.identity,
            stage.target,
            stage.name,
            streaming,
            traceparent=telemetry.traceparent(trace.get_current_span()),
            turn=arrival.request.turn,
        )
        body_value = arrival.request.document.value
        read = partial(
            _unless_it_fails,
            known.template,
            partial(
                stage_told,
                known.template,
                known.stage,
                body_value,
                sharing_group=stage.sharing_group,
                cache_scope=stage.cache_scope,
                forward_headers=stage.forward_headers,
            ),
        )
        if spoken is not None:
            read = partial(_read_names, read, spoken, known.template, known.stage, body_value)
        if is_light(body):
            # In the next turn of the loop: by then the request itself is on its way.
            asyncio.get_running_loop().call_soon(self._tell, event, read, account.recorded)
        else:
            telling = self._tell_large(event, read, account.recorded, body)
            self._tasks.spawn(telling, name="large arrival told")

    async def _tell_large(
        self,
        event: ArrivalSeen,
        read: Callable[[], StageTold | None],
        recorded: Recorded | None,
        body: bytes,
    ) -> None:
        told = await self._desk.read(body, read)
        self._tell(event, lambda: told, recorded)

    def _tell(
        self, event: ArrivalSeen, read: Callable[[], StageTold | None], recorded: Recorded | None
    ) -> None:
        assert self._reporter is not None
        told = read()
        self._reporter.report(replace(event, told=told), at_once=True)
        if self._recorder is not None and recorded is not None and told is not None:
            self._recorder.selected(recorded, told.selections)

    def _choice(
        self,
        demand_id: DemandId,
        identity: Identity,
        stage: str,
        selection: Selection,
        closed: bool,
        items: int,
    ) -> None:
        assert self._reporter is not None
        at = self._clock.unix_ms()
        event = ChoiceSeen(at, demand_id, identity, stage, 0, selection, closed, items)
        self._reporter.report(event, at_once=True)

    def _spoken(
        self, account: Account, identity: Identity, stage: str, selection: Selection, items: int
    ) -> None:
        assert self._reporter is not None
        if account.outcome in (Outcome.HIT, Outcome.PROMOTED):
            # It has chosen long ago.
            return
        at = self._clock.unix_ms()
        event = ChoiceSeen(
            at, account.demand_id, identity, stage, 0, selection, closed=False, items=items, spoken=True
        )
        self._reporter.report(event, at_once=True)

    def _output_told(self, account: Account) -> OutputTold | None:
        """None where there is no answer that could be read."""
        known, listener = account.recognised, account.listener
        if known is None or known.stage is None or listener is None or account.failed:
            return None
        if not listener.complete:
            return None
        told = partial(output_told, known.template, known.stage, listener.output(), listener.execution_ms)
        return _unless_it_fails(known.template, told)

    def _ended(self, account: Account, kind: str, span: Span) -> None:
        latency_ms = account.exchange.elapsed_ms()
        outcome = account.outcome.value
        requests, latency = self._labelled(kind, outcome, failed=account.failed)
        requests.inc()
        latency.observe(latency_ms / 1000)
        if account.saved_ms:
            self._metrics.saved_ms.inc(account.saved_ms)
        if account.exchange.gone:
            self._metrics.left.labels(kind).inc()
        counts = _counts(account.tail) if kind != "tool" else {}
        if span.is_recording():
            _describe(span, account, counts)
        told = None
        if self._reporter is not None and account.arrived:
            event = self._outcome(account, outcome, latency_ms, counts)
            told = event.told
            self._reporter.report(event, at_once=account.recognised is not None)
        if self._recorder is not None and account.recorded is not None:
            if told is not None:
                self._recorder.selected(account.recorded, told.selections)
            self._recorder.end(account.recorded, _came(account, outcome, counts))

    def _labelled(self, kind: str, outcome: str, *, failed: bool) -> tuple[Counter, Histogram]:
        """Finding a metric by its labels costs more than counting."""
        found = self._counted.get((kind, outcome, failed))
        if found is None:
            found = self._counted[kind, outcome, failed] = (
                self._metrics.requests.labels(kind, outcome, str(failed).lower()),
                self._metrics.latency.labels(kind, outcome),
            )
        return found

    def _outcome(
        self, account: Account, outcome: str, latency_ms: float, counts: dict[str, Any]
    ) -> OutcomeSeen:
        return OutcomeSeen(
            at=self._clock.unix_ms(),
            demand_id=DemandId(account.demand_id),
            outcome=outcome,
            latency_ms=latency_ms,
            saved_ms=account.saved_ms,
            failed=account.failed,
            input_tokens=_count(counts, "prompt_tokens"),
            output_tokens=_count(counts, "completion_tokens"),
            told=self._output_told(account),
        )


def _read_names(
    read: Callable[[], StageTold | None],
    spoken: SpokenWatch,
    template: TemplateInForce,
    stage: Stage,
    body: Json,
) -> StageTold | None:
    """What might be chosen is read where the rest of the request is: beside the loop where it is large."""
    told = read()
    names = _unless_it_fails(template, partial(spoken_names, template, stage, body))
    spoken.know(names or {})
    return told


def _unless_it_fails(template: TemplateInForce, read: Callable[[], Told]) -> Told | None:
    """What is told of a request is never a reason to fail it."""
    try:
        return read()
    except Exception:  # noqa: BLE001  # a template's own paths and patterns run here
        template.failed()
        return None


def _noted(arrival: Arrival, body: bytes) -> Noted:
    stage, known = arrival.stage, arrival.recognised
    named = known.stage.name if known is not None and known.stage is not None else stage.identity.stage
    # What a tool reads is told by its backend, and what a model reads by who asks it.
    is_chat = arrival.kind is StageKind.CHAT
    return Noted(
        identity=stage.identity,
        stage=named,
        kind=arrival.kind,
        target=stage.target,
        body=body,
        # What is drawn anew each time has a name where a fill may have been run for it.
        name=None if arrival.why_not_reused else stage.name,
        reads=tuple(read.record for read in stage.scope.declared) if is_chat else None,
        parent_id=stage.identity.parent_id,
        turn=arrival.request.turn,
    )


def _came(account: Account, outcome: str, counts: dict[str, Any]) -> Came:
    listener = account.listener
    heard = listener is not None and listener.complete and not account.failed
    return Came(
        outcome=outcome,
        output=listener.output() if listener is not None and heard else None,
        prompt_tokens=_count(counts, "prompt_tokens"),
        output_tokens=_count(counts, "completion_tokens"),
        execution_ms=listener.execution_ms if listener is not None and heard else None,
        failed=account.failed,
    )


def _describe(span: Span, account: Account, counts: dict[str, Any]) -> None:
    span.set_attribute("dynbranch.outcome", account.outcome.value)
    span.set_attribute("dynbranch.request_id", account.request_id)
    span.set_attribute("http.response.status_code", account.exchange.status)
    if account.name is not None:
        span.set_attribute("dynbranch.name", account.name.hex())
    if account.level is not None:
        span.set_attribute("dynbranch.level", account.level.value)
    if account.saved_ms:
        span.set_attribute("dynbranch.saved_ms", account.saved_ms)
    if counts:
        span.set_attribute(telemetry.GEN_AI_USAGE_INPUT_TOKENS, _count(counts, "prompt_tokens"))
        span.set_attribute(telemetry.GEN_AI_USAGE_OUTPUT_TOKENS, _count(counts, "completion_tokens"))
    if account.failed:
        span.set_status(StatusCode.ERROR)


def _counts(items: tuple[bytes, ...]) -> dict[str, Any]:
    try:
        return usage(items) or {}
    except MalformedLog:
        return {}


def _count(counts: dict[str, Any], key: str) -> int:
    value = counts.get(key)
    return value if isinstance(value, int) and value >= 0 else 0
