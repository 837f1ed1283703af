"""What people see of the agent: metrics, and one ``generate`` span per generation."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from dynbranch.domain.engine import Aborted, Completed, Failed, GenerationOrder, WireProtocol
from dynbranch.domain.ids import GenerationId
from dynbranch.engine_agent.core.registry import GAVE_WAY, Generation
from dynbranch.naming.chunks import finish_reasons, usage
from dynbranch.runtime import telemetry
from opentelemetry.context import Context
from opentelemetry.trace import INVALID_SPAN, Span, StatusCode, set_span_in_context, use_span
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0)
_ABORT_SECONDS = (0.001, 0.003, 0.01, 0.03, 0.06, 0.1, 0.2, 0.5, 1.0, 2.0)

_REQUEST_ATTRIBUTES = {
    "max_tokens": telemetry.GEN_AI_REQUEST_MAX_TOKENS,
    "temperature": telemetry.GEN_AI_REQUEST_TEMPERATURE,
    "top_p": telemetry.GEN_AI_REQUEST_TOP_P,
    "seed": telemetry.GEN_AI_REQUEST_SEED,
}


class AgentMetrics:
    """Registered with ``registry`` once per agent."""

    def __init__(self, registry: CollectorRegistry) -> None:
        def named(kind: Callable[..., Any], name: str, text: str, *labels: str, **options: Any) -> Any:
            return kind(f"dynbranch_engine_agent_{name}", text, labels, registry=registry, **options)

        self.generations: Counter = named(Counter, "generations", "Generations that are over.", "outcome")
        # Finding a metric by its labels costs more than counting.
        self._by_outcome = {
            outcome: self.generations.labels(outcome=outcome)
            for outcome in ("completed", "failed", "aborted")
        }
        self.commits: Counter = named(Counter, "commits", "Answers to commits.", "answer")
        self.losses: Counter = named(Counter, "engine_losses", "Times that the engine was lost.")
        self.unconfirmed: Counter = named(
            Counter, "unconfirmed_aborts", "Aborts that the engine's own count did not confirm in time."
        )
        self.unknown_leases: Counter = named(
            Counter, "unknown_leases", "Renewed leases that the store no longer knew."
        )
        self.execution: Histogram = named(
            Histogram, "execution_seconds", "From the start on the engine to its end.", buckets=_SECONDS
        )
        self.first_item: Histogram = named(
            Histogram,
            "first_item_seconds",
            "From the start on the engine to the first item.",
            buckets=_SECONDS,
        )
        self.waited: Histogram = named(
            Histogram, "wait_seconds", "From the order to a free slot.", buckets=_SECONDS
        )
        self.abort: Histogram = named(
            Histogram, "abort_seconds", "From the abort until the engine let go.", buckets=_ABORT_SECONDS
        )
        self.abort_confirmed: Histogram = named(
            Histogram,
            "abort_confirmed_seconds",
            "From the abort until the engine's own count of running requests had fallen.",
            buckets=_ABORT_SECONDS,
        )
        self.fill_refusals: Counter = named(Counter, "fill_refusals", "Fills and drafts beyond the limits.")
        self.gave_way: Counter = named(
            Counter, "fills_gave_way", "Fills and drafts aborted because canonical work needed their slots."
        )
        self.adopted: Counter = named(Counter, "fills_adopted", "Fills that a demand took over.")
        self.fills: Gauge = named(Gauge, "fills", "Slots with fills and drafts that nobody waits for yet.")
        self.speculative_tokens: Gauge = named(
            Gauge, "speculative_tokens", "Tokens of KV cache that fills and drafts have reserved."
        )
        self.running: Gauge = named(Gauge, "running", "Slots in use.")
        self.waiting: Gauge = named(Gauge, "waiting", "Generations that wait for a slot.")
        self.leases: Gauge = named(Gauge, "leases", "Leases held in the store.")
        self.followers: Gauge = named(Gauge, "followers", "Streams that follow a generation.")

    def ended(self, generation: Generation) -> None:
        self._by_outcome[_outcome(generation)].inc()
        if generation.adopted:
            self.adopted.inc()
        if isinstance(generation.end, Aborted) and generation.end.reason == GAVE_WAY:
            self.gave_way.inc()
        if generation.started_at is None:
            return
        self.execution.observe(generation.execution_ms / 1000)
        self.waited.observe(generation.started_at - generation.admitted_at)
        if generation.first_item_at is not None:
            self.first_item.observe(generation.first_item_at - generation.started_at)


class GenerationSpans:
    """Spans of the generations that are not over. The one who ordered a generation is its span's parent."""

    def __init__(self) -> None:
        self._tracer = telemetry.tracer("dynbranch.engine_agent")
        self._open: dict[GenerationId, Span] = {}

    def start(self, order: GenerationOrder, kind: str) -> None:
        span = self._tracer.start_span(telemetry.SPAN_GENERATE, kind=telemetry.SpanKind.SERVER)
        if not span.get_span_context().is_valid:
            return  # nobody exports, and the caller named none
        self._open[order.generation_id] = span
        if span.is_recording():
            span.set_attributes(_order_attributes(order, kind))

    def end(self, generation: Generation) -> None:
        span = self._open.pop(generation.id, None)
        if span is None:
            return
        if span.is_recording():
            span.set_attributes(_end_attributes(generation))
            if isinstance(generation.end, Failed):
                span.set_status(StatusCode.ERROR, f"engine status {generation.end.http_status}")
        span.end()

    def traceparent(self, generation: GenerationId) -> str:
        span = self._open.get(generation)
        return "" if span is None else telemetry.traceparent(span)

    def current(self, generation: GenerationId) -> AbstractContextManager[Span]:
        """Makes the generation's span the parent of what its engine is asked."""
        span = self._open.get(generation)
        return nullcontext(INVALID_SPAN) if span is None else use_span(span, record_exception=False)

    def commit(self, generation: GenerationId) -> AbstractContextManager[Span]:
        """The ``csl.commit`` span, a child of the generation's."""
        parent = set_span_in_context(self._open.get(generation, INVALID_SPAN), Context())
        return telemetry.span(
            self._tracer, telemetry.SPAN_CSL_COMMIT, context=parent, kind=telemetry.SpanKind.CLIENT
        )

    def close(self) -> None:
        while self._open:
            _, span = self._open.popitem()
            span.end()


def _outcome(generation: Generation) -> str:
    match generation.end:
        case Completed():
            return "completed"
        case Failed():
            return "failed"
        case Aborted() | None:
            return "aborted"


def _order_attributes(order: GenerationOrder, kind: str) -> dict[str, Any]:
    attributes: dict[str, Any] = {
        "dynbranch.generation_id": order.generation_id.hex(),
        "dynbranch.leased": order.lease is not None,
        "dynbranch.work": order.work.value,
        telemetry.GEN_AI_PROVIDER_NAME: kind,
    }
    if order.protocol is WireProtocol.TOOL:
        operation = {
            telemetry.GEN_AI_OPERATION_NAME: "execute_tool",
            telemetry.GEN_AI_TOOL_NAME: order.target,
        }
        return {**attributes, **operation}
    attributes[telemetry.GEN_AI_OPERATION_NAME] = "chat"
    attributes[telemetry.GEN_AI_REQUEST_MODEL] = order.target
    attributes[telemetry.GEN_AI_REQUEST_STREAM] = True
    try:
        body = json.loads(order.body)
    except (ValueError, RecursionError):
        # An engine may read what Python does not, such as a number of very many digits.
        return attributes
    for field, attribute in _REQUEST_ATTRIBUTES.items():
        if isinstance(body.get(field), int | float):
            attributes[attribute] = body[field]
    return attributes


def _end_attributes(generation: Generation) -> dict[str, Any]:
    attributes: dict[str, Any] = {
        "dynbranch.outcome": _outcome(generation),
        "dynbranch.execution_ms": generation.execution_ms,
        "dynbranch.items": len(generation.items),
    }
    if generation.adopted:
        attributes["dynbranch.adopted"] = True
    if isinstance(generation.end, Completed):
        attributes["dynbranch.commit"] = generation.end.commit
    if generation.started_at is not None:
        attributes["dynbranch.wait_ms"] = (generation.started_at - generation.admitted_at) * 1000
        if isinstance(generation.end, Aborted) and generation.terminal_at is not None:
            ran_ms = (generation.terminal_at - generation.started_at) * 1000
            # Until then it ran; from then on the engine was asked to let go, and did.
            attributes["dynbranch.abort_ms"] = ran_ms - generation.execution_ms
        if generation.first_item_at is not None:
            first_s = generation.first_item_at - generation.started_at
            attributes[telemetry.GEN_AI_RESPONSE_TIME_TO_FIRST_CHUNK] = first_s
    if generation.order.protocol is WireProtocol.CHAT_COMPLETIONS and generation.items:
        attributes.update(_response_attributes(generation))
    return attributes


def _response_attributes(generation: Generation) -> dict[str, Any]:
    attributes: dict[str, Any] = {}
    try:
        reasons = [reason for reason in finish_reasons(generation.items) if reason]
        counts = usage(generation.items) or {}
    except (ValueError, RecursionError):  # MalformedLog is a ValueError
        return {}
    if reasons:
        attributes[telemetry.GEN_AI_RESPONSE_FINISH_REASONS] = reasons
    for key, attribute in (
        ("prompt_tokens", telemetry.GEN_AI_USAGE_INPUT_TOKENS),
        ("completion_tokens", telemetry.GEN_AI_USAGE_OUTPUT_TOKENS),
    ):
        if isinstance(counts.get(key), int):
            attributes[attribute] = counts[key]
    return attributes
