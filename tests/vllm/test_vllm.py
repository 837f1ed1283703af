"""vLLM for real, with the weights of the embedded engine."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing
from dataclasses import replace
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from contract.engine_agent.real_engines import (
    RealEngine,
    RealEngineSuite,
    items_of,
    model_of,
    nothing_left,
    ran,
    running,
    until,
)
from contract.engine_agent.vllm_server import ARGUMENTS, ENVIRON, SLOTS, command, model, served
from dynbranch.domain.engine import Completed, GenerationOrder, ModelDescription, WorkClass
from dynbranch.domain.reuse import Level
from dynbranch.engine_agent.engines.fingerprint import metric
from dynbranch.engine_agent.engines.http import Timeouts
from dynbranch.engine_agent.engines.port import Engine
from dynbranch.engine_agent.engines.vllm import PRIORITIES, VllmEngine, VllmSettings
from dynbranch.engine_agent.shell import Agent
from dynbranch.naming.chunks import result_digest, usage
from dynbranch.naming.document import parse_body
from dynbranch.naming.verdict import judge
from dynbranch.runtime.clock import SystemClock
from unit.engine_agent.samples import chat_order

pytestmark = [pytest.mark.timeout(600)]

TIMEOUTS = Timeouts(idle_s=120, probe_s=60)


def attached(url: str, **settings: Any) -> VllmEngine:
    settings.setdefault("slots", SLOTS)
    return VllmEngine(VllmSettings(engine_url=url, timeouts=TIMEOUTS, **settings), SystemClock())


def own(*arguments: str, **settings: Any) -> VllmEngine:
    return VllmEngine(
        VllmSettings(
            model=settings.pop("model", model()),
            model_id="smollm2",
            command=command(),
            arguments=(*ARGUMENTS, *arguments),
            environ=ENVIRON,
            timeouts=TIMEOUTS,
            **settings,
        ),
        SystemClock(),
    )


def _pid(engine: Engine) -> int | None:
    assert isinstance(engine, VllmEngine)
    return engine.engine_pid


class TestVllm(RealEngineSuite):
    @pytest.fixture
    def real(self, server: str) -> RealEngine:
        return RealEngine(lambda: attached(server), own, _pid, SLOTS)


@pytest.fixture
async def wide(server: str) -> AsyncIterator[tuple[Agent, VllmEngine, ModelDescription]]:
    """An agent that lets more through than the engine runs at once, so that the engine's queue decides."""
    engine = attached(server, slots=16)
    async with running(engine) as agent:
        yield agent, engine, await model_of(agent)


async def test_what_a_harness_waits_for_overtakes_what_nobody_waits_for(
    wide: tuple[Agent, VllmEngine, ModelDescription],
) -> None:
    agent, engine, model = wide
    ended: list[str] = []

    async def run(name: str, order: GenerationOrder) -> None:
        _, end = await ran(agent, order)
        if isinstance(end, Completed):
            ended.append(name)

    def order(text: str, work: WorkClass, tokens: int) -> GenerationOrder:
        return replace(chat_order(text, model=model, max_tokens=tokens, ignore_eos=True), work=work)

    long = [order(f"Tell a story {i}.", WorkClass.FILL, 40) for i in range(SLOTS)]
    tasks = [asyncio.create_task(run("long", one)) for one in long]
    await until(lambda: all(items_of(agent, one) for one in long))
    for number, work in enumerate((WorkClass.DRAFT, WorkClass.FILL) * 2):
        tasks.append(asyncio.create_task(run(work.value, order(f"Say {number}.", work, 8))))
    async with asyncio.timeout(60):
        while (await engine.counts()).waiting != 4:
            await asyncio.sleep(0.02)
    tasks.append(asyncio.create_task(run("canonical", order("Say it.", WorkClass.CANONICAL, 4))))
    await asyncio.gather(*tasks)
    short = [name for name in ended if name != "long"]
    assert short[0] == "canonical" and sorted(short) == ["canonical", "draft", "draft", "fill", "fill"]
    assert short.index("fill") < short.index("draft")
    await nothing_left(agent, engine)


async def test_under_a_tiny_pool_the_engine_takes_back_what_nobody_waits_for(tmp_path: Path) -> None:
    """Six blocks of 128 tokens (one more is never used) hold two prompts of three each, and not what both
    decode."""
    tiny = ("--num-gpu-blocks-override", "7", "--max-model-len", "640", "--no-enable-prefix-caching")
    with served(tmp_path / "tiny.log", *ARGUMENTS, *tiny, "--scheduling-policy", "priority") as url:
        engine = attached(url)
        async with running(engine) as agent:
            model = await model_of(agent)

            def order(word: str, work: WorkClass) -> GenerationOrder:
                text = f"{word} " * 320
                made = chat_order(text, model=model, max_tokens=80, ignore_eos=True, leased=True)
                return replace(made, work=work)

            fill, canonical = order("rain", WorkClass.FILL), order("sun", WorkClass.CANONICAL)
            first = asyncio.create_task(ran(agent, fill))
            await until(lambda: items_of(agent, fill) >= 2)
            seen = asyncio.create_task(ran(agent, canonical))
            items, end = await seen
            assert isinstance(end, Completed)
            assert not first.done(), "what a harness waits for came first"
            told = usage(items)
            assert told is not None and told["prompt_tokens"] > 2 * 128 and told["completion_tokens"] == 80
            preempted, end = await first
            assert isinstance(end, Completed), "it went on where it was, for those who follow it"
            told = usage(preempted)
            assert told is not None and told["completion_tokens"] == 80
            async with aiohttp.ClientSession() as session, session.get(f"{url}/metrics") as response:
                assert (metric(await response.text(), "vllm:num_preemptions_total") or 0) >= 1
            await nothing_left(agent, engine)


async def test_occupancy_shows_the_engines_queue_and_memory(
    wide: tuple[Agent, VllmEngine, ModelDescription],
) -> None:
    agent, engine, model = wide
    orders = [chat_order(f"Tell a story {i}.", model=model, max_tokens=400) for i in range(SLOTS + 2)]
    tasks = [asyncio.create_task(ran(agent, order)) for order in orders]
    async with asyncio.timeout(60), aclosing(agent.watch_occupancy(interval_ms=20)) as reports:
        async for report in reports:
            counted = (report.running, report.engine_running, report.engine_waiting)
            if counted == (SLOTS + 2, SLOTS, 2) and (report.kv_used_share or 0) > 0:
                break
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    await nothing_left(agent, engine)


async def test_what_the_agent_learns_of_an_attached_server(server: str) -> None:
    engine = attached(server, level=Level.BATCH_INVARIANT)
    try:
        facts = await engine.start()
    finally:
        await engine.close()
    (found,) = facts.models
    known = dict(found.fingerprint.facts)
    assert facts.fields.priorities == PRIORITIES and facts.fields.salt_field == "cache_salt"
    assert known["engine"] == "vllm" and known["weights.dtype"] == "float16" and known["instance"]
    assert known["model"] == model() and known["kv.block_size"] == "128"
    assert found.fingerprint.level is Level.GREEDY, "nobody can show that its kernels are batch invariant"
    assert facts.fields.defaults["smollm2"]["temperature"] == known["default.temperature"] == "1.0"
    silent = parse_body(b'{"messages": []}').value
    assert isinstance(silent, dict) and judge(silent, found.fingerprint).reason == "sampled"


async def test_our_own_server_and_defaults_that_its_model_brings(tmp_path: Path) -> None:
    """A model whose own defaults are greedy; a server without priorities; the end of the whole group."""
    folder = _greedy_model(tmp_path / "greedy")
    engine = own("--scheduling-policy", "fcfs", model=str(folder))
    async with running(engine) as agent:
        facts = agent._state.facts
        (found,) = facts.models
        known = dict(found.fingerprint.facts)
        assert facts.fields.priorities == {} and facts.slots == SLOTS
        assert known["weights"].startswith("sha256:") and "instance" not in known
        assert "--dtype float32" in known["engine.arguments"] and "--port" not in known["engine.arguments"]
        assert "VLLM_CPU_KVCACHE_SPACE=1" in known["engine.environment"]
        silent = parse_body(b'{"messages": []}').value
        assert isinstance(silent, dict) and judge(silent, found.fingerprint).reason == "greedy"
        body = b'{"model": "smollm2", "messages": [{"role": "user", "content": "Hi."}], "max_tokens": 12}'
        fill = replace(chat_order(model=found, body=body), work=WorkClass.FILL)
        answers = {
            result_digest((await ran(agent, order))[0])
            for order in (fill, chat_order(model=found, body=body))
        }
        assert len(answers) == 1, "greedy although the request is silent, and no priority is sent"
        pid = engine.engine_pid
        assert pid is not None and len(_group(pid)) > 1
    assert not _group(pid), "its engine core and workers ended too"


def _greedy_model(folder: Path) -> Path:
    folder.mkdir()
    for file in Path(model()).iterdir():
        if file.name != "generation_config.json":
            (folder / file.name).symlink_to(file)
    (folder / "generation_config.json").write_text('{"temperature": 0.0, "top_p": 0.9, "eos_token_id": 2}')
    return folder


def _group(leader: int) -> list[str]:
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[2]) == leader and fields[0] != "Z":
            found.append(stat.parent.name)
    return found


async def test_salts_keep_cached_prefixes_apart(
    wide: tuple[Agent, VllmEngine, ModelDescription], server: str
) -> None:
    agent, _, model = wide
    text = "The passage says: " + "word " * 300

    async def hits(scope: str) -> float:
        order = replace(chat_order(text, model=model, max_tokens=1), cache_scope=scope)
        async with aiohttp.ClientSession() as session:
            before = await _hits(session, server)
            await ran(agent, order)
            return await _hits(session, server) - before

    assert [await hits(scope) > 0 for scope in ("a" * 32, "a" * 32, "b" * 32)] == [False, True, False]


async def _hits(session: aiohttp.ClientSession, url: str) -> float:
    async with session.get(f"{url}/metrics") as response:
        return metric(await response.text(), "vllm:prefix_cache_hits_total") or 0.0
