"""The canonical arrivals: what a model is asked in any protocol, and ``POST /dynbranch/v1/tools/{name}``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from dynbranch.domain.engine import ModelDescription
from dynbranch.domain.errors import InvalidRequest
from dynbranch.domain.ids import DemandId, Digest, Name
from dynbranch.domain.reuse import Identity
from dynbranch.domain.template import StageKind
from dynbranch.gateway.arrivals import Arrival, Arrivals, OnlyRaw, model_in
from dynbranch.gateway.bypass import Body, Bypass, NotConnected, engine_url, tool_url
from dynbranch.gateway.conductor import Account, Conductor
from dynbranch.gateway.core.harness_profile import profile_of
from dynbranch.gateway.core.kept_response import Owner
from dynbranch.gateway.core.outcome import Outcome
from dynbranch.gateway.core.pool import names_of
from dynbranch.gateway.core.recent_arrivals import RecentArrival, RecentArrivals, group_of
from dynbranch.gateway.core.request_headers import parse_identity, parse_opt_outs
from dynbranch.gateway.desk import Desk
from dynbranch.gateway.edge.exchange import Exchange
from dynbranch.gateway.edge.routes import Handler
from dynbranch.gateway.endpoints.responses import owner_of
from dynbranch.gateway.observer import Observer
from dynbranch.gateway.protocols.dialect import Dialect, Response
from dynbranch.gateway.protocols.errors import ApiError
from dynbranch.gateway.reading import Reading
from dynbranch.gateway.returning import Returning
from dynbranch.gateway.sinks import CompletionSink, Sink, StreamSink, ToolSink, failure_response
from dynbranch.gateway.stage import Stage
from dynbranch.gateway.tenants import Tenants
from dynbranch.naming.document import Document
from dynbranch.runtime import telemetry
from opentelemetry.trace import Span

_LOOKED_INTO_BYTES = 2**20
"""Larger raw bodies go to the engine as they come, whatever model they name."""


class StageEndpoints:
    """``enabled`` False: every request goes raw to the engine."""

    def __init__(
        self,
        *,
        enabled: bool,
        body_timeout_s: float,
        arrivals: Arrivals,
        desk: Desk,
        reading: Reading,
        conductor: Conductor,
        returning: Returning,
        bypass: Bypass,
        observer: Observer,
        recent: RecentArrivals,
        tenants: Tenants,
        new_id: Callable[[], bytes],
    ) -> None:
        self._enabled = enabled
        self._body_timeout_s = body_timeout_s
        self._arrivals = arrivals
        self._desk = desk
        self._reading = reading
        self._conductor = conductor
        self._returning = returning
        self._bypass = bypass
        self._observer = observer
        self._recent = recent
        self._tenants = tenants
        self._new_id = new_id

    # -- handlers ------------------------------------------------------------------------------------------

    def model(self, dialect: Dialect) -> Handler:
        """Requests for a model in one protocol."""

        async def asked(exchange: Exchange, _: str) -> None:
            account = self._account(exchange)
            with self._observer.arrival(account, dialect.kind, exchange.headers) as span:
                body = await exchange.read_body(self._body_timeout_s)
                if self.stands_aside(exchange):
                    await self._model_aside(exchange, account, body)
                    return
                await self._model(dialect, exchange, account, body, span)

        return asked

    async def tool(self, exchange: Exchange, name: str) -> None:
        account = self._account(exchange)
        with self._observer.arrival(account, "tool", exchange.headers) as span:
            body = await exchange.read_body(self._body_timeout_s)
            if self.stands_aside(exchange):
                await self._tool_aside(exchange, account, name, body)
                return
            await self._tool(exchange, account, name, body, span)

    async def raw(self, exchange: Exchange, _: str) -> None:
        """Any other path of the engine's."""
        account = self._account(exchange)
        with self._observer.arrival(account, "raw", exchange.headers):
            if not exchange.has_body or _names_a_model(exchange):
                body = await exchange.read_body(self._body_timeout_s)
                await self._model_aside(exchange, account, body if exchange.has_body else None)
                return
            # What comes in parts goes on in parts: it can be sent once, and nobody looks into it.
            urls = [engine_url(url, exchange) for url in self._arrivals.model_urls("")]
            parts = exchange.body_parts(self._body_timeout_s)
            await self._aside(exchange, account, urls[:1], parts, target="")

    # -- serving -------------------------------------------------------------------------------------------

    async def _model(
        self, dialect: Dialect, exchange: Exchange, account: Account, body: bytes, span: Span
    ) -> None:
        tenant = self._tenants.of(exchange.headers)
        owner = owner_of(tenant, exchange.headers)
        document = await self._reading.read(dialect, exchange, body, owner)
        try:
            arrival = await self._arrivals.chat(document, dialect.headers(exchange.headers), tenant)
        except OnlyRaw as why:
            await self._model_aside(exchange, account, body, self._lacking(dialect, exchange, str(why)))
            return
        self._arrived(account, arrival, span, exchange, arrival.request.document.source)
        stage, sink = arrival.stage, self._sink(dialect, exchange, account, arrival, document, owner)
        del document
        if self._returning.anything_left():
            own = await self._returning.own_generation(stage, arrival.request)
            stage = replace(stage, plan=replace(stage.plan, resumes=own))
        if arrival.who is not None and arrival.request.streaming:
            exchange.silence_s = profile_of(arrival.who.harness).silence_s
        # The parsed request may be many times as large as its text, and is not needed while it runs.
        del arrival
        try:
            await self._conductor.serve(stage, sink, account)
        finally:
            exchange.silence_s = None
        if account.aside and exchange.started:
            # A keep-alive has gone out, so that the engine's own answer can not be given any more.
            account.failed = True
            await sink.refuse(failure_response(None, account.aside))
        elif account.aside:
            exchange.when_idle = None
            await self._model_aside(exchange, account, body, self._lacking(dialect, exchange, account.aside))

    async def _tool(self, exchange: Exchange, account: Account, name: str, body: bytes, span: Span) -> None:
        try:
            arrival = await self._arrivals.tool(
                name, body, exchange.headers, self._tenants.of(exchange.headers)
            )
        except OnlyRaw:
            await self._tool_aside(exchange, account, name, body)
            return
        self._arrived(account, arrival, span, exchange, body)
        stage = arrival.stage
        del arrival
        await self._conductor.serve(stage, ToolSink(exchange, account.report), account)
        if account.aside:
            await self._tool_aside(exchange, account, name, body)

    def _sink(
        self,
        dialect: Dialect,
        exchange: Exchange,
        account: Account,
        arrival: Arrival,
        document: Document,
        owner: Owner,
    ) -> Sink:
        request = arrival.request
        may_keep = parse_opt_outs(exchange.headers).may_store
        form = dialect.form(
            Response(
                request_id=account.request_id,
                created_s=self._conductor.clock.unix_ms() // 1000,
                model=request.model,
                model_names=names_of(arrival.pool.executor),
                include_usage=request.include_usage,
                document=document,
                name=arrival.stage.name,
                owner=owner if may_keep else None,
            )
        )
        sink = StreamSink if request.streaming else CompletionSink
        return sink(exchange, form, account.report)

    def _arrived(
        self, account: Account, arrival: Arrival, span: Span, exchange: Exchange, body: bytes
    ) -> None:
        stage = arrival.stage
        account.name, account.level = stage.name, stage.level
        account.timings_ms.append(("name", exchange.elapsed_ms()))
        self._observer.served(account, arrival, body)
        if stage.name is not None and arrival.kind is StageKind.CHAT:
            self._note(stage, stage.name, arrival.pool.fingerprint, body)
        if span.is_recording():
            _describe(span, arrival)

    def _note(self, stage: Stage, name: Name, fingerprint: Digest, body: bytes) -> None:
        who = stage.identity
        self._recent.note(
            group_of(stage.sharing_group, who, stage.target),
            RecentArrival(name, who.workflow_id, who.agent_id, fingerprint, body),
        )

    # -- standing aside ------------------------------------------------------------------------------------

    def stands_aside(self, exchange: Exchange) -> bool:
        return not self._enabled or parse_opt_outs(exchange.headers).bypass

    def _lacking(self, dialect: Dialect, exchange: Exchange, why: str) -> ApiError | None:
        """What is said where this gateway would translate, and the engine alone does not know the path."""
        if dialect.of_engines:
            return None
        said = f"The engine does not serve {exchange.path} itself, and can not be asked otherwise: {why}."
        if self._conductor.directory.agents:
            return ApiError(503, said, code="no_engine", retry_after_s=1)
        return ApiError(404, said, code="not_served")

    async def _model_aside(
        self, exchange: Exchange, account: Account, body: bytes | None, lacking: ApiError | None = None
    ) -> None:
        model = await self._desk.read(body, model_in, body) if body else ""
        urls = [engine_url(url, exchange) for url in self._arrivals.model_urls(model)]
        await self._aside(exchange, account, urls, body, target=model, lacking=lacking)

    async def _tool_aside(self, exchange: Exchange, account: Account, name: str, body: bytes) -> None:
        urls = self._arrivals.tool_urls(name)
        raw_urls = [tool_url(url, name, exchange) for url in urls]
        await self._aside(exchange, account, raw_urls, body, target=name)

    async def _aside(
        self,
        exchange: Exchange,
        account: Account,
        urls: Sequence[str],
        body: Body,
        *,
        target: str,
        lacking: ApiError | None = None,
    ) -> None:
        """Forward to the first engine that can be reached: what has reached one may have run there. Raises
        ApiError (502, 503), and ``lacking`` where the engine does not have the path."""
        account.level, account.name = None, None
        if not urls:
            raise ApiError(503, "No engine is known to serve this.", code="no_engine", retry_after_s=1)
        identity = self._identity_in(exchange)
        self._observer.arrived(account, identity, target, None, streaming=False)
        account.outcome = Outcome.BYPASS
        await self._conductor.registered(identity, exchange)
        for url in urls[:-1]:
            try:
                await self._forward(exchange, url, body, account, lacking)
                return
            except NotConnected:
                continue
        await self._forward(exchange, urls[-1], body, account, lacking)

    async def _forward(
        self, exchange: Exchange, url: str, body: Body, account: Account, lacking: ApiError | None
    ) -> None:
        with self._conductor.directory.forwarding(url):
            await self._bypass.forward(exchange, url, body, account.report(), lacking=lacking)

    def _identity_in(self, exchange: Exchange) -> Identity:
        """Raw requests are not judged here: an identity that can not be read is none."""
        tenant = self._tenants.of(exchange.headers)
        try:
            return parse_identity(exchange.headers, tenant)
        except InvalidRequest:
            return Identity(tenant)

    def _account(self, exchange: Exchange) -> Account:
        return Account(exchange.request_id, exchange, DemandId(self._new_id()))


def _names_a_model(exchange: Exchange) -> bool:
    """Whether a raw body is JSON that is small enough to be looked into."""
    length = exchange.headers.get("content-length", "")
    kind = exchange.headers.get("content-type", "").partition(";")[0].strip().lower()
    return kind == "application/json" and length.isdecimal() and int(length) <= _LOOKED_INTO_BYTES


def _describe(span: Span, arrival: Arrival) -> None:
    stage, request = arrival.stage, arrival.request
    if isinstance(arrival.pool.executor, ModelDescription):
        span.set_attribute(telemetry.GEN_AI_OPERATION_NAME, "chat")
        span.set_attribute(telemetry.GEN_AI_REQUEST_MODEL, request.model)
        span.set_attribute(telemetry.GEN_AI_RESPONSE_MODEL, stage.target)
        span.set_attribute(telemetry.GEN_AI_REQUEST_STREAM, request.streaming)
    else:
        span.set_attribute(telemetry.GEN_AI_OPERATION_NAME, "execute_tool")
        span.set_attribute(telemetry.GEN_AI_TOOL_NAME, stage.target)
    span.set_attribute("dynbranch.reused", not arrival.why_not_reused)
    for key, value in (
        ("dynbranch.why_not_reused", arrival.why_not_reused),
        ("dynbranch.workflow.type", stage.identity.workflow_type_id),
        ("dynbranch.workflow.id", stage.identity.workflow_id),
        ("dynbranch.agent.id", stage.identity.agent_id),
        ("dynbranch.stage", stage.identity.stage),
        ("dynbranch.harness", arrival.who.harness if arrival.who else ""),
        ("dynbranch.agent.parent", arrival.who.parent_id if arrival.who else ""),
    ):
        if value:
            span.set_attribute(key, value)
