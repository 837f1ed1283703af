"""A client that says what it likes: bytes out, whatever comes back in."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import socket
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from http.client import HTTPException, HTTPResponse
from io import BytesIO
from typing import Any

from dynbranch.csl.core import rows
from dynbranch.domain.ids import DemandId, GenerationId, Name
from dynbranch.domain.reuse import PURE, Demand, GenerationRef, Hit, Identity
from dynbranch.engine_agent.fake import text_chunks
from dynbranch.naming.chunks import compact, decode_payload
from integration.gateway.world import GREEDY, World, eventually

CHAT = b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\n"
BODY = json.dumps(GREEDY).encode()
PLAIN = CHAT + b"content-length: %d\r\n\r\n" % len(BODY) + BODY


class Reply:
    def __init__(self, response: HTTPResponse) -> None:
        self.status = response.status
        self.headers = {name.lower(): value for name, value in response.getheaders()}
        self.body = response.read()

    @property
    def error(self) -> dict[str, Any]:
        error: dict[str, Any] = json.loads(self.body)["error"]
        assert error.keys() == {"message", "type", "param", "code"}, error
        assert error["message"] and error["code"]
        return error

    @property
    def text(self) -> str:
        return str(json.loads(self.body)["choices"][0]["message"]["content"])

    @property
    def outcome(self) -> str | None:
        return self.headers.get("x-dynbranch-outcome")

    @property
    def code(self) -> str:
        return "ok" if self.status == 200 else str(self.error["code"])


class _Replayed(BytesIO):
    """What came, as the socket that ``http.client`` wants. It reads several replies one after the other."""

    def makefile(self, _: str) -> _Replayed:
        return self

    def close(self) -> None:
        """The next reply is read from here too."""


def replies(came: bytes, method: str = "POST") -> list[Reply]:
    """Every complete reply. Raises HTTPException where the rest is none."""
    source = _Replayed(came)
    found = []
    while source.tell() < len(came):
        response = HTTPResponse(source, method=method)  # type: ignore[arg-type]
        response.begin()
        found.append(Reply(response))
    return found


@asynccontextmanager
async def connected(world: World) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    host, port = world.url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port), limit=2**24)
    try:
        yield reader, writer
    finally:
        writer.close()


async def say(
    world: World, *parts: bytes, pause_s: float = 0.0, expect: int = 1, method: str = "POST"
) -> list[Reply]:
    """Send the parts, and return what came until there were so many replies or the server closed."""
    async with connected(world) as (reader, writer):
        for part in parts:
            writer.write(part)
            await asyncio.sleep(pause_s)
        return await listen(reader, expect=expect, method=method)


async def post(
    world: World, body: bytes, headers: dict[str, str] | None = None, path: str = "/v1/chat/completions"
) -> Reply:
    """One honest request around any body."""
    head = f"POST {path} HTTP/1.1\r\nhost: x\r\ncontent-length: {len(body)}\r\n"
    head += "".join(f"{name}: {value}\r\n" for name, value in (headers or {}).items())
    async with connected(world) as (reader, writer):
        writer.write(f"{head}\r\n".encode() + body)
        (reply,) = await listen(reader)
        return reply


async def listen(
    reader: asyncio.StreamReader, *, expect: int = 1, method: str = "POST", within_s: float = 60.0
) -> list[Reply]:
    """Raises HTTPException when the server closes in the middle of a reply."""
    came = b""
    async with asyncio.timeout(within_s):
        while len(whole_replies(came, method)) < expect:
            try:
                part = await reader.read(2**20)
            except ConnectionResetError:
                break
            if not part:
                break
            came += part
    return replies(came, method)


def whole_replies(came: bytes, method: str) -> list[Reply]:
    try:
        return replies(came, method)
    except HTTPException:
        return []


def reset(writer: asyncio.StreamWriter) -> None:
    """Leave by RST."""
    sock = writer.get_extra_info("socket")
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()


async def all_is_well(world: World) -> None:
    """Nothing is in flight, nobody holds anything, the store is whole, and others are served."""

    async def nothing_is_held() -> bool:
        running = any(agent.engine.running for agent in world.agents.values())
        return not running and not len(world.gateway.in_flight) and await world.leases() == 0

    await eventually(nothing_is_held)
    assert all(agent.load.ordered == 0 for agent in world.gateway.directory.agents)
    assert not world.csl.inner.violations()
    metrics = (await world.get("/metrics")).body
    assert b"\ndynbranch_gateway_in_flight 0.0\n" in metrics
    answer = await world.chat(seed=4711)
    assert answer.status == 200 and answer.text == echo(world.engine.orders[-1].body)
    assert (await world.chat(seed=4711)).outcome == "hit"


async def check_store(world: World) -> None:
    """Every entry holds what the engine says to the order that was leased under its name."""
    said = {
        order.lease.name: text_chunks((echo(order.body),))
        for order in world.engine.orders
        if order.lease is not None
    }
    names = {Name(key.removeprefix(rows.ENTRIES)) for key, _ in world.csl.inner.store.scan(rows.ENTRIES)}
    assert names and names <= said.keys()
    for name in names:
        demand = Demand(
            DemandId(os.urandom(16)),
            name,
            Identity(),
            PURE,
            GenerationRef(GenerationId(os.urandom(16)), "t:1"),
        )
        hit = await world.csl.inner.demand(demand, timeout_s=1)
        assert isinstance(hit, Hit)
        assert decode_payload(hit.payload) == compact(said[name])


def echo(body: bytes) -> str:
    """What the scripted engine says: a function of the exact bytes that it was sent."""
    return hashlib.sha256(body).hexdigest()
