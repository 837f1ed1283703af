"""Clients that leave a real vLLM: how soon the engine itself stops, and whether anything stays behind.

The whole way is the real one: a client's connection to a gateway, the gateway to an engine agent of kind
``vllm``, the agent to vLLM. The engine's own gauges say what runs, what waits and how much memory is used.

*Abort*: one request at a time. It streams for a random time, then its connection is closed; the clock runs
until the engine's running count is zero. Reading the gauges takes some milliseconds, which are in the figure.

*Leaks*: many clients at once, more than the engine has slots for. Each leaves at a random moment, in the
queue, in the prefill or in the decode. After each round everything must be at zero: the engine's running and
waiting counts and its KV usage, and the agent's slots and queue. The store's leases are told beside them: one
whose demand was answered after the gateway's budget for it lapses by its time to live.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import time
import urllib.request
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack, aclosing, asynccontextmanager, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import aiohttp
from dynbranch.bench.result import BenchFailed, Measured, Tell
from dynbranch.clients.csl import GrpcCsl
from dynbranch.clients.engine_agent import GrpcEngineAgent
from dynbranch.demo.measures import exact, median
from dynbranch.demo.processes import Processes, ProcessSpec, free_ports
from dynbranch.demo.stack import Stack, StackOptions, not_ready_reason
from dynbranch.engine_agent.engines.fingerprint import metric
from dynbranch.engine_agent.engines.vllm_process import MODULE

HOME_VARIABLE = "DYNBRANCH_VLLM_HOME"
DEFAULT_HOME = ".vllm"

ENGINE_SLOTS = 8
WARM_UP, ABORTS = 4, 60
ROUNDS, CLIENTS_AT_ONCE, CANCELS_PER_ROUND = 4, 14, 80
NEEDED_CANCELS = 300
LONGEST_STAY_S = 4.0
WORDS = (6, 20, 60, 200)
MAX_TOKENS = 1200
"""More than any client stays for."""

_START_S = 300.0
_SETTLE_S = 20.0
_LOOK_S = 0.01
_SEED = 11

_ENVIRON = {"HF_HUB_OFFLINE": "1", "VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_NO_USAGE_STATS": "1"}
_WORDS = ("rain", "harbour", "seven", "lantern", "quiet", "letter", "north", "copper", "window", "field")


@dataclass(frozen=True, slots=True)
class Left:
    """What is still held after everybody has gone."""

    engine_running: float
    engine_waiting: float
    kv_used_share: float
    agent_running: int
    agent_waiting: int
    leases: int

    @property
    def count(self) -> int:
        """Slots and places in a queue; memory that is used while nothing runs counts as one."""
        held = self.engine_running + self.engine_waiting + self.agent_running + self.agent_waiting
        return int(held) + (self.kv_used_share > 0)


def measure(tell: Tell, engine_url: str = "") -> Measured:
    with TemporaryDirectory(prefix="dynbranch-vllm-") as folder, ExitStack() as owned:
        url = engine_url or owned.enter_context(_own_engine(Path(folder), tell))
        tell("starting the services", 0, 0)
        options = StackOptions(state_dir=Path(folder, "stack"), engine_urls=(url,), engine_kind="vllm")
        stack = owned.enter_context(Stack(options))
        stack.wait_ready()
        return asyncio.run(_measure(url, stack, tell))


@contextmanager
def _own_engine(folder: Path, tell: Tell) -> Iterator[str]:
    home = Path(os.environ.get(HOME_VARIABLE) or DEFAULT_HOME).resolve()
    python = home / "venv/bin/python"
    if not python.exists():
        raise BenchFailed(f"there is no vLLM in {home}: make test-vllm installs one, or name --engine-url")
    tell("starting vLLM", 0, 0)
    (port,) = free_ports(1)
    line = (
        *(str(python), *MODULE, "--model", str(home / "model"), "--served-model-name", "smollm2"),
        *("--host", "127.0.0.1", "--port", str(port), "--scheduling-policy", "priority", "--enforce-eager"),
        *("--max-model-len", "2048", "--max-num-seqs", str(ENGINE_SLOTS), "--dtype", "bfloat16"),
        # A step that reads a long prompt must not take seconds: the engine hears nothing meanwhile.
        *("--max-num-batched-tokens", "512"),
    )
    spec = ProcessSpec("vllm", line, {**os.environ, **_ENVIRON})
    with Processes([spec], folder / "logs", stop_deadline_s=20.0) as processes:
        processes.wait_until(lambda: _unanswered(port), timeout_s=_START_S)
        yield f"http://127.0.0.1:{port}"


def _unanswered(port: int) -> str:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=2):
            return ""
    except OSError:
        return "vLLM"


async def _measure(url: str, stack: Stack, tell: Tell) -> Measured:
    agent, csl = GrpcEngineAgent(stack.addresses.agents[0]), GrpcCsl(stack.addresses.csl)
    connector = aiohttp.TCPConnector(force_close=True, limit=0)
    async with aiohttp.ClientSession(connector=connector) as session:
        run = _Run(url, stack, session, agent, csl, random.Random(_SEED), tell)
        try:
            engine = await run.engine()
            abort_ms = await run.aborts()
            rounds = [await run.leaving(number) for number in range(ROUNDS)]
        finally:
            await agent.close()
            await csl.close()
    assert not_ready_reason(stack.url) == "", "the stack served to the end"
    cancelled = sum(each["cancelled"] for each in rounds)
    left = [each["left"] for each in rounds]
    leaked = sum(each.count for each in left)
    figures = {
        "abort_p50_ms": median(abort_ms),
        "leaked_slots_or_kv": exact(leaked, cancelled),
        "cancels": exact(cancelled, cancelled),
    }
    raw = {
        "engine": engine,
        "engine_slots": ENGINE_SLOTS,
        "clients_at_once": CLIENTS_AT_ONCE,
        "abort_ms": [round(each, 2) for each in abort_ms],
        "rounds": [{**each, "left": asdict(each["left"])} for each in rounds],
    }
    failures = [f"round {number}: {each} is still held" for number, each in enumerate(left, 1) if each.count]
    return Measured(figures, raw, (*failures, *too_little(cancelled, rounds)))


def too_little(cancelled: int, rounds: list[dict[str, Any]]) -> list[str]:
    """Clients that leave an engine with free slots would show little."""
    missing = [f"only {cancelled} clients left in time"] if cancelled < NEEDED_CANCELS else []
    if sum(each["cancelled_in_decode"] for each in rounds) == 0:
        missing.append("nobody left during a decode")
    if max(each["peak_waiting"] for each in rounds) == 0:
        missing.append("nobody ever waited in the engine's queue")
    if max(each["peak_kv_used_share"] for each in rounds) == 0:
        missing.append("the engine never showed any memory in use")
    return missing


@dataclass(slots=True)
class _Run:
    url: str
    stack: Stack
    session: aiohttp.ClientSession
    agent: GrpcEngineAgent
    csl: GrpcCsl
    chance: random.Random
    tell: Tell
    model: str = ""

    async def engine(self) -> str:
        """Its version and the model that is asked for."""
        async with self.session.get(f"{self.url}/v1/models") as response:
            self.model = (await response.json())["data"][0]["id"]
        async with self.session.get(f"{self.url}/version") as response:
            return f"vllm {(await response.json())['version']}, {self.model}"

    # One after the other

    async def aborts(self) -> list[float]:
        found: list[float] = []
        for number in range(WARM_UP + ABORTS):
            self.tell("single clients leave", number, WARM_UP + ABORTS)
            took_ms = await self._abort(number)
            if number >= WARM_UP:
                found.append(took_ms)
        return found

    async def _abort(self, number: int) -> float:
        """Milliseconds from the closing of the connection to a running count of zero."""
        async with self._asked(self._body(f"a{number}", words=12)):
            await self._until("to run", lambda gauges: gauges[0] >= 1)
            await asyncio.sleep(self.chance.uniform(0.0, 1.0))
        gone = time.perf_counter()
        await self._until("to stop", lambda gauges: gauges[0] == 0)
        took_ms = (time.perf_counter() - gone) * 1000
        await self._until("to free its memory", lambda gauges: not any(gauges))
        return took_ms

    async def _until(self, what: str, holds: Callable[[tuple[float, float, float]], bool]) -> None:
        try:
            async with asyncio.timeout(_SETTLE_S):
                while not holds(await self._gauges()):
                    await asyncio.sleep(_LOOK_S)
        except TimeoutError:
            raise BenchFailed(f"the engine took more than {_SETTLE_S:g} s {what}") from None

    # Many at once

    async def leaving(self, number: int) -> dict[str, Any]:
        turns = iter(range(CANCELS_PER_ROUND))
        done: list[str] = []
        peak = [0.0, 0.0, 0.0]

        async def client() -> None:
            for turn in turns:
                done.append(await self._leave(f"r{number}-{turn}"))
                self.tell(f"clients leave, round {number + 1} of {ROUNDS}", len(done), CANCELS_PER_ROUND)

        async def watch() -> None:
            while True:
                peak[:] = map(max, peak, await self._gauges())
                await asyncio.sleep(0.2)

        watching = asyncio.create_task(watch())
        try:
            async with asyncio.TaskGroup() as clients:
                for _ in range(CLIENTS_AT_ONCE):
                    clients.create_task(client())
        finally:
            watching.cancel()
        began = time.perf_counter()
        left = await self._settled()
        return {
            "cancelled": done.count("in its decode") + done.count("before it heard anything"),
            "cancelled_in_decode": done.count("in its decode"),
            "finished": done.count("finished"),
            "peak_running": peak[0],
            "peak_waiting": peak[1],
            "peak_kv_used_share": round(peak[2], 4),
            "settled_ms": round((time.perf_counter() - began) * 1000, 1),
            "left": left,
        }

    async def _leave(self, label: str) -> str:
        """One client: streaming or not, greedy (through the store) or sampled, long or short."""
        body = self._body(label, words=self.chance.choice(WORDS))
        body["stream"] = self.chance.random() < 0.7
        body["temperature"] = self.chance.choice((0, 0.8))
        stays_s = self.chance.uniform(0.0, LONGEST_STAY_S)
        heard = 0
        try:
            async with asyncio.timeout(stays_s), self._asked(body) as response:
                async for data in response.content.iter_any():
                    heard += len(data)
                return "finished" if response.status == 200 else "refused"
        except TimeoutError:
            return "in its decode" if heard else "before it heard anything"

    async def _settled(self) -> Left:
        """What is left when nothing changes any more, or after ``_SETTLE_S``."""
        deadline = time.perf_counter() + _SETTLE_S
        while (left := await self._left()).count and time.perf_counter() < deadline:
            await asyncio.sleep(0.05)
        return left

    async def _left(self) -> Left:
        running, waiting, kv = await self._gauges()
        async with aclosing(self.agent.watch_occupancy(interval_ms=1000)) as reports:
            own = await anext(reports)
        stats = await self.csl.stats(timeout_s=5.0)
        return Left(running, waiting, kv, own.running, own.waiting, stats.leases)

    # Both

    def _body(self, label: str, words: int) -> dict[str, Any]:
        text = f"{label}. Tell a very long story about " + " ".join(self.chance.choices(_WORDS, k=words))
        message = {"role": "user", "content": text}
        return {
            "model": self.model,
            "messages": [message],
            "temperature": 0,
            "max_tokens": MAX_TOKENS,
            "ignore_eos": True,
            "stream": True,
        }

    @asynccontextmanager
    async def _asked(self, body: dict[str, Any]) -> AsyncIterator[aiohttp.ClientResponse]:
        """The connection is cut on leaving, whatever has come."""
        data = json.dumps(body)
        headers = {"content-type": "application/json"}
        post = self.session.post(f"{self.stack.url}/v1/chat/completions", data=data, headers=headers)
        async with post as response:
            try:
                yield response
            finally:
                response.close()

    async def _gauges(self) -> tuple[float, float, float]:
        """Running, waiting, and the share of KV memory in use, by the engine's own report."""
        async with self.session.get(f"{self.url}/metrics") as response:
            text = await response.text()
        names = ("vllm:num_requests_running", "vllm:num_requests_waiting", "vllm:kv_cache_usage_perc")
        found = [metric(text, name) for name in names]
        if None in found:
            raise BenchFailed(f"the engine at {self.url} does not show vLLM's gauges")
        return found[0] or 0.0, found[1] or 0.0, found[2] or 0.0
