"""What is known of how a harness waits, so that it is answered before it gives up and finds its work again
when it comes back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class HarnessProfile:
    """``silence_s``: a stream in which nothing was said for so long ends with an error, as the harness would
    leave soon after and could not tell why; None: it waits for ever. ``detach_grace_ms``: how long its
    generation outlives it, so that the same request, sent again, goes on with it."""

    silence_s: float | None = None
    detach_grace_ms: int = 0


PATIENT: Final = HarnessProfile()
"""Of whom nothing is known."""

PROFILES: Final[Mapping[str, HarnessProfile]] = {
    # Claude Code was seen to close a stream after 300 s without content, whatever keep-alives came, and to
    # send the request again; Codex has as much in its settings.
    "claude-code": HarnessProfile(silence_s=280, detach_grace_ms=3000),
    "codex": HarnessProfile(silence_s=280, detach_grace_ms=3000),
}


def profile_of(harness: str) -> HarnessProfile:
    return PROFILES.get(harness, PATIENT)
