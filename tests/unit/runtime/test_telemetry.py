from __future__ import annotations

import json
import logging
import subprocess
import sys

import pytest
from dynbranch.runtime import telemetry
from dynbranch.runtime.config import ConfigError
from dynbranch.runtime.logs import JsonLines, configure_logging
from opentelemetry import context, trace

TRACE = "0af7651916cd43dd8448eb211c80319c"
PARENT = f"00-{TRACE}-b7ad6b7169203331-01"


def span_of(headers: object) -> trace.SpanContext:
    return trace.get_current_span(telemetry.extract(headers)).get_span_context()  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "headers",
    [
        {"Traceparent": PARENT},
        [("x-other", "1"), ("traceparent", PARENT)],
        [(b"traceparent", PARENT.encode())],
    ],
)
def test_the_caller_s_span_is_found_in_any_kind_of_headers(headers: object) -> None:
    assert trace.format_trace_id(span_of(headers).trace_id) == TRACE


@pytest.mark.parametrize("headers", [{}, {"traceparent": "00-zz-1-01"}, [(b"traceparent", b"\xff")]])
def test_wrong_or_absent_headers_make_a_new_trace(headers: object) -> None:
    assert not span_of(headers).is_valid


def test_what_is_extracted_is_injected_again() -> None:
    assert telemetry.inject() == ()
    token = context.attach(telemetry.extract({"traceparent": PARENT, "tracestate": "a=b"}))
    try:
        assert dict(telemetry.inject()) == {"traceparent": PARENT, "tracestate": "a=b"}
    finally:
        context.detach(token)


@pytest.mark.parametrize(
    ("environ", "configured"),
    [
        ({}, False),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": ""}, False),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:1", "OTEL_SDK_DISABLED": "true"}, False),
        ({"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://127.0.0.1:1"}, True),
    ],
)
def test_the_sdk_is_imported_only_when_an_exporter_is_set(environ: dict[str, str], configured: bool) -> None:
    program = f"""
import sys
from dynbranch.runtime import telemetry, server, run
tracer = telemetry.tracer("early")
assert telemetry.configure("probe", {environ!r}) is {configured}
with tracer.start_as_current_span("arrival") as span:
    assert span.is_recording() is {configured}
assert any(name.startswith("opentelemetry.sdk") for name in sys.modules) is {configured}
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr


def test_log_lines_are_json_with_the_trace() -> None:
    try:
        raise KeyError("lost")
    except KeyError:
        record = logging.LogRecord("x", logging.ERROR, "f", 1, "went %s", ("wrong",), sys.exc_info())
    token = context.attach(telemetry.extract({"traceparent": PARENT}))
    try:
        line = json.loads(JsonLines("csl").format(record))
    finally:
        context.detach(token)
    assert (line["service"], line["level"], line["message"]) == ("csl", "error", "went wrong")
    assert line["trace_id"] == TRACE
    assert "KeyError" in line["error"]


def test_an_unknown_log_level_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DYNBRANCH_LOG_LEVEL", "loud")
    with pytest.raises(ConfigError, match="loud"):
        configure_logging("csl")
