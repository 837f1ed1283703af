"""The ``generate`` span and its ``csl.commit``, as an exporter would get them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import aclosing
from typing import Any

import pytest
from dynbranch.domain.engine import Failed
from dynbranch.engine_agent.fake import FakeEngineAgent, Script, text_chunks
from dynbranch.engine_agent.observing import GenerationSpans
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.trace import SpanKind, StatusCode
from unit.engine_agent.samples import StubCsl, chat_order


class Kept(SpanExporter):
    def __init__(self) -> None:
        self.spans: list[ReadableSpan] = []

    def export(self, spans: Any) -> SpanExportResult:
        self.spans += spans
        return SpanExportResult.SUCCESS

    def named(self, name: str) -> ReadableSpan:
        (span,) = [span for span in self.spans if span.name == name]
        return span


@pytest.fixture
def provider(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[TracerProvider, Kept]]:
    kept = Kept()
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(kept))
    made = GenerationSpans.__init__

    def with_tracer(self: GenerationSpans) -> None:
        made(self)
        self._tracer = provider.get_tracer("test")

    monkeypatch.setattr(GenerationSpans, "__init__", with_tracer)
    yield provider, kept
    provider.shutdown()


async def test_a_generation_is_one_server_span_with_its_commit(
    provider: tuple[TracerProvider, Kept],
) -> None:
    tracer, kept = provider
    async with FakeEngineAgent(csl=StubCsl()) as fake:
        with tracer.get_tracer("gateway").start_as_current_span("caller") as caller:
            order = chat_order(leased=True, max_tokens=7)
            async with aclosing(fake.generate(order, idle_s=5)) as events:
                async for _ in events:
                    pass
    span, commit = kept.named("generate"), kept.named("csl.commit")
    assert span.kind is SpanKind.SERVER and commit.kind is SpanKind.CLIENT
    assert span.parent is not None and span.parent.span_id == caller.get_span_context().span_id
    assert commit.parent is not None and commit.parent.span_id == span.get_span_context().span_id
    attributes = dict(span.attributes or {})
    assert attributes["gen_ai.operation.name"] == "chat"
    assert attributes["gen_ai.request.model"] == "fake-model"
    assert attributes["gen_ai.request.max_tokens"] == 7
    assert attributes["gen_ai.request.temperature"] == 0
    assert attributes["gen_ai.response.finish_reasons"] == ("stop",)
    assert (attributes["gen_ai.usage.input_tokens"], attributes["gen_ai.usage.output_tokens"]) == (7, 2)
    assert attributes["dynbranch.commit"] == "committed"


async def test_a_failure_is_an_error_span(provider: tuple[TracerProvider, Kept]) -> None:
    _, kept = provider
    async with FakeEngineAgent() as fake:
        failure = Failed(500, b"{}", may_retry=False)
        fake.engine.writer = lambda order: Script(text_chunks(("x",)), fail_after=1, failure=failure)
        async with aclosing(fake.generate(chat_order(), idle_s=5)) as events:
            async for _ in events:
                pass
    span = kept.named("generate")
    assert span.status.status_code is StatusCode.ERROR
    assert dict(span.attributes or {})["dynbranch.outcome"] == "failed"


async def test_an_aborts_span_says_how_long_the_engine_took_to_let_go(
    provider: tuple[TracerProvider, Kept],
) -> None:
    _, kept = provider
    async with FakeEngineAgent() as fake:
        fake.engine.writer = lambda order: Script(gate=asyncio.Event())
        order = chat_order()
        events = fake.generate(order, idle_s=5)
        task = asyncio.ensure_future(anext(events))
        while not fake.engine.running:
            await asyncio.sleep(0)
        await fake.abort(order.generation_id, reason="enough", timeout_s=5)
        await task
        await events.aclose()
    attributes = dict(kept.named("generate").attributes or {})
    assert attributes["dynbranch.outcome"] == "aborted" and attributes["dynbranch.abort_ms"] >= 0
