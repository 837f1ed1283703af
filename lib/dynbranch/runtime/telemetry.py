"""Traces. Without an exporter configured the SDK is not even imported and every span is the API's no-op.

The names of the GenAI semantic conventions are constants here: those in the OpenTelemetry packages are
deprecated.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext

from opentelemetry import trace
from opentelemetry.context import Context, get_current
from opentelemetry.trace import Span, SpanKind, Tracer
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

__all__ = [
    "SpanKind",
    "add_link",
    "configure",
    "extract",
    "inject",
    "shutdown",
    "span",
    "traceparent",
    "tracer",
]

GEN_AI_OPERATION_NAME = "gen_ai.operation.name"
GEN_AI_PROVIDER_NAME = "gen_ai.provider.name"
GEN_AI_REQUEST_MODEL = "gen_ai.request.model"
GEN_AI_REQUEST_MAX_TOKENS = "gen_ai.request.max_tokens"
GEN_AI_REQUEST_TEMPERATURE = "gen_ai.request.temperature"
GEN_AI_REQUEST_TOP_P = "gen_ai.request.top_p"
GEN_AI_REQUEST_SEED = "gen_ai.request.seed"
GEN_AI_REQUEST_STREAM = "gen_ai.request.stream"
GEN_AI_RESPONSE_MODEL = "gen_ai.response.model"
GEN_AI_RESPONSE_FINISH_REASONS = "gen_ai.response.finish_reasons"
GEN_AI_RESPONSE_TIME_TO_FIRST_CHUNK = "gen_ai.response.time_to_first_chunk"
GEN_AI_TOOL_NAME = "gen_ai.tool.name"
GEN_AI_USAGE_INPUT_TOKENS = "gen_ai.usage.input_tokens"
GEN_AI_USAGE_OUTPUT_TOKENS = "gen_ai.usage.output_tokens"

SPAN_ARRIVAL = "arrival"
SPAN_CSL_DEMAND = "csl.demand"
SPAN_CSL_COMMIT = "csl.commit"
SPAN_GENERATE = "generate"
SPAN_PROMOTION = "promotion"
SPAN_WRITE = "write"
SPAN_CASCADE = "cascade"

_ENDPOINTS = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
_MAX_QUEUED_SPANS = 16_384
"""The SDK's default of 2048 overflows under load, and a lost span breaks a trace."""

_NO_SPAN = nullcontext(trace.INVALID_SPAN)

_PROPAGATED = ("traceparent", "tracestate")


def configure(service: str, environ: Mapping[str, str] | None = None) -> bool:
    """Set up export to the OTLP endpoint that the environment names. Returns whether there is one.

    Sampling follows the SDK's own OTEL_TRACES_SAMPLER variables. Without the ``telemetry`` extra installed, a
    set endpoint is an ImportError: better than traces that silently go nowhere.
    """
    env = os.environ if environ is None else environ
    if env.get("OTEL_SDK_DISABLED", "").lower() == "true" or not any(env.get(name) for name in _ENDPOINTS):
        return False
    # Imported only here: the SDK costs start-up time and memory that an unset exporter must not pay.
    from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    resource = Resource.create({"service.name": env.get("OTEL_SERVICE_NAME") or f"dynbranch-{service}"})
    provider = TracerProvider(resource=resource, shutdown_on_exit=False)
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(), max_queue_size=_MAX_QUEUED_SPANS))
    trace.set_tracer_provider(provider)
    return True


def shutdown() -> None:
    """Send what is queued and stop. Blocks for as long as the exporter's own timeout allows."""
    stop = getattr(trace.get_tracer_provider(), "shutdown", None)
    if stop is not None:
        stop()


def tracer(name: str) -> Tracer:
    """A tracer that follows ``configure``, whichever of the two is called first."""
    return trace.get_tracer(name)


def span(
    tracer: Tracer, name: str, kind: SpanKind = SpanKind.INTERNAL, context: Context | None = None
) -> AbstractContextManager[Span]:
    """A span that is current within. Where nobody exports and the caller named none, it costs nothing."""
    if isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider) and not (
        get_current() if context is None else context
    ):
        return _NO_SPAN
    return tracer.start_as_current_span(name, context=context, kind=kind)


def inject() -> tuple[tuple[str, str], ...]:
    """The current span as headers of an outgoing call; nothing when there is none."""
    if not trace.get_current_span().get_span_context().is_valid:
        return ()
    carrier: dict[str, str] = {}
    TraceContextTextMapPropagator().inject(carrier)
    return tuple(carrier.items())


def extract(headers: Mapping[str, str] | Iterable[tuple[str | bytes, str | bytes]]) -> Context:
    """The caller's span, to be the parent of ours. Empty when the headers name none, or wrongly."""
    pairs = headers.items() if isinstance(headers, Mapping) else headers
    carrier: dict[str, str] = {}
    for key, value in pairs:
        name = _text(key).lower()
        if name in _PROPAGATED:
            carrier[name] = _text(value)
    if "traceparent" not in carrier:
        return Context()
    return TraceContextTextMapPropagator().extract(carrier, context=Context())


def traceparent(span: Span) -> str:
    """The span by its W3C name, to be linked to later; empty when nobody records it."""
    context = span.get_span_context()
    if not context.is_valid or not span.is_recording():
        return ""
    carrier: dict[str, str] = {}
    TraceContextTextMapPropagator().inject(carrier, context=trace.set_span_in_context(span, Context()))
    return carrier.get("traceparent", "")


def add_link(span: Span, other: str) -> None:
    """Point from a span to one named by its traceparent, in whichever trace that is."""
    if not other or not span.is_recording():
        return
    target = trace.get_current_span(extract({"traceparent": other})).get_span_context()
    if target.is_valid:
        span.add_link(target)


def _text(value: str | bytes) -> str:
    return value if isinstance(value, str) else value.decode("latin-1")
