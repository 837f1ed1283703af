"""The processes of a stand: pinned, loaded, priced, and gone afterwards."""

from __future__ import annotations

import json
import os
import time
import urllib.request
from pathlib import Path

import pytest
from dynbranch.bench import prompts
from dynbranch.bench.cpu_time import cpu_s, pin
from dynbranch.bench.stand import CHAT, Arm, LoadFailed, Stand


def _quiet(what: str, done: int, total: int) -> None:
    """No progress in tests."""


def _answer(arm: Arm, body: dict[str, object]) -> bytes:
    request = urllib.request.Request(arm.url + CHAT, json.dumps(body).encode())
    with urllib.request.urlopen(request, timeout=30) as answer:
        data: bytes = answer.read()
        return data


def test_engine_and_plain_proxy_answer_the_same_and_are_priced(tmp_path: Path) -> None:
    with Stand(tmp_path, _quiet, pinned=True) as stand:
        engine = stand.engine(prompts.RULES)
        plain = stand.plain(engine)
        for arm in (engine, plain):
            found = stand.run(arm, stand.closed(arm, prompts.sampled(8), 60.0, 2, most=20))
            assert found.seen.requests == 20
            assert found.cpu_us_per_request > 0
        body = prompts.greedy(8)
        texts = [json.loads(_answer(arm, body))["choices"] for arm in (engine, plain)]
        assert texts[0] == texts[1]
        streamed = prompts.streamed(body)
        assert _answer(plain, streamed).endswith(b"data: [DONE]\n\n")
        pids = [*engine.pids.values(), *plain.pids.values()]
    assert not [pid for pid in pids if Path(f"/proc/{pid}").exists()]


def test_a_load_that_nobody_answers_fails(tmp_path: Path) -> None:
    with Stand(tmp_path, _quiet, pinned=False) as stand:
        gone = stand.engine()
    with pytest.raises(LoadFailed):
        stand.run(Arm("gone", gone.url), stand.closed(gone, prompts.greedy(8), 0.2, 1))


def test_cpu_time_of_a_process_grows_with_its_work() -> None:
    before = cpu_s([os.getpid()])
    begin = time.process_time()
    while time.process_time() - begin < 0.02:
        pass
    assert cpu_s([os.getpid()]) - before >= 0.02
    pin([os.getpid()], ())
