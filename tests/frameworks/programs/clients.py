"""Models and clients, each attached by itself, and detached."""

import asyncio
import json
import sys

import dynbranch.client
import httpx
from agentscope.credential import OpenAICredential
from agentscope.message import UserMsg
from agentscope.model import OpenAIChatModel
from autogen_core.models import UserMessage
from autogen_ext.models.openai import OpenAIChatCompletionClient
from langchain_anthropic import ChatAnthropic
from langchain_openai import ChatOpenAI
from openai import AsyncOpenAI, OpenAI

INFO = {
    "vision": False,
    "function_calling": False,
    "json_output": False,
    "family": "unknown",
    "structured_output": False,
}


async def main() -> None:
    url, model = sys.argv[1:]
    asked = {"model": model, "base_url": f"{url}/v1", "api_key": "any"}
    hi = {"model": model, "max_tokens": 4, "messages": [{"role": "user", "content": "hi"}]}
    chat = ChatOpenAI(**asked, max_tokens=4)
    claude = ChatAnthropic(model_name=model, base_url=url, api_key="any", max_tokens=4)
    team = OpenAIChatCompletionClient(**asked, model_info=INFO, max_tokens=4)
    scope = OpenAIChatModel(
        credential=OpenAICredential(api_key="any", base_url=f"{url}/v1"), model=model, stream=False
    )
    # The SDK takes clients of the older httpx, too.
    plain = OpenAI(base_url=f"{url}/v1", api_key="any", http_client=httpx.Client())
    other = AsyncOpenAI(base_url=f"{url}/v1", api_key="any", http_client=httpx.AsyncClient())

    async def all_of_them(name: str) -> None:
        with dynbranch.client.workflow(name, "w"):
            for number, ask in enumerate(
                (
                    lambda: asyncio.to_thread(chat.invoke, "hi"),
                    lambda: chat.ainvoke("hi"),
                    lambda: asyncio.to_thread(claude.invoke, "hi"),
                    lambda: claude.ainvoke("hi"),
                    lambda: team.create([UserMessage(content="hi", source="user")]),
                    lambda: scope(messages=[UserMsg(name="user", content="hi")]),
                    lambda: asyncio.to_thread(lambda: plain.chat.completions.create(**hi)),
                    lambda: other.chat.completions.create(**hi),
                )
            ):
                with dynbranch.client.agent(str(number)):
                    await ask()

    with dynbranch.client.attach(url, chat, claude, team, scope, plain, other, frameworks=()):
        await all_of_them("attached")
    with dynbranch.client.attach(url):
        await all_of_them("everywhere")
    await all_of_them("detached")
    print(json.dumps("done"))


asyncio.run(main())
