"""What the gateway makes of a harness that tells who it is in its own words."""

from __future__ import annotations

import pytest
from integration.gateway.world import GREEDY, World
from unit.gateway.test_harness import CLAUDE_CODE, CODEX


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
        "stage": "s",
    }
