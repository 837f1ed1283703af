"""A client leaves at every point where its request may wait: nothing stays reserved, nobody else notices."""

from __future__ import annotations

import asyncio
import json
from collections.abc import MutableMapping

import pytest
from dynbranch.engine_agent.fake import Script, text_chunks
from integration.gateway.world import GREEDY, Plan, World, eventually, running_world

pytestmark = pytest.mark.promise("I4")


async def _opened(world: World, body: bytes, *, length: int | None = None) -> asyncio.StreamWriter:
    host, port = world.url.removeprefix("http://").split(":")
    _, writer = await asyncio.open_connection(host, int(port))
    head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: {length or len(body)}\r\n\r\n"
    writer.write(head.encode() + body)
    await writer.drain()
    return writer


async def _quiet(world: World) -> None:
    """Nothing in flight, no lease, no slot."""

    async def nothing_is_held() -> bool:
        running = any(agent.engine.running for agent in world.agents.values())
        return not running and not len(world.gateway.in_flight) and await world.leases() == 0

    await eventually(nothing_is_held)
    assert all(agent.load.ordered == 0 for agent in world.gateway.directory.agents)


async def test_while_the_body_is_coming(world: World) -> None:
    writer = await _opened(world, b'{"model"', length=100)
    await eventually(lambda: len(world.gateway.in_flight) == 1)
    writer.close()
    await _quiet(world)
    assert not world.csl.demands


async def test_while_the_store_is_asked(world: World) -> None:
    world.csl.held = asyncio.Event()
    writer = await _opened(world, json.dumps(GREEDY).encode())
    await eventually(lambda: world.csl.demands)
    writer.close()
    await asyncio.sleep(0.02)
    world.csl.held.set()
    await _quiet(world)
    assert not world.engine.orders
    world.csl.held = None
    assert (await world.chat()).outcome == "miss"


@pytest.mark.parametrize("stream", [False, True])
async def test_before_the_first_item(world: World, stream: bool) -> None:
    world.engine.writer = lambda order: Script(gate=asyncio.Event())
    writer = await _opened(world, json.dumps({**GREEDY, "stream": stream}).encode())
    await eventually(lambda: world.engine.running)
    writer.close()
    await _quiet(world)
    assert len(world.engine.aborted) == 1


async def test_in_the_middle_of_the_stream(world: World) -> None:
    world.engine.writer = lambda order: Script(items=text_chunks(["x"] * 1000), between_s=0.005)
    body = json.dumps({**GREEDY, "stream": True})
    async with world.http.post(f"{world.url}/v1/chat/completions", data=body) as response:
        await response.content.readuntil(b"\n\n")
        response.close()
    await _quiet(world)
    assert len(world.engine.aborted) == 1 and await world.entries() == 0


@pytest.mark.promise("C1.cancel_detaches_only_its_client")
async def test_the_first_clients_leave_does_not_cancel_the_others(world: World) -> None:
    gate = asyncio.Event()
    world.engine.writer = lambda order: Script(gate=gate)
    first = await _opened(world, json.dumps(GREEDY).encode())
    await eventually(lambda: world.engine.running)
    others = [asyncio.create_task(world.chat()) for _ in range(3)]
    await eventually(lambda: len(world.csl.demands) == 4)
    await asyncio.sleep(0.05)
    first.close()
    await eventually(lambda: len(world.gateway.in_flight) == 3)
    gate.set()
    answers = await asyncio.gather(*others)
    assert [answer.outcome for answer in answers] == ["joined"] * 3
    assert len(world.engine.orders) == 1
    await _quiet(world)
    assert (await world.chat()).outcome == "hit"


async def test_a_client_that_stops_reading_counts_as_gone() -> None:
    async with running_world(Plan(settings={"stall_s": 0.05})) as world:
        world.engine.writer = lambda order: Script(items=text_chunks(["x" * 50_000] * 400))
        writer = await _opened(world, json.dumps({**GREEDY, "stream": True}).encode())
        await eventually(lambda: world.engine.orders)
        # Without a reader the transport's own buffers fill, then the gateway waits, then it gives up.
        await _quiet(world)
        writer.close()


async def test_at_a_random_moment(world: World) -> None:
    world.engine.writer = lambda order: Script(items=text_chunks(["x"] * 5), first_s=0.01, between_s=0.002)
    for number in range(30):
        body = json.dumps({**GREEDY, "seed": number % 3, "stream": bool(number % 2)}).encode()
        writer = await _opened(world, body)
        await asyncio.sleep(number * 0.001)
        writer.close()
    await _quiet(world)
    assert not world.csl.inner.violations()
    assert (await world.chat(seed=0)).text == "xxxxx"


class InMemoryClient:
    """One request without a socket, whose client leaves after so many turns of the event loop."""

    def __init__(self, body: bytes, leaves_after: int, gate: asyncio.Event) -> None:
        self._body: bytes | None = body
        self._gate = gate
        self._leaves_after = leaves_after
        self._done = asyncio.Event()
        self.complete = False

    def scope(self) -> dict[str, object]:
        return {
            "type": "http",
            "method": "POST",
            "path": "/v1/chat/completions",
            "headers": [(b"content-type", b"application/json")],
        }

    async def receive(self) -> dict[str, object]:
        if self._body is not None:
            body, self._body = self._body, None
            return {"type": "http.request", "body": body, "more_body": False}
        for turn in range(self._leaves_after):
            if self._done.is_set():
                break
            if turn == 20:
                self._gate.set()
            await asyncio.sleep(0)
        return {"type": "http.disconnect"}

    async def send(self, message: MutableMapping[str, object]) -> None:
        await asyncio.sleep(0)
        if message["type"] == "http.response.body" and not message["more_body"]:
            self.complete = True
            self._done.set()


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("way", ["miss", "hit", "sampled", "join"])
async def test_after_every_turn_of_the_loop(world: World, way: str, stream: bool) -> None:
    temperature = 1 if way == "sampled" else 0
    gate = asyncio.Event()
    world.engine.writer = lambda order: Script(gate=gate)
    world.csl.turns = 5
    completed = turns = 0
    if way == "hit":
        gate.set()
        await world.chat(seed=0)
    while completed < 3 and turns < 2000:
        turns += 1
        seed = 0 if way == "hit" else turns
        body = json.dumps({**GREEDY, "seed": seed, "stream": stream, "temperature": temperature}).encode()
        if way != "hit":
            gate.clear()
        other = asyncio.create_task(world.chat(seed=seed)) if way == "join" else None
        if other is not None:
            await eventually(lambda: world.engine.running)
        client = InMemoryClient(body, turns, gate)
        await world.gateway.app(client.scope(), client.receive, client.send)
        gate.set()
        if other is not None:
            assert (await other).text == "Hello there"
        completed += client.complete
    assert turns > 5 and completed == 3, "a client that stays is served"
    await _quiet(world)
    assert not world.csl.inner.violations()
    assert (await world.chat(seed=0)).text == "Hello there"
