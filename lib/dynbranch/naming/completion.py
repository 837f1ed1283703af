"""What a generation's log says as a whole: its deltas added up.

Texts are joined, tool calls meet by index, lists of log probabilities are joined, and of everything else the
last value stands. Members that this file does not know are kept the same way. It reads logs by itself, not by
``assembly``, so that a record can be held against what the engine said.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final

from dynbranch.naming.assembly import RUN_NOISE, MalformedLog
from dynbranch.naming.text_pieces import TextPieces

_raw_decode = json.JSONDecoder().raw_decode
"""json.loads, but for what it does around the value."""

_FIRST_STANDS: Final = frozenset({"id", "type", "role", "index"})
"""Members that name something: what they said first stands, where other texts are joined."""

_SAID_WHOLE: Final = frozenset({"prompt_token_ids"})
"""Lists beside the delta that are about the request."""


@dataclass(slots=True)
class Whole:
    """``choices`` in the order of their index, as a plain response has them; ``outer`` stands beside them."""

    choices: list[dict[str, Any]]
    usage: dict[str, Any] | None = None
    outer: dict[str, Any] = field(default_factory=dict)


def whole_of(items: Iterable[bytes]) -> Whole:
    """Raises MalformedLog."""
    outer: dict[str, Any] = {}
    choices: dict[int, dict[str, Any]] = {}
    usage: dict[str, Any] | None = None
    for chunk in _merged(items):
        for choice in chunk.pop("choices", None) or ():
            _add_choice(choices, choice)
        found = chunk.pop("usage", None)
        if isinstance(found, dict):
            usage = found
        for key, value in chunk.items():
            if value is not None:
                outer[key] = value
    return Whole([_finished(choices[index]) for index in sorted(choices)], usage, outer)


def says_the_same(log: Iterable[bytes], record: Iterable[bytes]) -> bool:
    """Whether a client that reads the record is told what one that reads the log is told, but for what is
    only of that run. Raises MalformedLog."""
    said, kept = whole_of(log), whole_of(record)
    return (
        said.choices == kept.choices
        and said.usage == kept.usage
        and _lasting(said.outer) == _lasting(kept.outer)
    )


def _lasting(outer: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in outer.items() if key not in RUN_NOISE}


def _chunk(item: bytes) -> dict[str, Any]:
    try:
        text = item.decode().strip(" \t\r\n")
        chunk, end = _raw_decode(text)
        if end != len(text):
            raise ValueError(f"more than one JSON value, at {end}")
    except (ValueError, RecursionError) as problem:
        raise MalformedLog(str(problem)) from None
    if not isinstance(chunk, dict):
        raise MalformedLog("an item is not an object")
    return chunk


def _merged(items: Iterable[bytes]) -> Iterator[dict[str, Any]]:
    """The chunks parsed. Such as say but one more piece of text are one chunk that says all of it."""
    pieces, alike = TextPieces(), list[bytes]()
    for item in items:
        if pieces.is_alike(item):
            alike.append(item)
            continue
        if alike:
            yield from _texts(pieces, alike)
            alike.clear()
        chunk = _chunk(item)
        pieces.learn(item, chunk)
        yield chunk
    if alike:
        yield from _texts(pieces, alike)


def _texts(pieces: TextPieces, alike: list[bytes]) -> Iterator[dict[str, Any]]:
    text = pieces.text_of(alike)
    if text is None:
        yield from map(_chunk, alike)
    else:
        yield {"choices": [{"index": pieces.choice, "delta": {"content": text}}]}


def _add_choice(choices: dict[int, dict[str, Any]], choice: Any) -> None:
    if not isinstance(choice, dict) or not isinstance(choice.get("index", 0), int):
        raise MalformedLog("a choice is not an object with an index")
    index = choice.get("index", 0)
    known = choices.setdefault(
        index, {"index": index, "message": {"role": "assistant"}, "logprobs": None, "finish_reason": None}
    )
    for key, value in choice.items():
        if key == "delta":
            _join(known["message"], value if isinstance(value, dict) else {})
        elif key == "logprobs":
            _join_logprobs(known, value)
        elif key != "index" and value is not None:
            _add_beside(known, key, value)


def _add_beside(known: dict[str, Any], key: str, value: Any) -> None:
    """What engines put beside the delta, as the ids of its tokens: lists go on from chunk to chunk."""
    earlier = known.get(key)
    if isinstance(earlier, list) and isinstance(value, list) and key not in _SAID_WHOLE:
        earlier.extend(value)
    else:
        known[key] = value


def _join_logprobs(known: dict[str, Any], value: Any) -> None:
    if not isinstance(value, dict):
        return
    joined = known["logprobs"] = dict(known["logprobs"] or {})
    for key, part in value.items():
        earlier = joined.get(key)
        joined[key] = (
            earlier + part if isinstance(earlier, list) and isinstance(part, list) else part or earlier
        )


def _join(message: dict[str, Any], delta: dict[str, Any]) -> None:
    for key, value in delta.items():
        earlier = message.get(key)
        if value is None:
            continue
        if earlier in (None, ""):
            message[key] = _first(value)
        elif key in _FIRST_STANDS or (key == "name" and earlier == value):
            # Some engines repeat a call's name with every delta; a different one is the rest of it.
            continue
        else:
            message[key] = _joined(earlier, value)


def _first(value: Any) -> Any:
    """A copy to add to. A list of indexed parts starts as the parts it already holds."""
    match value:
        case dict():
            return dict(value)
        case list() if _indexed(value):
            return _joined([], value)
        case list():
            return list(value)
        case _:
            return value


def _joined(earlier: Any, value: Any) -> Any:
    if isinstance(earlier, str) and isinstance(value, str):
        return earlier + value
    if isinstance(earlier, dict) and isinstance(value, dict):
        _join(earlier, value)
        return earlier
    if isinstance(earlier, list) and isinstance(value, list):
        return _joined_lists(earlier, value)
    return value


def _joined_lists(earlier: list[Any], value: list[Any]) -> list[Any]:
    if not _indexed(value):
        return earlier + value
    for part in value:
        known = next((e for e in earlier if isinstance(e, dict) and e.get("index") == part["index"]), None)
        if known is None:
            earlier.append({k: _first(v) for k, v in part.items()})
        else:
            _join(known, part)
    return earlier


def _indexed(value: list[Any]) -> bool:
    return bool(value) and all(
        isinstance(part, dict) and isinstance(part.get("index"), int) for part in value
    )


def _finished(choice: dict[str, Any]) -> dict[str, Any]:
    message = choice["message"]
    calls = message.get("tool_calls")
    if isinstance(calls, list):
        calls = sorted(calls, key=lambda call: call.get("index", 0) if isinstance(call, dict) else 0)
        message["tool_calls"] = [_without_index(call) for call in calls]
    # What a plain response of these engines says when there are tool calls and no text.
    message["content"] = message.get("content") or (None if calls or "function_call" in message else "")
    return choice


def _without_index(call: Any) -> Any:
    return {k: v for k, v in call.items() if k != "index"} if isinstance(call, dict) else call
