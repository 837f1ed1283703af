"""An agent that uses a tool, and another one beside it. It knows nothing of DynBranch but the line that
attaches it."""

import asyncio
import json
import sys

import dynbranch.client
from agentscope.agent import Agent, InjectionConfig
from agentscope.credential import OpenAICredential
from agentscope.message import UserMsg
from agentscope.model import OpenAIChatModel
from agentscope.permission import PermissionContext, PermissionMode
from agentscope.state import AgentState
from agentscope.tool import FunctionTool, Toolkit


def look(city: str) -> str:
    """The weather in a city.

    Args:
        city: Its name.
    """
    return f"It rains in {city}."


def an_agent(url: str, model: str, name: str, session: str, *, timed: bool) -> Agent:
    chat = OpenAIChatModel(
        credential=OpenAICredential(api_key="any", base_url=f"{url}/v1"),
        model=model,
        parameters=OpenAIChatModel.Parameters(temperature=0, max_tokens=64),
    )
    return Agent(
        name=name,
        system_prompt=f"You are the {name}.",
        model=chat,
        toolkit=Toolkit(tools=[FunctionTool(look)]),
        state=AgentState(
            session_id=session, permission_context=PermissionContext(mode=PermissionMode.BYPASS)
        ),
        injection_config=InjectionConfig(inject_runtime_state=timed),
    )


async def main() -> None:
    url, model = sys.argv[1:]
    dynbranch.client.attach(url)

    async def one(name: str, session: str, *, timed: bool = False) -> str:
        agent = an_agent(url, model, name, session, timed=timed)
        answer = await agent.reply(UserMsg(name="user", content="How is the weather in Ulm?"))
        return f"{name}: {answer.get_text_content()}"

    found = [await one("writer", "s1"), await one("writer", "s2")]
    with dynbranch.client.workflow("mine", "w1"):
        found += await asyncio.gather(one("writer", "s3"), one("critic", "s4"))
    found.append(await one("timed", "s5", timed=True))
    print(json.dumps(found))


asyncio.run(main())
