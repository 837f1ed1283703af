"""The HTTP edge: paths, methods, sizes, probes, metrics."""

from __future__ import annotations

import asyncio
import json

import pytest
from dynbranch.controller.fake import FakeController
from dynbranch.engine_agent.fake import Script
from dynbranch.gateway.core.routing import Router
from dynbranch.gateway.directory import Directory
from dynbranch.gateway.endpoints.probes import Readiness
from dynbranch.gateway.templates import Templates
from dynbranch.runtime.clock import ManualClock
from dynbranch.runtime.tasks import Tasks
from integration.gateway.world import GREEDY, MODEL, Plan, RawEngine, World, eventually, running_world


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("POST", "/", 405),
        ("GET", "/dynbranch", 404),
        ("GET", "/dynbranch/v1/entries/", 404),
        ("GET", "/v1/chat/completions", 405),
        ("POST", "/healthz", 405),
        ("DELETE", "/dynbranch/v1/writes", 405),
    ],
)
async def test_unknown_paths_and_wrong_methods(world: World, method: str, path: str, status: int) -> None:
    answer = await world.get(path, method=method)
    assert answer.status == status
    assert answer.error["type"] == "invalid_request_error"
    assert ("allow" in answer.headers) is (status == 405)


async def test_models_are_listed_and_found_by_any_name(world: World) -> None:
    listed = (await world.get("/v1/models")).json
    assert listed["object"] == "list" and [model["id"] for model in listed["data"]] == [MODEL]
    assert (await world.get("/v1/models/fake-alias")).json["id"] == MODEL
    missing = await world.get("/v1/models/org/other")
    assert missing.status == 404 and missing.error["code"] == "model_not_found"


async def test_a_body_that_is_too_large() -> None:
    async with running_world(Plan(settings={"max_body_bytes": 1000})) as world:
        assert (await world.chat(b"x" * 1001)).error["code"] == "body_too_large"

        async def endless() -> object:
            while True:
                yield b"x" * 500
                await asyncio.sleep(0)

        async with world.http.post(f"{world.url}/v1/chat/completions", data=endless()) as response:
            assert response.status == 413
        assert (await world.chat()).status == 200


async def test_a_body_that_does_not_come() -> None:
    async with running_world(Plan(settings={"body_timeout_s": 0.05})) as world:
        host, port = world.url.removeprefix("http://").split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 9\r\n\r\n{")
        assert b" 408 " in await reader.readline()
        writer.close()


async def test_too_many_at_once_are_told_to_come_back() -> None:
    async with running_world(Plan(settings={"max_in_flight": 1})) as world:
        gate = asyncio.Event()
        world.engine.writer = lambda order: Script(gate=gate)
        first = asyncio.create_task(world.chat())
        await eventually(lambda: world.engine.running)
        second = await world.chat(seed=2)
        assert second.status == 503 and second.headers["retry-after"] == "1"
        assert (await world.get("/healthz")).status == 200
        gate.set()
        assert (await first).status == 200


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"x-big": "x" * 70_000}, 431),
        ({"content-encoding": "gzip"}, 415),
        ({"x-dynbranch-agent": "a" * 300}, 400),
    ],
)
async def test_headers_that_no_honest_client_sends(
    world: World, headers: dict[str, str], status: int
) -> None:
    answer = await world.chat(headers=headers)
    assert answer.status == status and answer.error["message"]


async def test_ready_says_what_is_missing() -> None:
    settings = {"ready_grace_s": 0}
    async with running_world(Plan(settings=settings)) as world:
        assert (await world.get("/healthz")).json == {"status": "ok"}
        assert (await world.get("/readyz")).json["missing"] == []
        for agent in world.agents.values():
            agent.lose()
        await eventually(lambda: world.gateway.readiness.missing())
        answer = await world.get("/readyz")
        assert answer.status == 503
        assert any("model-a:1" in part for part in answer.json["missing"])
        world.csl.down = True
        await eventually(lambda: "csl: unreachable" in world.gateway.readiness.absent())


@pytest.mark.parametrize("known", ["configured", "remembered"])
async def test_without_agents_it_is_ready_while_an_engine_is_known(raw_engine: RawEngine, known: str) -> None:
    plan = Plan(bypass_url=raw_engine.url)
    if known == "configured":
        plan = Plan(settings={"engine_url": raw_engine.url})
    async with running_world(plan) as world:
        for agent in world.agents.values():
            agent.lose()
        await eventually(lambda: len(world.gateway.readiness.absent()) == 2)
        assert (await world.chat()).outcome == "bypass"
        answer = await world.get("/readyz")
        assert (answer.status, answer.json["ready"], answer.json["degraded"]) == (200, True, True)
        assert any("model-a:1" in part for part in answer.json["absent"])


async def test_an_agent_that_never_came_leaves_nothing_to_serve_with(world: World) -> None:
    directory = Directory(
        ["never:1"],
        lambda address: world.agents["model-a:1"],
        router=Router(room_blocks=1),
        occupancy_interval_ms=20,
        silence_s=60,
        mute_s=60,
        clock=world.agents["model-a:1"].clock,
    )
    for url, ready in (("", False), ("http://engine", True)):
        readiness = Readiness(
            engine_url=url,
            gate=world.gateway.gate,
            directory=directory,
            clock=world.agents["model-a:1"].clock,
            grace_s=0,
        )
        assert (not readiness.missing()) is ready and readiness.absent()


async def test_at_the_start_every_part_is_waited_for() -> None:
    async with running_world(Plan()) as world:
        fresh = type(world.gateway.readiness)(
            engine_url="",
            gate=world.gateway.gate,
            directory=world.gateway.directory,
            clock=world.agents["model-a:1"].clock,
            grace_s=60,
        )
        world.agents["tools:1"].lose()
        await eventually(lambda: fresh.absent())
        assert fresh.missing() and not world.gateway.readiness.missing()


async def test_a_controller_is_waited_for_and_then_missed_without_harm(world: World) -> None:
    clock, controller = ManualClock(), FakeController()
    controller.lose()
    templates = Templates(controller, clock=clock)
    readiness = Readiness(
        engine_url="",
        gate=world.gateway.gate,
        directory=world.gateway.directory,
        clock=clock,
        grace_s=30,
        templates=templates,
    )
    assert readiness.missing() == readiness.absent() == ["controller: unreachable"]
    clock.advance(30)
    assert not readiness.missing() and readiness.absent()
    controller.reachable = True
    async with Tasks() as tasks:
        tasks.spawn(templates.run(), name="templates")
        await eventually(lambda: not readiness.absent())


async def test_metrics_count_outcomes(world: World) -> None:
    for _ in range(3):
        await world.chat()
    await world.get("/nowhere")
    text = (await world.get("/metrics")).body.decode()
    assert 'dynbranch_gateway_requests_total{failed="false",kind="chat",outcome="hit"} 2.0' in text
    assert 'dynbranch_gateway_requests_total{failed="false",kind="chat",outcome="miss"} 1.0' in text
    assert 'dynbranch_gateway_errors_total{code="unknown_path"} 1.0' in text
    assert "dynbranch_gateway_agents_available 2.0" in text
    assert "dynbranch_gateway_agents_mute 0.0" in text


async def test_what_is_refused_is_no_miss_and_no_arrival(world: World) -> None:
    bodies = (b"{", json.dumps({**GREEDY, "model": "none"}).encode(), json.dumps(GREEDY).encode())
    assert [(await world.chat(body)).status for body in bodies] == [400, 404, 200]
    text = (await world.get("/metrics")).body.decode()
    assert 'dynbranch_gateway_requests_total{failed="true",kind="chat",outcome="refused"} 2.0' in text
    assert 'outcome="miss"} 1.0' in text
    await eventually(lambda: reported(world, arrivals=1, outcomes={"miss": 1}))


async def test_what_is_forwarded_raw_is_an_arrival_too(raw_engine: RawEngine) -> None:
    async with running_world(Plan(bypass_url=raw_engine.url)) as world:
        await world.chat(headers={"x-dynbranch-bypass": "1"})
        await world.post("/v1/embeddings", {})
        await eventually(lambda: reported(world, arrivals=2, outcomes={"bypass": 2}))


async def reported(world: World, *, arrivals: int, outcomes: dict[str, int]) -> bool:
    summary = await world.controller.summary(timeout_s=1)
    return summary.arrivals == arrivals and dict(summary.outcomes) == outcomes


async def test_an_unknown_model_is_told_what_is_served(world: World) -> None:
    for answer in (await world.chat(model="none"), await world.get("/v1/models/none")):
        assert answer.status == 404 and answer.error["code"] == "model_not_found"
        assert f"Served here: '{MODEL}'." in answer.error["message"]


async def test_one_connection_serves_many_requests(world: World) -> None:
    host, port = world.url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    body = json.dumps(GREEDY).encode()
    for _ in range(3):
        writer.write(
            b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n" % len(body) + body
        )
        head = await reader.readuntil(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200")
        length = next(line for line in head.split(b"\r\n") if line.startswith(b"content-length"))
        await reader.readexactly(int(length.split(b":")[1]))
    writer.close()


async def test_a_bug_is_logged_and_answered(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*args: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr("dynbranch.gateway.arrivals.model_of", broken)
    answer = await world.chat()
    assert answer.status == 500 and answer.error["code"] == "internal_error"


@pytest.mark.parametrize("name", ["x-dynbranch-reads", "x-dynbranch-workflow", "X-Dynbranch-Anything"])
@pytest.mark.parametrize("value", ["s/é".encode(), b"s/\xe9"])
async def test_own_headers_are_ascii(world: World, name: str, value: bytes) -> None:
    host, port = world.url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    body = json.dumps(GREEDY).encode()
    head = b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\nconnection: close\r\n"
    own = name.encode() + b": " + value + b"\r\n"
    writer.write(head + own + b"content-length: %d\r\n\r\n" % len(body) + body)
    answer = await reader.read()
    writer.close()
    assert answer.startswith(b"HTTP/1.1 400 ") and b"ercent-encode" in answer
    assert not world.csl.demands and not world.engine.orders
