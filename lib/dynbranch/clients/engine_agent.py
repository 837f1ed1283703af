"""An engine agent over gRPC."""

from __future__ import annotations

from collections.abc import AsyncGenerator

from dynbranch.clients.calls import answer, decoded, follow
from dynbranch.clients.conversation import Conversation
from dynbranch.clients.followed import Agents, followed
from dynbranch.clients.ports import Take, take_nothing
from dynbranch.domain.engine import (
    AbortResult,
    AgentDescription,
    GenerationEvents,
    GenerationOrder,
    Occupancy,
)
from dynbranch.domain.ids import GenerationId
from dynbranch.runtime import telemetry
from dynbranch.runtime.channel import channel
from dynbranch.v1 import engine_agent_pb2 as pb
from dynbranch.v1.engine_agent_pb2_grpc import EngineAgentServiceStub
from dynbranch.wire import engine_agent as wire

MAX_SHARED_BYTES = 2**18
"""An order with a larger body gets a stream of its own: on a shared one it would hold up the others."""

_MISSED_REPORTS = 5
"""An occupancy stream that is silent for so many intervals has lost its agent."""

_MIN_OCCUPANCY_IDLE_S = 5.0
_DRAIN_MARGIN_S = 5.0
"""What a drain may take beyond its own deadline: the answer still has to arrive."""


class GrpcEngineAgent:
    """Implements ``ports.EngineAgent``. ``target`` is host:port or any gRPC target name.

    The streams are async generators: the call starts with the first ``anext`` and ends with ``aclose``. Use
    ``contextlib.aclosing``, since leaving an ``async for`` early does not close one.
    """

    def __init__(self, target: str) -> None:
        self._channel = channel(target)
        self._stub = EngineAgentServiceStub(self._channel)
        self._conversation: Agents = Conversation(
            lambda: self._stub.Converse(wait_for_ready=False), wire.asks_out, wire.answers_in
        )

    async def describe(self, *, timeout_s: float) -> AgentDescription:
        response = await answer(self._stub.Describe, pb.DescribeRequest(), timeout_s)
        return decoded(wire.description_in, response)

    def generate(
        self, order: GenerationOrder, *, idle_s: float, take: Take = take_nothing
    ) -> AsyncGenerator[GenerationEvents, None]:
        if len(order.body) > MAX_SHARED_BYTES:
            return follow(self._stub.Generate, wire.order_out(order), wire.followed_in, idle_s)
        return followed(self._conversation, wire.generate_ask(order, telemetry.inject()), idle_s, take)

    def attach(
        self,
        generation: GenerationId,
        *,
        from_item: int,
        wait_ms: int,
        idle_s: float,
        take: Take = take_nothing,
        adopts: bool = False,
        quiet: bool = False,
    ) -> AsyncGenerator[GenerationEvents, None]:
        trace = telemetry.inject()
        ask = wire.attach_ask(generation, from_item, wait_ms, trace, adopts=adopts, quiet=quiet)
        return followed(self._conversation, ask, idle_s, take)

    async def abort(
        self, generation: GenerationId, *, reason: str, timeout_s: float, only_speculative: bool = False
    ) -> AbortResult:
        request = wire.abort_out(generation, reason, only_speculative=only_speculative)
        return decoded(wire.aborted_in, await answer(self._stub.Abort, request, timeout_s))

    async def drain(self, *, deadline_s: float) -> int:
        response: pb.DrainResponse = await answer(
            self._stub.Drain, wire.drain_out(deadline_s), deadline_s + _DRAIN_MARGIN_S
        )
        return response.still_running

    def watch_occupancy(self, *, interval_ms: int) -> AsyncGenerator[Occupancy, None]:
        idle_s = max(_MIN_OCCUPANCY_IDLE_S, _MISSED_REPORTS * interval_ms / 1000)
        request = pb.WatchOccupancyRequest(interval_ms=interval_ms)
        return follow(self._stub.WatchOccupancy, request, wire.occupancy_in, idle_s)

    async def close(self) -> None:
        await self._conversation.close()
        await self._channel.close()
