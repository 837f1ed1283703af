"""Batches in, counts out: the journal on a real clock."""

from __future__ import annotations

from dynbranch.controller.core.journal import Journal
from dynbranch.controller.metrics import ControllerMetrics
from dynbranch.domain.events import ControllerSummary, EventBatch
from dynbranch.runtime.clock import Clock


class ControllerShell:
    """Needs no inbox: folding a batch takes microseconds and never waits."""

    def __init__(self, journal: Journal, clock: Clock, metrics: ControllerMetrics) -> None:
        self._journal = journal
        self._clock = clock
        self._metrics = metrics

    def report_events(self, batch: EventBatch) -> int:
        """Returns how many events were new."""
        received = self._journal.handle(batch, self._clock.now())
        self._metrics.observe(received, self._journal.summary())
        return len(received.fresh)

    def summary(self) -> ControllerSummary:
        return self._journal.summary()
