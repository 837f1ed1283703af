"""Batches in, counts out: the journal on a real clock, and the branches that hear what is new."""

from __future__ import annotations

from dynbranch.controller.branching import Branching
from dynbranch.controller.core.journal import Journal
from dynbranch.controller.metrics import ControllerMetrics
from dynbranch.domain.events import ControllerSummary, EventBatch
from dynbranch.runtime.clock import Clock


class ControllerShell:
    """Needs no inbox: folding a batch and opening a branch take microseconds and never wait."""

    def __init__(
        self, journal: Journal, clock: Clock, metrics: ControllerMetrics, branching: Branching | None = None
    ) -> None:
        self._journal = journal
        self._clock = clock
        self._metrics = metrics
        self._branching = branching

    def report_events(self, batch: EventBatch) -> int:
        """Returns how many events were new."""
        received = self._journal.handle(batch, self._clock.now())
        self._metrics.observe(received, self._journal.summary())
        if self._branching is not None:
            for event in received.fresh:
                self._branching.observe(event)
        return len(received.fresh)

    def summary(self) -> ControllerSummary:
        summary = self._journal.summary()
        return summary if self._branching is None else self._branching.counted(summary)
