"""Does hostile input ever put a wrong result into the store, or get one served?

Bodies go over real HTTP to a real gateway, with the store and an engine agent in memory. The engine answers
with a digest of the exact bytes that it received, or fails, or is stopped, as that digest says: so every
answer tells which body made it. That body and the asked one must look alike to an engine, by a reference
that shares no code with naming.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from random import Random
from typing import Any, Final

import uvloop
from dynbranch.bench.engine_view import NotStrict, view_digest
from dynbranch.bench.hostile_bodies import MODELS, Bodies
from dynbranch.bench.result import Tell
from dynbranch.csl.core import rows
from dynbranch.csl.fake import FakeCsl
from dynbranch.demo.measures import Figure, exact
from dynbranch.domain.engine import Failed, GenerationOrder
from dynbranch.domain.ids import DemandId, GenerationId, Name
from dynbranch.domain.reuse import PURE, Demand, GenerationRef, Hit, Identity
from dynbranch.engine_agent.fake import FakeEngineAgent, Script, ScriptedEngine, text_chunks
from dynbranch.gateway.assembly import Gateway, Peers
from dynbranch.gateway.config import GatewaySettings
from dynbranch.gateway.server import HttpServer, connection_policy
from dynbranch.gateway.tenants import Tenants
from dynbranch.naming.chunks import compact, decode_payload
from dynbranch.runtime.chance import new_id
from dynbranch.runtime.clock import SystemClock
from dynbranch.runtime.tasks import Tasks
from prometheus_client import CollectorRegistry

CONNECTIONS: Final = 16
_AGENT: Final = "bench:1"
_LEAVING_SHARE: Final = 0.01
_SHOWN: Final = 20
_DEADLINE_S: Final = 60
_REFUSAL: Final = (
    b'{"error":{"message":"not by me","type":"invalid_request_error","param":null,"code":"refused"}}'
)


def run_hostile(progress: Tell, seed: int, bodies: int) -> tuple[dict[str, Figure], dict[str, Any]]:
    """Figure ``hostile_stored_wrongly``: entries, answers and errors that are not what they must be."""
    return uvloop.run(_run(progress, seed, bodies))


async def _run(progress: Tell, seed: int, bodies: int) -> tuple[dict[str, Figure], dict[str, Any]]:
    findings = Findings()
    async with _served() as world:
        drawn = Bodies(Random(seed))
        queue = (drawn.draw() for _ in range(bodies))
        chance = Random(seed + 1)

        async def client() -> None:
            async with Client(world.port) as connection:
                for body in queue:
                    await connection.send(body, world, findings, leaves=chance.random() < _LEAVING_SHARE)
                    if findings.sent % 1000 == 0:
                        progress("hostile bodies", findings.sent, bodies)

        async with asyncio.TaskGroup() as tasks:
            for _ in range(CONNECTIONS):
                tasks.create_task(client())
        await _settled(world)
        await findings.judge_store(world)
    return {"hostile_stored_wrongly": exact(findings.wrong.total(), findings.sent)}, findings.raw(seed)


# -- the engine --------------------------------------------------------------------------------------------


def engine_says(body: bytes) -> Script:
    """A function of the exact bytes. One in four does not come to a good end."""
    digest = hashlib.sha256(body).hexdigest()
    chunks = text_chunks((digest[:32], digest[32:]), finish=_finish(digest))
    match digest[0]:
        case "0":
            return Script(chunks, fail_after=0, failure=Failed(400, _REFUSAL, may_retry=False))
        case "1":
            return Script(chunks, fail_after=2)
        case "2":
            # As the agent's chat engines judge this finish reason.
            return Script(chunks, unstorable="content_filter")
        case "3":
            return Script(chunks, unstorable="the engine says so")
        case _:
            return Script(chunks)


def _finish(digest: str) -> str:
    return {"2": "content_filter", "4": "length"}.get(digest[0], "stop")


def is_storable(digest: str) -> bool:
    return digest[0] not in "0123"


@dataclass
class World:
    gateway: Gateway
    csl: FakeCsl
    agent: FakeEngineAgent
    port: int
    received: dict[str, bytes] = field(default_factory=dict)
    """What the engine was sent, by the answer it gave."""

    def write(self, order: GenerationOrder) -> Script:
        self.received[hashlib.sha256(order.body).hexdigest()] = order.body
        self.agent.engine.orders.clear()
        return engine_says(order.body)


@asynccontextmanager
async def _served() -> AsyncIterator[World]:
    clock = SystemClock()
    csl = FakeCsl(clock=clock, new_id=new_id)
    engine = ScriptedEngine(clock, slots=2 * CONNECTIONS)
    async with AsyncExitStack() as stack:
        agent = await stack.enter_async_context(FakeEngineAgent(csl=csl, clock=clock, engine=engine))
        settings = GatewaySettings(agents=(_AGENT,), stop_grace_s=1)
        gateway = Gateway(
            settings,
            Peers(csl, None, lambda _: agent),
            Tenants(),
            clock=clock,
            new_id=new_id,
            registry=CollectorRegistry(),
        )
        await stack.enter_async_context(gateway)
        tasks = await stack.enter_async_context(Tasks())
        server = HttpServer(gateway.app, listen="127.0.0.1:0", grace_s=1, policy=connection_policy(settings))
        serving = tasks.spawn(server.serve_until_told(), name="http")
        await _until(lambda: not gateway.readiness.missing())
        world = World(gateway, csl, agent, int(server.address.rpartition(":")[2]))
        engine.writer = world.write
        try:
            yield world
        finally:
            server.should_exit = True
            await asyncio.wait((serving,))


async def _settled(world: World) -> None:
    """Nothing in flight, and no lease."""
    await _until(lambda: not len(world.gateway.in_flight) and not world.agent.engine.running)
    async with asyncio.timeout(_DEADLINE_S):
        while (await world.csl.stats(timeout_s=1)).leases:
            await asyncio.sleep(0.02)


async def _until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(_DEADLINE_S):
        while not condition():
            await asyncio.sleep(0.02)


# -- the clients -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Answer:
    status: int
    headers: dict[bytes, bytes]
    body: bytes


class Client:
    """One kept connection."""

    def __init__(self, port: int) -> None:
        self._port = port

    async def __aenter__(self) -> Client:
        await self._open()
        return self

    async def __aexit__(self, *_: object) -> None:
        self._writer.close()

    async def _open(self) -> None:
        self._reader, self._writer = await asyncio.open_connection("127.0.0.1", self._port, limit=2**24)

    async def send(self, body: bytes, world: World, findings: Findings, *, leaves: bool) -> None:
        findings.sent += 1
        head = b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n" % len(body)
        self._writer.write(head + body)
        if leaves:
            findings.outcomes["left"] += 1
            await asyncio.sleep(0)
            self._writer.close()
            await self._open()
            return
        try:
            async with asyncio.timeout(_DEADLINE_S):
                answer = await self._answer()
        except (TimeoutError, asyncio.IncompleteReadError, ConnectionError) as failure:
            findings.wrongly("connection_lost", body, type(failure).__name__)
            await self._open()
            return
        findings.judge(body, answer, world)
        if answer.headers.get(b"connection") == b"close":
            self._writer.close()
            await self._open()

    async def _answer(self) -> Answer:
        head = await self._reader.readuntil(b"\r\n\r\n")
        first, *lines = head[:-4].split(b"\r\n")
        headers = dict(line.split(b": ", 1) for line in lines)
        if b"content-length" in headers:
            body = await self._reader.readexactly(int(headers[b"content-length"]))
        else:
            body = await self._chunks()
        return Answer(int(first.split(b" ")[1]), headers, body)

    async def _chunks(self) -> bytes:
        body = b""
        while size := int(await self._reader.readuntil(b"\r\n"), 16):
            body += (await self._reader.readexactly(size + 2))[:-2]
        await self._reader.readexactly(2)
        return body


# -- the judge ---------------------------------------------------------------------------------------------


@dataclass
class Findings:
    sent: int = 0
    entries: int = 0
    outcomes: Counter[str] = field(default_factory=Counter)
    errors: Counter[str] = field(default_factory=Counter)
    wrong: Counter[str] = field(default_factory=Counter)
    shown: list[dict[str, str]] = field(default_factory=list)
    view_by_name: dict[bytes, bytes] = field(default_factory=dict)
    _views: dict[bytes, bytes] = field(default_factory=dict)

    def wrongly(self, what: str, body: bytes, more: str = "") -> None:
        self.wrong[what] += 1
        if len(self.shown) < _SHOWN:
            excerpt = body[:2000].decode("utf-8", "backslashreplace")
            self.shown.append({"what": what, "body": excerpt, "more": more[:500]})

    def judge(self, body: bytes, answer: Answer, world: World) -> None:
        """A well-formed error, or the result of a request that is the same to an engine."""
        self.outcomes[answer.headers.get(b"x-dynbranch-outcome", b"refused").decode()] += 1
        text, error = _said(answer)
        if error:
            self.errors[error] += 1
            return
        if text is None:
            self.wrongly("malformed_answer", body, repr(answer.body[:300]))
            return
        try:
            asked = self._view(body)
        except NotStrict as problem:
            self.wrongly("served_what_is_no_request", body, str(problem))
            return
        made = world.received.get(text)
        if made is None or self._view(made) != asked:
            self.wrongly("served_wrongly", body, repr(made))
        name = bytes.fromhex(answer.headers.get(b"x-dynbranch-name", b"").decode())
        if name and self.view_by_name.setdefault(name, asked) != asked:
            self.wrongly("one_name_for_two_requests", body)

    async def judge_store(self, world: World) -> None:
        """Every entry is what its engine says, to its good end, to a request of its name."""
        for key, _ in list(world.csl.store.scan(rows.ENTRIES)):
            self.entries += 1
            name = Name(key.removeprefix(rows.ENTRIES))
            hit = await world.csl.demand(_demand(name), timeout_s=1)
            assert isinstance(hit, Hit)
            items = decode_payload(hit.payload)
            text = "".join(_texts(items))
            made = world.received.get(text)
            if made is None:
                self.wrongly("stored_what_no_engine_said", b"", text)
            elif not is_storable(text) or items != compact(engine_says(made).items):
                self.wrongly("stored_what_must_not_be", made, text)
            elif self.view_by_name.get(name, self._view(made)) != self._view(made):
                self.wrongly("stored_wrongly", made, name.hex())
        for violation in world.csl.violations():
            self.wrongly("store_not_whole", b"", violation)

    def raw(self, seed: int) -> dict[str, Any]:
        return {
            "seed": seed,
            "bodies": self.sent,
            "entries": self.entries,
            "names": len(self.view_by_name),
            "outcomes": dict(self.outcomes.most_common()),
            "errors": dict(self.errors.most_common()),
            "wrong": dict(self.wrong),
            "counterexamples": self.shown,
        }

    def _view(self, body: bytes) -> bytes:
        key = hashlib.sha256(body).digest()
        view = self._views.get(key)
        if view is None:
            view = self._views[key] = view_digest(body, plain_blocks=True, models=frozenset(MODELS))
        return view


def _demand(name: Name) -> Demand:
    intended = GenerationRef(GenerationId(os.urandom(16)), _AGENT)
    return Demand(DemandId(os.urandom(16)), name, Identity(), PURE, intended)


def _said(answer: Answer) -> tuple[str | None, str]:
    """The text of a whole answer, or the code of a well-formed error. Neither: the answer is malformed."""
    try:
        if answer.headers.get(b"content-type", b"").startswith(b"text/event-stream"):
            return _streamed(answer.body)
        value = json.loads(answer.body)
        if answer.status == 200:
            return str(value["choices"][0]["message"]["content"]), ""
        error = value["error"]
        return None, _code(error)
    except (ValueError, KeyError, TypeError, IndexError):
        return None, ""


def _streamed(body: bytes) -> tuple[str | None, str]:
    events = [event.removeprefix(b"data: ") for event in body.split(b"\n\n") if event.startswith(b"data: ")]
    if not events:
        return None, ""
    if events[-1] == b"[DONE]":
        return "".join(_texts(events[:-1])), ""
    return None, "in the stream: " + _code(json.loads(events[-1])["error"])


def _code(error: dict[str, Any]) -> str:
    """Engines that give no code give a type."""
    return str(error.get("code") or error["type"]) if error["message"] else ""


def _texts(chunks: Any) -> list[str]:
    deltas = [choice["delta"] for chunk in chunks for choice in json.loads(chunk)["choices"]]
    return [delta.get("content") or "" for delta in deltas]
