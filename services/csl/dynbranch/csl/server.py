"""The gRPC servicer: a message becomes a domain value on its first line and nowhere else."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

from dynbranch.csl.apart import APART_BYTES, AnswersApart
from dynbranch.csl.conversing import converse
from dynbranch.csl.shell import Shell
from dynbranch.domain.errors import InvalidRequest
from dynbranch.domain.reuse import CommitOutcome, Committed, DemandOutcome, Hit, Live, Miss, Refused
from dynbranch.runtime import telemetry
from dynbranch.runtime.chance import new_id
from dynbranch.v1 import csl_pb2 as pb
from dynbranch.v1.csl_pb2_grpc import CslServiceServicer
from dynbranch.wire import csl as wire
from opentelemetry.context import Context

SERVICE = "dynbranch.v1.CslService"

_SERVER = telemetry.SpanKind.SERVER


class CslServicer(CslServiceServicer):
    def __init__(self, shell: Shell) -> None:
        self._shell = shell
        self._tracer = telemetry.tracer("dynbranch.csl")
        self._apart = AnswersApart(new_id)

    async def Converse(  # type: ignore[override]  # gRPC takes a coroutine that writes by itself, too
        self, messages: AsyncIterator[pb.CslServiceConverseRequest], context: Any
    ) -> None:
        await converse(self._answer, messages, context)

    async def _answer(self, ask: pb.StoreAsk) -> pb.StoreAnswer:
        caller = None
        if ask.traceparent:
            caller = telemetry.extract({"traceparent": ask.traceparent, "tracestate": ask.tracestate})
        match ask.WhichOneof("ask"):
            case "demand":
                response = await self._demand(ask.demand, caller)
                if ask.fetches and response.ByteSize() > APART_BYTES:
                    return pb.StoreAnswer(ticket=self._apart.put(response))
                return pb.StoreAnswer(demand=response)
            case "commit":
                return pb.StoreAnswer(commit=await self._commit(ask.commit, caller))
            case None:
                raise InvalidRequest("malformed_message", "nothing is asked")

    async def Demand(self, request: pb.DemandRequest, context: Any) -> pb.DemandResponse:
        return await self._demand(request, None)

    async def Fetch(self, request: pb.FetchRequest, context: Any) -> pb.FetchResponse:
        return pb.FetchResponse(demand=self._apart.take(request.ticket))

    async def Commit(self, request: pb.CommitRequest, context: Any) -> pb.CommitResponse:
        return await self._commit(request, None)

    async def _demand(self, request: pb.DemandRequest, caller: Context | None) -> pb.DemandResponse:
        """``caller``: the span that asks, where it is not the current one."""
        demand = wire.demand_in(request)
        with telemetry.span(self._tracer, telemetry.SPAN_CSL_DEMAND, context=caller, kind=_SERVER) as span:
            outcome = await self._shell.demand(demand)
            if span.is_recording():
                span.set_attribute("dynbranch.name", demand.name.hex())
                span.set_attribute("dynbranch.workflow.id", demand.identity.workflow_id)
                span.set_attribute("dynbranch.outcome", _demand_word(outcome))
        return wire.demand_outcome_out(outcome)

    async def _commit(self, request: pb.CommitRequest, caller: Context | None) -> pb.CommitResponse:
        commit = wire.commit_in(request)
        with telemetry.span(self._tracer, telemetry.SPAN_CSL_COMMIT, context=caller, kind=_SERVER) as span:
            outcome = await self._shell.commit(commit)
            if span.is_recording():
                span.set_attribute("dynbranch.name", commit.lease.name.hex())
                span.set_attribute("dynbranch.outcome", _commit_word(outcome))
                span.set_attribute("dynbranch.payload_bytes", len(commit.payload))
        return wire.commit_outcome_out(outcome)

    async def RenewLeases(self, request: pb.RenewLeasesRequest, context: Any) -> pb.RenewLeasesResponse:
        leases, ttl_ms = wire.renew_in(request)
        return wire.unknown_leases_out(await self._shell.renew_leases(leases, ttl_ms=ttl_ms))

    async def ReleaseLeases(self, request: pb.ReleaseLeasesRequest, context: Any) -> pb.ReleaseLeasesResponse:
        await self._shell.release_leases(wire.release_in(request))
        return pb.ReleaseLeasesResponse()

    async def Write(self, request: pb.WriteRequest, context: Any) -> pb.WriteResponse:
        records, reporter = wire.write_in(request)
        with telemetry.span(self._tracer, telemetry.SPAN_WRITE, kind=_SERVER) as span:
            result = await self._shell.write(records, reporter=reporter)
            if span.is_recording():
                span.set_attribute("dynbranch.write.records", len(records))
                span.set_attribute("dynbranch.write.reporter", reporter)
                span.set_attribute("dynbranch.write.version", str(result.version))
                span.set_attribute("dynbranch.write.invalidated_entries", result.invalidated_entries)
        return wire.write_result_out(result)

    async def Inspect(self, request: pb.InspectRequest, context: Any) -> pb.InspectResponse:
        return wire.inspection_out(await self._shell.inspect(wire.inspect_in(request)))

    async def Stats(self, request: pb.StatsRequest, context: Any) -> pb.StatsResponse:
        return wire.stats_out(await self._shell.stats())


def _demand_word(outcome: DemandOutcome) -> str:
    match outcome:
        case Hit():
            return "hit"
        case Live():
            return "live"
        case Miss():
            return "miss"


def _commit_word(outcome: CommitOutcome) -> str:
    match outcome:
        case Committed():
            return "committed"
        case Refused(reason):
            return reason.value
