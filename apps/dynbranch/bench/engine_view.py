"""What an engine can see of a Chat Completions body, written down apart from the code that names requests.

It is slow and plain, and knows nothing of field tables. Two bodies with one name must have one view.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, NoReturn

MAX_DEPTH: Final = 256

_UNSEEN: Final = frozenset(
    {
        "stream",
        "stream_options",
        "user",
        "metadata",
        "store",
        "service_tier",
        "safety_identifier",
        "request_id",
        "rid",
        "priority",
        "prompt_cache_key",
        "prompt_cache_options",
        "prompt_cache_retention",
        "data_parallel_rank",
    }
)
_BY_VALUE: Final = frozenset(
    {
        "temperature",
        "top_p",
        "min_p",
        "frequency_penalty",
        "presence_penalty",
        "repetition_penalty",
        "length_penalty",
        "dry_base",
        "dry_multiplier",
        "repeat_penalty",
        "top_n_sigma",
        "typical_p",
    }
)
_MARKS: Final = frozenset({"cache_control", "prompt_cache_breakpoint"})
_PARTS: Final = frozenset(
    {
        "text",
        "refusal",
        "image_url",
        "video_url",
        "audio_url",
        "input_audio",
        "file",
    }
)
_PLAIN_ROLES: Final = frozenset({"system", "user", "assistant"})
_NUMBER: Final = re.compile(r"(-?)([0-9]+)(?:\.([0-9]+))?(?:[eE]([-+]?[0-9]+))?")


class NotStrict(ValueError):
    """Readers of JSON may disagree about this body."""


@dataclass(frozen=True)
class Spelled:
    text: str


View = Callable[[Any], Any]


def view_digest(body: bytes, *, plain_blocks: bool, models: frozenset[str] = frozenset()) -> bytes:
    """Equal for bodies that an engine must treat alike. ``plain_blocks``: it prints a single text block like
    the text. ``models`` are names of one model. Raises NotStrict."""
    seen = engine_view(strict(body), plain_blocks=plain_blocks, models=models)
    return hashlib.sha256(json.dumps(seen, sort_keys=True).encode()).digest()


def strict(body: bytes) -> Any:
    """The body's value. Raises NotStrict."""
    try:
        value = json.loads(
            body.decode("utf-8"),
            object_pairs_hook=_object,
            parse_int=Spelled,
            parse_float=Spelled,
            parse_constant=_refuse,
        )
        _inspect(value, 1)
    except (ValueError, RecursionError) as problem:
        raise NotStrict(str(problem)) from None
    return value


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len({key for key, _ in pairs}) < len(pairs):
        raise NotStrict("a key stands twice")
    return dict(pairs)


def _refuse(text: str) -> NoReturn:
    raise NotStrict(text)


def _inspect(value: Any, depth: int) -> None:
    if isinstance(value, str):
        value.encode()
    if isinstance(value, dict | list):
        if depth > MAX_DEPTH:
            raise NotStrict("too deep")
        for item in [*value, *value.values()] if isinstance(value, dict) else value:
            _inspect(item, depth + 1)


def engine_view(body: Any, *, plain_blocks: bool, models: frozenset[str]) -> Any:
    if not isinstance(body, dict):
        return _as_it_came(body)
    seen = {key: _setting(key, value) for key, value in body.items() if key not in _UNSEEN}
    messages = body.get("messages")
    if isinstance(messages, list):
        seen["messages"] = [
            _message(message, plain_blocks, last=place == len(messages))
            for place, message in enumerate(messages, 1)
        ]
    if body.get("model") in models:
        seen["model"] = min(models)
    return seen


def _setting(key: str, value: Any) -> Any:
    match key, value:
        case _, Spelled(text) if key in _BY_VALUE:
            return ["value", *_value(text)]
        case "tools", list():
            return [_tool(tool) for tool in value]
        case "functions", list():
            return [_definition(function) for function in value]
        case "tool_choice" | "function_call", dict():
            return _unordered(value, function=_unordered, custom=_unordered, allowed_tools=_unordered)
        case "response_format", dict():
            return _unordered(value, json_schema=_unordered)
        case _:
            return _as_it_came(value)


def _value(text: str) -> tuple[str, str, int | str]:
    """Sign, digits and power of ten; one of each per value."""
    match = _NUMBER.fullmatch(text)
    assert match is not None
    sign, whole, fraction, power = match[1], match[2], match[3] or "", match[4] or "0"
    digits = (whole + fraction).strip("0")
    if not digits:
        return "", "0", 0
    if len(power) > 4000:
        return sign, text, "spelled"
    trailing = len(whole + fraction) - len((whole + fraction).rstrip("0"))
    return sign, digits, int(power) - len(fraction) + trailing


def _as_it_came(value: Any) -> Any:
    """Free-form JSON: a template may print it as it stands."""
    match value:
        case dict():
            return ["in order", [[key, _as_it_came(item)] for key, item in value.items()]]
        case list():
            return ["list", [_as_it_came(item) for item in value]]
        case Spelled(text):
            return ["number", text]
        case _:
            return value


def _unordered(value: Any, **inside: View) -> Any:
    if not isinstance(value, dict):
        return _as_it_came(value)
    return {"any order": {key: inside.get(key, _as_it_came)(item) for key, item in value.items()}}


def _printed(value: Any, known: frozenset[str], **inside: View) -> Any:
    """An object of which a template may print the fields that it does not know."""
    if not isinstance(value, dict):
        return _as_it_came(value)
    named = {key: inside.get(key, _as_it_came)(item) for key, item in value.items() if key in known}
    return [named, [[key, _as_it_came(item)] for key, item in value.items() if key not in known]]


def _tool(tool: Any) -> Any:
    return _printed(tool, frozenset({"type", "function", "custom"}), function=_definition, custom=_custom)


def _definition(function: Any) -> Any:
    return _printed(function, frozenset({"name", "description", "parameters", "strict"}))


def _custom(custom: Any) -> Any:
    return _printed(custom, frozenset({"name", "description", "format"}))


def _message(message: Any, plain_blocks: bool, *, last: bool) -> Any:
    if not isinstance(message, dict):
        return _as_it_came(message)
    kept = {key: value for key, value in message.items() if key not in _MARKS}
    role = kept.get("role")
    closing = last and role == "assistant"
    if plain_blocks and isinstance(role, str) and role in _PLAIN_ROLES and not closing:
        kept.update({key: _plain(value) for key, value in kept.items() if key == "content"})
    return _unordered(kept, content=_content, tool_calls=_calls, function_call=_unordered, audio=_unordered)


def _plain(content: Any) -> Any:
    match content:
        case [dict() as part] if part.get("type") == "text" and isinstance(part.get("text"), str):
            if part["text"] and part.keys() - _MARKS == {"type", "text"}:
                return part["text"]
    return content


def _content(content: Any) -> Any:
    return [_part(part) for part in content] if isinstance(content, list) else _as_it_came(content)


def _part(part: Any) -> Any:
    if not isinstance(part, dict) or not isinstance(part.get("type"), str) or part["type"] not in _PARTS:
        return _as_it_came(part)
    kept = {key: value for key, value in part.items() if key not in _MARKS}
    return _unordered(kept, **dict.fromkeys(_PARTS - {"text", "refusal"}, _unordered))


def _calls(calls: Any) -> Any:
    if not isinstance(calls, list):
        return _as_it_came(calls)
    return [_unordered(call, function=_unordered, custom=_unordered) for call in calls]
