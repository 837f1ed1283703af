"""Tools, writes, entries, explanations: the gateway's own part of the API."""

from __future__ import annotations

import asyncio
import hashlib
from typing import Any

import pytest
from dynbranch.engine_agent.fake import Script
from integration.gateway.world import (
    GREEDY,
    MODEL,
    Plan,
    RawEngine,
    World,
    eventually,
    running_world,
    tool_script,
)

TOOL = "/dynbranch/v1/tools/"
WRITES = "/dynbranch/v1/writes"


async def test_the_tools_are_listed(world: World) -> None:
    answer = await world.get("/dynbranch/v1/tools")
    assert {tool["name"]: (tool["source"], tool["freshness"]) for tool in answer.json["data"]} == {
        "search": ("passages", "versioned"),
        "roll": (None, None),
        "constant": ("facts", "immutable"),
    }


@pytest.mark.promise("I3")
async def test_a_tool_hits_until_a_record_that_it_read_is_written(world: World) -> None:
    asked = {"q": "x"}
    first, second = [await world.post(TOOL + "search", asked) for _ in range(2)]
    assert (first.outcome, second.outcome) == ("miss", "hit")
    assert first.body == second.body == b'{"found": ["p1"],  "n": 1.0}'
    assert second.headers["x-dynbranch-level"] == "sourced"
    assert (await world.post(WRITES, {"records": ["other/1"]})).json["invalidated"] == 0
    assert (await world.post(TOOL + "search", asked)).outcome == "hit"
    assert (await world.post(WRITES, {"records": ["passages/9"]})).json["invalidated"] == 1
    assert (await world.post(TOOL + "search", asked)).outcome == "miss"


async def test_a_tool_without_a_source_is_never_stored(world: World) -> None:
    assert [(await world.post(TOOL + "roll", {})).outcome for _ in range(2)] == ["miss", "miss"]


async def test_an_immutable_tool_outlives_every_write(world: World) -> None:
    await world.post(TOOL + "constant", {})
    await world.post(WRITES, {"records": ["facts/*"]})
    assert (await world.post(TOOL + "constant", {})).outcome == "hit"


async def test_unknown_tool_malformed_arguments_and_wrong_method(world: World) -> None:
    assert (await world.post(TOOL + "nothing", {})).error["code"] == "tool_not_found"
    assert (await world.post(TOOL + "search", b"{")).error["code"] == "invalid_json"
    assert (await world.get(TOOL + "search")).status == 405


async def test_a_call_that_may_have_happened_is_not_made_again(world: World) -> None:
    tools = world.agents["tools:1"]
    tools.engine.writer = lambda order: Script(gate=asyncio.Event())
    asked = asyncio.create_task(world.post(TOOL + "roll", {}))
    await eventually(lambda: tools.engine.running)
    tools.lose()
    answer = await asked
    assert answer.status == 503 and "not known" in answer.error["message"]
    tools.engine.writer = tool_script


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        b"{}",
        b'{"records": []}',
        b'{"records": "s/k"}',
        b'{"records": ["s/k", 3]}',
        b'{"records": ["s/k", "nokey"]}',
        b'{"records": ["s/k"], "other": 1}',
        b'{"records": ["s/k"], "reporter": 1}',
        b'{"records": ["s/k"]} x',
    ],
)
async def test_one_malformed_record_and_nothing_is_written(world: World, body: bytes) -> None:
    before = await world.csl.stats(timeout_s=1)
    answer = await world.post(WRITES, body)
    assert answer.status == 400 and answer.error["message"]
    assert await world.csl.stats(timeout_s=1) == before


async def test_a_write_is_acknowledged_with_its_version(world: World) -> None:
    first, second = [
        await world.post(WRITES, {"records": ["s/k", "s/k"], "reporter": "me"}) for _ in range(2)
    ]
    assert first.json["version"] != second.json["version"]
    assert first.json["invalidated_names"] == []


async def test_a_write_that_is_not_known_to_be_stored_is_an_error(world: World) -> None:
    world.csl.down = True
    answer = await world.post(WRITES, {"records": ["s/k"]})
    assert answer.status == 503 and answer.error["code"] == "write_unknown"


@pytest.mark.promise("C1.history")
async def test_an_entry_tells_why_it_is_there_and_why_it_went(world: World) -> None:
    name = (await world.post(TOOL + "search", {"q": 1})).headers["x-dynbranch-name"]
    there = (await world.get(f"/dynbranch/v1/entries/{name}")).json
    assert there["name"] == name and there["invalidations"] == []
    derivation = there["entry"]["derivations"][0]
    assert {read["record"] for read in derivation["reads"]} == {"passages/1", "passages/*"}
    await world.post(WRITES, {"records": ["passages/1"], "reporter": "editor"})
    gone = (await world.get(f"/dynbranch/v1/entries/{name}")).json
    assert gone["entry"] is None
    assert gone["invalidations"][0]["record"] == "passages/1"
    assert gone["invalidations"][0]["reporter"] == "editor"


@pytest.mark.parametrize(("name", "status"), [("00" * 32, 404), ("xyz", 400), ("00" * 31, 400)])
async def test_names_that_lead_nowhere(world: World, name: str, status: int) -> None:
    assert (await world.get(f"/dynbranch/v1/entries/{name}")).status == status


async def explained(world: World, headers: dict[str, str] | None = None, **fields: Any) -> Any:
    return (await world.post("/dynbranch/v1/explain", {**GREEDY, **fields}, headers)).json


async def test_explain_says_what_would_happen_and_does_nothing(world: World) -> None:
    before = await explained(world, user="me", vendor_field=1, stream=True)
    assert before["outcome"] == "miss" and before["why"] == "Nothing is stored under this name."
    classes = {part["path"]: (part["class"], part["known"]) for part in before["fields"]}
    assert classes["user"] == ("identity", True)
    assert classes["stream"] == ("presentation", True)
    assert classes["vendor_field"] == ("determines", False)
    assert not world.csl.demands and not world.engine.orders
    answer = await world.chat(vendor_field=1)
    after = await explained(world, user="me", vendor_field=1, stream=True)
    assert after["name"] == before["name"] == answer.headers["x-dynbranch-name"]
    assert after["outcome"] == "hit" and after["entry"]["level"] == "greedy"
    assert after["fingerprint"]["facts"]["engine"] == "fake"
    assert after["agents"][0]["address"] == "model-a:1"
    assert len(world.csl.demands) == 1


async def test_explain_says_why_not(world: World) -> None:
    assert "sampled" in (await explained(world, temperature=1))["why"]
    assert (await explained(world, {"cache-control": "no-store"}))["outcome"] == "miss"
    headers = {"x-dynbranch-reads": "passages/1", "x-dynbranch-workflow": "w"}
    await world.chat(headers=headers)
    await world.post(WRITES, {"records": ["passages/1"]})
    why = (await explained(world, headers))["why"]
    assert "passages/1" in why
    world.csl.down = True
    assert (await explained(world))["outcome"] == "miss"
    assert (await world.post("/dynbranch/v1/explain", b"{")).status == 400


async def test_explain_foretells_a_request_that_goes_raw(raw_engine: RawEngine) -> None:
    async with running_world(Plan(bypass_url=raw_engine.url)) as world:
        assert (await explained(world, {"x-dynbranch-bypass": "1"}))["outcome"] == "bypass"
        assert (await explained(world, temperature=1))["outcome"] == "miss"
        assert (await world.chat(temperature=1)).outcome == "miss"
        world.agents["model-a:1"].lose()
        await eventually(lambda: world.gateway.readiness.absent())
        foretold = await explained(world)
        assert foretold["outcome"] == (await world.chat()).outcome == "bypass"
        assert "No agent takes work" in foretold["why"]
    async with running_world(Plan(settings={"enabled": False}, bypass_url=raw_engine.url)) as world:
        for model in (MODEL, "unheard-of"):
            foretold = await explained(world, model=model)
            assert foretold["outcome"] == (await world.chat(model=model)).outcome == "bypass"
            assert "disabled" in foretold["why"]
    async with running_world(Plan(settings={"enabled": False})) as world:
        assert (await explained(world))["outcome"] == "refused"


async def test_explain_says_who_shares() -> None:
    async with running_world(Plan()) as world:
        assert (await explained(world))["sharing"] == "tenant default, nothing forwarded"
        said = (await explained(world, {"authorization": "Bearer k"}))["sharing"]
        start = hashlib.sha256(b"Bearer k").hexdigest()[:8]
        assert said == f"tenant default, with the Authorization header sent (sha256 {start}…)"
    async with running_world(Plan(settings={"sharing": "all"})) as world:
        assert (await explained(world))["sharing"] == "everybody"
