"""``dynbranch calibrate`` against stub engines that slow down with what runs on them."""

from __future__ import annotations

import math
import re
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from dynbranch.calibration.engines import HttpEngine, found_by_agent, found_by_url, session_with
from dynbranch.calibration.picture import can_draw, draw
from dynbranch.calibration.probing import ProbeFailed
from dynbranch.calibration.run import Wanted, calibrate
from dynbranch.cli.main import app
from dynbranch.controller.core.pricing.prices import curves_from, prior_curves
from dynbranch.enginemodel.parameters import BatchParameters
from dynbranch.runtime.clock import SystemClock
from dynbranch.stub_engine.engine import StubEngine
from dynbranch.stub_engine.faults import Fault, FaultKind
from dynbranch.stub_engine.settings import StubSettings
from typer.testing import CliRunner

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
