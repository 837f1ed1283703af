"""What a gateway says of its answers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from threading import Lock
from typing import Any, Final

_OUTCOME: Final = "x-dynbranch-outcome"
_BEARERS: Final = ("response", "http_response")


@dataclass(frozen=True, slots=True)
class Outcome:
    """``kind`` is hit, promoted, adopted, joined, miss, bypass or refused. ``name`` and ``branch`` are
    hexadecimal; None: it has none."""

    kind: str
    request_id: str = ""
    level: str | None = None
    name: str | None = None
    branch: str | None = None
    saved_ms: float = 0.0

    @property
    def executed(self) -> bool:
        """Whether an engine was asked to run it for this request alone."""
        return self.kind in ("miss", "bypass")


def outcome(response: Any) -> Outcome | None:
    """Of anything that has headers, or a response with headers: a raw response or a stream of an SDK, one of
    its errors, a response of an HTTP client, or headers themselves. None: no gateway answered it.

    Raises TypeError for what has no headers, as a message that an SDK has parsed: ask the SDK for the raw
    response, or read ``Workflow.outcomes``.
    """
    headers = _headers_of(response)
    if headers is None:
        raise TypeError(
            f"a {type(response).__name__} has no headers: ask by with_raw_response, or read workflow.outcomes"
        )
    kind = headers.get(_OUTCOME)
    if not kind:
        return None
    return Outcome(
        kind=kind,
        request_id=headers.get("x-request-id") or "",
        level=headers.get("x-dynbranch-level"),
        name=headers.get("x-dynbranch-name"),
        branch=headers.get("x-dynbranch-branch"),
        saved_ms=_number(headers.get("x-dynbranch-saved-ms")),
    )


def _headers_of(response: Any) -> Mapping[str, str] | None:
    if isinstance(response, Mapping):
        return {str(name).lower(): str(text) for name, text in response.items()}
    for bearer in (response, *(getattr(response, name, None) for name in _BEARERS)):
        headers = getattr(bearer, "headers", None)
        if isinstance(headers, Mapping):
            return headers
    return None


def _number(text: str | None) -> float:
    try:
        return float(text or 0.0)
    except ValueError:
        return 0.0


class Outcomes:
    """What was answered so far; threads may note and read at once."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._counts: dict[str, int] = {}
        self._last: Outcome | None = None

    def note(self, seen: Outcome) -> None:
        with self._lock:
            self._counts[seen.kind] = self._counts.get(seen.kind, 0) + 1
            self._last = seen

    @property
    def last(self) -> Outcome | None:
        return self._last

    @property
    def counts(self) -> Mapping[str, int]:
        """How many there were of each kind."""
        with self._lock:
            return dict(self._counts)
