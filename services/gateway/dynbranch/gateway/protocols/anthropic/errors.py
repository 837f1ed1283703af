"""Errors in the shape of Messages: ``{"type": "error", "error": {"type", "message"}, "request_id"}``."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from dynbranch.gateway.protocols.anthropic.models import speaks_messages
from dynbranch.gateway.protocols.errors import JSON, ErrorResponse
from dynbranch.gateway.protocols.members import dump

_TYPES: Final = {
    400: "invalid_request_error",
    401: "authentication_error",
    402: "billing_error",
    403: "permission_error",
    404: "not_found_error",
    408: "timeout_error",
    409: "conflict_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
    529: "overloaded_error",
}
MESSAGES_PATH: Final = "/v1/messages"
_SHOWN_CHARACTERS: Final = 2000


def as_messages_error(error: ErrorResponse, request_id: str) -> ErrorResponse:
    """The same error, with its status and its advice."""
    body = dump(_error(error.status, error.body, request_id))
    headers = (*error.headers, request_id_header(request_id))
    return replace(error, body=body, content_type=JSON, headers=headers)


def request_id_header(request_id: str) -> tuple[bytes, bytes]:
    return b"request-id", request_id.encode()


def spelled_for(
    path: str, headers: Mapping[str, str], error: ErrorResponse, request_id: str
) -> ErrorResponse:
    """The gateway's own error in the shape of the protocol that is spoken. Lists of models are of both."""
    of_models = path == "/v1/models" or path.startswith("/v1/models/")
    if (
        path == MESSAGES_PATH
        or path.startswith(f"{MESSAGES_PATH}/")
        or (of_models and speaks_messages(headers))
    ):
        return as_messages_error(error, request_id)
    return error


def error_event(body: bytes, request_id: str) -> bytes:
    """An error inside a stream, out of a body in the shape of OpenAI's."""
    status = 500
    match _read(body):
        case {"error": {"code": int() as code}} if 400 <= code <= 599:
            status = code
        case {"error": {"type": "rate_limit_error"}}:
            status = 429
        case {"error": {"type": "invalid_request_error"}}:
            status = 400
    return b"event: error\ndata: %b\n\n" % dump(_error(status, body, request_id))


def _error(status: int, body: bytes, request_id: str) -> dict[str, Any]:
    kind = _TYPES.get(status) or ("api_error" if status >= 500 else "invalid_request_error")
    message = _message(body)
    return {"type": "error", "error": {"type": kind, "message": message}, "request_id": request_id}


def _message(body: bytes) -> str:
    match _read(body):
        case {"error": {"message": str() as message}} if message:
            return message
        case {"error": str() as message} | {"message": str() as message} | {"detail": str() as message}:
            return message
        case _:
            said = body.decode("utf-8", "replace").strip()[:_SHOWN_CHARACTERS]
            return said or "The engine gave no reason."


def _read(body: bytes) -> Any:
    try:
        return json.loads(body)
    except (ValueError, RecursionError):
        return None
