"""Errors in the shape of OpenAI's API: ``{"error": {"message", "type", "param", "code"}}``."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from dynbranch.domain.engine import Failed
from dynbranch.domain.errors import (
    Conflict,
    DomainError,
    InvalidRequest,
    NotFound,
    NotReady,
)
from dynbranch.gateway.protocols.members import dump

JSON = b"application/json"
_NAMES, _NAME_CHARACTERS = 10, 100
_PRINTABLE = re.compile(r"[\x21-\x7e][\x20-\x7e]{0,99}")


class ApiError(Exception):
    """An error that the client shall see. ``retry_after_s`` 0: no advice when to come back."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        code: str,
        param: str | None = None,
        retry_after_s: int = 0,
        headers: tuple[tuple[bytes, bytes], ...] = (),
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.code = code
        self.param = param
        self.retry_after_s = retry_after_s
        self.headers = headers


def unknown_model(wanted: str, served: Sequence[str]) -> ApiError:
    """A 404 that names what could have been asked for, as far as it fits a line."""
    names = ", ".join(repr(name[:_NAME_CHARACTERS]) for name in served[:_NAMES])
    more = f" and {len(served) - _NAMES} more" if len(served) > _NAMES else ""
    known = f"Served here: {names}{more}." if served else "No model is served here."
    message = f"The model {wanted[:200]!r} does not exist. {known}"
    return ApiError(404, message, code="model_not_found", param="model")


@dataclass(frozen=True, slots=True)
class ErrorResponse:
    status: int
    body: bytes
    content_type: bytes = JSON
    retry_after_s: int = 0
    headers: tuple[tuple[bytes, bytes], ...] = ()


def kind_of(status: int) -> str:
    """The ``type`` that OpenAI gives errors of this status."""
    match status:
        case 401 | 403:
            return "authentication_error"
        case 429:
            return "rate_limit_error"
        case _ if status >= 500:
            return "server_error"
        case _:
            return "invalid_request_error"


def error_body(status: int, message: str, *, code: str, param: str | None = None) -> bytes:
    return dump({"error": {"message": message, "type": kind_of(status), "param": param, "code": code}})


def of_api_error(error: ApiError) -> ErrorResponse:
    body = error_body(error.status, error.message, code=error.code, param=error.param)
    return ErrorResponse(error.status, body, retry_after_s=error.retry_after_s, headers=error.headers)


def of_domain_error(error: DomainError) -> ErrorResponse:
    """Whose fault it is decides the status."""
    status, retry_after_s = _status(error)
    message = f"{error.message} {error.advice}".strip()
    body = error_body(status, message, code=error.reason, param=error.facts.get("param"))
    return ErrorResponse(status, body, retry_after_s=retry_after_s)


def _status(error: DomainError) -> tuple[int, int]:
    match error:
        case InvalidRequest():
            return 400, 0
        case NotFound():
            return 404, 0
        case Conflict():
            return 409, 0
        case NotReady():
            return 503, 1
        case _:
            return 503, 0


def of_engine_failure(failed: Failed) -> ErrorResponse:
    """The engine's own status and body; a gateway's error where it gave none."""
    advice = _retry_advice(failed)
    if 400 <= failed.http_status <= 599 and failed.body:
        content_type = failed.content_type.encode("latin-1", "replace")
        return ErrorResponse(failed.http_status, failed.body, content_type, headers=advice)
    status = failed.http_status if 400 <= failed.http_status <= 599 else 502
    body = failed.body if _is_error(failed.body) else _no_answer(status)
    return ErrorResponse(status, body, headers=advice)


def _retry_advice(failed: Failed) -> tuple[tuple[bytes, bytes], ...]:
    """The engine's own word on when to come back, seconds or a date, as it was given. Some harnesses take a
    429 without one for the end."""
    given = failed.retry_after or ("1" if failed.http_status == 429 else "")
    return ((b"retry-after", given.encode()),) if _PRINTABLE.fullmatch(given) else ()


def _no_answer(status: int) -> bytes:
    return error_body(status, "The engine ended without an answer.", code="engine_failed")


def _is_error(body: bytes) -> bool:
    return body.startswith(b'{"error"')


def stream_error(failed: Failed | None, reason: str) -> bytes:
    """The JSON object of an error inside a stream: the engine's own one, if it is a JSON object on one
    line."""
    if failed is not None and failed.body.startswith(b"{") and b'"error"' in failed.body:
        return failed.body.replace(b"\n", b" ").replace(b"\r", b" ")
    return error_body(502, f"The generation ended early: {reason}.", code="engine_unavailable")
