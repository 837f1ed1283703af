"""A vLLM that the agent starts, with the stub engine in its place."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path
from typing import Any

import pytest
from contract.engine_agent.real_engines import items_of, model_of, ran, running, until
from dynbranch.domain.engine import Completed, Failed
from dynbranch.domain.reuse import Level
from dynbranch.engine_agent.engines.port import EngineUnavailable
from dynbranch.engine_agent.engines.vllm import PRIORITIES, VllmEngine, VllmSettings
from dynbranch.engine_agent.engines.vllm_process import Command
from dynbranch.runtime.clock import SystemClock
from unit.engine_agent.samples import chat_order

TWIN = str(Path(__file__).with_name("vllm_twin.py"))


@pytest.fixture
def model(tmp_path: Path) -> Path:
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "generation_config.json").write_text('{"temperature": 0.7}')
    (folder / "config.json").write_text('{"torch_dtype": "bfloat16"}')
    return folder


@pytest.fixture
def pids(tmp_path: Path) -> Path:
    return tmp_path / "pids"


def engine(model: Path, pids: Path | None = None, *arguments: str, **settings: Any) -> VllmEngine:
    settings.setdefault("command", (sys.executable, TWIN))
    told = ("--max-num-seqs", "3", *(("--pids", str(pids)) if pids is not None else ()), *arguments)
    return VllmEngine(VllmSettings(model=str(model), model_id="m", arguments=told, **settings), SystemClock())


def started(pids: Path) -> list[list[int]]:
    """The processes of each start: the server's and its core's."""
    return [[int(number) for number in line.split()] for line in pids.read_text().splitlines()]


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


async def test_it_is_started_probed_and_ends_with_the_agent(model: Path, pids: Path) -> None:
    async with running(engine(model, pids)) as agent:
        facts = agent._state.facts
        known = dict(facts.models[0].fingerprint.facts)
        assert facts.slots == 3 and facts.models[0].id == "m" and facts.fields.priorities == PRIORITIES
        assert known["weights"].startswith("sha256:") and known["weights.dtype"] == "bfloat16"
        assert known["default.temperature"] == "0.7" and known["engine.arguments"].startswith(
            "--max-num-seqs"
        )
        _, end = await ran(agent, chat_order(model=facts.models[0], max_tokens=3))
        assert isinstance(end, Completed)
        ((server, core),) = started(pids)
        assert alive(server) and alive(core)
    assert not alive(server) and not alive(core)


async def test_what_dies_is_started_again_whole(model: Path, pids: Path) -> None:
    kept = engine(model, pids)
    async with running(kept) as agent:
        before = await model_of(agent)
        order = chat_order(model=before, max_tokens=1000)
        task = asyncio.create_task(ran(agent, order))
        await until(lambda: items_of(agent, order) > 2)
        (first,) = started(pids)
        os.kill(first[0], signal.SIGKILL)
        items, end = await task
        assert items and isinstance(end, Failed) and not end.may_retry
        await until(lambda: kept.engine_pid not in (None, first[0]))
        await asyncio.wait_for(agent.until_ready(), 60)
        assert await model_of(agent) == before
        assert not alive(first[1]), "nothing of the first one is left"
        assert len(started(pids)) == 2


@pytest.mark.promise("I1")
async def test_replaced_weights_are_another_executor_after_the_restart(model: Path) -> None:
    kept = engine(model)
    try:
        found = []
        for weights in ("a", "a", "b"):
            if not (model / "model.safetensors").exists() or weights == "b":
                (model / "model.safetensors").write_text(weights * 2)
            found.append((await kept.start()).models[0].fingerprint)
        assert found[0] == found[1] != found[2]
    finally:
        await kept.close()


async def test_it_ends_however_the_agent_ends(model: Path, pids: Path) -> None:
    script = (
        "import asyncio, sys\n"
        "from pathlib import Path\n"
        "from integration.engine_agent.test_supervised_vllm import engine\n"
        "async def main():\n"
        "    kept = engine(Path(sys.argv[1]), Path(sys.argv[2]))\n"
        "    await kept.start()\n"
        "    print('started', flush=True)\n"
        "    await asyncio.sleep(600)\n"
        "asyncio.run(main())\n"
    )
    agent = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", script, str(model), str(pids)),
        stdout=asyncio.subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
    )
    assert agent.stdout is not None
    assert await asyncio.wait_for(agent.stdout.readline(), 60) == b"started\n"
    ((server, core),) = started(pids)
    agent.kill()
    await agent.wait()
    await until(lambda: not alive(server) and not alive(core))


async def test_a_command_that_does_not_start_gives_way_to_the_next(model: Path) -> None:
    broken = Command((sys.executable, TWIN, "--refuse", "serve"), model_is_first=True)
    good = Command((sys.executable, TWIN), model_is_first=False)
    settings = VllmSettings(model=str(model), model_id="m")
    kept = VllmEngine(settings, SystemClock(), find=lambda told: (broken, good))
    try:
        assert (await kept.start()).models[0].id == "m"
        assert kept._started_well == good, "the next start tries no other"
    finally:
        await kept.close()


async def test_one_that_can_not_start_is_a_reason_not_a_crash(model: Path) -> None:
    for command, reason in (
        ((sys.executable, TWIN, "--refuse"), "ended with status 3: PackageNotFoundError"),
        (("/nowhere/vllm", "serve"), "can not be run"),
    ):
        kept = engine(model, command=command)
        with pytest.raises(EngineUnavailable, match=reason):
            await kept.start()
        assert kept.engine_pid is None
        await kept.close()


async def test_a_server_of_ours_shows_its_level_and_its_order(model: Path) -> None:
    kept = engine(model, None, "--scheduling-policy", "fcfs", level=Level.BATCH_INVARIANT)
    facts = await kept.start()
    await kept.close()
    (found,) = facts.models
    assert found.fingerprint.level is Level.BATCH_INVARIANT
    assert "VLLM_BATCH_INVARIANT=1" in dict(found.fingerprint.facts)["engine.environment"]
    assert facts.fields.priorities == {}


async def test_a_model_that_is_not_there_has_no_weights_digest(tmp_path: Path) -> None:
    kept = engine(tmp_path / "none")
    facts = await kept.start()
    await kept.close()
    known = dict(facts.models[0].fingerprint.facts)
    assert "weights" not in known and known["instance"] and facts.fields.defaults == {}
