"""Large results leave the shared stream to small ones."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from dynbranch.clients.csl import GrpcCsl
from dynbranch.clients.ports import Unreachable
from dynbranch.csl import apart
from dynbranch.csl.apart import APART_BYTES, AnswersApart
from dynbranch.csl.fake import FakeCsl, digest, name_of
from dynbranch.csl.server import SERVICE, CslServicer
from dynbranch.domain.errors import NotFound
from dynbranch.domain.ids import DemandId, GenerationId
from dynbranch.domain.reuse import PURE, Commit, Demand, GenerationRef, Hit, Identity, Level, Miss
from dynbranch.runtime.chance import new_id
from dynbranch.runtime.clock import SystemClock
from dynbranch.runtime.server import GrpcServer
from dynbranch.v1 import csl_pb2 as pb
from dynbranch.v1.csl_pb2_grpc import CslServiceStub, add_CslServiceServicer_to_server
from dynbranch.wire import csl as wire

BIG = 8 * 2**20
CALLERS = 4


class GatedStore(CslServicer):
    """Its large answers are under way for as long as a test wants."""

    def __init__(self, shell: Any) -> None:
        super().__init__(shell)
        self.fetching = 0
        self.begun = asyncio.Event()
        self.go = asyncio.Event()

    async def Fetch(self, request: pb.FetchRequest, context: Any) -> pb.FetchResponse:
        self.fetching += 1
        if self.fetching == CALLERS:
            self.begun.set()
        await self.go.wait()
        return await super().Fetch(request, context)


def demand_for(what: str) -> Demand:
    return Demand(
        demand_id=DemandId(new_id()),
        name=name_of(what),
        identity=Identity("t"),
        scope=PURE,
        intended=GenerationRef(GenerationId(new_id()), "127.0.0.1:7"),
    )


async def stored(csl: FakeCsl, what: str, size: int) -> None:
    miss = await csl.demand(demand_for(what), timeout_s=20)
    assert isinstance(miss, Miss) and miss.lease is not None
    output = what * (size // len(what))
    await csl.commit(
        Commit(
            lease=miss.lease,
            payload=output.encode(),
            payload_digest=digest(output),
            level=Level.GREEDY,
            execution_ms=1.0,
            label="test",
        ),
        timeout_s=20,
    )


async def test_small_answers_overtake_large_ones() -> None:
    csl = FakeCsl(clock=SystemClock(), new_id=new_id)
    await stored(csl, "big", BIG)
    await stored(csl, "small", 10)
    store = GatedStore(csl.shell)
    server = GrpcServer("127.0.0.1:0", [(add_CslServiceServicer_to_server, store, SERVICE)], SystemClock())
    client = GrpcCsl(await server.start())
    try:
        large = [asyncio.create_task(client.demand(demand_for("big"), timeout_s=60)) for _ in range(CALLERS)]
        await store.begun.wait()
        for _ in range(3):
            small = await client.demand(demand_for("small"), timeout_s=60)
            assert isinstance(small, Hit) and small.payload == b"smallsmall"
        assert not any(task.done() for task in large)
        store.go.set()
        for hit in await asyncio.gather(*large):
            assert isinstance(hit, Hit) and len(hit.payload) == BIG // 3 * 3
    finally:
        await client.close()
        await server.stop(0)
        await csl.close()


@pytest.mark.parametrize("fetches", [True, False])
async def test_who_does_not_fetch_gets_all_on_the_stream(fetches: bool) -> None:
    csl = FakeCsl(clock=SystemClock(), new_id=new_id)
    await stored(csl, "big", 2 * APART_BYTES)
    server = GrpcServer(
        "127.0.0.1:0", [(add_CslServiceServicer_to_server, CslServicer(csl.shell), SERVICE)], SystemClock()
    )
    client = GrpcCsl(await server.start())
    try:
        ask = wire.demand_ask(demand_for("big"))
        ask.call, ask.fetches = 1, fetches
        stub: CslServiceStub = client._stub
        stream: Any = stub.Converse()
        await stream.write(wire.asks_out([ask]))
        [answer] = (await stream.read()).answers
        assert bool(answer.ticket) is fetches and answer.HasField("demand") is not fetches
        assert (answer.ByteSize() < 100) is fetches
        stream.cancel()
    finally:
        await client.close()
        await server.stop(0)
        await csl.close()


async def test_an_answer_that_is_gone_is_no_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    csl = FakeCsl(clock=SystemClock(), new_id=new_id)
    await stored(csl, "big", 2 * APART_BYTES)
    servicer = CslServicer(csl.shell)
    monkeypatch.setattr(servicer._apart, "put", lambda _: b"of another")
    server = GrpcServer("127.0.0.1:0", [(add_CslServiceServicer_to_server, servicer, SERVICE)], SystemClock())
    client = GrpcCsl(await server.start())
    try:
        with pytest.raises(Unreachable, match="not fetched in time"):
            await client.demand(demand_for("big"), timeout_s=20)
    finally:
        await client.close()
        await server.stop(0)
        await csl.close()


def test_what_nobody_fetches_gives_way(monkeypatch: pytest.MonkeyPatch) -> None:
    answer = pb.DemandResponse(hit=pb.Hit(payload=b"x" * 1000))
    monkeypatch.setattr(apart, "MAX_KEPT_BYTES", 3 * answer.ByteSize())
    numbers = iter(range(100))
    kept = AnswersApart(lambda: b"%d" % next(numbers))
    tickets = [kept.put(answer) for _ in range(4)]
    with pytest.raises(NotFound):
        kept.take(tickets[0])
    for ticket in tickets[1:]:
        assert kept.take(ticket) == answer
        with pytest.raises(NotFound):
            kept.take(ticket)
    assert kept._kept_bytes == 0
