"""What it costs to make a named arrival of a coding agent's request, from its bytes, in this process.

Timed is what the gateway does before it asks the store: strict parsing, the form of Chat Completions, who
asks, the pool, normalising, the name, what the request was made of, the beginnings of its prompt, and the
body that the engine is sent. Two engines serve the model, and its probe allows every equivalence; the
harness is decoded greedily. HTTP and the store are not in it.

A figure is CPU time of the thread, as the work waits for nothing: on a free core it takes as long. What the
clock on the wall said stands in the raw samples.
"""

from __future__ import annotations

import asyncio
import gc
import json
import random
import re
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any, Final

from dynbranch.bench.result import BenchFailed, Measured, Tell
from dynbranch.bench.stand import turns
from dynbranch.demo.measures import Figure, median
from dynbranch.engine_agent.fake import FAKE_MODEL, FakeEngineAgent, ScriptedEngine
from dynbranch.gateway.arrivals import Arrival, ArrivalPolicy, Arrivals
from dynbranch.gateway.core.prompt_prefix import blocks_of_tokens
from dynbranch.gateway.core.reuse_policy import ReusePolicy
from dynbranch.gateway.core.routing import Router, RoutingPolicy
from dynbranch.gateway.desk import Desk
from dynbranch.gateway.directory import Directory
from dynbranch.gateway.protocols.anthropic.dialect import MessagesDialect
from dynbranch.gateway.protocols.chat import ChatDialect
from dynbranch.gateway.protocols.dialect import Dialect
from dynbranch.gateway.protocols.responses.dialect import ResponsesDialect
from dynbranch.naming.equivalences import probe_pairs
from dynbranch.runtime.clock import SystemClock
from dynbranch.runtime.tasks import Tasks

ROUNDS, QUICK_ROUNDS = 40, 3
_WARM_ROUNDS = 2
_BATCH_BYTES = 800_000
"""A sample is the mean over so many bytes, with warm caches and garbage collected as in a service."""

_START_S = 60.0
_SEED = 3
_TOLERANCE = 0.05

Object = dict[str, Any]
Samples = dict[tuple[str, str], list[float]]
"""Milliseconds by size and protocol."""


@dataclass(frozen=True, slots=True)
class Size:
    """``turns`` of the assistant, each a few words, a call and its result."""

    name: str
    bytes: int
    turns: int
    tools: int


SIZES: Final = (Size("8k", 8_000, 4, 3), Size("200k", 200_000, 100, 25))


@dataclass(frozen=True, slots=True)
class Spoken:
    """A protocol, and the headers of a harness that speaks it."""

    name: str
    dialect: Dialect
    body: Callable[[Conversation], Object]
    headers: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Conversation:
    """``steps``: what the assistant says, the arguments of its call, and what the tool answers."""

    system: str
    tools: tuple[tuple[str, str, Object], ...]
    task: str
    steps: tuple[tuple[str, Object, str], ...]


def measure(tell: Tell, *, quick: bool = False) -> Measured:
    """Figures ``ms_8k`` and ``ms_200k``: the median of the slowest protocol at each size."""
    samples, walls, lengths = asyncio.run(_samples(QUICK_ROUNDS if quick else ROUNDS, tell))
    figures: dict[str, Figure] = {}
    for size in SIZES:
        each = {one.name: median(samples[size.name, one.name]) for one in SPOKEN}
        figures[f"ms_{size.name}"] = max(each.values(), key=lambda figure: figure.value)
        figures |= {f"ms_{size.name}_{name}": figure for name, figure in each.items()}
    raw = {
        "bytes": {f"{size} {name}": length for (size, name), length in lengths.items()},
        "cpu_ms": _rounded(samples),
        "wall_ms": _rounded(walls),
    }
    return Measured(figures, raw)


def _rounded(samples: Samples) -> dict[str, list[float]]:
    return {f"{size} {name}": [round(ms, 3) for ms in each] for (size, name), each in samples.items()}


async def _samples(rounds: int, tell: Tell) -> tuple[Samples, Samples, dict[tuple[str, str], int]]:
    bodies = {
        (size.name, one.name): (one, json.dumps(one.body(conversation_of(size, one))).encode())
        for size in SIZES
        for one in SPOKEN
    }
    samples: Samples = {key: [] for key in bodies}
    walls: Samples = {key: [] for key in bodies}
    async with _arrivals() as (arrivals, desk):
        for number in range(-_WARM_ROUNDS, rounds):
            tell("rounds", max(0, number), rounds)
            for key in turns(list(bodies), number % len(bodies)):
                one, body = bodies[key]
                times = max(1, _BATCH_BYTES // len(body))
                # Or the garbage of one protocol is collected in the time of another.
                gc.collect()
                began, began_cpu = time.perf_counter(), time.thread_time()
                for _ in range(times):
                    arrival = await _arrived(arrivals, desk, one, body)
                spent, spent_cpu = time.perf_counter() - began, time.thread_time() - began_cpu
                if arrival.stage.name is None:
                    raise BenchFailed(f"{one.name}: no name, as {arrival.why_not_reused}")
                if number >= 0:
                    samples[key].append(spent_cpu * 1000 / times)
                    walls[key].append(spent * 1000 / times)
    tell("rounds", rounds, rounds)
    return samples, walls, {key: len(body) for key, (_, body) in bodies.items()}


async def _arrived(arrivals: Arrivals, desk: Desk, one: Spoken, body: bytes) -> Arrival:
    document = await desk.read(body, one.dialect.read, body)
    return await arrivals.chat(document, one.dialect.headers(one.headers), "default")


@asynccontextmanager
async def _arrivals() -> AsyncIterator[tuple[Arrivals, Desk]]:
    clock = SystemClock()
    equivalences = frozenset(pair.equivalence for pair in probe_pairs())
    model = replace(FAKE_MODEL, equivalences=equivalences)
    async with AsyncExitStack() as stack:
        agents = {
            f"engine-{letter}:1": await stack.enter_async_context(
                FakeEngineAgent(clock=clock, engine=ScriptedEngine(clock, models=(model,)))
            )
            for letter in "ab"
        }
        directory = Directory(
            tuple(agents),
            lambda address: agents[address],
            router=Router(RoutingPolicy.PREFIX, room_blocks=blocks_of_tokens(500_000)),
            occupancy_interval_ms=1000,
            silence_s=60.0,
            mute_s=60.0,
            clock=clock,
        )
        tasks = await stack.enter_async_context(Tasks())
        directory.start(tasks)
        async with asyncio.timeout(_START_S):
            while directory.undescribed or not all(agent.available for agent in directory.agents):
                await asyncio.sleep(0.01)
        policy = ArrivalPolicy(
            reuse=ReusePolicy.GREEDY,
            shares_all=False,
            hides_keys=False,
            engine_url="",
            greedy_harnesses=frozenset({"claude-code", "codex", "opencode"}),
        )
        desk = stack.enter_context(Desk())
        yield Arrivals(directory, policy, desk), desk


# -- conversations -------------------------------------------------------------------------------------------

_WORDS: Final = tuple(
    re.findall(
        r"\w+",
        "the reader of this file looks for a name that no table holds and so the build stops before its end "
        "when a value is missing every test that needs it fails with the same message about a path",
    )
)


def conversation_of(size: Size, one: Spoken) -> Conversation:
    """As long as its body shall be in this protocol, to a twentieth. The same words in every protocol."""
    words = size.bytes // 40
    for _ in range(20):
        conversation = _conversation(size, words)
        length = len(json.dumps(one.body(conversation)).encode())
        if abs(length - size.bytes) <= size.bytes * _TOLERANCE:
            return conversation
        words = max(size.turns * 4, round(words * size.bytes / length))
    raise BenchFailed(f"no conversation of {size.turns} turns is {size.bytes} bytes long")


def _conversation(size: Size, words: int) -> Conversation:
    """A tenth of the words is the system prompt, a fifth are tools, the rest is said."""
    chance = random.Random(_SEED)

    def said(count: int) -> str:
        lines = [" ".join(chance.choices(_WORDS, k=12)) for _ in range(max(1, count // 12))]
        return "\n".join(lines)

    tools = tuple(_tool(number, said(words // 5 // size.tools)) for number in range(size.tools))
    each = words * 7 // 10 // size.turns
    steps = tuple(
        (said(each // 4), {"path": f"/work/src/part_{turn}.py", "limit": 200 + turn}, said(each * 3 // 4))
        for turn in range(size.turns)
    )
    return Conversation(said(words // 10), tools, said(12), steps)


def _tool(number: int, about: str) -> tuple[str, str, Object]:
    parameters: Object = {
        "type": "object",
        "properties": {
            "path": {"type": "string", "description": "Where it is."},
            "limit": {"type": "integer", "minimum": 1, "maximum": 2000},
        },
        "required": ["path"],
        "additionalProperties": False,
    }
    return f"tool_{number}", about, parameters


def _chat(told: Conversation) -> Object:
    messages: list[Object] = [
        {"role": "system", "content": told.system},
        {"role": "user", "content": told.task},
    ]
    for turn, (words, arguments, result) in enumerate(told.steps):
        function = {"name": "tool_0", "arguments": json.dumps(arguments)}
        call = {"id": f"call_{turn:024x}", "type": "function", "function": function}
        messages += [
            {"role": "assistant", "content": words, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": call["id"], "content": result},
        ]
    tools = [
        {"type": "function", "function": {"name": name, "description": about, "parameters": parameters}}
        for name, about, parameters in told.tools
    ]
    return {
        "model": FAKE_MODEL.id,
        "messages": messages,
        "tools": tools,
        "max_tokens": 32_000,
        "stream": True,
    }


def _messages(told: Conversation) -> Object:
    messages: list[Object] = [{"role": "user", "content": [{"type": "text", "text": told.task}]}]
    for turn, (words, arguments, result) in enumerate(told.steps):
        use_id = f"toolu_{turn:024x}"
        use = {"type": "tool_use", "id": use_id, "name": "tool_0", "input": arguments}
        found: Object = {"type": "tool_result", "tool_use_id": use_id, "content": result}
        if turn == len(told.steps) - 1:
            found["cache_control"] = {"type": "ephemeral"}
        messages += [
            {"role": "assistant", "content": [{"type": "text", "text": words}, use]},
            {"role": "user", "content": [found]},
        ]
    return {
        "model": FAKE_MODEL.id,
        "max_tokens": 32_000,
        "system": [{"type": "text", "text": told.system, "cache_control": {"type": "ephemeral"}}],
        "messages": messages,
        "tools": [
            {"name": name, "description": about, "input_schema": parameters}
            for name, about, parameters in told.tools
        ],
        "metadata": {"user_id": json.dumps({"session_id": "s-1"})},
        "stream": True,
    }


def _responses(told: Conversation) -> Object:
    items = list(_items(told))
    tools = [
        {"type": "function", "name": name, "description": about, "parameters": parameters, "strict": False}
        for name, about, parameters in told.tools
    ]
    return {
        "model": FAKE_MODEL.id,
        "input": items,
        "tools": tools,
        "tool_choice": "auto",
        "parallel_tool_calls": True,
        "reasoning": {"effort": "medium"},
        "store": False,
        "include": ["reasoning.encrypted_content"],
        "prompt_cache_key": "s-1",
        "stream": True,
    }


def _items(told: Conversation) -> Iterator[Object]:
    for role, text in (("developer", told.system), ("user", told.task)):
        yield {
            "type": "message",
            "id": f"msg_{role}",
            "role": role,
            "content": [{"type": "input_text", "text": text}],
        }
    for turn, (words, arguments, result) in enumerate(told.steps):
        call_id = f"call_{turn:024x}"
        said: Object = {"type": "output_text", "text": words, "annotations": []}
        yield {"type": "message", "id": f"msg_{turn}", "role": "assistant", "content": [said]}
        call: Object = {"type": "function_call", "id": f"fc_{turn}", "call_id": call_id, "name": "tool_0"}
        yield {**call, "arguments": json.dumps(arguments)}
        yield {"type": "function_call_output", "id": f"fco_{turn}", "call_id": call_id, "output": result}


SPOKEN: Final = (
    Spoken("chat_completions", ChatDialect(), _chat, {"user-agent": "opencode/1.18", "x-session-id": "s-1"}),
    Spoken("messages", MessagesDialect(), _messages, {"x-claude-code-session-id": "s-1"}),
    Spoken(
        "responses",
        ResponsesDialect(),
        _responses,
        {"originator": "codex_exec", "session-id": "s-1", "thread-id": "t-1"},
    ),
)
