"""Responses that are kept for later requests: who may go on from them, and when they are gone."""

from __future__ import annotations

import io
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio
from dynbranch.domain.engine import Failed
from dynbranch.engine_agent.fake import Script, text_chunks
from dynbranch.gateway.assembly import Peers
from dynbranch.gateway.config import GatewaySettings
from dynbranch.gateway.core.kept_response import MAX_KEPT_BYTES
from dynbranch.gateway.tenants import Tenants
from integration.gateway.test_messages import CALLS, says
from integration.gateway.test_responses import ASKED, TOOL, asked, events_in
from integration.gateway.world import Answer, Plan, World, eventually, running_world, serving_gateway
from openai import AsyncOpenAI, BadRequestError, NotFoundError

pytestmark = pytest.mark.promise("H.kept_responses")

MINE, YOURS = {"authorization": "Bearer mine"}, {"authorization": "Bearer yours"}


@pytest_asyncio.fixture
async def client(world: World) -> AsyncIterator[AsyncOpenAI]:
    async with AsyncOpenAI(base_url=f"{world.url}/v1", api_key="mine", max_retries=0) as vendor:
        yield vendor


def message(role: str, text: str) -> dict[str, Any]:
    return {"role": role, "content": text}


def name(answer: Answer) -> str:
    return str(answer.headers["x-dynbranch-name"])


async def found(world: World, response_id: str, headers: dict[str, str] | None = None) -> Answer:
    return await world.get(f"/v1/responses/{response_id}", headers)


# -- going on ------------------------------------------------------------------------------------------------


async def test_to_go_on_from_a_response_is_to_send_all_of_it(world: World) -> None:
    first = (await asked(world, instructions="Be brief.")).json
    second = await asked(world, previous_response_id=first["id"], input="more", instructions="Mind.")
    whole = [message("user", "hi"), message("assistant", "Hello there"), message("user", "more")]
    again = await asked(world, input=whole, instructions="Mind.")
    assert second.json["previous_response_id"] == first["id"] and first["store"] is True
    assert (second.outcome, again.outcome) == ("miss", "hit") and name(second) == name(again)
    explained = await world.post(
        "/dynbranch/v1/explain/v1/responses",
        {**ASKED, "previous_response_id": first["id"], "input": "more", "instructions": "Mind."},
    )
    assert explained.json["name"] == name(second)


async def test_results_of_calls_come_in_the_next_request(world: World, client: AsyncOpenAI) -> None:
    says(world, *CALLS)
    first = await client.responses.create(**{**ASKED, "tools": [TOOL]})
    calls = [item for item in first.output if item.type == "function_call"]
    results = [
        {"type": "function_call_output", "call_id": one.call_id, "output": one.arguments} for one in calls
    ]
    await client.responses.create(
        **{**ASKED, "tools": [TOOL], "previous_response_id": first.id, "input": results[::-1]}
    )
    body = world.engine.orders[-1].body
    assert len(calls) == 2 and body.count(b'"role":"tool"') == 2
    assert b'"reasoning_content"' in body


async def test_a_conversation_outlives_what_it_goes_on_from(world: World) -> None:
    ids = [(await asked(world)).json["id"]]
    for turn in range(3):
        answer = await asked(world, previous_response_id=ids[-1], input=f"turn {turn}")
        ids.append(answer.json["id"])
    for gone in ids[:-1]:
        assert (await world.get(f"/v1/responses/{gone}", method="DELETE")).status == 200
    last = await asked(world, previous_response_id=ids[-1], input="and?")
    assert last.status == 200
    assert world.engine.orders[-1].body.count(b'"role":"user"') == 5


# -- what is kept --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("stream", [False, True])
async def test_every_answer_is_kept_as_it_was_told(world: World, stream: bool) -> None:
    for outcome in ("miss", "hit"):
        answer = await asked(world, stream=stream)
        told = events_in(answer.body)[-1]["response"] if stream else answer.json
        assert answer.outcome == outcome and told["store"] is True
        kept = await found(world, told["id"])
        assert (kept.status, kept.json) == (200, told)


@pytest.mark.parametrize(
    ("fields", "headers"),
    [({"store": False}, {}), ({}, {"cache-control": "no-store"})],
    ids=["store", "header"],
)
async def test_who_wants_nothing_kept_says_so(
    world: World, fields: dict[str, Any], headers: dict[str, str]
) -> None:
    answer = await asked(world, headers, **fields)
    assert answer.json["store"] is False
    assert (await found(world, answer.json["id"])).status == 404


async def test_an_operator_may_keep_none() -> None:
    async with running_world(Plan(settings={"keep_responses": False})) as world:
        answer = await asked(world)
        assert answer.json["store"] is False and await world.entries() == 1
        assert (await found(world, answer.json["id"])).error["code"] == "response_not_found"


async def test_what_came_to_no_end_is_not_kept(world: World) -> None:
    failure = Failed(500, b'{"error": {"message": "gone", "code": 500}}', may_retry=False)
    world.engine.writer = lambda _: Script(items=text_chunks(("Hello",)), fail_after=2, failure=failure)
    events = events_in((await asked(world, stream=True)).body)
    assert events[-1]["type"] == "response.failed" and events[-1]["response"]["store"] is False
    assert (await found(world, events[-1]["response"]["id"])).status == 404


async def test_an_answer_that_its_client_left_is_not_kept(world: World) -> None:
    world.engine.writer = lambda _: Script(items=text_chunks(("a",) * 100), between_s=0.05)
    async with world.http.post(f"{world.url}/v1/responses", json={**ASKED, "stream": True}) as response:
        first = await response.content.readuntil(b"\n\n")
    (created,) = events_in(first)
    await eventually(lambda: not world.gateway.in_flight)
    assert (await found(world, created["response"]["id"])).status == 404


async def test_a_conversation_that_is_too_long_is_answered_and_not_kept(world: World) -> None:
    body = json.dumps({**ASKED, "input": "x" * MAX_KEPT_BYTES}).encode()
    async with world.http.post(f"{world.url}/v1/responses", data=io.BytesIO(body)) as response:
        answer = await response.json()
    assert answer["status"] == "completed" and answer["store"] is False
    assert (await found(world, answer["id"])).status == 404


async def test_without_the_store_answers_are_given_and_not_kept(world: World) -> None:
    kept = (await asked(world)).json["id"]
    world.csl.down = True
    answer = await asked(world, input="later")
    assert answer.status == 200 and answer.json["store"] is False
    for one in (await found(world, kept), await asked(world, previous_response_id=kept)):
        assert one.status == 503 and one.headers["retry-after"] == "1"
        assert one.error["code"] == "store_unreachable"


# -- whose it is ---------------------------------------------------------------------------------------------


async def test_another_key_finds_nothing(world: World) -> None:
    mine = (await asked(world, MINE)).json["id"]
    for other in (YOURS, None):
        assert (await found(world, mine, other)).status == 404
        assert (await world.get(f"/v1/responses/{mine}", other, "DELETE")).status == 404
        refused = await asked(world, other, previous_response_id=mine)
        assert refused.status == 400 and refused.error["code"] == "previous_response_not_found"
    assert (await found(world, mine, MINE)).status == 200


@pytest.mark.parametrize("shared", [{"authorization": "Basic cHJveHk6cHc="}, MINE, {}], ids=str)
async def test_a_header_that_many_share_makes_nobody_the_owner(world: World, shared: dict[str, str]) -> None:
    mine = (await asked(world, {**shared, "x-api-key": "mine"})).json["id"]
    for other in ({**shared, "x-api-key": "yours"}, shared, {**YOURS, "x-api-key": "mine"}):
        assert (await found(world, mine, other)).status == 404
        assert (await world.get(f"/v1/responses/{mine}", other, "DELETE")).status == 404
        assert (await asked(world, other, previous_response_id=mine)).status == 400
    assert (await found(world, mine, {**shared, "x-api-key": "mine"})).status == 200


async def test_a_key_is_the_same_however_its_scheme_is_spelled(world: World) -> None:
    mine = (await asked(world, MINE)).json["id"]
    assert (await found(world, mine, {"authorization": "bEARER  mine"})).status == 200
    for other in ({"authorization": "Bearer MINE"}, {"authorization": "mine"}, {"x-api-key": "Bearer mine"}):
        assert (await found(world, mine, other)).status == 404


@pytest.mark.parametrize("sharing", ["tenant", "all"])
async def test_another_tenant_finds_nothing_whatever_is_shared(sharing: str) -> None:
    tenants = Tenants({"mine": "a", "too": "a", "yours": "b"}, operators=["b"])
    async with running_world(Plan(tenants=tenants, settings={"sharing": sharing})) as world:
        mine = (await asked(world, MINE)).json["id"]
        for key, status in (("mine", 200), ("too", 404), ("yours", 404), ("nobody", 401)):
            assert (await found(world, mine, {"authorization": f"Bearer {key}"})).status == status


async def test_every_gateway_of_a_store_finds_it(world: World) -> None:
    settings = GatewaySettings(agents=tuple(world.agents), stop_grace_s=1)
    peers = Peers(world.csl, world.controller, lambda address: world.agents[address])
    kept = (await asked(world)).json
    async with serving_gateway(settings, peers, Tenants()) as (gateway, url):
        await eventually(lambda: not gateway.readiness.missing())
        async with world.http.get(f"{url}/v1/responses/{kept['id']}") as response:
            assert await response.json() == kept


# -- when it is gone -----------------------------------------------------------------------------------------


async def test_the_vendors_client_finds_and_deletes(world: World, client: AsyncOpenAI) -> None:
    made = await client.responses.create(**ASKED)
    assert (await client.responses.retrieve(made.id)).output_text == made.output_text == "Hello there"
    await client.responses.delete(made.id)
    for call in (client.responses.retrieve, client.responses.delete):
        with pytest.raises(NotFoundError) as gone:
            await call(made.id)
        assert gone.value.code == "response_not_found"
    with pytest.raises(BadRequestError) as lost:
        await client.responses.create(**{**ASKED, "previous_response_id": made.id})
    assert (lost.value.code, lost.value.param) == ("previous_response_not_found", "previous_response_id")


async def test_what_is_not_there_is_refused_by_name(world: World) -> None:
    kept = (await asked(world)).json["id"]
    streamed = await found(world, f"{kept}?stream=true")
    assert streamed.status == 400 and streamed.error["param"] == "stream"
    assert (await found(world, f"{kept}/input_items")).status == 404
    assert (await asked(world, previous_response_id=3)).error["param"] == "previous_response_id"
    assert (await asked(world, store="yes")).error["param"] == "store"


async def test_nobody_else_writes_the_records_of_kept_responses(world: World) -> None:
    kept = (await asked(world)).json["id"]
    refused = await world.post("/dynbranch/v1/writes", {"records": ["dynbranch.responses/*"]})
    assert refused.status == 400 and refused.error["param"] == "records[0]"
    assert (await found(world, kept)).status == 200
