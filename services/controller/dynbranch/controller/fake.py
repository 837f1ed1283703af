"""The controller in memory, for whoever reports to one. It passes the contract tests of the real one."""

from __future__ import annotations

from dynbranch.clients.ports import Unreachable
from dynbranch.controller.core.journal import Journal
from dynbranch.domain.events import ControllerSummary, EventBatch
from dynbranch.runtime.clock import Clock, ManualClock
from dynbranch.wire import controller as wire


class FakeController:
    """Implements ``ports.Controller``. Set ``reachable`` to False to play a controller that is gone."""

    def __init__(self, clock: Clock | None = None) -> None:
        self._clock = clock or ManualClock()
        self._journal = Journal()
        self.reachable = True
        self.batches: list[EventBatch] = []
        """Every batch that arrived, in order."""

    async def report_events(self, batch: EventBatch, *, timeout_s: float) -> int:
        self._reach()
        # Through the codec, so that the twin refuses what the wire would.
        batch = wire.batch_in(wire.batch_out(batch))
        self.batches.append(batch)
        return len(self._journal.handle(batch, self._clock.now()).fresh)

    async def summary(self, *, timeout_s: float) -> ControllerSummary:
        self._reach()
        return self._journal.summary()

    async def close(self) -> None:
        self.reachable = False

    def _reach(self) -> None:
        if not self.reachable:
            raise Unreachable("the controller is gone")
