"""A graph with two nodes beside each other, a node that runs twice in one step, and a graph in it. It knows
nothing of DynBranch but the line that attaches it."""

import asyncio
import json
import operator
import sys
from typing import Annotated, TypedDict

import dynbranch.client
from langchain_core.runnables import RunnableLambda
from langchain_openai import ChatOpenAI
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import END, START, StateGraph
from langgraph.types import Send


class State(TypedDict):
    said: Annotated[list[str], operator.add]


def build(url: str, model: str):
    chat = ChatOpenAI(model=model, base_url=f"{url}/v1", api_key="any", temperature=0, max_tokens=4)

    def node(name):
        async def ask_async(state):
            answer = await chat.ainvoke(f"{name} says, after {len(state['said'])}")
            return {"said": [f"{name}: {answer.content}"]}

        def ask(state):
            answer = chat.invoke(f"{name} says, after {len(state['said'])}")
            return {"said": [f"{name}: {answer.content}"]}

        return RunnableLambda(ask, ask_async)

    team = StateGraph(State)
    team.add_node("write", node("write"))
    team.add_edge(START, "write")
    team.add_edge("write", END)

    graph = StateGraph(State)
    graph.add_node("plan", node("plan"))
    graph.add_node("left", node("left"))
    graph.add_node("right", node("right"))
    graph.add_node("each", node("each"))
    graph.add_node("team", team.compile())
    graph.add_edge(START, "plan")
    graph.add_edge("plan", "left")
    graph.add_edge("plan", "right")
    graph.add_conditional_edges(
        "left", lambda state: [Send("each", {"said": ["x"]}), Send("each", {"said": ["x", "y"]})], ["each"]
    )
    graph.add_edge("each", "team")
    graph.add_edge("team", END)
    return graph.compile(name="four", checkpointer=InMemorySaver())


async def together(graph, *threads):
    runs = [graph.ainvoke({"said": []}, {"configurable": {"thread_id": thread}}) for thread in threads]
    return await asyncio.gather(*runs)


def main() -> None:
    url, model = sys.argv[1:]
    dynbranch.client.attach(url)
    graph = build(url, model)
    found = [graph.invoke({"said": []}, {"configurable": {"thread_id": name}}) for name in ("one", "two")]
    found += asyncio.run(together(graph, "three", "four"))
    with dynbranch.client.workflow("mine", "w1") as run:
        found.append(graph.invoke({"said": []}, {"configurable": {"thread_id": "five"}}))
        # Outside of the graph nobody tells a node.
        ChatOpenAI(model=model, base_url=f"{url}/v1", api_key="any", temperature=0, max_tokens=4).invoke(
            "after"
        )
    assert sum(run.outcomes.counts.values()) == 7, run.outcomes.counts
    print(json.dumps([sorted(state["said"]) for state in found]))


main()
