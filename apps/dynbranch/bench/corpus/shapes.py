"""What a case of the corpora is, and the messages that engines know, which all protocols come to."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

Object = dict[str, Any]


@dataclass(frozen=True)
class Asked:
    """``asks`` goes beside a model, and in Messages a length; ``chat`` is what of the engine's request it
    makes."""

    name: str
    asks: Object
    chat: Object


@dataclass(frozen=True)
class Told:
    """``deltas`` are of the only choice, ``content`` are the message's blocks but for ids and signatures."""

    name: str
    deltas: list[Object]
    content: list[Object]
    stop_reason: str = "end_turn"
    finish: str = "stop"
    beside_finish: Object = field(default_factory=dict)
    stops: tuple[str, ...] = ()
    stop_sequence: str | None = None
    usage: Object | None = None
    counts: tuple[int, int, int] = (7, 0, 3)
    """Prompt tokens that were read, those from a cache, and output tokens."""


def user(content: Any) -> Object:
    return {"role": "user", "content": content}


def system(content: Any) -> Object:
    return {"role": "system", "content": content}


def assistant(content: Any, **beside: Any) -> Object:
    return {"role": "assistant", "content": content, **beside}


def text(said: str, **beside: Any) -> Object:
    return {"type": "text", "text": said, **beside}


def called(place: int, arguments: str = "{}", name: str = "read") -> Object:
    function = {"name": name, "arguments": arguments}
    return {"id": f"call{place:05d}", "type": "function", "function": function}


def tool_says(place: int, content: Any, **beside: Any) -> Object:
    return {"role": "tool", "tool_call_id": f"call{place:05d}", "content": content, **beside}
