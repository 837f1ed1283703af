"""What keys keep apart: results, and what only operators may ask of the store."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from dynbranch.gateway.tenants import Tenants
from integration.gateway.world import GREEDY, Plan, World, running_world

WRITES = "/dynbranch/v1/writes"
EXPLAIN = "/dynbranch/v1/explain"
TENANTS = Tenants({"ka": "a", "kb": "b", "ko": "ops"}, operators=("ops",))


def key(text: str) -> dict[str, str]:
    return {"authorization": f"Bearer {text}"}


@pytest_asyncio.fixture
async def keyed() -> AsyncIterator[World]:
    async with running_world(Plan(tenants=TENANTS)) as running:
        yield running


async def test_only_operators_write_and_under_their_own_name(keyed: World) -> None:
    body = {"records": ["s/1"], "reporter": "somebody else"}
    refused = await keyed.post(WRITES, body, key("ka"))
    assert refused.status == 403 and "operators" in refused.error["message"]
    assert (await keyed.post(WRITES, body)).status == 401
    headers = {**key("ka"), "x-dynbranch-workflow": "w", "x-dynbranch-reads": "s/1"}
    name = (await keyed.chat(headers=headers)).headers["x-dynbranch-name"]
    assert (await keyed.post(WRITES, body, key("ko"))).json["invalidated"] == 1
    went = (await keyed.get(f"/dynbranch/v1/entries/{name}", key("ko"))).json["invalidations"][0]
    assert went["reporter"] == "ops"


async def test_only_operators_see_entries(keyed: World) -> None:
    name = (await keyed.chat(headers=key("ka"))).headers["x-dynbranch-name"]
    for text, status in (("ka", 403), ("kb", 403), ("ko", 200)):
        assert (await keyed.get(f"/dynbranch/v1/entries/{name}", key(text))).status == status


async def test_what_was_counted_is_for_operators_too(keyed: World) -> None:
    await keyed.chat(headers=key("ka"))
    assert (await keyed.get("/dynbranch/v1/stats", key("ka"))).status == 403
    told = (await keyed.get("/dynbranch/v1/stats", key("ko"))).json
    assert told["csl"]["misses"] == 1 and set(told) == {"csl", "controller"}
    keyed.csl.down = True
    refused = await keyed.get("/dynbranch/v1/stats", key("ko"))
    assert refused.status == 503 and "store does not answer" in refused.error["message"]


async def test_an_explanation_knows_the_callers_own_results_only(keyed: World) -> None:
    await keyed.chat(headers=key("ka"))
    own, foreign = [(await keyed.post(EXPLAIN, GREEDY, key(text))).json for text in ("ka", "kb")]
    assert own["outcome"] == "hit" and foreign["outcome"] == "miss" and foreign["entry"] is None
    assert own["name"] != foreign["name"]


@pytest.mark.promise("I1")
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/dynbranch/v1/tools/search"])
async def test_what_is_forwarded_is_part_of_the_name(world: World, path: str) -> None:
    answers = [await world.post(path, GREEDY, headers) for headers in (key("x"), key("y"), {}, key("x"))]
    assert [answer.outcome for answer in answers] == ["miss", "miss", "miss", "hit"]
    names = [answer.headers["x-dynbranch-name"] for answer in answers]
    assert len(set(names)) == 3 and names[0] == names[3]


async def test_explain_names_a_request_as_it_would_be_named(world: World) -> None:
    for headers in (key("x"), {}):
        answer = await world.chat(headers=headers)
        assert (await world.post(EXPLAIN, GREEDY, headers)).json["name"] == answer.headers["x-dynbranch-name"]


async def test_with_sharing_for_all_nothing_is_added() -> None:
    async with running_world(Plan(settings={"sharing": "all"})) as world:
        assert [(await world.chat(headers=key(text))).outcome for text in "xy"] == ["miss", "hit"]


async def test_an_engine_is_told_whose_prefixes_may_be_shared(world: World) -> None:
    for headers in (key("x"), key("y"), {}, key("x")):
        await world.chat(headers={**headers, "cache-control": "no-cache"})
    first, second, nobody, again = [order.cache_scope for order in world.engine.orders]
    assert len({first, second, nobody}) == 3 and again == first
    assert all(len(scope) == 32 for scope in (first, second, nobody))
