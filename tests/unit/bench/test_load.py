"""The load's process against a stub engine, and what crosses its pipes."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator

import pytest
from dynbranch.bench import prompts
from dynbranch.bench.load import ClosedLoop, Streams, job_as_json, job_from_json, perform
from dynbranch.stub_engine.engine import StubEngine
from dynbranch.stub_engine.faults import Fault, FaultKind
from dynbranch.stub_engine.script import RequestView
from dynbranch.stub_engine.settings import StubSettings

CHAT = "/v1/chat/completions"


@pytest.fixture
async def stub() -> AsyncIterator[StubEngine]:
    async with StubEngine(StubSettings()) as running:
        yield running


@pytest.mark.parametrize(("cycle", "numbers"), [(0, [7, 8, 9, 10]), (3, [7, 8, 9, 7])])
async def test_a_closed_loop_asks_as_often_as_it_may(
    stub: StubEngine, cycle: int, numbers: list[int]
) -> None:
    seen_texts: list[str] = []

    def listen(view: RequestView) -> None:
        seen_texts.append(view.last_user)

    stub.writer = listen
    body = json.dumps(prompts.greedy(4))
    job = ClosedLoop(f"{stub.url}{CHAT}", body, 30.0, 2, first=7, cycle=cycle, most=4)
    seen = await perform(job)
    assert seen.requests == 4 and not seen.errors
    assert len(seen.begin_s) == len(seen.first_byte_ms) == len(seen.whole_ms) == 4
    assert seen.body_bytes > 4 * 16
    assert sorted(text.rpartition(" ")[2] for text in seen_texts) == sorted(map(str, numbers))


async def test_each_token_of_a_stream_has_its_moment(stub: StubEngine) -> None:
    body = json.dumps(prompts.streamed(prompts.sampled(20)))
    seen = await perform(Streams(f"{stub.url}{CHAT}", body, 3))
    assert seen.requests == 3
    # An event that announces, one for each token, two or three that end: some of them are left out.
    assert 3 * 16 <= len(seen.gaps_ms) <= 3 * 20


async def test_errors_are_counted_and_give_no_latency(stub: StubEngine) -> None:
    stub.faults.add(Fault(FaultKind.STATUS, status=503))
    job = ClosedLoop(f"{stub.url}{CHAT}", json.dumps(prompts.greedy(4)), 30.0, 1, most=3)
    seen = await perform(job)
    assert seen.errors == {"503": 3} and not seen.requests


@pytest.mark.parametrize(
    "job",
    [
        ClosedLoop("http://127.0.0.1:1/x", "{n}", 1.0, 2, 3, 4, 5, (("a", "b"),), (0, 1)),
        Streams("http://127.0.0.1:1/x", "{n}", 2, 3, (("a", "b"),), (0,)),
    ],
)
def test_a_job_crosses_the_pipe_unchanged(job: ClosedLoop | Streams) -> None:
    assert job_from_json(job_as_json(job)) == job
