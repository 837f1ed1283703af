"""The OTLP receiver gets what a real exporter sends and writes what the OTLP specification wants."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from dynbranch.demo.tracefile import TraceReceiver, read_spans
from dynbranch.demo.tracetree import trace_tree
from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.trace import Link, SpanKind, Status, StatusCode
from rich.console import Console


def send(endpoint: str) -> None:
    provider = TracerProvider(resource=Resource({"service.name": "one"}), shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(OTLPSpanExporter(endpoint=endpoint, insecure=True)))
    tracer = provider.get_tracer("test")
    with tracer.start_as_current_span("first") as first:
        first.set_status(Status(StatusCode.ERROR, "broken"))
    with (
        tracer.start_as_current_span(
            "parent", kind=SpanKind.SERVER, links=[Link(first.get_span_context())]
        ) as parent,
        tracer.start_as_current_span("child", attributes={"n": 7, "names": ["a", "b"], "ok": True}) as child,
    ):
        parent.add_event("seen")
        child.set_attribute("dynbranch.outcome", "hit")
    provider.shutdown()


@pytest.fixture
def receiver(tmp_path: Path) -> TraceReceiver:
    return TraceReceiver(tmp_path / "traces" / "spans.jsonl")


def test_spans_arrive_with_parents_links_attributes_and_status(receiver: TraceReceiver) -> None:
    with receiver:
        send(receiver.endpoint)
        (parent,) = receiver.wait_for(1, name="parent", timeout_s=10)
    spans = {span.name: span for span in receiver.spans()}
    assert spans["child"].parent_id == parent.span_id
    assert spans["child"].trace_id == parent.trace_id
    assert parent.links == ((spans["first"].trace_id, spans["first"].span_id),)
    assert parent.events == ("seen",)
    assert parent.kind == 2
    assert spans["child"].attributes == {"n": 7, "names": ["a", "b"], "ok": True, "dynbranch.outcome": "hit"}
    assert {s.service for s in spans.values()} == {"one"}
    assert spans["first"].failed
    assert not parent.failed


def test_the_file_is_otlp_json(receiver: TraceReceiver, tmp_path: Path) -> None:
    with receiver:
        send(receiver.endpoint)
        receiver.wait_for(1, name="parent", timeout_s=10)
    path = tmp_path / "traces" / "spans.jsonl"
    raw = [
        span
        for line in path.read_text().splitlines()
        for resource in json.loads(line)["resourceSpans"]
        for scope in resource["scopeSpans"]
        for span in scope["spans"]
    ]
    parent = next(span for span in raw if span["name"] == "parent")
    assert len(bytes.fromhex(parent["traceId"])) == 16
    assert len(bytes.fromhex(parent["links"][0]["spanId"])) == 8
    assert parent["kind"] == 2
    assert isinstance(parent["startTimeUnixNano"], str)
    assert read_spans(path) == receiver.spans()


def test_a_wait_for_spans_that_do_not_come_ends(receiver: TraceReceiver) -> None:
    with receiver, pytest.raises(TimeoutError, match="0 spans 'none'"):
        receiver.wait_for(1, name="none", timeout_s=0.01)


def test_a_trace_is_shown_as_a_tree(receiver: TraceReceiver) -> None:
    with receiver:
        send(receiver.endpoint)
        (child,) = receiver.wait_for(1, name="child", timeout_s=10)
        receiver.wait_for(1, name="parent", timeout_s=10)
    console = Console(width=200, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    console.print(trace_tree(receiver.spans(), child.trace_id))
    console.file.close()
    lines = console.export_text().splitlines()
    assert "parent" in lines[1]
    assert "child" in lines[2]
    assert "outcome=hit" in lines[2]
    assert len(lines) == 3
