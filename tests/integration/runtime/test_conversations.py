"""Many calls on one stream, over a real connection: none of them stands in another's way."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Any

import grpc
import pytest
import pytest_asyncio
from dynbranch.clients.csl import GrpcCsl
from dynbranch.clients.engine_agent import GrpcEngineAgent
from dynbranch.clients.errors import meaning_of
from dynbranch.clients.ports import Unreachable
from dynbranch.csl import conversing as store_conversing
from dynbranch.domain.engine import Completed, GenerationEvents
from dynbranch.domain.errors import Conflict, NotFound, NotReady
from dynbranch.domain.ids import DemandId, GenerationId, Name
from dynbranch.domain.reuse import PURE, Demand, GenerationRef, Identity, Miss
from dynbranch.engine_agent import conversing
from dynbranch.engine_agent.fake import FakeEngineAgent, Script, text_chunks
from dynbranch.engine_agent.server import service
from dynbranch.runtime.chance import new_id
from dynbranch.runtime.clock import SystemClock
from dynbranch.runtime.server import GrpcServer
from dynbranch.runtime.tasks import Tasks
from dynbranch.v1 import csl_pb2 as pb
from dynbranch.v1.csl_pb2_grpc import CslServiceServicer, add_CslServiceServicer_to_server
from unit.engine_agent.samples import chat_order

BIG = tuple(b'{"choices":[],"pad":"%s"}' % (bytes([97 + n % 26]) * 2**16) for n in range(64))
"""Four times a follower's window."""


@pytest_asyncio.fixture
async def fake() -> AsyncIterator[FakeEngineAgent]:
    async with FakeEngineAgent() as fake:
        yield fake


@pytest_asyncio.fixture
async def client(fake: FakeEngineAgent) -> AsyncIterator[GrpcEngineAgent]:
    server = GrpcServer("127.0.0.1:0", [service(fake.agent)], SystemClock())
    client = GrpcEngineAgent(await server.start())
    yield client
    await client.close()
    await server.stop(0)


async def read(events: AsyncIterator[GenerationEvents]) -> tuple[list[bytes], object]:
    items: list[bytes] = []
    end: object = None
    async with aclosing(events) as stream:  # type: ignore[type-var]
        async for message in stream:
            assert message.from_item == len(items), "no item is lost or repeated"
            items += message.items
            end = message.end
    return items, end


async def until(condition: Any) -> None:
    async with asyncio.timeout(20):
        while not condition():
            await asyncio.sleep(0.005)


async def test_a_follower_that_does_not_read_stops_nobody_and_loses_nothing(
    fake: FakeEngineAgent, client: GrpcEngineAgent
) -> None:
    fake.engine.writer = lambda order: Script(BIG)
    slow = client.generate(chat_order("slow"), idle_s=20)
    first = await anext(slow)
    items, end = await read(client.generate(chat_order("quick"), idle_s=20))
    assert items == list(BIG) and isinstance(end, Completed)
    rest = list(first.items)
    async for message in slow:
        rest += message.items
    assert rest == list(BIG)


async def test_what_is_sent_ahead_of_a_follower_is_bounded(fake: FakeEngineAgent) -> None:
    sent: list[int] = []

    async def write(message: Any) -> None:
        sent.extend(len(item) for answer in message.answers for item in answer.events.items)

    fake.engine.writer = lambda order: Script(BIG)
    conversation = conversing.Conversation(fake.agent, write, fake.agent.tasks)
    speaking = asyncio.create_task(conversation.speak())
    ask = conversing.wire.generate_ask(chat_order("slow"))
    ask.call = 1

    async def asks() -> AsyncIterator[Any]:
        yield conversing.wire.asks_out([ask])

    await conversation.listen(asks())
    await until(lambda: sum(sent) >= conversing.WINDOW_BYTES)
    await asyncio.sleep(0.05)
    assert sum(sent) <= 2 * conversing.WINDOW_BYTES
    conversation.leave()
    speaking.cancel()
    await asyncio.wait((speaking,))


async def test_one_who_leaves_ends_its_own_generation_alone(
    fake: FakeEngineAgent, client: GrpcEngineAgent
) -> None:
    gate = asyncio.Event()
    fake.engine.writer = lambda order: Script(text_chunks(("a", "b")), gate=gate)
    leaver, stayer = chat_order("leaves"), chat_order("stays")
    staying = asyncio.create_task(read(client.generate(stayer, idle_s=20)))
    leaving = asyncio.create_task(read(client.generate(leaver, idle_s=20)))
    await until(lambda: len(fake.engine.running) == 2)
    leaving.cancel()
    await until(lambda: fake.engine.aborted == [leaver.generation_id])
    gate.set()
    _, end = await staying
    assert isinstance(end, Completed)


async def test_the_failure_of_one_call_is_no_other_s(fake: FakeEngineAgent, client: GrpcEngineAgent) -> None:
    gate = asyncio.Event()
    fake.engine.writer = lambda order: Script(gate=gate)
    order = chat_order("first")
    going_on = asyncio.create_task(read(client.generate(order, idle_s=20)))
    await until(lambda: fake.engine.running)
    with pytest.raises(Conflict):
        await read(client.generate(order, idle_s=20))
    with pytest.raises(NotFound):
        await read(client.attach(GenerationId(new_id()), from_item=0, wait_ms=1, idle_s=20))
    gate.set()
    assert isinstance((await going_on)[1], Completed)


async def test_items_may_be_taken_as_they_come(fake: FakeEngineAgent, client: GrpcEngineAgent) -> None:
    chunks = text_chunks([str(n) for n in range(50)])
    fake.engine.writer = lambda order: Script(chunks, between_s=0.001)
    came: list[bytes] = []

    def take(items: tuple[bytes, ...]) -> bool:
        came.extend(items)
        return True

    taken_before = 0
    async for message in client.generate(chat_order(), idle_s=20, take=take):
        taken_before = max(taken_before, len(came))
        came += message.items
    assert came == list(chunks)
    assert taken_before, "some came while the follower waited"


async def test_one_who_fails_to_take_its_items_is_asked_again_and_ends_no_other_call(
    fake: FakeEngineAgent, client: GrpcEngineAgent
) -> None:
    gate = asyncio.Event()
    fake.engine.writer = lambda order: Script(text_chunks(("a", "b", "c")), between_s=0.02, gate=gate)
    going_on = asyncio.create_task(read(client.generate(chat_order("other"), idle_s=20)))

    def take(items: tuple[bytes, ...]) -> bool:
        raise ValueError("a bug of the taker")

    failing = asyncio.create_task(read(client.generate(chat_order("failing"), idle_s=20, take=take)))
    await until(lambda: len(fake.engine.running) == 2)
    gate.set()
    for reading in (failing, going_on):
        items, end = await reading
        assert items == list(text_chunks(("a", "b", "c"))) and isinstance(end, Completed)


async def test_an_agent_that_comes_back_is_followed_on_a_new_stream(fake: FakeEngineAgent) -> None:
    gate = asyncio.Event()
    fake.engine.writer = lambda order: Script(gate=gate)
    first = GrpcServer("127.0.0.1:0", [service(fake.agent)], SystemClock())
    address = await first.start()
    client = GrpcEngineAgent(address)
    broken = asyncio.create_task(read(client.generate(chat_order("one"), idle_s=20)))
    await until(lambda: fake.engine.running)
    await first.stop(0)
    with pytest.raises(Unreachable):
        await broken
    second = GrpcServer(address, [service(fake.agent)], SystemClock())
    await second.start()
    gate.set()
    async with asyncio.timeout(20):
        while True:
            try:
                assert isinstance((await read(client.generate(chat_order("two"), idle_s=20)))[1], Completed)
                break
            except Unreachable:
                await asyncio.sleep(0.05)
    await client.close()
    await second.stop(0)


class SilentStore(CslServiceServicer):
    """Hears demands, and answers once it is told to."""

    def __init__(self) -> None:
        self.streams = 0
        self.answers = False

    async def Converse(  # type: ignore[override]
        self, messages: AsyncIterator[pb.CslServiceConverseRequest], context: Any
    ) -> None:
        self.streams += 1
        async for message in messages:
            if self.answers:
                miss = pb.DemandResponse()
                miss.miss.SetInParent()
                answers = [pb.StoreAnswer(call=ask.call, demand=miss) for ask in message.asks]
                await context.write(pb.CslServiceConverseResponse(answers=answers))


def demand() -> Demand:
    return Demand(
        demand_id=DemandId(new_id()),
        name=Name(bytes(32)),
        identity=Identity("t"),
        scope=PURE,
        intended=GenerationRef(GenerationId(new_id()), "127.0.0.1:7"),
    )


async def test_a_store_that_hangs_is_waited_for_once_by_all() -> None:
    store = SilentStore()
    server = GrpcServer(
        "127.0.0.1:0",
        [(add_CslServiceServicer_to_server, store, "dynbranch.v1.CslService")],
        SystemClock(),
    )
    client = GrpcCsl(await server.start())
    patient = asyncio.create_task(client.demand(demand(), timeout_s=60))
    await asyncio.sleep(0)
    with pytest.raises(Unreachable, match="deadline"):
        await client.demand(demand(), timeout_s=0.3)
    with pytest.raises(Unreachable):
        await asyncio.wait_for(patient, 20)
    store.answers = True
    assert await client.demand(demand(), timeout_s=20) == Miss(None)
    assert store.streams == 2
    await client.close()
    await server.stop(0)


class SlowStore(CslServiceServicer):
    """Grants a lease to each demand once it is told to."""

    def __init__(self) -> None:
        self.asked: list[int] = []
        self.go = asyncio.Event()
        self.released: list[bytes] = []

    async def Converse(  # type: ignore[override]
        self, messages: AsyncIterator[pb.CslServiceConverseRequest], context: Any
    ) -> None:
        async for message in messages:
            self.asked += [ask.call for ask in message.asks]
            await self.go.wait()
            answers = [pb.StoreAnswer(call=ask.call) for ask in message.asks]
            for answer in answers:
                answer.demand.miss.lease_id = b"lease"
            await context.write(pb.CslServiceConverseResponse(answers=answers))

    async def ReleaseLeases(self, request: pb.ReleaseLeasesRequest, context: Any) -> pb.ReleaseLeasesResponse:
        self.released += request.lease_ids
        return pb.ReleaseLeasesResponse()


async def test_a_lease_that_comes_when_nobody_waits_is_given_back() -> None:
    store = SlowStore()
    server = GrpcServer(
        "127.0.0.1:0",
        [(add_CslServiceServicer_to_server, store, "dynbranch.v1.CslService")],
        SystemClock(),
    )
    client = GrpcCsl(await server.start())
    leaver = asyncio.create_task(client.demand(demand(), timeout_s=60))
    await until(lambda: store.asked)
    leaver.cancel()
    await asyncio.wait((leaver,))
    store.go.set()
    await until(lambda: store.released)
    assert store.released == [b"lease"]
    await client.close()
    await server.stop(0)


async def test_a_caller_that_is_gone_is_no_crash(
    fake: FakeEngineAgent, caplog: pytest.LogCaptureFixture
) -> None:
    async def serve(ask: pb.StoreAsk) -> pb.StoreAnswer:
        return pb.StoreAnswer()

    async def asks() -> AsyncIterator[Any]:
        yield pb.CslServiceConverseRequest(asks=[pb.StoreAsk(call=1)])

    async def generations() -> AsyncIterator[Any]:
        ask = conversing.wire.generate_ask(chat_order("unheard"))
        ask.call = 1
        yield conversing.wire.asks_out([ask])

    async def write(message: Any) -> None:
        raise grpc.aio.InternalError("the stream is broken")

    caplog.set_level(logging.INFO)
    async with Tasks() as tasks:
        of_store = store_conversing.Conversation(serve, write, tasks)
        of_agent = conversing.Conversation(fake.agent, write, tasks)
        speaking = [tasks.spawn(one.speak(), name="said") for one in (of_store, of_agent)]
        await of_store.listen(asks())
        await of_agent.listen(generations())
        async with asyncio.timeout(20):
            await asyncio.gather(*speaking)
        of_agent.leave()
    told = [record for record in caplog.records if "a caller is gone" in record.message]
    assert [(record.levelname, record.exc_info) for record in told] == [("INFO", None)] * 2
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]


async def test_a_small_answer_of_the_store_waits_for_one_large_one_at_most() -> None:
    sent: list[list[int]] = []
    gate = asyncio.Event()

    async def serve(ask: pb.StoreAsk) -> pb.StoreAnswer:
        payload = b"x" * (store_conversing.LARGE_BYTES + 1 if ask.call < 10 else 1)
        return pb.StoreAnswer(demand=pb.DemandResponse(hit=pb.Hit(payload=payload)))

    async def write(message: Any) -> None:
        sent.append([answer.call for answer in message.answers])
        await gate.wait()

    async def asks() -> AsyncIterator[Any]:
        yield pb.CslServiceConverseRequest(asks=[pb.StoreAsk(call=call) for call in (1, 2, 3)])
        await until(lambda: sent)
        yield pb.CslServiceConverseRequest(asks=[pb.StoreAsk(call=call) for call in (10, 11)])

    async with Tasks() as tasks:
        conversation = store_conversing.Conversation(serve, write, tasks)
        tasks.spawn(conversation.speak(), name="said")
        await conversation.listen(asks())
        gate.set()
        await until(lambda: sum(map(len, sent)) == 5)
    assert sent == [[1], [10, 11], [2], [3]]


async def test_what_the_store_keeps_for_one_who_does_not_read_is_bounded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    large = 2 * store_conversing.LARGE_BYTES
    monkeypatch.setattr(store_conversing, "MAX_UNSENT_BYTES", 4 * large)
    monkeypatch.setattr(store_conversing, "MAX_WAITING", 5)
    gate, sent = asyncio.Event(), []

    async def serve(ask: pb.StoreAsk) -> pb.StoreAnswer:
        return pb.StoreAnswer(demand=pb.DemandResponse(hit=pb.Hit(payload=b"x" * large)))

    async def write(message: Any) -> None:
        await gate.wait()
        sent.extend(message.answers)

    async def asks() -> AsyncIterator[Any]:
        for call in range(20):
            yield pb.CslServiceConverseRequest(asks=[pb.StoreAsk(call=call)])

    async with Tasks() as tasks:
        conversation = store_conversing.Conversation(serve, write, tasks)
        tasks.spawn(conversation.speak(), name="said")
        await conversation.listen(asks())
        gate.set()
        await until(lambda: len(sent) == 8)
    told = [meaning_of(answer.error) for answer in sent if answer.HasField("error")]
    assert len(told) == 5 and all(isinstance(one, NotReady) for one in told)
