"""The benchmarks of the store do not pass when they saw nothing."""

from __future__ import annotations

import asyncio
import random
import shutil
import zlib
from pathlib import Path

import pytest
from dynbranch.bench import csl_scale, store, store_crashes, store_histories
from dynbranch.csl import copies
from dynbranch.csl.rocks import DataDirectory
from dynbranch.demo.measures import exact


def test_rounds_in_which_hardly_anything_was_acknowledged_show_nothing() -> None:
    few = store_crashes.Findings(acknowledged_writes=49, acknowledged_commits=0)
    assert few.too_little("kill -9", 10) == [
        "kill -9: 49 writes were acknowledged in 10 rounds",
        "kill -9: no acknowledged commit had to be served",
    ]
    enough = store_crashes.Findings(acknowledged_writes=50, acknowledged_commits=1)
    assert enough.too_little("kill -9", 10) == []
    assert store_crashes.Findings().too_little("kill -9", 0) == []


@pytest.mark.parametrize("missing", store_histories.NEEDED)
def test_a_history_without_what_matters_shows_nothing(missing: str) -> None:
    answers = dict.fromkeys(store_histories.NEEDED, 1)
    assert store_histories.too_little(answers) == []
    del answers[missing]
    assert store_histories.too_little(answers) == [f"histories: no call was answered {missing!r}"]


def test_seeing_too_little_is_a_failure_of_the_benchmark(monkeypatch: pytest.MonkeyPatch) -> None:
    def idle(*_: object, **__: object) -> store.Found:
        return {"wrong": exact(0, 1)}, {"too_little": ["nothing happened"]}

    for part in ("run_histories", "run_simulation", "run_crashes", "run_hostile"):
        monkeypatch.setattr(store, part, idle)
    assert store.measure(lambda *_: None).failures == ("nothing happened",) * 4


@pytest.mark.parametrize("whole", [False, True])
def test_a_restore_keeps_what_read_nothing(whole: bool, tmp_path: Path) -> None:
    found = store_crashes.Findings()
    asyncio.run(store_crashes._one_restore(tmp_path, random.Random(1), found, whole=whole))
    assert (found.lost, found.unserved, found.looked_at) == ([], [], 12)


def test_a_restore_that_gives_an_empty_store_is_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def nothing(_: Path, data: DataDirectory, *__: object) -> None:
        shutil.rmtree(data.path)

    monkeypatch.setattr(copies, "restore", nothing)
    found = store_crashes.Findings()
    asyncio.run(store_crashes._one_restore(tmp_path, random.Random(1), found, whole=False))
    assert found.lost == [] and found.unserved


def test_what_a_cascade_is_timed_on_does_not_compress(tmp_path: Path) -> None:
    entries = list(csl_scale.tree(50))
    payloads = b"".join(payload for *_, payload in entries)
    assert len(payloads) == 50 * 1024 and len(zlib.compress(payloads)) >= len(payloads)
    csl_scale.load(tmp_path, iter(entries), lambda done: None)
    assert csl_scale._check(tmp_path) == []
    assert asyncio.run(csl_scale._cascade(tmp_path, 50)).keys() == {"s", "cleaned_s", "longest_block_ms"}
