"""Aborts on their way: the run is cancelled, and the engine's own count tells when it has let go."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass, field

from dynbranch.domain.ids import GenerationId, Instant
from dynbranch.engine_agent.core.lifecycle import State
from dynbranch.engine_agent.core.registry import Registry
from dynbranch.engine_agent.engines.port import Engine, EngineUnavailable
from dynbranch.engine_agent.observing import AgentMetrics
from dynbranch.runtime.clock import Clock

_log = logging.getLogger(__name__)

ABORT_POLL_S = 0.005


@dataclass(slots=True)
class _Abort:
    began: Instant
    over: asyncio.Event = field(default_factory=asyncio.Event)
    confirmed_ms: float | None = None


class Aborts:
    """``confirm_s``: how long the engine's count is awaited; then the slot counts as free all the same."""

    def __init__(
        self, engine: Engine, registry: Registry, clock: Clock, metrics: AgentMetrics, *, confirm_s: float
    ) -> None:
        self._engine = engine
        self._registry = registry
        self._clock = clock
        self._metrics = metrics
        self._confirm_s = confirm_s
        self._under_way: dict[GenerationId, _Abort] = {}

    def begin(self, generation: GenerationId) -> None:
        self._under_way[generation] = _Abort(self._clock.now())

    async def stop(self, generation: GenerationId, run: asyncio.Task[None]) -> None:
        """Returns when the engine has let go, or had its time to."""
        abort = self._under_way[generation]
        run.cancel()
        await asyncio.wait((run,))
        confirmed = await self._confirmed(Instant(abort.began + self._confirm_s))
        took_s = self._clock.now() - abort.began
        self._metrics.abort.observe(took_s)
        if confirmed:
            abort.confirmed_ms = took_s * 1000
            self._metrics.abort_confirmed.observe(took_s)
        elif confirmed is False:
            self._metrics.unconfirmed.inc()
            _log.warning("the engine did not confirm the abort of %s", generation.hex())

    def end(self, generation: GenerationId) -> None:
        """Whoever awaits it goes on."""
        self._under_way.pop(generation).over.set()

    async def over(self, generation: GenerationId) -> float | None:
        """Returns when the abort is over, with the milliseconds until the engine's count confirmed it."""
        abort = self._under_way.get(generation)
        if abort is None:
            return None
        await abort.over.wait()
        return abort.confirmed_ms

    async def _confirmed(self, deadline: Instant) -> bool | None:
        """Whether the engine's own count fell in time to what we still run there. None: it has no count, or
        is gone and holds no slot.

        What it counts beyond all of ours at the first look belongs to others who share it.
        """
        others: int | None = None
        while True:
            try:
                counts = await self._engine.counts()
            except EngineUnavailable:
                return None
            if counts.running is None:
                return None
            if others is None:
                others = max(0, counts.running - self._registry.slots.used)
            if counts.running <= self._wanted_on_engine() + others:
                return True
            if self._clock.now() >= deadline:
                return False
            await self._clock.sleep(ABORT_POLL_S)

    def _wanted_on_engine(self) -> int:
        held, generations = self._registry.slots.held, self._registry.generations
        return sum(width for id_, width in held.items() if generations[id_].state is State.RUNNING)
