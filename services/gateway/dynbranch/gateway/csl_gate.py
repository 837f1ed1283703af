"""The way to the store for demands: within a budget and behind a circuit breaker.

A store that is down or slow costs a demand its budget a few times, and then nothing, until the breaker
closes.
"""

from __future__ import annotations

import asyncio

from dynbranch.clients.ports import Csl, Unreachable
from dynbranch.domain.errors import DomainError, InvalidRequest
from dynbranch.domain.reuse import Demand
from dynbranch.gateway.core.breaker import Breaker, BreakerPolicy, CallEnd, Position
from dynbranch.gateway.core.life import Answered, Unanswered
from dynbranch.runtime.clock import Clock

_PROBE_TIMEOUT_S = 1.0
_MARGIN_S = 0.05
"""A client keeps to its own time; this is for one that does not."""

_PROBE_INTERVAL_S = 0.25
_WATCH_INTERVAL_S = 2.0


class CslGate:
    """``budget_s`` is the longest that a demand may wait for the store."""

    def __init__(self, csl: Csl, *, budget_s: float, policy: BreakerPolicy, clock: Clock) -> None:
        self._csl = csl
        self._budget_s = budget_s
        self._clock = clock
        self.breaker = Breaker(policy)
        self.ever_reached = False
        self.reached = False

    async def demand(self, demand: Demand) -> Answered | Unanswered:
        started = self._clock.now()
        if self.breaker.position is not Position.CLOSED:
            # What closes it again is the watch: a demand that tried would wait for its whole budget.
            return Unanswered("the store's breaker is open")
        self.breaker, _ = self.breaker.admit(started)
        end = CallEnd.ABANDONED
        try:
            async with asyncio.timeout(self._budget_s + _MARGIN_S):
                outcome = await self._csl.demand(demand, timeout_s=self._budget_s)
            end = CallEnd.GOOD
            self.ever_reached = self.reached = True
            return Answered(outcome)
        except InvalidRequest as refused:
            end = CallEnd.GOOD
            return Unanswered(f"the store refused the demand: {refused.reason}")
        except (Unreachable, TimeoutError, DomainError) as failure:
            end = CallEnd.BAD if self._clock.now() - started < self._budget_s else CallEnd.HUNG
            return Unanswered(f"the store did not answer: {type(failure).__name__}")
        finally:
            now = self._clock.now()
            self.breaker = self.breaker.ended(end, now, now - started)

    async def watch(self) -> None:
        """Runs for ever. Learns whether the store can be reached, without any demand, and so closes the
        breaker of a store that came back while nobody asked."""
        while True:
            await self._probe()
            settled = self.reached and self.breaker.position is Position.CLOSED
            await self._clock.sleep(_WATCH_INTERVAL_S if settled else _PROBE_INTERVAL_S)

    async def _probe(self) -> None:
        started = self._clock.now()
        counts = self.breaker.position is not Position.CLOSED
        if counts:
            self.breaker, admitted = self.breaker.admit(started)
            if not admitted:
                return
        end = CallEnd.ABANDONED
        try:
            await self._csl.stats(timeout_s=_PROBE_TIMEOUT_S)
            end, self.reached, self.ever_reached = CallEnd.GOOD, True, True
        except (Unreachable, DomainError):
            end, self.reached = CallEnd.BAD, False
        finally:
            if counts:
                now = self._clock.now()
                self.breaker = self.breaker.ended(end, now, now - started)
