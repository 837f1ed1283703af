"""What people and tool backends ask of the store: writes, entries, explanations."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from dynbranch.clients.ports import Csl, Unreachable
from dynbranch.domain.errors import InvalidRequest
from dynbranch.domain.ids import InvalidId, Name, RecordId, parse_record, source_of
from dynbranch.domain.reuse import DeclaredRead, Derivation, EntryView, Incarnation, Inspection, Invalidation
from dynbranch.gateway.arrivals import Arrival, Arrivals, OnlyRaw, model_in
from dynbranch.gateway.core.kept_response import SOURCE as KEPT_SOURCE
from dynbranch.gateway.core.outcome import Outcome
from dynbranch.gateway.core.recent_arrivals import RecentArrivals
from dynbranch.gateway.core.request_headers import parse_opt_outs
from dynbranch.gateway.desk import Desk
from dynbranch.gateway.directory import Directory
from dynbranch.gateway.edge.exchange import Exchange
from dynbranch.gateway.edge.routes import Handler
from dynbranch.gateway.endpoints.nearest import as_json, nearest_stored
from dynbranch.gateway.endpoints.responses import owner_of
from dynbranch.gateway.observer import Metrics
from dynbranch.gateway.protocols.dialect import Dialect
from dynbranch.gateway.protocols.errors import JSON, ApiError
from dynbranch.gateway.protocols.members import dump
from dynbranch.gateway.reading import Reading
from dynbranch.gateway.recording import Recorder
from dynbranch.gateway.tenants import Tenants
from dynbranch.naming.document import Json, kind_of, parse_body
from dynbranch.runtime import telemetry
from opentelemetry.trace import SpanKind

MAX_RECORDS = 10_000
_NAME = re.compile(r"[0-9a-f]{64}")
_INSPECT_TIMEOUT_S = 5.0


class StoreEndpoints:
    """``enabled`` False: every request goes raw to the engine. ``csl`` None: the store is never called."""

    def __init__(
        self,
        *,
        enabled: bool,
        csl: Csl | None,
        arrivals: Arrivals,
        desk: Desk,
        reading: Reading,
        directory: Directory,
        tenants: Tenants,
        recent: RecentArrivals,
        metrics: Metrics,
        recorder: Recorder | None,
        body_timeout_s: float,
        write_timeout_s: float,
    ) -> None:
        self._enabled = enabled
        self._csl = csl
        self._arrivals = arrivals
        self._desk = desk
        self._reading = reading
        self._directory = directory
        self._tenants = tenants
        self._recent = recent
        self._metrics = metrics
        self._recorder = recorder
        self._body_timeout_s = body_timeout_s
        self._write_timeout_s = write_timeout_s
        self._tracer = telemetry.tracer("dynbranch.gateway")

    async def write(self, exchange: Exchange, _: str) -> None:
        """Acknowledged only when durable. Not cut short when the client leaves: it wants the write."""
        operator = self._tenants.operator(exchange.headers)
        body = await exchange.read_body(self._body_timeout_s)
        records, claimed = await self._desk.read(body, _write_of, body)
        csl = self._store()
        with (
            exchange.held(),
            telemetry.span(
                self._tracer,
                telemetry.SPAN_WRITE,
                context=telemetry.extract(exchange.headers),
                kind=SpanKind.SERVER,
            ) as span,
        ):
            span.set_attribute("dynbranch.write.records", len(records))
            try:
                done = await csl.write(
                    records,
                    reporter=operator if self._tenants.has_keys else claimed or operator,
                    timeout_s=self._write_timeout_s,
                )
            except Unreachable as failure:
                raise ApiError(
                    503,
                    f"It is not known whether the write was stored; send it again: {failure}.",
                    code="write_unknown",
                    retry_after_s=1,
                ) from None
            span.set_attribute("dynbranch.write.invalidated_entries", done.invalidated_entries)
        self._metrics.writes.inc()
        if self._recorder is not None:
            self._recorder.wrote(records)
        await _answer(
            exchange,
            {
                "version": str(done.version),
                "invalidated": done.invalidated_entries,
                "invalidated_names": [name.hex() for name in done.invalidated_names],
                "closed_leases": done.closed_leases,
            },
        )

    async def entry(self, exchange: Exchange, name_text: str) -> None:
        """What stands under a name, why, and why earlier ones went. A name may be any tenant's."""
        self._tenants.operator(exchange.headers)
        if not _NAME.fullmatch(name_text.lower()):
            message = "A name is 64 hexadecimal digits: 'explain' tells it, and answers by x-dynbranch-name."
            raise ApiError(400, message, code="invalid_name", param="name")
        inspection = await self._inspect(Name(bytes.fromhex(name_text)))
        if inspection.entry is None and not inspection.history and not inspection.live:
            raise ApiError(404, "Nothing is or was stored under this name.", code="unknown_name")
        await _answer(exchange, {"name": name_text.lower(), **_inspection(inspection)})

    def explain(self, dialect: Dialect) -> Handler:
        """What would become of a request in one protocol. Never executes, and is no demand."""

        async def asked(exchange: Exchange, _: str) -> None:
            await self._explain(exchange, dialect)

        return asked

    async def _explain(self, exchange: Exchange, dialect: Dialect) -> None:
        body = await exchange.read_body(self._body_timeout_s)
        why_aside = self._why_aside(exchange)
        urls = self._arrivals.model_urls(await self._desk.read(body, model_in, body))
        try:
            tenant = self._tenants.of(exchange.headers)
            owner = owner_of(tenant, exchange.headers)
            document = await self._reading.read(dialect, exchange, body, owner)
            arrival = await self._arrivals.chat(document, dialect.headers(exchange.headers), tenant)
        except (OnlyRaw, ApiError) as problem:
            if isinstance(problem, ApiError) and not why_aside:
                raise
            if not urls:
                raise ApiError(503, f"{problem}.", code="no_engine", retry_after_s=1) from None
            why = why_aside or f"It goes raw to the engine: {problem}."
            await _answer(exchange, {"name": None, "outcome": Outcome.BYPASS.value, "why": why})
            return
        name = await self._desk.read(body, lambda: arrival.full_name)
        inspection, trouble = Inspection(None), "" if self._csl else "There is no store."
        if not trouble:
            try:
                inspection = await self._inspect(name)
            except ApiError as failure:
                trouble = failure.message
        if why_aside:
            outcome, why = _foretold_aside(why_aside, known=bool(urls))
        else:
            outcome, why = _executed(arrival, *_foretold(arrival, inspection, trouble))
        explained = await self._desk.read(body, _explained, arrival)
        nearest = None
        if outcome == Outcome.MISS.value and not trouble and not arrival.why_not_reused:
            nearest = await nearest_stored(arrival, name, self._recent, self._desk, self._inspect)
        await _answer(
            exchange,
            {
                "name": name.hex(),
                "protocol": dialect.kind,
                "outcome": outcome,
                "why": why,
                "sharing": self._arrivals.sharing(arrival),
                "sampling": "greedy" if self._arrivals.decodes_greedily(arrival.who) else "as-sent",
                **explained,
                "agents": [
                    {"address": agent.address, "ready": agent.available, "in_flight": agent.load.in_flight}
                    for agent in self._directory.agents
                    if arrival.request.model in agent.models
                ],
                **_inspection(inspection),
                "nearest": as_json(nearest, arrival),
            },
        )

    def _why_aside(self, exchange: Exchange) -> str:
        if not self._enabled:
            return "DynBranch is disabled: every request goes raw to the engine."
        asked = parse_opt_outs(exchange.headers).bypass
        return "The request asks to go raw to the engine." if asked else ""

    def _store(self) -> Csl:
        if self._csl is None:
            raise ApiError(503, "DynBranch is disabled: the store is not used.", code="disabled")
        return self._csl

    async def _inspect(self, name: Name) -> Inspection:
        try:
            return await self._store().inspect(name, timeout_s=_INSPECT_TIMEOUT_S)
        except Unreachable as failure:
            message = f"The store does not answer: {failure}."
            raise ApiError(503, message, code="store_unreachable", retry_after_s=1) from None


def _write_of(body: bytes) -> tuple[list[RecordId], str]:
    """The records to write, and who says so. Raises InvalidRequest: then nothing is written."""
    document = parse_body(body).value
    if not isinstance(document, dict):
        raise _invalid(f"The body must be an object with 'records', not {kind_of(document)}.", "")
    unknown = sorted(document.keys() - {"records", "reporter"})
    if unknown:
        raise _invalid(f"The body holds {unknown[0][:80]!r}, which is not known here.", unknown[0])
    records, reporter = document.get("records"), document.get("reporter", "")
    if not isinstance(records, list) or not 0 < len(records) <= MAX_RECORDS:
        raise _invalid(f"'records' must be an array of 1 to {MAX_RECORDS} records.", "records")
    if not isinstance(reporter, str) or len(reporter) > 256:
        raise _invalid("'reporter' must be a text of at most 256 characters.", "reporter")
    return list(dict.fromkeys(_record(item, index) for index, item in enumerate(records))), reporter


def _record(item: Json, index: int) -> RecordId:
    param = f"records[{index}]"
    if not isinstance(item, str):
        raise _invalid(f"'{param}' must be a string, not {kind_of(item)}.", param)
    try:
        record = parse_record(item)
    except InvalidId as problem:
        raise _invalid(f"'{param}': {problem}.", param) from None
    if source_of(record) == KEPT_SOURCE:
        raise _invalid(f"'{param}': the source {KEPT_SOURCE!r} is the gateway's own.", param)
    return record


def _invalid(message: str, param: str) -> InvalidRequest:
    return InvalidRequest("invalid_write", message, facts={"param": param} if param else {})


async def _answer(exchange: Exchange, value: Mapping[str, Any]) -> None:
    await exchange.respond(200, JSON, dump(value), [(b"x-request-id", exchange.request_id.encode())])


# -- values as JSON ----------------------------------------------------------------------------------------


def _foretold(arrival: Arrival, inspection: Inspection, trouble: str) -> tuple[str, str]:
    if arrival.why_not_reused:
        return "miss", arrival.why_not_reused
    if not arrival.stage.plan.demands:
        return "miss", "The request asks not to be stored."
    if trouble:
        return "miss", trouble
    if inspection.entry is not None and arrival.stage.may_hit:
        return (
            "hit",
            f"Stored as incarnation {inspection.entry.incarnation.number}; nothing it read has changed.",
        )
    if inspection.live and arrival.stage.may_hit:
        return "joined", f"The same generation runs at {inspection.live[0].agent_address}."
    if inspection.entry is not None:
        return "miss", "An entry is there, but the request asks for a new execution."
    if inspection.history:
        return "miss", _why_it_went(inspection.history[0])
    return "miss", "Nothing is stored under this name."


def _foretold_aside(why: str, *, known: bool) -> tuple[str, str]:
    if known:
        return Outcome.BYPASS.value, why
    return Outcome.REFUSED.value, f"{why} But no engine's address is known."


def _executed(arrival: Arrival, outcome: str, why: str) -> tuple[str, str]:
    """What must execute goes raw where no agent takes work."""
    if outcome != Outcome.MISS.value or arrival.pool.members:
        return outcome, why
    if arrival.stage.plan.may_stand_aside:
        return Outcome.BYPASS.value, f"{why} No agent takes work: it goes raw to the engine."
    return outcome, f"{why} No agent takes work, so that it would fail now."


def _why_it_went(last: Invalidation) -> str:
    if last.record is not None:
        return f"The last entry was invalidated by a write to {last.record} (version {last.version})."
    return f"The last entry lost a producer (version {last.version})."


def _explained(arrival: Arrival) -> dict[str, Any]:
    stage, request, pool = arrival.stage, arrival.request, arrival.pool
    return {
        "model": stage.target,
        "level": stage.level.value,
        "reuse": {
            "reusable": not arrival.why_not_reused,
            "reason": request.reuse.reason,
            "explanation": arrival.why_not_reused or request.reuse.explanation,
            "param": request.reuse.param or None,
        },
        "fields": [
            {"path": field.path, "class": field.field_class.value, "known": field.known}
            for field in request.fields
        ],
        "identity": _identity(arrival),
        "reads": [_declared(read) for read in stage.scope.declared],
        "fingerprint": {"digest": pool.fingerprint.hex(), "facts": dict(pool.executor.fingerprint.facts)},
    }


def _identity(arrival: Arrival) -> dict[str, Any]:
    """Who asks, by tags or by what its harness tells."""
    identity, who = arrival.stage.identity, arrival.who
    return {
        "harness": who.harness if who else None,
        "workflow_type": identity.workflow_type_id or None,
        "workflow": identity.workflow_id or None,
        "agent": identity.agent_id or None,
        "parent": identity.parent_id or None,
        "turn": arrival.request.turn,
        "stage": identity.stage or None,
    }


def _declared(read: DeclaredRead) -> dict[str, Any]:
    return {"record": read.record, "as_of": str(read.as_of) if read.as_of else None}


def _inspection(inspection: Inspection) -> dict[str, Any]:
    return {
        "entry": _entry(inspection.entry) if inspection.entry else None,
        "invalidations": [_invalidation(went) for went in inspection.history],
        "live": [
            {"generation": ref.generation_id.hex(), "agent": ref.agent_address} for ref in inspection.live
        ],
    }


def _entry(entry: EntryView) -> dict[str, Any]:
    return {
        "incarnation": entry.incarnation.number,
        "label": entry.label,
        "level": entry.level.value,
        "payload_bytes": entry.payload_bytes,
        "payload_digest": entry.payload_digest.hex(),
        "created_unix_ms": entry.created,
        "execution_ms": entry.execution_ms,
        "derivations": [_derivation(derivation) for derivation in entry.derivations],
    }


def _derivation(derivation: Derivation) -> dict[str, Any]:
    return {
        "read_token": str(derivation.read_token),
        "reads": [{"record": read.record, "as_of": str(read.as_of)} for read in derivation.reads],
        "producers": [_incarnation(producer) for producer in derivation.producers],
    }


def _incarnation(incarnation: Incarnation) -> dict[str, Any]:
    return {"name": incarnation.name.hex(), "incarnation": incarnation.number}


def _invalidation(went: Invalidation) -> dict[str, Any]:
    return {
        "incarnation": went.incarnation_number,
        "at_unix_ms": went.at,
        "version": str(went.version),
        "record": went.record,
        "lost_producer": _incarnation(went.lost_producer) if went.lost_producer else None,
        "label": went.label,
        "reporter": went.reporter,
    }
