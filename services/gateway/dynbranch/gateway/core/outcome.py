"""What a response says of itself: outcome, level, name, milliseconds saved."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from dynbranch.domain.ids import BranchId, Name
from dynbranch.domain.reuse import Level


class Outcome(Enum):
    HIT = "hit"
    PROMOTED = "promoted"
    """A hit on what a fill had prepared, which this very demand confirmed or consumed."""
    ADOPTED = "adopted"
    """It followed a fill that was running, and took it over."""
    JOINED = "joined"
    MISS = "miss"
    BYPASS = "bypass"
    REFUSED = "refused"
    """It ended before anything was demanded or forwarded."""


@dataclass(frozen=True, slots=True)
class Report:
    """``timings_ms`` are spans of the gateway's own work, in the order they happened. ``branch`` is the one
    whose fill was promoted or adopted."""

    outcome: Outcome
    request_id: str
    level: Level | None = None
    name: Name | None = None
    saved_ms: float = 0.0
    branch: BranchId | None = None
    timings_ms: tuple[tuple[str, float], ...] = field(default=())


def outcome_headers(report: Report) -> list[tuple[bytes, bytes]]:
    """Header pairs, ready for the wire."""
    headers = [
        (b"x-dynbranch-outcome", report.outcome.value.encode()),
        (b"x-request-id", report.request_id.encode()),
    ]
    if report.level is not None:
        headers.append((b"x-dynbranch-level", report.level.value.encode()))
    if report.name is not None:
        headers.append((b"x-dynbranch-name", report.name.hex().encode()))
    if report.branch is not None:
        headers.append((b"x-dynbranch-branch", report.branch.hex().encode()))
    if report.outcome in (Outcome.HIT, Outcome.PROMOTED) or report.saved_ms:
        headers.append((b"x-dynbranch-saved-ms", f"{report.saved_ms:.1f}".encode()))
    if report.timings_ms:
        spans = ", ".join(f"{name};dur={ms:.3f}" for name, ms in report.timings_ms)
        headers.append((b"server-timing", spans.encode()))
    return headers


def saved_ms(execution_ms: float, spent_ms: float) -> float:
    """What was spared: the execution's time less the time that this request took, never negative."""
    return max(0.0, execution_ms - spent_ms)
