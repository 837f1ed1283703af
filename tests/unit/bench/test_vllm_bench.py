from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
from dynbranch.bench import vllm
from dynbranch.bench.registry import BENCHES, Wishes
from dynbranch.bench.result import BenchFailed
from dynbranch.bench.vllm import Left
from dynbranch.cli.bench_command import run_bench
from dynbranch.cli.failures import CliFailure

NOTHING = Left(0.0, 0.0, 0.0, 0, 0, 0)


def test_whatever_is_held_is_a_leak() -> None:
    assert NOTHING.count == 0
    for name in ("engine_running", "engine_waiting", "agent_running", "agent_waiting"):
        assert dataclasses.replace(NOTHING, **{name: 2}).count == 2
    assert dataclasses.replace(NOTHING, kv_used_share=0.001).count == 1


def test_seeing_too_little_is_a_failure() -> None:
    enough = {"cancelled_in_decode": 1, "peak_waiting": 1.0, "peak_kv_used_share": 0.1}
    assert vllm.too_little(300, [enough]) == []
    assert len(vllm.too_little(299, [dict.fromkeys(enough, 0)])) == 4


def test_without_an_engine_it_says_how_to_get_one(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv(vllm.HOME_VARIABLE, str(tmp_path))
    with pytest.raises(BenchFailed, match="make test-vllm"):
        vllm.measure(lambda what, done, total: None)


def test_only_some_take_an_engine() -> None:
    assert BENCHES["vllm"].takes_engine
    with pytest.raises(CliFailure) as refused:
        run_bench("names", None, Wishes("http://127.0.0.1:1"))
    assert "own engines" in str(refused.value)
