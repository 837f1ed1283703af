"""An order as the engine shall receive it."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from dynbranch.domain.engine import GenerationOrder, WireProtocol
from dynbranch.domain.errors import Conflict, InvalidRequest, NotFound
from dynbranch.domain.reuse import Fingerprint
from dynbranch.engine_agent.engines.port import EngineFacts
from dynbranch.naming.document import Json, Number, emit, parse_body
from dynbranch.naming.fingerprint import fingerprint_digest


@dataclass(frozen=True, slots=True)
class Prepared:
    order: GenerationOrder
    width: int
    fingerprint: Fingerprint


def prepare(order: GenerationOrder, facts: EngineFacts) -> Prepared:
    """Raises NotFound (unknown target), Conflict (another executor than the name was made for) and
    InvalidRequest (a body that no engine could read)."""
    fingerprint = _fingerprint(order, facts)
    if fingerprint_digest(fingerprint) != order.fingerprint_digest:
        raise Conflict(
            "fingerprint_changed",
            f"{order.target!r} is not the executor that this order was made for",
            advice="describe the agent again and make the name anew",
        )
    order = replace(order, forward_headers=_headers(order))
    body = parse_body(order.body).value
    if order.protocol is WireProtocol.TOOL:
        return Prepared(order, 1, fingerprint)
    if not isinstance(body, dict):
        raise InvalidRequest("invalid_body", "a Chat Completions request is a JSON object")
    return Prepared(replace(order, body=_streaming(order.body, body)), _width(body), fingerprint)


def _fingerprint(order: GenerationOrder, facts: EngineFacts) -> Fingerprint:
    if order.protocol is WireProtocol.TOOL:
        for tool in facts.tools:
            if tool.name == order.target:
                return tool.fingerprint
        raise NotFound("unknown_tool", f"no tool {order.target[:80]!r} here", advice="see Describe")
    for model in facts.models:
        if order.target == model.id or order.target in model.aliases:
            return model.fingerprint
    raise NotFound("unknown_model", f"no model {order.target[:80]!r} here", advice="see Describe")


def _streaming(source: bytes, body: dict[str, Json]) -> bytes:
    """The same request, streamed and with usage: closing a stream is what tells an engine to stop."""
    options = body.get("stream_options")
    options = options if isinstance(options, dict) else {}
    if body.get("stream") is True and options.get("include_usage") is True:
        return source
    return emit({**body, "stream": True, "stream_options": {**options, "include_usage": True}}).encode()


_OWN_HEADERS = frozenset(
    {"host", "connection", "content-length", "content-type", "transfer-encoding", "accept", "accept-encoding"}
)
"""What belongs to the agent's own connection to its engine."""

_HEADER_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9a-z-]+")


def _headers(order: GenerationOrder) -> tuple[tuple[str, str], ...]:
    for name, value in order.forward_headers:
        if not _HEADER_NAME.fullmatch(name) or not value.isprintable():
            raise InvalidRequest("invalid_header", f"the header {name[:80]!r} can not be forwarded")
    return tuple(pair for pair in order.forward_headers if pair[0] not in _OWN_HEADERS)


def _width(body: dict[str, Json]) -> int:
    """Engines run each of ``n`` choices in a slot of its own."""
    n = body.get("n")
    return int(n.text) if isinstance(n, Number) and n.text.isdigit() and len(n.text) < 5 else 1
