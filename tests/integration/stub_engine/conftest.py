"""A client for the stub engine."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from typing import Any

import aiohttp
import pytest
from dynbranch.stub_engine.engine import StubEngine

HI: dict[str, Any] = {"model": "stub-model", "messages": [{"role": "user", "content": "hi"}]}


class Client:
    """Raw enough to see what breaks."""

    def __init__(self, http: aiohttp.ClientSession) -> None:
        self.http = http

    async def chat(self, stub: StubEngine, body: dict[str, Any] = HI, **fields: Any) -> Any:
        async with self.http.post(f"{stub.url}/v1/chat/completions", json={**body, **fields}) as answer:
            return await answer.json()

    async def events(self, stub: StubEngine, body: dict[str, Any] = HI, **fields: Any) -> list[str]:
        """What came of a stream until it ended or broke; "broken" at the end when it broke."""
        found = b""
        try:
            async with self.http.post(
                f"{stub.url}/v1/chat/completions", json={**body, "stream": True, **fields}
            ) as answer:
                async for part in answer.content.iter_any():
                    found += part
        except aiohttp.ClientError:
            found += b"broken\n\n"
        return found.decode().split("\n\n")[:-1]

    async def streamed(self, stub: StubEngine, body: dict[str, Any] = HI, **fields: Any) -> list[Any]:
        """The chunks of a stream that ends as it should."""
        events = await self.events(stub, body, stream_options={"include_usage": True}, **fields)
        assert events[-1] == "data: [DONE]"
        return [json.loads(event.removeprefix("data: ")) for event in events[:-1]]

    async def get(self, stub: StubEngine, path: str) -> tuple[int, str]:
        async with self.http.get(stub.url + path) as answer:
            return answer.status, await answer.text()

    async def post(self, stub: StubEngine, path: str, body: Any) -> tuple[int, str]:
        async with self.http.post(stub.url + path, json=body) as answer:
            return answer.status, await answer.text()


@pytest.fixture
async def client() -> AsyncIterator[Client]:
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(force_close=True)) as session:
        yield Client(session)


async def until(holds: Callable[[], bool]) -> None:
    """The test's own timeout ends this when it never does."""
    while not holds():
        await asyncio.sleep(0.005)
