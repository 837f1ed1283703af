"""The embedded engine for real: llama.cpp's server with a 135M model, in a child process."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing, asynccontextmanager
from pathlib import Path

import pytest
from dynbranch.domain.engine import Completed, Failed, GenerationEnd, GenerationOrder, ModelDescription
from dynbranch.engine_agent.engines.embedded import EmbeddedEngine, EmbeddedSettings, packaged_model
from dynbranch.engine_agent.engines.http import Timeouts
from dynbranch.engine_agent.engines.openai import OpenAiEngine, OpenAiSettings
from dynbranch.engine_agent.engines.port import EngineUnavailable
from dynbranch.engine_agent.engines.probe import Flavour
from dynbranch.engine_agent.shell import Agent
from dynbranch.naming.chunks import result_digest
from dynbranch.runtime.clock import SystemClock
from unit.engine_agent.samples import StubCsl, chat_order

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]

MODEL_ID = "smollm2"
QUESTIONS = (
    "Name three colours.",
    "What is the capital of France?",
    "Write one sentence about rain.",
    "Count from one to ten.",
)


def engine(model_path: Path | None = None) -> EmbeddedEngine:
    path = model_path or packaged_model()
    assert path is not None, "the weights package is not installed"
    settings = EmbeddedSettings(
        path, MODEL_ID, slots=4, threads=1, context_tokens=1024, timeouts=Timeouts(idle_s=120, probe_s=60)
    )
    return EmbeddedEngine(settings, SystemClock())


@asynccontextmanager
async def running(embedded: EmbeddedEngine, csl: StubCsl | None = None) -> AsyncIterator[Agent]:
    async with Agent(embedded, csl, SystemClock()) as agent:
        await asyncio.wait_for(agent.until_ready(), 120)
        yield agent


async def model_of(agent: Agent) -> ModelDescription:
    return (await agent.describe()).models[0]


async def ran(agent: Agent, order: GenerationOrder) -> tuple[list[bytes], GenerationEnd | None]:
    items: list[bytes] = []
    end = None
    async with aclosing(agent.generate(order)) as events:
        async for message in events:
            items += message.items
            end = message.end
    return items, end


async def until(condition: Callable[[], bool], seconds: float = 60) -> None:
    async with asyncio.timeout(seconds):
        while not condition():
            await asyncio.sleep(0.01)


def has_items(agent: Agent, order: GenerationOrder, count: int) -> bool:
    generation = agent.registry.find(order.generation_id)
    return generation is not None and len(generation.items) >= count


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.promise("I1")
async def test_greedy_output_is_the_same_alone_and_among_others() -> None:
    csl = StubCsl()
    async with running(engine(), csl) as agent:
        model = await model_of(agent)

        async def answer(question: str) -> bytes:
            order = chat_order(question, model=model, leased=True, max_tokens=12)
            items, end = await ran(agent, order)
            assert isinstance(end, Completed) and end.commit == "committed"
            return result_digest(items)

        alone = [await answer(question) for question in QUESTIONS]
        together = await asyncio.gather(*(answer(question) for question in QUESTIONS))
        again = await asyncio.gather(*(answer(QUESTIONS[0]) for _ in range(4)))
        assert alone == together and set(again) == {alone[0]}
        assert [commit.payload_digest for commit in csl.commits[:4]] == alone
        assert len(set(alone)) == len(QUESTIONS), "not vacuous"


@pytest.mark.promise("C1.abort_frees_the_slot")
async def test_an_abort_frees_the_slot_by_the_engines_own_count() -> None:
    embedded = engine()
    async with running(embedded) as agent:
        model = await model_of(agent)
        orders = [chat_order(f"Tell a long story {i}", model=model, max_tokens=900) for i in range(5)]
        tasks = [asyncio.create_task(ran(agent, order)) for order in orders]
        first = agent.registry.slots
        await until(lambda: len(first.held) == 4 and len(first.waiting) == 1)
        async with asyncio.timeout(60):
            while (await embedded.counts()).running != 4:
                await asyncio.sleep(0.01)
        tasks[0].cancel()  # the client leaves
        await until(lambda: has_items(agent, orders[4], 1))
        assert (await embedded.counts()).running == 4, "the one that waited runs, and no more than four"
        for order in orders[1:]:
            assert await agent.abort(order.generation_id, reason="enough")
        counts = await embedded.counts()
        assert (counts.running, counts.waiting) == (0, 0)
        await asyncio.gather(*tasks, return_exceptions=True)
        assert not agent.registry.slots.held
        assert agent.metrics.unconfirmed._value.get() == 0


async def test_a_killed_engine_is_started_again_and_answers_as_before() -> None:
    csl = StubCsl()
    embedded = engine()
    async with running(embedded, csl) as agent:
        model = await model_of(agent)
        before, _ = await ran(agent, chat_order(QUESTIONS[0], model=model, max_tokens=12))
        pid = embedded.child_pid
        assert pid is not None
        order = chat_order("Tell a long story", model=model, max_tokens=900, leased=True)
        task = asyncio.create_task(ran(agent, order))
        await until(lambda: has_items(agent, order, 4))
        os.kill(pid, signal.SIGKILL)
        items, end = await asyncio.wait_for(task, 60)
        assert items and isinstance(end, Failed) and not end.may_retry
        await until(lambda: embedded.child_pid not in (None, pid))
        async with asyncio.timeout(120):
            await agent.until_ready()
        assert (await model_of(agent)).fingerprint == model.fingerprint
        after, _ = await ran(agent, chat_order(QUESTIONS[0], model=model, max_tokens=12))
        assert result_digest(after) == result_digest(before)
        assert csl.commits == [] and order.lease is not None and csl.released == [order.lease.lease_id]
        second = embedded.child_pid
    assert second is not None and not alive(second), "nothing is left running"


async def test_the_engines_own_error_comes_through() -> None:
    async with running(engine()) as agent:
        model = await model_of(agent)
        _, end = await ran(agent, chat_order("word " * 3000, model=model, leased=True))
        assert isinstance(end, Failed) and end.http_status == 400 and not end.may_retry
        assert json.loads(end.body)["error"]["type"] == "exceed_context_size_error"
        _, end = await ran(agent, chat_order(model=model, max_tokens="many"))
        assert isinstance(end, Failed) and 400 <= end.http_status < 600


async def test_the_probe_knows_the_packaged_model() -> None:
    embedded = engine()
    try:
        facts = await embedded.start()
        (model,) = facts.models
        known = dict(model.fingerprint.facts)
        assert model.id == MODEL_ID and model.context_tokens == 1024 and facts.slots == 4
        assert known["weights"].startswith("sha256:b179c9523d0e6a0f")
        assert known["quantisation"] == "Q4_1" and known["prefix_cache"] == "off"
        assert "instance" not in known
        assert model.equivalences == {"single_text_block_is_string"} and model.not_reusable_reason == ""

        attached = OpenAiEngine(OpenAiSettings(facts.bypass_url), SystemClock())
        try:
            (seen,) = (await attached.start()).models
            assert attached.flavour is Flavour.LLAMA_SERVER
            assert dict(seen.fingerprint.facts)["rendering"] == known["rendering"]
            assert seen.fingerprint != model.fingerprint, "from outside, its weights are not known"
        finally:
            await attached.close()
    finally:
        await embedded.close()


async def test_a_model_that_can_not_be_loaded_is_a_reason_not_a_crash(tmp_path: Path) -> None:
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(b"GGUF but not really")
    embedded = engine(broken)
    with pytest.raises(EngineUnavailable, match="did not start"):
        await embedded.start()
    assert embedded.child_pid is None
    missing = engine(tmp_path / "missing.gguf")
    with pytest.raises(EngineUnavailable):
        await missing.start()
    assert missing.child_pid is None


async def test_the_engine_ends_with_its_agent_however_that_ends() -> None:
    script = (
        "import asyncio\n"
        "from e2e.engine_agent.test_embedded import engine\n"
        "async def main():\n"
        "    embedded = engine()\n"
        "    await embedded.start()\n"
        "    print(embedded.child_pid, flush=True)\n"
        "    await asyncio.sleep(600)\n"
        "asyncio.run(main())\n"
    )
    tests = str(Path(__file__).parents[2])
    parent = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        script,
        stdout=asyncio.subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": tests},
    )
    assert parent.stdout is not None
    child = int(await asyncio.wait_for(parent.stdout.readline(), 120))
    assert alive(child)
    parent.kill()
    await parent.wait()
    await until(lambda: not alive(child))
