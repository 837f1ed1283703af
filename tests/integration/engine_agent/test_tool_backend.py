"""Tool backends over real HTTP, through the whole agent."""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from dataclasses import dataclass, replace

import pytest
from aiohttp import web
from dynbranch.domain.engine import Completed, Failed, Freshness, GenerationEnd, WireProtocol
from dynbranch.domain.reuse import Level, ReadScope
from dynbranch.engine_agent.engines.http import Timeouts
from dynbranch.engine_agent.engines.tool import ToolEngine
from dynbranch.engine_agent.engines.tools_file import Tool, Tools
from dynbranch.engine_agent.shell import Agent
from dynbranch.naming.chunks import decode_payload
from dynbranch.naming.fingerprint import fingerprint_digest
from dynbranch.runtime.clock import SystemClock
from unit.engine_agent.samples import StubCsl, chat_order, lease

Answer = Callable[[web.Request], Awaitable[web.StreamResponse]]


@dataclass
class Backend:
    agent: Agent
    csl: StubCsl
    answer: Answer
    calls: list[bytes]

    async def call(self, body: bytes = b'{"q": "x"}') -> tuple[list[bytes], GenerationEnd | None]:
        tool = (await self.agent.describe()).tools[0]
        order = chat_order()
        order = replace(
            order,
            protocol=WireProtocol.TOOL,
            target="search",
            body=body,
            fingerprint_digest=fingerprint_digest(tool.fingerprint),
            lease=lease(order.generation_id, scope=ReadScope(sources=("passages",))),
        )
        items: list[bytes] = []
        end = None
        async with aclosing(self.agent.generate(order)) as events:
            async for message in events:
                items += message.items
                end = message.end
        return items, end


def answers(body: bytes, status: int = 200, **headers: str) -> Answer:
    async def answer(request: web.Request) -> web.StreamResponse:
        named = {key.replace("_", "-"): value for key, value in headers.items()}
        return web.Response(body=body, status=status, headers={"content-type": "application/json", **named})

    return answer


@pytest.fixture
async def backend() -> AsyncIterator[Backend]:
    async def handle(request: web.Request) -> web.StreamResponse:
        found.calls.append(await request.read())
        return await found.answer(request)

    app = web.Application()
    app.router.add_post("/search", handle)
    runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    url = f"http://127.0.0.1:{runner.addresses[0][1]}/search"
    tool = Tool(
        url=url,
        source="passages",
        freshness=Freshness.WRITES_REPORTED,
        code_version="1",
        timeout_s=5,
        max_result_bytes=1000,
    )
    csl = StubCsl()
    engine = ToolEngine(Tools({"search": tool}), 2, Timeouts(connect_s=2, idle_s=5))
    async with Agent(engine, csl, SystemClock()) as agent:
        await agent.until_ready()
        found = Backend(agent, csl, answers(b'{"hits": [1.50]}'), [])
        yield found
    await runner.cleanup()


@pytest.mark.promise("C1.tool_reads")
async def test_a_result_is_kept_with_what_it_read(backend: Backend) -> None:
    backend.answer = answers(b'{"hits": [1.50]}', x_dynbranch_reads="passages/b,passages/a%2Cc")
    items, end = await backend.call(b' {"q": 1.0} ')
    assert items == [b'{"hits": [1.50]}'] and backend.calls == [b' {"q": 1.0} ']
    assert isinstance(end, Completed) and end.commit == "committed"
    (commit,) = backend.csl.commits
    assert commit.reads == ("passages/a,c", "passages/b")
    assert commit.level is Level.SOURCED and commit.label == "tool search"
    assert decode_payload(commit.payload) == (b'{"hits": [1.50]}',)
    digest = hashlib.sha256(b'{"hits": [1.50]}').digest()
    assert commit.output_digests == (digest,) and commit.payload_digest == digest


async def test_without_the_header_it_read_everything(backend: Backend) -> None:
    await backend.call()
    assert backend.csl.commits[0].reads == ("passages/*",)


@pytest.mark.promise("I3")
async def test_a_header_that_comes_twice_counts_twice(backend: Backend) -> None:
    async def twice(request: web.Request) -> web.StreamResponse:
        response = web.Response(body=b"[]", content_type="application/json")
        response.headers.add("x-dynbranch-reads", "passages/a")
        response.headers.add("x-dynbranch-reads", "passages/b")
        return response

    backend.answer = twice
    await backend.call()
    assert backend.csl.commits[0].reads == ("passages/a", "passages/b")


@pytest.mark.promise("I3")
async def test_reads_of_another_source_are_served_and_not_kept(backend: Backend) -> None:
    """No write to that source would close the lease, so a later demand could join a stale execution."""
    backend.answer = answers(b"[]", x_dynbranch_reads="passages/a,users/b")
    items, end = await backend.call()
    assert items == [b"[]"]
    assert isinstance(end, Completed) and end.commit == "reads_outside_source"
    assert backend.csl.commits == []


async def test_a_header_longer_than_usual(backend: Backend) -> None:
    reads = [f"passages/key-{number}" for number in range(3000)]
    backend.answer = answers(b"[]", x_dynbranch_reads=",".join(reads))
    await backend.call()
    assert backend.csl.commits[0].reads == tuple(sorted(reads))


@pytest.mark.promise("C1.failures_are_not_stored")
@pytest.mark.parametrize(
    ("status", "may_retry"), [(400, False), (404, False), (500, False), (503, True), (302, False)]
)
async def test_the_backends_own_refusal(backend: Backend, status: int, may_retry: bool) -> None:
    backend.answer = answers(b'{"detail": "no"}', status, retry_after="17")
    items, end = await backend.call()
    assert items == [] and isinstance(end, Failed)
    assert end.retry_after == "17"
    assert (end.http_status, end.body, end.may_retry) == (status, b'{"detail": "no"}', may_retry)
    assert backend.csl.commits == []


@pytest.mark.parametrize("body", [b"", b"<html>", b'{"cut": ', b"x" * 2000, b'["' + b"x" * 2000 + b'"]'])
async def test_what_is_no_result(backend: Backend, body: bytes) -> None:
    backend.answer = answers(body)
    _, end = await backend.call()
    assert isinstance(end, Failed) and end.http_status == 502
    assert "error" in json.loads(end.body)
    assert backend.csl.commits == [] and not backend.agent.registry.leases.held


async def test_a_backend_that_dies_in_the_middle(backend: Backend) -> None:
    async def dies(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"content-length": "100"})
        await response.prepare(request)
        await response.write(b'{"half": ')
        assert request.transport is not None
        request.transport.abort()
        return response

    backend.answer = dies
    _, end = await backend.call()
    assert isinstance(end, Failed) and end.http_status == 0 and end.may_retry
    assert backend.csl.commits == []


async def test_a_caller_that_leaves_ends_the_call(backend: Backend) -> None:
    began, ended = asyncio.Event(), asyncio.Event()

    async def slow(request: web.Request) -> web.StreamResponse:
        began.set()
        try:
            await asyncio.sleep(60)
        finally:
            ended.set()
        raise AssertionError("cancelled before")

    backend.answer = slow
    task = asyncio.create_task(backend.call())
    await asyncio.wait_for(began.wait(), 10)
    task.cancel()
    await asyncio.wait_for(ended.wait(), 10)
    async with asyncio.timeout(10):
        while backend.agent.registry.slots.used:
            await asyncio.sleep(0.005)
    assert not backend.agent.registry.leases.held
