"""What an engine is doing: its own report, fused with what this agent knows to be there.

A report is older than it looks: while it was on its way, generations began and ended. So it is asked only
for what the agent can not know, the requests of *others* who share the engine: what it counts beyond the
most that this agent had there since the report before. What the agent has there itself, it counts itself,
now. The sum is never below what is known to be in flight, and never holds what is known to have ended.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class EngineView:
    """``others`` and ``waiting`` by the last report; None: the engine has no counts. ``waiting`` are those
    that the engine itself keeps in a queue, whosever they are."""

    others: int | None = None
    waiting: int = 0
    kv_used_share: float | None = None

    def fused(self, own: int) -> tuple[int, int] | None:
        """Running and waiting on the engine, when this agent has ``own`` there."""
        if self.others is None:
            return None
        there = own + self.others
        waiting = min(self.waiting, there)
        return there - waiting, waiting


def told(
    running: int | None, waiting: int | None, kv_used_share: float | None, *, own_peak: int
) -> EngineView:
    """From a report. ``own_peak``: the most that this agent had on the engine since the report before."""
    if running is None:
        return EngineView(kv_used_share=kv_used_share)
    waiting = waiting or 0
    return EngineView(max(0, running + waiting - own_peak), waiting, kv_used_share)
