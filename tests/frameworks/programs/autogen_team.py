"""Two agents that take turns. It knows nothing of DynBranch but the line that attaches it."""

import asyncio
import json
import sys

import dynbranch.client
from autogen_agentchat.agents import AssistantAgent
from autogen_agentchat.conditions import MaxMessageTermination
from autogen_agentchat.teams import RoundRobinGroupChat
from autogen_ext.models.openai import OpenAIChatCompletionClient

INFO = {
    "vision": False,
    "function_calling": False,
    "json_output": False,
    "family": "unknown",
    "structured_output": False,
}


async def once(url: str, model: str) -> list[str]:
    client = OpenAIChatCompletionClient(
        model=model, base_url=f"{url}/v1", api_key="any", model_info=INFO, temperature=0, max_tokens=4
    )
    agents = [
        AssistantAgent(
            name, model_client=client, system_message=f"You are the {name}.", model_client_stream=True
        )
        for name in ("writer", "critic")
    ]
    team = RoundRobinGroupChat(agents, termination_condition=MaxMessageTermination(5), name="pair")
    result = await team.run(task="Say something.")
    await client.close()
    return [f"{message.source}: {message.content}" for message in result.messages]


async def main() -> None:
    url, model = sys.argv[1:]
    dynbranch.client.attach(url)
    found = [await once(url, model) for _ in range(2)]
    found += await asyncio.gather(*(once(url, model) for _ in range(2)))
    with dynbranch.client.workflow("mine", "w1"):
        found.append(await once(url, model))
    print(json.dumps(found))


asyncio.run(main())
