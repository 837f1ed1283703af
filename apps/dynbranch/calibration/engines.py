"""The engine that is calibrated: any that speaks Chat Completions, found by its URL or through its agent."""

from __future__ import annotations

import json
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Final

import aiohttp
from dynbranch.calibration.plan import Machine
from dynbranch.calibration.probing import ProbeFailed, Ran
from dynbranch.clients.engine_agent import GrpcEngineAgent
from dynbranch.clients.ports import Unreachable
from dynbranch.domain.engine import AgentKind
from dynbranch.domain.errors import DomainError

_SILENCE_S: Final = 60.0
_DESCRIBE_S: Final = 10.0
_SHOWN_CHARACTERS: Final = 200


@dataclass(frozen=True, slots=True)
class HttpEngine:
    """Implements ``probing.Engine``. ``url`` ends before ``/v1``. ``fields``: what every request says
    beside."""

    url: str
    model: str
    session: aiohttp.ClientSession
    fields: Mapping[str, Any] = field(default_factory=dict)

    async def run(self, prompt: str, tokens: int, begun: Callable[[], None]) -> Ran:
        body = {
            "model": self.model,
            "messages": [{"role": "user", "content": prompt}],
            "temperature": 0,
            "max_tokens": tokens,
            "ignore_eos": True,
            "stream": True,
            "stream_options": {"include_usage": True},
            **self.fields,
        }
        running = _Running(begun)
        try:
            async with self.session.post(f"{self.url}/v1/chat/completions", json=body) as response:
                try:
                    if response.status != 200:
                        text = (await response.text())[:_SHOWN_CHARACTERS]
                        raise ProbeFailed(f"{self.url} answered {response.status}: {text}")
                    async for line in response.content:
                        running.take(line)
                finally:
                    # A cancelled fill's connection is cut, which is how an engine hears of it.
                    response.close()
        except (aiohttp.ClientError, TimeoutError) as error:
            raise ProbeFailed(f"{self.url}: {str(error) or type(error).__name__}") from None
        return running.ran()


class _Running:
    """What came of one stream so far."""

    def __init__(self, begun: Callable[[], None]) -> None:
        self._began = time.perf_counter()
        self._ended = self._began
        self._begun = begun
        self._pieces = 0
        self._prompt_tokens = 0
        self._tokens = 0

    def take(self, line: bytes) -> None:
        if not line.startswith(b"data:") or line[5:].strip() == b"[DONE]":
            return
        try:
            chunk = json.loads(line[5:])
            usage = chunk.get("usage") or {}
            texts = [choice.get("delta", {}).get("content") for choice in chunk.get("choices", ())]
        except (ValueError, AttributeError, TypeError):
            raise ProbeFailed(f"not a chunk of a chat completion: {line[:_SHOWN_CHARACTERS]!r}") from None
        self._prompt_tokens = int(usage.get("prompt_tokens") or self._prompt_tokens)
        self._tokens = int(usage.get("completion_tokens") or self._tokens)
        if any(texts):
            self._pieces += 1
            self._ended = time.perf_counter()
            self._begun()

    def ran(self) -> Ran:
        """Until the last piece of text: what comes after it is framing."""
        tokens = self._tokens or self._pieces
        if not tokens:
            raise ProbeFailed("the engine said nothing")
        return Ran(1000 * (self._ended - self._began), self._prompt_tokens, tokens)


@dataclass(frozen=True, slots=True)
class Found:
    """``busy``: what else runs there, which makes a measurement rough."""

    url: str
    machine: Machine
    busy: int = 0


async def found_by_agent(address: str) -> Found:
    """Raises ProbeFailed."""
    agent = GrpcEngineAgent(address)
    try:
        described = await agent.describe(timeout_s=_DESCRIBE_S)
        async with aclosing(agent.watch_occupancy(interval_ms=100)) as reports:
            occupancy = await anext(reports)
    except (DomainError, Unreachable, StopAsyncIteration) as error:
        raise ProbeFailed(f"no engine agent answers at {address}: {error}") from None
    finally:
        await agent.close()
    if described.kind is AgentKind.TOOL or not described.models:
        raise ProbeFailed(f"the agent at {address} serves no model")
    if not described.bypass_url:
        raise ProbeFailed(f"the agent at {address} does not say where its engine listens")
    model = described.models[0]
    machine = Machine(
        model.id, occupancy.slots or described.slots, occupancy.fill_kv_tokens or 0, model.context_tokens
    )
    running = occupancy.engine_running if occupancy.engine_running is not None else occupancy.running
    return Found(described.bypass_url.rstrip("/").removesuffix("/v1"), machine, running)


async def found_by_url(url: str, session: aiohttp.ClientSession) -> Found:
    """Its first model, and its context where it is told; slots are 0. Raises ProbeFailed."""
    url = url.rstrip("/").removesuffix("/v1")
    try:
        async with session.get(f"{url}/v1/models") as response:
            listed: Mapping[str, Any] = await response.json(content_type=None)
        row = listed["data"][0]
        return Found(url, Machine(str(row["id"]), 0, 0, int(row.get("max_model_len") or 0)))
    except (aiohttp.ClientError, TimeoutError, OSError) as error:
        raise ProbeFailed(f"no engine answers at {url}: {str(error) or type(error).__name__}") from None
    except (ValueError, KeyError, IndexError, TypeError, AttributeError):
        raise ProbeFailed(f"{url}/v1/models lists no model") from None


@asynccontextmanager
async def session_with(api_key: str) -> AsyncIterator[aiohttp.ClientSession]:
    """As many connections as fills need, none used twice: one that was cut is gone anyway."""
    headers = {"authorization": f"Bearer {api_key}"} if api_key else {}
    connector = aiohttp.TCPConnector(limit=0, force_close=True)
    timeout = aiohttp.ClientTimeout(total=None, sock_connect=_DESCRIBE_S, sock_read=_SILENCE_S)
    async with aiohttp.ClientSession(connector=connector, headers=headers, timeout=timeout) as session:
        yield session
