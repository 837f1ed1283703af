"""How busy one engine is, and whether it says anything: own counts at once, reports when they come."""

from __future__ import annotations

from dataclasses import dataclass, field

from dynbranch.domain.engine import Occupancy
from dynbranch.domain.ids import Instant


@dataclass(slots=True)
class EngineLoad:
    """What this gateway sends is counted here the moment it is sent. A report tells only what *others* have
    there: it may be old, and own work of that moment is part of it. So several gateways that look at one
    report do not all follow it for the length of an interval: each sees what it has sent since.

    An engine that owes an answer and has said nothing for ``mute_s`` is mute: new work had better go
    elsewhere. After that it is given one request at a time until it speaks again.
    """

    mute_s: float
    ordered: int = 0
    """Generations that this gateway has there, through the agent."""
    intended: int = 0
    """Demands at the store that will run there if they miss."""
    raw: int = 0
    """Raw requests that this gateway has there, past the agent."""
    others: int = 0
    waiting: bool = False
    """Requests wait there for room, whoever sent them."""
    quiet_since: Instant = field(default_factory=lambda: Instant(0.0))
    _was_mute: bool = False

    @property
    def in_flight(self) -> int:
        return self.ordered + self.intended + self.raw + self.others

    def report(self, occupancy: Occupancy) -> None:
        self.waiting = max(occupancy.waiting, occupancy.engine_waiting or 0) > 0
        through_agent = occupancy.running + occupancy.waiting - self.ordered
        if occupancy.engine_running is None:
            self.others = max(0, through_agent)
            return
        at_engine = occupancy.engine_running + (occupancy.engine_waiting or 0)
        self.others = max(0, through_agent, at_engine - self.ordered - self.raw)

    def send(self, now: Instant) -> None:
        if self.ordered == 0 and not self._was_mute:
            self.quiet_since = now
        self.ordered += 1

    def settle(self, now: Instant) -> None:
        """One generation ended here, however it ended."""
        self._was_mute = self.is_mute(now) or self._was_mute
        self.ordered -= 1

    def speak(self, now: Instant) -> None:
        self.quiet_since, self._was_mute = now, False

    def is_mute(self, now: Instant) -> bool:
        return self.ordered > 0 and (self._was_mute or now - self.quiet_since > self.mute_s)
