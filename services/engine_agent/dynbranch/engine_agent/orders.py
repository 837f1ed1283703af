"""An order as the engine shall receive it."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass, replace

from dynbranch.domain.engine import GenerationOrder, WireProtocol, WorkClass
from dynbranch.domain.errors import Conflict, InvalidRequest, NotFound
from dynbranch.domain.ids import GenerationId
from dynbranch.domain.reuse import Fingerprint
from dynbranch.engine_agent.engines.port import BodyFields, EngineFacts
from dynbranch.naming.document import Json, Number, emit, parse_body
from dynbranch.naming.fingerprint import fingerprint_digest

REQUEST_ID_CHARS = 32


@dataclass(frozen=True, slots=True)
class Prepared:
    order: GenerationOrder
    width: int
    fingerprint: Fingerprint


def prepare(order: GenerationOrder, facts: EngineFacts) -> Prepared:
    """Raises NotFound (unknown target), Conflict (another executor than the name was made for) and
    InvalidRequest (a body that no engine could read)."""
    model, fingerprint = _executor(order, facts)
    if fingerprint_digest(fingerprint) != order.fingerprint_digest:
        raise Conflict(
            "fingerprint_changed",
            f"{order.target!r} is not the executor that this order was made for",
            advice="describe the agent again and make the name anew",
        )
    headers = _headers(order)
    body = parse_body(order.body).value
    if order.protocol is WireProtocol.TOOL:
        return Prepared(replace(order, forward_headers=headers), 1, fingerprint)
    if not isinstance(body, dict):
        raise InvalidRequest("invalid_body", "a Chat Completions request is a JSON object")
    added = {**_streaming(body), **_engine_fields(order, body, facts.fields, model)}
    sent = replace(order, forward_headers=headers, body=_with(order.body, body, added))
    return Prepared(sent, _width(body), fingerprint)


def _executor(order: GenerationOrder, facts: EngineFacts) -> tuple[str, Fingerprint]:
    """The model's own id (or the tool's name) and its fingerprint."""
    if order.protocol is WireProtocol.TOOL:
        for tool in facts.tools:
            if tool.name == order.target:
                return tool.name, tool.fingerprint
        raise NotFound("unknown_tool", f"no tool {order.target[:80]!r} here", advice="see Describe")
    for model in facts.models:
        if order.target == model.id or order.target in model.aliases:
            return model.id, model.fingerprint
    raise NotFound("unknown_model", f"no model {order.target[:80]!r} here", advice="see Describe")


def _streaming(body: dict[str, Json]) -> dict[str, Json]:
    """Streamed and with usage: closing a stream is what tells an engine to stop."""
    options = body.get("stream_options")
    options = options if isinstance(options, dict) else {}
    if body.get("stream") is True and options.get("include_usage") is True:
        return {}
    return {"stream": True, "stream_options": {**options, "include_usage": True}}


def _engine_fields(
    order: GenerationOrder, body: dict[str, Json], fields: BodyFields, model: str
) -> dict[str, Json]:
    defaults = fields.defaults.get(model, {})
    added: dict[str, Json] = {name: Number(text) for name, text in defaults.items() if body.get(name) is None}
    priority = fields.priorities.get(order.work)
    # A harness may rank its own requests among one another; what nobody waits for ranks where it belongs.
    ranked = order.work is WorkClass.CANONICAL and body.get("priority") is not None
    if priority is not None and not ranked:
        added["priority"] = Number(str(priority))
    if fields.salt_field and order.cache_scope:
        added[fields.salt_field] = _salt(order.cache_scope, body.get(fields.salt_field))
    if fields.id_field:
        added[fields.id_field] = request_id(order.generation_id)
    return added


def request_id(generation: GenerationId) -> str:
    """The engine's name for a generation. All are of one length: SGLang aborts whatever *begins* with one."""
    return hashlib.sha256(generation).hexdigest()[:REQUEST_ID_CHARS]


def _salt(scope: str, own: Json) -> str:
    """A harness may divide its group's prefixes further, and never reach into another group's."""
    if own is None:
        return scope
    return hashlib.sha256(f"{scope}\n{emit(own)}".encode()).hexdigest()[:REQUEST_ID_CHARS]


def _with(source: bytes, body: dict[str, Json], added: dict[str, Json]) -> bytes:
    """The same document with these fields. What is in it already stays as it is spelled, where it can."""
    if not added:
        return source
    if not body.keys().isdisjoint(added):
        return emit({**body, **added}).encode()
    head = source.rstrip()[:-1].rstrip()
    return head + (b"," if body else b"") + emit(added).encode()[1:]


_OWN_HEADERS = frozenset(
    {"host", "connection", "content-length", "content-type", "transfer-encoding", "accept", "accept-encoding"}
)
"""What belongs to the agent's own connection to its engine."""

_HEADER_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9a-z-]+")
_HEADER_VALUE = re.compile(r"[\t\x20-\x7e\x80-\xff]*")
"""Bytes, each as the character of Latin-1, as HTTP has them."""


def _headers(order: GenerationOrder) -> tuple[tuple[str, str], ...]:
    for name, value in order.forward_headers:
        if not _HEADER_NAME.fullmatch(name) or not _HEADER_VALUE.fullmatch(value):
            raise InvalidRequest("invalid_header", f"the header {name[:80]!r} can not be forwarded")
    return tuple(pair for pair in order.forward_headers if pair[0] not in _OWN_HEADERS)


def _width(body: dict[str, Json]) -> int:
    """Engines run each of ``n`` choices in a slot of its own."""
    n = body.get("n")
    return int(n.text) if isinstance(n, Number) and n.text.isdigit() and len(n.text) < 5 else 1
