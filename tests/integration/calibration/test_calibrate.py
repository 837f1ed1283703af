"""``dynbranch calibrate`` against stub engines that slow down with what runs on them."""

from __future__ import annotations

import math
import re
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest
from dynbranch.calibration.engines import HttpEngine, found_by_agent, found_by_url, session_with
from dynbranch.calibration.picture import can_draw, draw
from dynbranch.calibration.plan import Machine
from dynbranch.calibration.probing import ProbeFailed
from dynbranch.calibration.run import Wanted, calibrate
from dynbranch.cli.main import app
from dynbranch.controller.core.pricing.prices import curves_from, prior_curves
from dynbranch.engine_agent.core.registry import Limits
from dynbranch.engine_agent.fake import FAKE_MODEL, ScriptedEngine
from dynbranch.engine_agent.server import service
from dynbranch.engine_agent.shell import Agent
from dynbranch.enginemodel.parameters import BatchParameters
from dynbranch.runtime.clock import SystemClock
from dynbranch.runtime.server import GrpcServer
from dynbranch.stub_engine.engine import StubEngine
from dynbranch.stub_engine.faults import Fault, FaultKind
from dynbranch.stub_engine.settings import StubSettings
from typer.testing import CliRunner
from unit.engine_agent.samples import StubCsl

SLOWS = BatchParameters(
    decode_step_ms=2.0,
    batched_extra_ms=0.0,
    sequence_ms=4.0,
    kilotoken_ms=1.0,
    prefill_tokens_per_s=1e6,
    kv_pool_tokens=100_000,
    slots=3,
)


@pytest.fixture
async def stub() -> AsyncIterator[StubEngine]:
    async with StubEngine(StubSettings(latency=SLOWS, max_model_len=4096)) as engine:
        yield engine


async def test_a_running_engine_gets_its_curves(stub: StubEngine) -> None:
    told: list[float] = []
    wanted = Wanted(url=f"{stub.url}/v1", slots=3, kv_budget_tokens=2000, probe_s=0.1, most_rounds=2)
    done = await calibrate(wanted, SystemClock(), lambda _, share: told.append(share))
    assert {level.fills for level in done.stretches} == {0, 1, 2}
    assert any(level.context_tokens for level in done.stretches)
    assert curves_from(done.document) == done.curves
    assert done.document["engine"]["model"] == "stub-model"
    assert told == sorted(told)
    assert stub.running == 0, "what was begun was ended"
    assert max(received.size_bytes for received in stub.requests) > 6000, "contexts were as long as asked"


async def test_an_engine_is_found_by_its_url(stub: StubEngine) -> None:
    async with session_with("") as session:
        found = await found_by_url(f"{stub.url}/", session)
        assert (found.url, found.machine.model, found.machine.context_tokens) == (
            stub.url,
            "stub-model",
            4096,
        )
        ran = await HttpEngine(found.url, "stub-model", session).run("some words", 5, lambda: None)
        assert ran.tokens == 5 and ran.prompt_tokens > 0 and math.isfinite(ran.ms)
        await stub.stop()
        with pytest.raises(ProbeFailed, match="no engine answers"):
            await found_by_url(stub.url, session)
    with pytest.raises(ProbeFailed, match="no engine agent"):
        await found_by_agent("127.0.0.1:9")


@asynccontextmanager
async def agent_of(engine: ScriptedEngine) -> AsyncIterator[str]:
    clock = SystemClock()
    async with AsyncExitStack() as stack:
        limits = Limits(fill_kv_tokens=5000)
        agent = await stack.enter_async_context(Agent(engine, StubCsl(clock), clock, limits=limits))
        server = GrpcServer("127.0.0.1:0", [service(agent)], clock)
        address = await server.start()
        stack.push_async_callback(server.stop, 0.1)
        await agent.until_ready()
        yield address


async def test_an_engine_is_found_through_its_agent(stub: StubEngine) -> None:
    clock = SystemClock()
    async with agent_of(ScriptedEngine(clock, slots=3, bypass_url=f"{stub.url}/v1")) as address:
        found = await found_by_agent(address)
    assert (found.url, found.busy) == (stub.url, 0)
    assert found.machine == Machine(FAKE_MODEL.id, 3, 5000, FAKE_MODEL.context_tokens)
    for engine in (
        ScriptedEngine(clock, bypass_url=""),
        ScriptedEngine(clock, models=(), bypass_url=stub.url),
    ):
        async with agent_of(engine) as address:
            with pytest.raises(ProbeFailed, match=r"does not say where|serves no model"):
                await found_by_agent(address)


async def test_refusals_and_nonsense_are_told(stub: StubEngine) -> None:
    async with session_with("") as session:
        engine = HttpEngine(stub.url, "stub-model", session)
        stub.faults.add(Fault(FaultKind.STATUS, status=503, times=1))
        with pytest.raises(ProbeFailed, match="503"):
            await engine.run("words", 5, lambda: None)
        stub.faults.add(Fault(FaultKind.MALFORMED, after_tokens=1, times=1))
        with pytest.raises(ProbeFailed, match="not a chunk"):
            await engine.run("words", 5, lambda: None)
        stub.faults.add(Fault(FaultKind.CUT, after_tokens=1, times=1))
        with pytest.raises(ProbeFailed):
            await engine.run("words", 5, lambda: None)
    with pytest.raises(ProbeFailed, match="--slots"):
        await calibrate(Wanted(url=stub.url), SystemClock(), lambda *_: None)


def test_the_command_says_what_is_missing(tmp_path: Path) -> None:
    runner = CliRunner()
    for arguments in ([], ["--agent", "127.0.0.1:9", "--url", "http://127.0.0.1:9"]):
        found = runner.invoke(app, ["calibrate", *arguments])
        assert found.exit_code == 1 and "which engine" in found.output
    found = runner.invoke(app, ["calibrate", "--url", "http://127.0.0.1:9", "-o", str(tmp_path / "c.json")])
    assert found.exit_code == 1 and "no engine answers" in found.output
    assert not (tmp_path / "c.json").exists()
    if not can_draw():
        found = runner.invoke(app, ["calibrate", "--url", "http://127.0.0.1:9", "--plot", "p.svg"])
        assert found.exit_code == 1 and re.search(r"needs matplotlib", found.output)


def test_a_plot_has_both_curves(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    measured = curves_from(
        {"version": 1, "curves": {"slot": [[0.5, 40.0], [1.0, 200.0]], "kv": [[0.5, 3000.0]]}}
    )
    draw(tmp_path / "new" / "curve.svg", measured, prior_curves(), "model, 4 slots")
    text = (tmp_path / "new" / "curve.svg").read_text()
    assert "</svg>" in text
