"""The embedded engine for real: llama.cpp's server with a 135M model, in a child process."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from pathlib import Path

import pytest
from contract.engine_agent.real_engines import RealEngine, RealEngineSuite, model_of, ran, running, until
from dynbranch.domain.engine import Failed
from dynbranch.engine_agent.engines.embedded import EmbeddedEngine, EmbeddedSettings, packaged_model
from dynbranch.engine_agent.engines.http import Timeouts
from dynbranch.engine_agent.engines.openai import OpenAiEngine, OpenAiSettings
from dynbranch.engine_agent.engines.port import Engine, EngineUnavailable
from dynbranch.engine_agent.engines.probe import Flavour
from dynbranch.naming.equivalences import (
    ABSENT_CONTENT,
    BLOCK_BESIDE_CALLS,
    CALL_IDS,
    EMPTY_CONTENT,
    SINGLE_TEXT_BLOCK,
)
from dynbranch.runtime.clock import SystemClock
from unit.engine_agent.samples import chat_order

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]

MODEL_ID = "smollm2"
EVERY_EQUIVALENCE = {SINGLE_TEXT_BLOCK, BLOCK_BESIDE_CALLS, CALL_IDS, ABSENT_CONTENT, EMPTY_CONTENT}


def engine(model_path: Path | None = None) -> EmbeddedEngine:
    path = model_path or packaged_model()
    assert path is not None, "the weights package is not installed"
    settings = EmbeddedSettings(
        path, MODEL_ID, slots=4, threads=1, context_tokens=1024, timeouts=Timeouts(idle_s=120, probe_s=60)
    )
    return EmbeddedEngine(settings, SystemClock())


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


class TestEmbedded(RealEngineSuite):
    @pytest.fixture
    def real(self) -> RealEngine:
        return RealEngine(engine, engine, _child_pid, slots=4)


def _child_pid(embedded: Engine) -> int | None:
    assert isinstance(embedded, EmbeddedEngine)
    return embedded.child_pid


async def test_a_prompt_that_is_too_long_is_told_as_the_engine_tells_it() -> None:
    async with running(engine()) as agent:
        _, end = await ran(agent, chat_order("word " * 3000, model=await model_of(agent)))
        assert isinstance(end, Failed)
        assert json.loads(end.body)["error"]["type"] == "exceed_context_size_error"


async def test_nothing_is_left_running() -> None:
    embedded = engine()
    async with running(embedded):
        pid = embedded.child_pid
        assert pid is not None and alive(pid)
    assert not alive(pid)


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
        assert model.equivalences == EVERY_EQUIVALENCE and model.not_reusable_reason == ""

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
