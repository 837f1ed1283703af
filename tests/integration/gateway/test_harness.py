"""What the gateway makes of a harness that tells who it is in its own words."""

from __future__ import annotations

import pytest
from integration.gateway.world import GREEDY, MODEL, Plan, World, running_world
from unit.gateway.test_harness import CLAUDE_CODE, CODEX, OPENCODE


async def test_a_harness_without_tags_has_an_identity(world: World) -> None:
    asked = {**CLAUDE_CODE, "x-claude-code-agent-id": "a1"}
    await world.chat(headers=asked)
    identity = world.csl.demands[0].identity
    assert (identity.workflow_id, identity.agent_id) == (asked["x-claude-code-session-id"], "a1")
    assert identity.workflow_type_id.startswith("claude-code/")


@pytest.mark.promise("H.identity")
async def test_who_asks_changes_no_name(world: World) -> None:
    answers = [await world.chat(headers=headers) for headers in ({}, CLAUDE_CODE, CODEX)]
    assert [answer.outcome for answer in answers] == ["miss", "hit", "hit"]


async def test_explain_tells_who_asks(world: World) -> None:
    explained = await world.post("/dynbranch/v1/explain", GREEDY, {**CODEX, "x-dynbranch-stage": "s"})
    identity = explained.json["identity"]
    assert identity.pop("workflow_type").startswith("codex/")
    assert identity == {
        "harness": "codex",
        "workflow": CODEX["session-id"],
        "agent": CODEX["thread-id"],
        "parent": None,
        "turn": 0,
        "stage": "s",
    }


SAMPLED = {"model": MODEL, "messages": [{"role": "user", "content": "hi"}], "temperature": 1}
IN_RESPONSES = {"model": MODEL, "input": "hi", "stream": True}


@pytest.mark.promise("H.greedy")
async def test_an_operator_may_have_a_harness_decoded_greedily() -> None:
    async with running_world(Plan({"greedy_harnesses": ("codex",)})) as world:
        asked = [
            (await world.post(path, body, headers)).outcome
            for path, body, headers in (
                ("/v1/responses", IN_RESPONSES, CODEX),
                ("/v1/responses", IN_RESPONSES, CODEX),
                ("/v1/chat/completions", SAMPLED, CODEX),
                ("/v1/chat/completions", SAMPLED, OPENCODE),
                ("/v1/chat/completions", SAMPLED, None),
            )
        ]
        assert asked == ["miss", "hit", "hit", "miss", "miss"]
        bodies = [order.body for order in world.engine.orders]
        assert [b'"temperature":0' in body for body in bodies] == [True, False, False]
        explained = [
            (await world.post("/dynbranch/v1/explain", SAMPLED, headers)).json
            for headers in (CODEX, OPENCODE)
        ]
        assert [one["sampling"] for one in explained] == ["greedy", "as-sent"]
        assert [one["outcome"] for one in explained] == ["hit", "miss"]


@pytest.mark.promise("H.greedy")
async def test_harnesses_decide_for_themselves_by_default(world: World) -> None:
    answers = [await world.post("/v1/responses", IN_RESPONSES, CODEX) for _ in range(2)]
    assert [answer.outcome for answer in answers] == ["miss", "miss"]
    assert b'"temperature"' not in world.engine.orders[0].body
