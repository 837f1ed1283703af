"""The adapter against engines that break their promises, over real HTTP."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from contract.engine_agent.scripted_stub import reply_of
from dynbranch.domain.engine import Failed, GenerationOrder
from dynbranch.engine_agent.engines.http import Timeouts
from dynbranch.engine_agent.engines.openai import OpenAiEngine, OpenAiSettings
from dynbranch.engine_agent.engines.port import CleanEnd, EngineError, EngineUnavailable
from dynbranch.engine_agent.engines.probe import Flavour
from dynbranch.engine_agent.fake import Script, text_chunks
from dynbranch.runtime.clock import SystemClock
from dynbranch.stub_engine.engine import StubEngine
from dynbranch.stub_engine.faults import Fault, FaultKind
from dynbranch.stub_engine.script import Reply
from unit.engine_agent.samples import chat_order

ITEMS = text_chunks(("one", "two"))


@asynccontextmanager
async def started(stub: StubEngine, **settings: Any) -> AsyncIterator[OpenAiEngine]:
    engine = OpenAiEngine(
        OpenAiSettings(stub.url, timeouts=Timeouts(idle_s=5, probe_s=5), **settings), SystemClock()
    )
    try:
        await engine.start()
        yield engine
    finally:
        await engine.close()


async def outcome(
    engine: OpenAiEngine, order: GenerationOrder | None = None
) -> tuple[list[bytes], CleanEnd | Failed]:
    items: list[bytes] = []
    try:
        return items, await engine.run(order or chat_order(), items.extend)
    except EngineError as error:
        return items, error.failure


def says(
    stub: StubEngine, *parts: bytes, kind: str = "text/event-stream", fault: Fault | None = None
) -> None:
    """The next answers are streams of these very bytes."""
    stub.writer = lambda view: Reply(parts=parts, content_type=kind, fault=fault)


def data(item: bytes) -> bytes:
    return b"data: " + item + b"\n\n"


GOOD = [data(item) for item in ITEMS]
DONE = b"data: [DONE]\n\n"


async def test_a_good_stream(stub: StubEngine) -> None:
    says(stub, b": keep-alive\n\n", *GOOD, DONE)
    async with started(stub) as engine:
        assert await outcome(engine) == (list(ITEMS), CleanEnd())


@pytest.mark.promise("C1.failures_are_not_stored")
@pytest.mark.parametrize(
    ("events", "hang_up"),
    [
        ((*GOOD,), False),
        ((*GOOD[:2], DONE), False),
        ((*GOOD[:2], GOOD[2][:30]), False),
        ((*GOOD[:2], GOOD[2][:30] + b"\n\n", *GOOD[3:], DONE), False),
        ((*GOOD[:2],), True),
        ((*GOOD,), True),
        ((*GOOD[:2], data(b'{"error":{"code":500,"message":"out of memory"}}'), *GOOD[2:], DONE), False),
        ((*GOOD[:2], b"data: " + b"x" * 5_000_000), False),
    ],
    ids=[
        "no end mark",
        "no finish",
        "cut event",
        "cut JSON",
        "dies",
        "dies at the end",
        "error",
        "endless line",
    ],
)
async def test_a_broken_stream_fails(stub: StubEngine, events: tuple[bytes, ...], hang_up: bool) -> None:
    cut = Fault(FaultKind.CUT, after_tokens=len(events))
    says(stub, *events, fault=cut if hang_up else None)
    async with started(stub) as engine:
        items, failure = await outcome(engine)
    assert isinstance(failure, Failed) and not failure.may_retry
    assert items == list(ITEMS[: len(items)])
    json.loads(failure.body)


async def test_an_error_chunk_keeps_the_engines_words(stub: StubEngine) -> None:
    error = b'{"error":{"code":400,"message":"no"}}'
    says(stub, data(error), DONE)
    async with started(stub) as engine:
        assert await outcome(engine) == ([], Failed(400, error, may_retry=False))


async def test_an_answer_that_is_no_stream(stub: StubEngine) -> None:
    says(stub, b'{"choices":[]}', kind="application/json")
    async with started(stub) as engine:
        _, failure = await outcome(engine)
    assert isinstance(failure, Failed) and b"application/json" in failure.body


@pytest.mark.parametrize(
    ("status", "may_retry"), [(400, False), (404, False), (429, True), (500, False), (503, True)]
)
async def test_a_refusal_keeps_status_body_and_type(stub: StubEngine, status: int, may_retry: bool) -> None:
    stub.faults.add(Fault(FaultKind.STATUS, status=status, body="<b>no</b>", content_type="text/html"))
    async with started(stub) as engine:
        _, failure = await outcome(engine)
    assert failure == Failed(status, b"<b>no</b>", may_retry, "text/html")


@pytest.mark.parametrize("advice", ["17", "Fri, 31 Dec 1999 23:59:59 GMT"])
async def test_a_refusal_says_when_to_come_back(stub: StubEngine, advice: str) -> None:
    stub.faults.add(Fault(FaultKind.STATUS, status=429, retry_after_s=advice))
    async with started(stub) as engine:
        _, failure = await outcome(engine)
    assert isinstance(failure, Failed) and failure.retry_after == advice


async def test_an_engine_that_falls_silent(stub: StubEngine) -> None:
    stub.faults.add(Fault(FaultKind.HANG))
    engine = OpenAiEngine(OpenAiSettings(stub.url, timeouts=Timeouts(idle_s=0.1)), SystemClock())
    _, failure = await outcome(engine)
    await engine.close()
    assert isinstance(failure, Failed) and failure.http_status == 0 and failure.may_retry


async def test_no_engine_at_all(stub: StubEngine) -> None:
    async with started(stub) as engine:
        await stub.stop()
        _, failure = await outcome(engine)
        assert isinstance(failure, Failed) and failure.may_retry
        with pytest.raises(EngineUnavailable):
            await engine.counts()
        assert await asyncio.wait_for(engine.lost(), 20)
        with pytest.raises(EngineUnavailable):
            await engine.start()


async def test_cancelling_a_run_closes_the_engines_stream(stub: StubEngine) -> None:
    script = Script(text_chunks([str(i) for i in range(10_000)]), between_s=0.001)
    stub.writer = lambda view: reply_of(script)
    async with started(stub) as engine:
        begun = asyncio.Event()
        run = asyncio.create_task(engine.run(chat_order(), lambda items: begun.set()))
        await begun.wait()
        assert (await engine.counts()).running == 1
        run.cancel()
        async with asyncio.timeout(10):
            while (await engine.counts()).running:
                await asyncio.sleep(0.005)


async def test_keys_and_forwarded_headers(stub: StubEngine) -> None:
    async with started(stub, api_key="configured") as engine:
        await outcome(engine)
        assert stub.requests[-1].headers["authorization"] == "Bearer configured"
        order = chat_order()
        forwarded = GenerationOrder(
            order.generation_id,
            order.protocol,
            order.target,
            order.body,
            order.fingerprint_digest,
            order.identity,
            forward_headers=(("authorization", "Bearer theirs"), ("x-trace", "1")),
        )
        await outcome(engine, forwarded)
    assert (
        stub.requests[-1].headers["authorization"] == "Bearer theirs"
        and stub.requests[-1].headers["x-trace"] == "1"
    )
    assert stub.bodies[-1] == order.body


@pytest.mark.promise("I1")
async def test_a_server_that_was_replaced_is_noticed(stub: StubEngine) -> None:
    async with started(stub) as engine:
        assert await engine.unchanged()
        await stub.stop()
        assert not await engine.unchanged()
        await stub.start()
        assert not await engine.unchanged(), "it answers, but it is another process"
        assert await asyncio.wait_for(engine.lost(), 20) == "the server has become another"
        await engine.start()
        assert await engine.unchanged()


async def test_the_probe_of_a_llama_server(stub: StubEngine) -> None:
    async with started(stub) as engine:
        facts = await engine.start()
        (model,) = facts.models
        known = dict(model.fingerprint.facts)
        assert engine.flavour is Flavour.LLAMA_SERVER
        assert facts.slots == 2 and model.context_tokens == 512 and model.aliases == ("stub-alias",)
        assert "single_text_block_is_string" in model.equivalences
        assert known["default.temperature"] == "0.8" and known["quantisation"] == "F16"
        assert known["instance"].startswith(stub.url), "the weights are not known"
        before = model.fingerprint
        stub.template += " "
        assert (await engine.start()).models[0].fingerprint != before


async def test_facts_of_the_operator(stub: StubEngine) -> None:
    async with started(stub, facts={"weights": "sha256:1"}) as engine:
        known = dict((await engine.start()).models[0].fingerprint.facts)
    assert known["weights"] == "sha256:1" and "instance" not in known


@pytest.mark.promise("C1.clock_templates_are_not_reused")
async def test_a_template_that_reads_the_clock(stub: StubEngine) -> None:
    stub.template = "{{ strftime_now('%Y') }}"
    async with started(stub) as engine:
        assert "clock" in (await engine.start()).models[0].not_reusable_reason
    async with started(stub, facts={"chat_template": "I know it"}) as engine:
        assert (await engine.start()).models[0].not_reusable_reason == ""
