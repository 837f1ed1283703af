"""The list of models as the API of Messages tells it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any


def speaks_messages(headers: Mapping[str, str]) -> bool:
    """Both APIs have the same path: clients of this one name its version."""
    return "anthropic-version" in headers


def model_list(models: Sequence[tuple[str, int]], since_s: int) -> dict[str, Any]:
    """All on one page. ``models`` are ids, each with its context in tokens, 0 if that is not known."""
    return {
        "data": [model_info(name, context, since_s) for name, context in models],
        "first_id": models[0][0] if models else None,
        "has_more": False,
        "last_id": models[-1][0] if models else None,
    }


def model_info(name: str, context_tokens: int, since_s: int) -> dict[str, Any]:
    """``since_s``: what the API calls the creation time."""
    created = datetime.fromtimestamp(since_s, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    return {
        "type": "model",
        "id": name,
        "display_name": name,
        "created_at": created,
        "lifecycle": "active",
        "max_input_tokens": context_tokens or None,
    }
