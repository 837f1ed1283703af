"""Expected failures.

    DomainError
    ├── NotFound            the thing asked for does not exist (any more)
    ├── NotReady            not now: starting, draining or overloaded; a retry may succeed
    ├── Conflict            the state has moved on: a stale token, a changed fingerprint
    ├── InvalidRequest      the caller's fault; says what to change
    └── StoreFailed         the store can not promise what it must; it stops

A bug is an assertion, not one of these.
"""

from __future__ import annotations

from collections.abc import Mapping


class DomainError(Exception):
    """``reason`` is a stable word for programs, ``advice`` what a person can do about it."""

    def __init__(
        self, reason: str, message: str, *, advice: str = "", facts: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(message)
        self.reason = reason
        self.message = message
        self.advice = advice
        self.facts: Mapping[str, str] = facts or {}


class NotFound(DomainError):
    pass


class NotReady(DomainError):
    pass


class Conflict(DomainError):
    pass


class InvalidRequest(DomainError):
    pass


class StoreFailed(DomainError):
    pass
