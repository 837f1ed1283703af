"""Frameworks as PyPI gives them, attached by one line and otherwise unmodified: who asks, as the controller
is told."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import pytest
from dynbranch.domain.reuse import Identity
from dynbranch.stub_engine.matching import Match
from dynbranch.stub_engine.script import Reply, Rule, ToolCall
from frameworks.conftest import Stack

pytestmark = [pytest.mark.timeout(600), pytest.mark.promise("H.client")]


def coordinates(identities: Sequence[Identity]) -> Counter[tuple[str, str, str]]:
    """Parallel calls arrive in any order."""
    return Counter((who.workflow_type_id, who.agent_id, who.stage) for who in identities)


def of(identities: Sequence[Identity], workflow: str) -> Sequence[Identity]:
    return [who for who in identities if who.workflow_id == workflow]


# -- LangGraph -----------------------------------------------------------------------------------------------

GRAPH = {
    ("plan", "plan-1"),
    ("left", "left-2"),
    ("right", "right-2"),
    ("each#0", "each-3"),
    ("each#1", "each-3"),
    ("team/write", "team_write-1"),
}


async def test_a_graph_tells_its_threads_nodes_and_steps(stack: Stack) -> None:
    """Parallel nodes are told apart, and all runs have the same coordinates, with asyncio or without."""
    answers = await stack.run("langgraph_graph")
    assert all(answer == answers[0] for answer in answers)
    seen = await stack.arrived(5 * 6 + 1)
    expected = Counter(("langchain/four", agent, stage) for agent, stage in GRAPH)
    for thread in ("one", "two", "three", "four"):
        assert coordinates(of(seen, thread)) == expected
    # What is said stands before the graph's own type and thread, but for its nodes.
    said = seen[24:]
    assert {(who.workflow_type_id, who.workflow_id) for who in said} == {("mine", "w1")}
    assert {(who.agent_id, who.stage) for who in said[:6]} == GRAPH
    # The last one asks outside of the graph, in the context that has run it.
    assert (said[6].agent_id, said[6].stage) == ("", "")


# -- AutoGen -------------------------------------------------------------------------------------------------

TURNS = [("writer", "writer-1"), ("critic", "critic-1"), ("writer", "writer-2"), ("critic", "critic-2")]


async def test_a_team_tells_its_runs_agents_and_turns(stack: Stack) -> None:
    """Runs after each other and at once, each a workflow of its own unless somebody says another."""
    answers = await stack.run("autogen_team")
    assert all(answer == answers[0] for answer in answers)
    seen = await stack.arrived(5 * 4)
    runs = {who.workflow_id: of(seen, who.workflow_id) for who in seen}
    assert len(runs) == 5
    for workflow, run in runs.items():
        assert [(who.agent_id, who.stage) for who in run] == TURNS
        assert {who.workflow_type_id for who in run} == {"mine" if workflow == "w1" else "autogen/pair"}


# -- AgentScope ----------------------------------------------------------------------------------------------


async def test_an_agent_tells_its_session_and_how_often_it_asks(stack: Stack) -> None:
    stack.engine.script.rules += [
        Rule(Reply(tool_calls=(ToolCall("look", '{"city": "Ulm"}'),)), Match(turn=0)),
        Rule(Reply(text="It rains."), Match(result="It rains in Ulm.")),
    ]
    answers = await stack.run("agentscope_agents")
    assert [answer.partition(": ")[2] for answer in answers] == ["It rains."] * 5
    seen = await stack.arrived(10)
    for session, name in (("s1", "writer"), ("s2", "writer"), ("s5", "timed")):
        run = of(seen, session)
        assert [(who.agent_id, who.stage) for who in run] == [(name, f"{name}-1"), (name, f"{name}-2")]
        assert {who.workflow_type_id for who in run} == {f"agentscope/{name}"}
    # Two that reply at once, in a workflow that is said.
    expected = {("mine", agent, f"{agent}-{turn}") for agent in ("writer", "critic") for turn in (1, 2)}
    assert coordinates(of(seen, "w1")) == Counter(expected)
    # Without the time in them, later runs ask what the first one asked; with it, what nobody did.
    timed = [b"<current-time>" in request.body for request in stack.engine.requests]
    assert sorted(timed) == [False] * 4 + [True] * 2


# -- one by one ----------------------------------------------------------------------------------------------


async def test_models_and_clients_are_attached_one_by_one_or_all(stack: Stack) -> None:
    """Of langchain-openai, langchain-anthropic, autogen-ext and agentscope; and of the older httpx."""
    await stack.run("clients")
    seen = await stack.arrived(3 * 8)
    told = [("attached", str(number)) for number in range(8)] + [("everywhere", str(n)) for n in range(8)]
    assert [(who.workflow_type_id, who.agent_id) for who in seen] == told + [("", "")] * 8
