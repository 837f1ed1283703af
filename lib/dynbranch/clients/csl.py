"""The Completed-Subgraph Library over gRPC."""

from __future__ import annotations

from collections.abc import Sequence

from dynbranch.clients.calls import answer, decoded
from dynbranch.domain.fills import BeginFill, DiscardFills, DiscardResult, FillOutcome, Settlement
from dynbranch.domain.ids import LeaseId, Name, RecordId
from dynbranch.domain.reuse import (
    Commit,
    CommitOutcome,
    Demand,
    DemandOutcome,
    Inspection,
    StoreStats,
    WriteResult,
)
from dynbranch.runtime.channel import channel
from dynbranch.v1 import csl_pb2 as pb
from dynbranch.v1.csl_pb2_grpc import CslServiceStub, FillServiceStub
from dynbranch.wire import csl as wire
from dynbranch.wire import fills


class GrpcCsl:
    """Implements ``ports.Csl`` and ``ports.Fills``. ``target`` is host:port or any gRPC target name."""

    def __init__(self, target: str) -> None:
        self._channel = channel(target)
        self._stub = CslServiceStub(self._channel)
        self._fills = FillServiceStub(self._channel)

    async def demand(self, demand: Demand, *, timeout_s: float) -> DemandOutcome:
        response = await answer(self._stub.Demand, wire.demand_out(demand), timeout_s)
        return decoded(wire.demand_outcome_in, response)

    async def commit(self, commit: Commit, *, timeout_s: float) -> CommitOutcome:
        response = await answer(self._stub.Commit, wire.commit_out(commit), timeout_s)
        return decoded(wire.commit_outcome_in, response)

    async def renew_leases(
        self, leases: Sequence[LeaseId], *, ttl_ms: int, timeout_s: float
    ) -> frozenset[LeaseId]:
        response = await answer(self._stub.RenewLeases, wire.renew_out(leases, ttl_ms), timeout_s)
        return decoded(wire.unknown_leases_in, response)

    async def release_leases(self, leases: Sequence[LeaseId], *, timeout_s: float) -> None:
        await answer(self._stub.ReleaseLeases, wire.release_out(leases), timeout_s)

    async def write(self, records: Sequence[RecordId], *, reporter: str, timeout_s: float) -> WriteResult:
        response = await answer(self._stub.Write, wire.write_out(records, reporter), timeout_s)
        return decoded(wire.write_result_in, response)

    async def inspect(self, name: Name, *, timeout_s: float) -> Inspection:
        response = await answer(self._stub.Inspect, wire.inspect_out(name), timeout_s)
        return decoded(wire.inspection_in, response)

    async def stats(self, *, timeout_s: float) -> StoreStats:
        return decoded(wire.stats_in, await answer(self._stub.Stats, pb.StatsRequest(), timeout_s))

    async def begin_fill(self, fill: BeginFill, *, timeout_s: float) -> FillOutcome:
        response = await answer(self._fills.BeginFill, fills.begin_out(fill), timeout_s)
        return decoded(fills.outcome_in, response)

    async def discard_fills(self, discard: DiscardFills, *, timeout_s: float) -> DiscardResult:
        response = await answer(self._fills.DiscardFills, fills.discard_out(discard), timeout_s)
        return decoded(fills.discarded_in, response)

    async def read_settlements(
        self, *, acknowledged_through: int, after: int, at_most: int, wait_ms: int, timeout_s: float
    ) -> tuple[Settlement, ...]:
        request = pb.ReadSettlementsRequest(
            acknowledged_through=acknowledged_through, after=after, at_most=at_most, wait_ms=wait_ms
        )
        return decoded(fills.settlements_in, await answer(self._fills.ReadSettlements, request, timeout_s))

    async def close(self) -> None:
        await self._channel.close()
