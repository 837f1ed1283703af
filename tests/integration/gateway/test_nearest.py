"""What 'explain' says to somebody who expected a hit."""

from __future__ import annotations

from typing import Any

import pytest
from dynbranch.domain.ids import RecordId
from integration.gateway.world import GREEDY, MODEL, Plan, World, running_world

ME = {"x-dynbranch-workflow-type": "t", "x-dynbranch-workflow": "w1", "x-dynbranch-agent": "a"}
PATH = "/dynbranch/v1/explain"


def asking(text: str, **more: Any) -> dict[str, Any]:
    return {**GREEDY, "messages": [{"role": "user", "content": text}], **more}


async def explained(world: World, body: dict[str, Any], headers: dict[str, str] | None = None) -> Any:
    return (await world.post(PATH, body, ME if headers is None else headers)).json


@pytest.mark.promise("H.nearest")
async def test_the_stored_request_that_is_most_like_it(world: World) -> None:
    for body in (asking("quite another", seed=3), asking("hi there"), asking("hi there", seed=1, top_p=0.5)):
        await world.chat(body, headers=ME)
    told = await explained(world, asking("hi then"))
    assert told["outcome"] == "miss"
    nearest = told["nearest"]
    assert (nearest["workflow"], nearest["same_workflow"], nearest["more"]) == ("w1", True, 0)
    assert nearest["differences"] == [
        {
            "path": "messages[0].content",
            "kind": "changed",
            "here": "a text of 7 characters",
            "there": "a text of 8 characters",
            "from_character": 6,
        }
    ]
    stored = (await world.get(f"/dynbranch/v1/entries/{nearest['name']}")).json
    assert stored["entry"] is not None


async def test_the_own_workflow_comes_before_what_is_more_alike(world: World) -> None:
    await world.chat(asking("hi there", seed=1, top_p=0.5), headers=ME)
    await world.chat(asking("hi there", seed=2), headers={**ME, "x-dynbranch-workflow": "w2"})
    nearest = (await explained(world, asking("hi there")))["nearest"]
    assert nearest["same_workflow"] and [one["path"] for one in nearest["differences"]] == ["seed", "top_p"]
    other = (await explained(world, asking("hi there"), {**ME, "x-dynbranch-workflow": "w3"}))["nearest"]
    assert not other["same_workflow"] and other["workflow"] == "w2"


async def test_one_protocol_is_compared_with_another(world: World) -> None:
    await world.chat(asking("hi there"), headers=ME)
    body = {
        "model": MODEL,
        "max_tokens": 5,
        "temperature": 0,
        "messages": [{"role": "user", "content": "hi there"}],
    }
    nearest = (await world.post(f"{PATH}/v1/messages", body, ME)).json["nearest"]
    assert [(one["path"], one["kind"], one["here"]) for one in nearest["differences"]] == [
        ("max_tokens", "only_here", "5")
    ]


@pytest.mark.promise("H.nearest")
async def test_nothing_is_told_to_who_does_not_share_results(world: World) -> None:
    await world.chat(asking("hi there"), headers={**ME, "authorization": "Bearer one"})
    told = await explained(world, asking("hi then"), {**ME, "authorization": "Bearer another"})
    assert told["nearest"] is None


async def test_what_is_not_stored_any_more_is_not_told(world: World) -> None:
    await world.chat(asking("hi there"), headers={**ME, "x-dynbranch-reads": "passages/1"})
    assert (await explained(world, asking("hi then")))["nearest"] is not None
    await world.csl.write([RecordId("passages/1")], reporter="me", timeout_s=1)
    assert (await explained(world, asking("hi then")))["nearest"] is None


async def test_a_hit_and_a_sampled_request_have_none(world: World) -> None:
    await world.chat(asking("hi there"), headers=ME)
    await world.chat(asking("hi then"), headers=ME)
    assert (await explained(world, asking("hi there")))["nearest"] is None
    assert (await explained(world, asking("hi now", temperature=1)))["nearest"] is None


async def test_explaining_is_not_remembered() -> None:
    async with running_world(Plan({"recent_bytes": 1000})) as world:
        for number in range(50):
            await world.chat(asking(f"hi {number}"), headers=ME)
            await explained(world, asking(f"never asked {number}"))
        world.gateway.recent.validate_state()
        assert 0 < world.gateway.recent.held_bytes <= 1000
