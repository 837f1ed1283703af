"""What was ordered lately, for gateways that were not the ones to order it."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

MAX_HINTS = 1024


@dataclass(slots=True)
class RecentPrompts:
    """The last hints, numbered. Whoever reads keeps the number up to which it has read."""

    hints: deque[bytes] = field(default_factory=lambda: deque(maxlen=MAX_HINTS))
    count: int = 0

    def add(self, hint: bytes) -> None:
        if hint:
            self.hints.append(hint)
            self.count += 1

    def since(self, read: int) -> tuple[bytes, ...]:
        """Oldest first. Those that were pushed out meanwhile are lost: they only help."""
        new = min(self.count - read, len(self.hints))
        return tuple(self.hints)[len(self.hints) - new :] if new else ()
