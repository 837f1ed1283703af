"""Harnesses that lose their connection, or their patience, and ask again."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import pytest
import pytest_asyncio
from dynbranch.domain.engine import Failed
from dynbranch.domain.ids import Instant
from dynbranch.engine_agent.fake import Script, text_chunks
from dynbranch.runtime.clock import SystemClock
from integration.gateway.world import MODEL, Plan, World, eventually, running_world
from unit.gateway.test_harness import CLAUDE_CODE, CODEX, OPENCODE


@pytest_asyncio.fixture
async def patient() -> AsyncIterator[World]:
    """Generations outlive their clients by far, so that a busy machine changes nothing."""
    async with running_world(Plan({"detach_grace_ms": 60_000})) as running:
        yield running


SAID = [{"role": "user", "content": "hi"}]
PLAIN: dict[str, Any] = {"model": MODEL, "max_tokens": 100, "messages": SAID}
STREAMED = {**PLAIN, "stream": True}
LONG_S = 281.0


@asynccontextmanager
async def asking(
    world: World, body: dict[str, Any], headers: dict[str, str], path: str = "/v1/messages"
) -> AsyncIterator[None]:
    """A client that is there until the end of the block, and then is gone."""
    host, port = world.url.removeprefix("http://").split(":")
    _, writer = await asyncio.open_connection(host, int(port))
    data = json.dumps(body).encode()
    lines = [f"POST {path} HTTP/1.1", "host: x", f"content-length: {len(data)}"]
    lines += [f"{name}: {text}" for name, text in headers.items()]
    writer.write("\r\n".join(lines).encode() + b"\r\n\r\n" + data)
    await writer.drain()
    orders = len(world.engine.orders)
    await eventually(lambda: len(world.engine.orders) > orders or world.engine.running)
    try:
        yield
    finally:
        writer.close()


async def alone(world: World) -> None:
    await eventually(lambda: not len(world.gateway.in_flight))


def gated(world: World) -> asyncio.Event:
    gate = asyncio.Event()
    world.engine.writer = lambda order: Script(items=text_chunks(("a", "b", "c")), gate=gate)
    return gate


@pytest.mark.promise("H.returns")
async def test_the_same_request_without_a_stream_goes_on_with_its_own_generation(patient: World) -> None:
    gate = gated(patient)
    async with asking(patient, STREAMED, CLAUDE_CODE):
        pass
    await alone(patient)
    again = asyncio.create_task(patient.post("/v1/messages", PLAIN, CLAUDE_CODE))
    await eventually(lambda: len(patient.gateway.in_flight))
    gate.set()
    answer = await again
    assert (answer.outcome, answer.json["content"][0]["text"]) == ("joined", "abc")
    assert answer.headers["x-dynbranch-level"] == "sampled"
    assert len(patient.engine.orders) == 1 and not patient.engine.aborted


@pytest.mark.promise("H.returns")
async def test_a_request_by_name_joins_by_way_of_the_store(patient: World) -> None:
    gate = gated(patient)
    async with asking(patient, {**STREAMED, "temperature": 0}, CLAUDE_CODE):
        pass
    await alone(patient)
    again = asyncio.create_task(patient.post("/v1/messages", {**PLAIN, "temperature": 0}, CLAUDE_CODE))
    await eventually(lambda: len(patient.gateway.in_flight))
    gate.set()
    assert (await again).outcome == "joined"
    assert len(patient.engine.orders) == 1


@pytest.mark.parametrize(
    ("body", "headers"),
    [
        ({**PLAIN, "max_tokens": 99}, CLAUDE_CODE),
        (PLAIN, {**CLAUDE_CODE, "x-claude-code-agent-id": "a1"}),
        (PLAIN, {**CLAUDE_CODE, "x-claude-code-session-id": "another"}),
        (PLAIN, {**CLAUDE_CODE, "x-api-key": "another"}),
        (PLAIN, {**CLAUDE_CODE, "cache-control": "no-cache"}),
    ],
    ids=[
        "another request",
        "another agent",
        "another workflow",
        "another key",
        "a new execution is asked for",
    ],
)
@pytest.mark.promise("H.returns")
async def test_nobody_else_gets_it(patient: World, body: dict[str, Any], headers: dict[str, str]) -> None:
    gate = gated(patient)
    async with asking(patient, STREAMED, CLAUDE_CODE):
        pass
    await alone(patient)
    gate.set()
    assert (await patient.post("/v1/messages", body, headers)).outcome == "miss"
    assert len(patient.engine.orders) == 2


@pytest.mark.promise("H.returns")
async def test_two_at_once_are_two_draws(patient: World) -> None:
    gate = gated(patient)
    async with asking(patient, STREAMED, CLAUDE_CODE):
        again = asyncio.create_task(patient.post("/v1/messages", PLAIN, CLAUDE_CODE))
        await eventually(lambda: len(patient.engine.orders) == 2)
        gate.set()
        assert (await again).outcome == "miss"


async def test_of_one_draw_only_one_goes_on(patient: World) -> None:
    gate = gated(patient)
    async with asking(patient, STREAMED, CLAUDE_CODE):
        pass
    await alone(patient)
    both = [asyncio.create_task(patient.post("/v1/messages", PLAIN, CLAUDE_CODE)) for _ in range(2)]
    await eventually(lambda: len(patient.engine.orders) == 2)
    gate.set()
    assert {answer.outcome for answer in await asyncio.gather(*both)} == {"joined", "miss"}


async def test_who_is_not_known_to_come_back_ends_it(world: World) -> None:
    gated(world)
    async with asking(world, {**STREAMED, "temperature": 1}, OPENCODE, "/v1/chat/completions"):
        pass
    await eventually(lambda: len(world.engine.aborted) == 1)


async def test_what_nobody_comes_back_for_ends(world: World) -> None:
    gated(world)
    async with asking(world, STREAMED, CODEX):
        pass
    await eventually(lambda: len(world.engine.aborted) == 1)


# -- patience ------------------------------------------------------------------------------------------------


@asynccontextmanager
async def streaming(world: World) -> AsyncIterator[aiohttp.ClientResponse]:
    data = json.dumps(STREAMED)
    async with world.http.post(f"{world.url}/v1/messages", data=data, headers=CLAUDE_CODE) as response:
        yield response


def time_passes(world: World, seconds: float) -> None:
    world.gateway.in_flight.look(Instant(SystemClock().now() + seconds))


@pytest.mark.promise("H.honest_silence")
async def test_a_stream_that_says_nothing_ends_with_an_error_before_the_harness_leaves(world: World) -> None:
    gated(world)
    asked = asyncio.create_task(world.post("/v1/messages", STREAMED, CLAUDE_CODE))
    await eventually(lambda: world.engine.running)
    time_passes(world, LONG_S)
    answer = await asked
    assert (answer.status, answer.headers["retry-after"]) == (503, "1")
    assert answer.json["error"]["type"] == "overloaded_error"
    assert "said nothing" in answer.json["error"]["message"]


@pytest.mark.promise("H.honest_silence")
async def test_keep_alives_say_nothing() -> None:
    async with running_world(Plan({"keep_alive_s": 0.01})) as world:
        gated(world)
        async with streaming(world) as response:
            assert (await response.content.readuntil(b"\n\n")).startswith(b"event: ping\n")
            time_passes(world, LONG_S)
            *_, last = [part for part in (await response.read()).split(b"\n\n") if part]
            assert last.startswith(b"event: error\n") and b"said nothing" in last


async def test_after_the_first_words_it_is_broken_off(world: World) -> None:
    world.engine.writer = lambda order: Script(items=text_chunks(["x"] * 1000), between_s=0.1)
    agent = world.agents["model-a:1"]
    async with streaming(world) as response:
        assert (await response.content.readuntil(b"content_block_start")).endswith(b"start"), response
        agent.moves.clear()
        time_passes(world, LONG_S)
        rest = await response.read()
        agent.moves.set()
    assert b"event: error" in rest and b"message_stop" not in rest


@pytest.mark.promise("H.returns")
async def test_who_was_told_so_goes_on_with_it(patient: World) -> None:
    gate = gated(patient)
    asked = asyncio.create_task(patient.post("/v1/messages", STREAMED, CLAUDE_CODE))
    await eventually(lambda: patient.engine.running)
    time_passes(patient, LONG_S)
    assert (await asked).status == 503
    again = asyncio.create_task(patient.post("/v1/messages", STREAMED, CLAUDE_CODE))
    await eventually(lambda: len(patient.gateway.in_flight))
    gate.set()
    answer = await again
    assert answer.outcome == "joined" and b"message_stop" in answer.body
    assert len(patient.engine.orders) == 1


@pytest.mark.parametrize(("body", "headers"), [(PLAIN, CLAUDE_CODE), (STREAMED, {})], ids=["plain", "nobody"])
async def test_others_wait_as_long_as_they_like(
    world: World, body: dict[str, Any], headers: dict[str, str]
) -> None:
    gate = gated(world)
    asked = asyncio.create_task(world.post("/v1/messages", body, headers))
    await eventually(lambda: world.engine.running)
    time_passes(world, 100 * LONG_S)
    gate.set()
    assert (await asked).status == 200


@pytest.mark.parametrize("path", ["/v1/messages", "/v1/responses", "/v1/chat/completions"])
async def test_too_many_requests_always_says_when_to_come_back(world: World, path: str) -> None:
    world.engine.writer = lambda order: Script(fail_after=0, failure=Failed(429, b"", may_retry=False))
    asked = {"model": MODEL, "input": "hi"} if path == "/v1/responses" else PLAIN
    answer = await world.post(path, asked)
    assert (answer.status, answer.headers.getall("retry-after")) == (429, ["1"])
