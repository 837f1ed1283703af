"""The Completed-Subgraph Library over gRPC."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from functools import partial

from dynbranch.clients.calls import answer, decoded
from dynbranch.clients.conversation import Call, Conversation, Failure
from dynbranch.clients.errors import meaning_of
from dynbranch.clients.ports import Unreachable
from dynbranch.domain.errors import DomainError, NotFound
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
from dynbranch.runtime import telemetry
from dynbranch.runtime.channel import channel
from dynbranch.runtime.tasks import Tasks
from dynbranch.v1 import csl_pb2 as pb
from dynbranch.v1.csl_pb2_grpc import CslServiceStub, FillServiceStub
from dynbranch.wire import csl as wire
from dynbranch.wire import fills

_log = logging.getLogger(__name__)

LATE_ANSWER_S = 30.0
"""How long a demand that was given up on may still be answered, for its lease to be given back."""

RELEASE_S = 2.0
LATE_S = 0.02
"""A deadline that is told of later than this was missed by this process."""

MAX_SHARED_BYTES = 2**18
"""A larger result is committed by a call of its own: on the shared stream it would hold up the others."""


class GrpcCsl:
    """Implements ``ports.Csl`` and ``ports.Fills``. ``target`` is host:port or any gRPC target name."""

    def __init__(self, target: str) -> None:
        self._channel = channel(target)
        self._stub = CslServiceStub(self._channel)
        self._fills = FillServiceStub(self._channel)
        self._tasks = Tasks()
        self._conversation: Conversation[pb.StoreAsk, pb.StoreAnswer] = Conversation(
            lambda: self._stub.Converse(wait_for_ready=False), wire.asks_out, wire.answers_in
        )

    async def demand(self, demand: Demand, *, timeout_s: float) -> DemandOutcome:
        """A lease that is granted when nobody waits for it any more is given back at once."""
        loop = asyncio.get_running_loop()
        due = loop.time() + timeout_s
        ask = partial(wire.demand_ask, demand, telemetry.inject())
        said = await self._asked(ask, timeout_s, late=self._give_back)
        told = await self._fetched(said.ticket, due - loop.time()) if said.ticket else said.demand
        return decoded(wire.demand_outcome_in, told)

    async def _fetched(self, ticket: bytes, timeout_s: float) -> pb.DemandResponse:
        """A large answer, by a call of its own: on the shared stream it would hold up the others."""
        try:
            response = await answer(self._stub.Fetch, pb.FetchRequest(ticket=ticket), max(0.0, timeout_s))
        except NotFound as gone:
            raise Unreachable(f"the answer was not fetched in time: {gone}") from None
        told: pb.DemandResponse = response.demand
        return told

    async def commit(self, commit: Commit, *, timeout_s: float) -> CommitOutcome:
        if len(commit.payload) > MAX_SHARED_BYTES:
            response = await answer(self._stub.Commit, wire.commit_out(commit), timeout_s)
            return decoded(wire.commit_outcome_in, response)
        said = await self._asked(lambda: wire.commit_ask(commit, telemetry.inject()), timeout_s)
        return decoded(wire.commit_outcome_in, said.commit)

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
        self,
        *,
        acknowledged_through: int,
        after: int,
        at_most: int,
        wait_ms: int,
        timeout_s: float,
        reader_epoch: int = 0,
    ) -> tuple[Settlement, ...]:
        request = pb.ReadSettlementsRequest(
            acknowledged_through=acknowledged_through,
            after=after,
            at_most=at_most,
            wait_ms=wait_ms,
            reader_epoch=reader_epoch,
        )
        return decoded(fills.settlements_in, await answer(self._fills.ReadSettlements, request, timeout_s))

    def _give_back(self, said: pb.StoreAnswer) -> None:
        lease = LeaseId(said.demand.miss.lease_id)
        if lease:
            self._tasks.spawn(self._released(lease), name="give a late lease back")

    async def _released(self, lease: LeaseId) -> None:
        try:
            await self.release_leases([lease], timeout_s=RELEASE_S)
        except (Unreachable, DomainError) as failure:
            _log.info("a lease runs out by itself: %s", failure)

    async def _asked(
        self,
        ask: Callable[[], pb.StoreAsk],
        timeout_s: float,
        late: Callable[[pb.StoreAnswer], None] | None = None,
    ) -> pb.StoreAnswer:
        """``late`` gets an answer that comes when this call has given up, on a stream that still lives."""
        loop = asyncio.get_running_loop()
        answered: asyncio.Future[pb.StoreAnswer] = loop.create_future()
        timer: asyncio.TimerHandle

        def numbered(number: int) -> pb.StoreAsk:
            numbered = ask()
            numbered.call = number
            return numbered

        def hear(said: pb.StoreAnswer) -> None:
            if not answered.done():
                answered.set_result(said)

        def fail(failure: Failure) -> None:
            if not answered.done():
                answered.set_exception(failure)

        def overdue() -> None:
            nonlocal timer
            if loop.time() > due + LATE_S:
                # This process stood still itself: what came meanwhile has not been read yet.
                timer = loop.call_later(LATE_S, expired)
            else:
                expired()

        def expired() -> None:
            failure = Unreachable(f"deadline exceeded: no answer within {timeout_s} s")
            fail(failure)
            call.give_up_if_silent(failure)

        call = self._conversation.call(numbered, hear, fail)
        due = loop.time() + timeout_s
        timer = loop.call_at(due, overdue)
        try:
            said = await answered
        finally:
            timer.cancel()
            if late is None or (answered.done() and not answered.cancelled() and not answered.exception()):
                call.hang_up()
            else:
                call.hear = partial(_hear_late, call, late)
                loop.call_later(LATE_ANSWER_S, call.hang_up)
        if said.HasField("error"):
            raise meaning_of(said.error)
        return said

    async def close(self) -> None:
        await self._conversation.close()
        await self._tasks.__aexit__(None, None, None)
        await self._channel.close()


def _hear_late(
    call: Call[pb.StoreAsk, pb.StoreAnswer], late: Callable[[pb.StoreAnswer], None], said: pb.StoreAnswer
) -> None:
    call.hang_up()
    late(said)
