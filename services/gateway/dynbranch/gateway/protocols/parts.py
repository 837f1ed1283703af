"""What all protocols spell alike for the engine: the content of a message, ids of calls, and streaming."""

from __future__ import annotations

from dynbranch.gateway.protocols.refusal import wrong_type
from dynbranch.naming.document import Json
from dynbranch.naming.equivalences import call_id as call_id

Part = dict[str, Json]


def content_of(parts: list[Part]) -> Json:
    """As Chat Completions spells it: one bare text is a string, as a string is one text elsewhere."""
    match parts:
        case []:
            return ""
        case [{"type": "text", "text": str() as text, **beside}] if not beside:
            return text
        case _:
            return list(parts)


def streaming(asked: Json) -> dict[str, Json]:
    """The fields of a request that is to be streamed, or not. Raises InvalidRequest."""
    match asked:
        case None | False:
            return {}
        case True:
            return {"stream": True, "stream_options": {"include_usage": True}}
        case other:
            raise wrong_type("stream", "a boolean", other)
