"""Looks at the engine's own counts, for everyone who watches its occupancy."""

from __future__ import annotations

from dynbranch.domain.ids import Instant
from dynbranch.engine_agent.core.engine_view import EngineView, told
from dynbranch.engine_agent.core.ledger import Slots
from dynbranch.engine_agent.engines.port import Engine, EngineUnavailable
from dynbranch.runtime.clock import Clock

COUNTS_AGE_S = 0.05
"""Many watchers share one look."""


class Looks:
    def __init__(self, engine: Engine, slots: Slots, clock: Clock) -> None:
        self._engine = engine
        self._slots = slots
        self._clock = clock
        self._view = EngineView()
        self._looked_at: Instant | None = None

    async def view(self) -> EngineView:
        """No older than ``COUNTS_AGE_S``, or the one before while somebody is looking."""
        now = self._clock.now()
        if self._looked_at is not None and now - self._looked_at < COUNTS_AGE_S:
            return self._view
        self._looked_at = now
        before = self._slots.take_peak()
        try:
            counts = await self._engine.counts()
        except EngineUnavailable:
            self._view = EngineView()
        else:
            self._view = told(
                counts.running,
                counts.waiting,
                counts.kv_used_share,
                own_peak=max(before, self._slots.take_peak()),
            )
        return self._view
