"""One JSON completion out of the chunks of a generation, live or recorded."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from dynbranch.gateway.protocols.chunk_relay import MalformedItem, ResponseIdentity, marked_cached
from dynbranch.gateway.protocols.members import dump
from dynbranch.naming.assembly import MalformedLog
from dynbranch.naming.completion import whole_of


def assemble(items: Iterable[bytes], identity: ResponseIdentity, *, cached: bool) -> bytes:
    """The body of a plain response. Raises MalformedItem."""
    try:
        whole = whole_of(items)
    except MalformedLog as problem:
        raise MalformedItem(str(problem)) from None
    if not whole.choices:
        raise MalformedItem("the engine gave no choice")
    outer, usage = whole.outer, whole.usage
    body: dict[str, Any] = {"id": identity.id, "object": "chat.completion", "created": identity.created_s}
    body["model"] = identity.model_said(outer.pop("model", ""))
    body["choices"] = whole.choices
    if usage is not None:
        body["usage"] = marked_cached(usage) if cached else usage
    for key in ("id", "object", "created"):
        outer.pop(key, None)
    return dump(body | outer)
