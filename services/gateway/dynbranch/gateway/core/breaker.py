"""A circuit breaker as a value: it opens after consecutive bad calls and closes by itself.

closed ──bad calls in a row──▶ open ──open_s passed──▶ half-open (one probe) ──good──▶ closed
                                ▲                           │
                                └────────────bad────────────┘
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum

from dynbranch.domain.ids import Instant


class Position(Enum):
    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half_open"


class CallEnd(Enum):
    """GOOD: answered in time. BAD: failed, or answered too slowly. HUNG: not answered within the whole
    budget, which few are to wait for: half as many as of bad ones open it. ABANDONED: nobody waited for the
    answer."""

    GOOD = "good"
    BAD = "bad"
    HUNG = "hung"
    ABANDONED = "abandoned"


@dataclass(frozen=True, slots=True)
class BreakerPolicy:
    """``bad_calls_to_open`` in a row open it for ``open_s``; a call slower than ``slow_s`` is a bad one."""

    bad_calls_to_open: int = 5
    open_s: float = 1.0
    slow_s: float = 0.2


@dataclass(frozen=True, slots=True)
class Breaker:
    policy: BreakerPolicy
    position: Position = Position.CLOSED
    bad_calls: int = 0
    opened_at: Instant | None = None
    openings: int = 0

    def admit(self, now: Instant) -> tuple[Breaker, bool]:
        """Ask to make a call. Each admitted call must be told of by ``ended``."""
        match self.position:
            case Position.CLOSED:
                return self, True
            case Position.OPEN if self.opened_at is None or now - self.opened_at >= self.policy.open_s:
                return replace(self, position=Position.HALF_OPEN), True
            case Position.OPEN | Position.HALF_OPEN:
                return self, False

    def ended(self, end: CallEnd, now: Instant, elapsed_s: float = 0.0) -> Breaker:
        """Tell how an admitted call went."""
        if end is CallEnd.GOOD and elapsed_s > self.policy.slow_s:
            end = CallEnd.BAD
        match end:
            case CallEnd.GOOD:
                return replace(self, position=Position.CLOSED, bad_calls=0)
            case CallEnd.BAD:
                return self._after_bad(now, self.bad_calls + 1)
            case CallEnd.HUNG:
                return self._after_bad(now, self.bad_calls + (self.policy.bad_calls_to_open + 1) // 2)
            case CallEnd.ABANDONED if self.position is Position.HALF_OPEN:
                # The probe told nothing: the next demand is a probe again.
                return replace(self, position=Position.OPEN)
            case CallEnd.ABANDONED:
                return self

    def _after_bad(self, now: Instant, bad_calls: int) -> Breaker:
        opens = self.position is Position.HALF_OPEN or bad_calls >= self.policy.bad_calls_to_open
        if self.position is Position.OPEN or not opens:
            # A call admitted before the opening may end after it: it must not prolong the opening.
            return replace(self, bad_calls=bad_calls)
        return replace(
            self, position=Position.OPEN, bad_calls=bad_calls, opened_at=now, openings=self.openings + 1
        )
