"""The controller's Prometheus metrics."""

from __future__ import annotations

from typing import assert_never

from dynbranch.controller.core.journal import OTHER_OUTCOME, OUTCOMES, Received
from dynbranch.domain.events import ArrivalSeen, ChoiceSeen, ControllerSummary, OutcomeSeen
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

_LATENCY_BUCKETS_S = (0.001, 0.005, 0.02, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120)


class ControllerMetrics:
    """Counts what batches bring. Labels come from a closed set, so that no peer can grow them."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._arrivals = Counter(
            "dynbranch_controller_arrivals", "Arrivals that gateways reported.", registry=registry
        )
        self._outcomes = Counter(
            "dynbranch_controller_outcomes",
            "Outcomes that gateways reported.",
            ("outcome", "failed"),
            registry=registry,
        )
        self._latency = Histogram(
            "dynbranch_controller_latency_seconds",
            "Time from arrival to the end of the response.",
            ("outcome",),
            buckets=_LATENCY_BUCKETS_S,
            registry=registry,
        )
        self._saved = Counter(
            "dynbranch_controller_saved_seconds", "Execution time that reuse saved.", registry=registry
        )
        self._tokens = Counter(
            "dynbranch_controller_tokens", "Tokens of reported outcomes.", ("kind",), registry=registry
        )
        self._duplicates = Counter(
            "dynbranch_controller_duplicate_events", "Events that were delivered again.", registry=registry
        )
        self._lost = Gauge("dynbranch_controller_lost_events", "Events that never came.", registry=registry)
        self._workflows = Gauge("dynbranch_controller_workflows", "Workflows seen.", registry=registry)

    def observe(self, received: Received, summary: ControllerSummary) -> None:
        for event in received.fresh:
            match event:
                case ArrivalSeen():
                    self._arrivals.inc()
                case OutcomeSeen():
                    self._observe_outcome(event)
                case ChoiceSeen():
                    pass
                case _:
                    assert_never(event)
        self._duplicates.inc(received.duplicates)
        self._lost.set(summary.lost)
        self._workflows.set(summary.workflows)

    def _observe_outcome(self, event: OutcomeSeen) -> None:
        outcome = event.outcome if event.outcome in OUTCOMES else OTHER_OUTCOME
        self._outcomes.labels(outcome, str(event.failed).lower()).inc()
        self._latency.labels(outcome).observe(event.latency_ms / 1000)
        self._saved.inc(max(0.0, event.saved_ms / 1000))
        self._tokens.labels("input").inc(event.input_tokens)
        self._tokens.labels("output").inc(event.output_tokens)
