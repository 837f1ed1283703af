"""Traces of branches: a span from opening to settlement, and one per fill that is linked to it.

Neither is a child of a request: a branch links to the requests that opened it and that resolved it. A fill
belongs to no request until one demands it, and then that one links to it.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager

from dynbranch.controller.core.branches.messages import Mark, PrepareStage, Told
from dynbranch.controller.core.branches.records import Branch
from dynbranch.domain.ids import BranchId, DemandId, FillId
from dynbranch.runtime import telemetry
from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.trace import Link, Span

SPAN_BRANCH = "branch"
SPAN_FILL = "fill"
_ENDINGS = frozenset({Mark.RESOLVED, Mark.AMBIGUOUS})


MAX_REQUESTS = 4096
"""Whose spans are remembered until their answers have come."""


class BranchSpans:
    """Keeps spans of unsettled branches only. Where nobody records, it keeps none."""

    def __init__(self) -> None:
        self._requests: OrderedDict[DemandId, str] = OrderedDict()
        self._cause = ""
        self._openers: dict[BranchId, str] = {}
        self._tracer = telemetry.tracer("dynbranch.controller")
        self._branches: dict[BranchId, Span] = {}
        self._fills: dict[FillId, Span] = {}

    def hear(self, demand_id: DemandId, traceparent: str) -> None:
        """The span of a canonical request, by its W3C name."""
        if not traceparent:
            return
        self._requests[demand_id] = traceparent
        while len(self._requests) > MAX_REQUESTS:
            self._requests.popitem(last=False)

    @contextmanager
    def because_of(self, demand_id: DemandId) -> Iterator[None]:
        """Branches that open or end within are linked to that request."""
        self._cause = self._requests.get(demand_id, "")
        try:
            yield
        finally:
            self._cause = ""

    def tell(self, told: Told, branch: Branch) -> None:
        if told.mark is Mark.OPENED:
            self._open(branch)
        span = self._branches.get(branch.branch_id)
        if span is None:
            return
        facts = {f"dynbranch.{name}": value for name, value in told.facts}
        fill = self._fills.get(told.fill_id) if told.fill_id is not None else None
        if told.mark in (Mark.STAGE_BEGAN, Mark.STAGE_MOVED) and fill is not None:
            fill.add_event(told.mark.value, facts)
            return
        if told.mark is Mark.FILL_ENDED and told.fill_id is not None and fill is not None:
            fill.set_attributes(facts)
            fill.end()
            del self._fills[told.fill_id]
        span.add_event(told.mark.value, facts)
        if told.mark in _ENDINGS and self._cause != self._openers.get(branch.branch_id):
            telemetry.add_link(span, self._cause)
        if told.mark is Mark.SETTLED:
            self._openers.pop(branch.branch_id, None)
            span.set_attribute("dynbranch.consumed", branch.consumed)
            span.end()
            del self._branches[branch.branch_id]

    def prepare(self, ask: PrepareStage) -> None:
        """The fill begins with the first of its stages."""
        branch = self._branches.get(ask.branch_id)
        if branch is None or ask.key.fill_id in self._fills or ask.key.number:
            return
        span = self._tracer.start_span(SPAN_FILL, context=Context(), links=[Link(branch.get_span_context())])
        span.set_attribute("dynbranch.fill", ask.key.fill_id.hex())
        span.set_attribute("dynbranch.branch", ask.branch_id.hex())
        span.set_attribute("dynbranch.selection", ask.selection)
        self._fills[ask.key.fill_id] = span

    def traceparent(self, fill_id: FillId) -> str:
        """Of the fill's span, for the store to tell whoever is served by it."""
        span = self._fills.get(fill_id)
        return "" if span is None else telemetry.traceparent(span)

    @contextmanager
    def within(self, fill_id: FillId) -> Iterator[None]:
        """What is asked of others within is part of the fill's trace."""
        span = self._fills.get(fill_id)
        if span is None:
            yield
            return
        with trace.use_span(span, end_on_exit=False, record_exception=False, set_status_on_exception=False):
            yield

    def close(self) -> None:
        for span in (*self._fills.values(), *self._branches.values()):
            span.end()

    def _open(self, branch: Branch) -> None:
        span = self._tracer.start_span(SPAN_BRANCH, context=Context())
        if not span.is_recording():
            return
        span.set_attributes(
            {
                "dynbranch.branch": branch.branch_id.hex(),
                "dynbranch.tenant": branch.workflow.tenant,
                "dynbranch.workflow_type": branch.workflow.workflow_type_id,
                "dynbranch.workflow": branch.workflow.workflow_id,
                "dynbranch.agent": branch.agent_id,
                "dynbranch.decision_point": branch.point.name,
                "dynbranch.window": branch.point.window.value,
            }
        )
        telemetry.add_link(span, self._cause)
        self._branches[branch.branch_id], self._openers[branch.branch_id] = span, self._cause
