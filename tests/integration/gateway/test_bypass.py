"""Standing aside: bytes as from the engine."""

from __future__ import annotations

import asyncio
import io
import json

import pytest
from dynbranch.gateway.arrivals import Arrivals
from dynbranch.gateway.tenants import Tenants
from integration.gateway.world import GREEDY, RAW_PARTS, Plan, RawEngine, World, eventually, running_world

RAW_BODY = b"".join(RAW_PARTS)


@pytest.mark.promise("I5")
async def test_disabled_everything_goes_to_the_engine_untouched(raw_engine: RawEngine) -> None:
    plan = Plan(settings={"enabled": False, "engine_url": f"{raw_engine.url}/v1"})
    async with running_world(plan) as world:
        sent = b'{"model": "m",   "messages": [], "temperature": 1.50e-1}'
        answer = await world.chat(sent, headers={"authorization": "Bearer k", "x-own": "1"})
        assert (answer.status, answer.body, answer.outcome) == (200, RAW_BODY, "bypass")
        assert answer.headers["x-engine"] == "yes"
        method, path, headers, body = raw_engine.seen[0]
        assert (method, path, body) == ("POST", "/v1/chat/completions", sent)
        assert headers["authorization"] == "Bearer k" and headers["x-own"] == "1"
        assert not {name for name in headers if name.lower().startswith("x-dynbranch")}
        odd = await world.get("/v1/missing?a=%20b&c")
        assert (odd.status, odd.body) == (418, b'{"odd":  1.0}')
        assert raw_engine.seen[1][1] == "/v1/missing?a=%20b&c"
        assert (await world.get("/v1/models")).outcome == "bypass"
        assert not world.csl.demands and not world.engine.orders
        refused = await world.post("/dynbranch/v1/writes", {"records": ["s/k"]})
        assert refused.status == 503 and refused.error["code"] == "disabled"


async def test_disabled_the_agents_tell_where_the_engine_is(raw_engine: RawEngine) -> None:
    async with running_world(Plan(settings={"enabled": False}, bypass_url=raw_engine.url)) as world:
        assert (await world.chat()).body == RAW_BODY
        assert (await world.chat(model="unheard-of")).outcome == "bypass"


async def test_one_request_can_ask_for_it(raw_engine: RawEngine) -> None:
    async with running_world(Plan(bypass_url=raw_engine.url)) as world:
        answer = await world.chat(headers={"x-dynbranch-bypass": "1"})
        assert (answer.body, answer.outcome) == (RAW_BODY, "bypass")
        assert json.loads(raw_engine.seen[0][3]) == GREEDY
        assert (await world.chat()).outcome == "miss"


async def test_other_paths_of_the_api_are_forwarded(raw_engine: RawEngine) -> None:
    async with running_world(Plan(bypass_url=raw_engine.url)) as world:
        big = b"x" * 3_000_000
        async with world.http.post(f"{world.url}/v1/embeddings", data=io.BytesIO(big)) as response:
            assert (response.status, response.headers["x-dynbranch-outcome"]) == (200, "bypass")
        assert raw_engine.seen[0][3] == big
        assert raw_engine.seen[0][2]["content-length"] == str(len(big))

        async def slowly() -> object:
            for _ in range(3):
                yield b"part"

        async with world.http.post(f"{world.url}/v1/files", data=slowly()) as response:
            assert await response.read() == RAW_BODY
        assert raw_engine.seen[1][3] == b"partpartpart"


async def test_tools_go_to_their_backend(raw_engine: RawEngine) -> None:
    async with running_world(Plan(tool_url=f"{raw_engine.url}/tools")) as world:
        headers = {"x-dynbranch-bypass": "1"}
        answer = await world.post("/dynbranch/v1/tools/search", b'{"q": 1}', headers)
        assert (answer.body, answer.outcome) == (RAW_BODY, "bypass")
        assert raw_engine.seen[0][1:2] == ("/tools/search",)


async def test_the_query_is_kept(raw_engine: RawEngine) -> None:
    plan = Plan(bypass_url=f"{raw_engine.url}/v1", tool_url=f"{raw_engine.url}/tools")
    async with running_world(plan) as world:
        headers = {"x-dynbranch-bypass": "1"}
        await world.post("/v1/chat/completions?api-version=1&b=%20", GREEDY, headers)
        await world.post("/dynbranch/v1/tools/search?a=%20&c", {}, headers)
        assert [seen[1] for seen in raw_engine.seen] == [
            "/v1/chat/completions?api-version=1&b=%20",
            "/tools/search?a=%20&c",
        ]


@pytest.mark.promise("I5")
async def test_what_has_reached_a_backend_goes_to_no_other(
    raw_engine: RawEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    dying = RawEngine()
    dying.cut_before = True
    await dying.start()
    try:
        async with running_world(Plan(tool_url=raw_engine.url)) as world:
            for urls, status in (
                ((dying.url, raw_engine.url), 502),
                (("http://127.0.0.1:1", raw_engine.url), 200),
            ):
                monkeypatch.setattr(Arrivals, "tool_urls", lambda self, name, urls=urls: urls)
                answer = await world.post("/dynbranch/v1/tools/roll", {}, {"x-dynbranch-bypass": "1"})
                assert answer.status == status
        assert len(dying.seen) == 1 and len(raw_engine.seen) == 1
    finally:
        await dying.stop()


async def test_no_engine_is_an_error_of_the_protocol() -> None:
    for settings, status in (({"engine_url": "http://127.0.0.1:1"}, 502), ({}, 503)):
        async with running_world(Plan(settings=settings)) as world:
            answer = await world.chat(headers={"x-dynbranch-bypass": "1"})
            assert answer.status == status and answer.error["type"] == "server_error"
            if settings:
                assert settings["engine_url"] in answer.error["message"]


async def test_an_engine_that_cuts_its_answer_cuts_ours(raw_engine: RawEngine) -> None:
    raw_engine.cut_after = 1
    async with running_world(Plan(bypass_url=raw_engine.url)) as world:
        async with world.http.post(
            f"{world.url}/v1/chat/completions", json=GREEDY, headers={"x-dynbranch-bypass": "1"}
        ) as response:
            with pytest.raises(Exception, match=r"(?i)payload|closed|chunk"):
                await response.read()
        await eventually(lambda: not len(world.gateway.in_flight))


async def test_without_a_store_nothing_is_reused(raw_engine: RawEngine) -> None:
    async with running_world(Plan(with_csl=False)) as world:
        assert [(await world.chat()).outcome for _ in range(2)] == ["miss", "miss"]
        explained = await world.post("/dynbranch/v1/explain", GREEDY)
        assert explained.json["outcome"] == "miss"


async def test_an_own_key_is_not_shown_to_the_engine(raw_engine: RawEngine) -> None:
    plan = Plan(bypass_url=raw_engine.url, tenants=Tenants({"k": "t"}))
    async with running_world(plan) as world:
        await world.chat(headers={"authorization": "Bearer k", "x-dynbranch-bypass": "1"})
        assert "authorization" not in {name.lower() for name in raw_engine.seen[0][2]}


async def test_hop_by_hop_headers_stay_here(world: World, raw_engine: RawEngine) -> None:
    async with running_world(Plan(bypass_url=raw_engine.url)) as bypassing:
        headers = {
            "x-dynbranch-bypass": "1",
            "connection": "keep-alive, x-mine",
            "x-mine": "1",
            "te": "trailers",
        }
        await bypassing.chat(headers=headers)
        seen = {name.lower() for name in raw_engine.seen[0][2]}
        assert not seen & {"x-mine", "te", "keep-alive"}


async def test_what_no_agent_can_take_goes_raw(
    raw_engine: RawEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dynbranch.gateway.arrivals.MAX_ORDER_BYTES", 10)
    async with running_world(Plan(bypass_url=raw_engine.url)) as world:
        assert (await world.chat()).outcome == "bypass"
        assert not world.csl.demands and not world.engine.orders


async def test_an_endless_raw_body_is_cut_at_the_limit(raw_engine: RawEngine) -> None:
    plan = Plan(bypass_url=raw_engine.url, settings={"max_body_bytes": 1000})
    async with running_world(plan) as world:

        async def endless() -> object:
            while True:
                yield b"x" * 500
                await asyncio.sleep(0)

        async with world.http.post(f"{world.url}/v1/files", data=endless()) as response:
            assert response.status == 413
        await eventually(lambda: not len(world.gateway.in_flight))


async def test_a_client_that_leaves_a_raw_request(raw_engine: RawEngine) -> None:
    async with running_world(Plan(bypass_url=raw_engine.url)) as world:
        host, port = world.url.removeprefix("http://").split(":")
        _, writer = await asyncio.open_connection(host, int(port))
        writer.write(b"POST /v1/files HTTP/1.1\r\nhost: x\r\ncontent-length: 9\r\n\r\n123")
        await eventually(lambda: len(world.gateway.in_flight) == 1)
        writer.close()
        await eventually(lambda: not len(world.gateway.in_flight))
