"""Strict JSON that keeps what a chat template may print: key order and the spelling of numbers.

Text is kept as code points, so that an escape and the character it stands for are the same. Everything that
two engines could read differently is refused: duplicate keys, NaN and Infinity, lone surrogates, bytes that
are not UTF-8, anything after the value, and nesting deeper than ``MAX_DEPTH``. So is what no model's context
could hold, but would cost a hundred times its size in memory: more than ``MAX_VALUES`` values.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from json.encoder import encode_basestring, encode_basestring_ascii
from typing import Final, NoReturn, TypeAlias

from dynbranch.domain.errors import InvalidRequest

MAX_DEPTH: Final = 256
"""Levels of nested objects and arrays, the outermost included."""

MAX_VALUES: Final = 500_000
"""Counted as opening brackets and commas: one stands before every value but the first."""


@dataclass(frozen=True, slots=True)
class Number:
    """A JSON number by its spelling."""

    text: str


Json: TypeAlias = "bool | str | Number | list[Json] | dict[str, Json] | None"


@dataclass(frozen=True, slots=True)
class Document:
    """A parsed body. ``source`` holds the bytes as they came; ``value`` is never changed."""

    source: bytes
    value: Json


class _Refused(ValueError):
    """A reason that json's own errors do not know."""


def parse_body(source: bytes) -> Document:
    """Raises InvalidRequest (reason ``invalid_json``), which says where the text breaks."""
    try:
        text = source.decode("utf-8")
    except UnicodeDecodeError as error:
        raise _invalid(f"The body is not UTF-8: byte {error.start} does not fit.") from None
    return Document(source, parse_text(text))


def parse_text(text: str) -> Json:
    """Parse one JSON text. Raises InvalidRequest (reason ``invalid_json``)."""
    if len(text) > MAX_VALUES and _marks(text) > MAX_VALUES:
        _check_values(text)
    try:
        value: Json = _decode(text)
    except json.JSONDecodeError as error:
        place = f"line {error.lineno}, column {error.colno}"
        raise _invalid(f"The body is not valid JSON: {error.msg} at {place}.") from None
    except _Refused as error:
        raise _invalid(f"The body is not valid JSON: {error}.") from None
    except RecursionError:
        raise _too_deep() from None
    # Braces inside texts count too, so a small count proves a shallow document and a large one only asks for
    # a look.
    if text.count("{") + text.count("[") > MAX_DEPTH:
        _check_depth(value)
    if _SURROGATE_ESCAPE.search(text) is not None:
        _check_surrogates(value)
    return value


def emit(value: Json) -> str:
    """The one minimal spelling of a value: no blanks, texts escaped only where JSON demands it, numbers as
    kept."""
    parts: list[str] = []
    _emit(value, parts)
    return "".join(parts)


def kind_of(value: Json) -> str:
    """What a person calls this kind of value."""
    match value:
        case None:
            return "null"
        case bool():
            return "a boolean"
        case str():
            return "a string"
        case Number():
            return "a number"
        case list():
            return "an array"
        case dict():
            return "an object"


_STRING = re.compile(r'"[^"\\]*+(?:\\.[^"\\]*+)*+"?', re.DOTALL)

_HOLDERS: Final = (dict, list)

_SURROGATE_ESCAPE = re.compile(r"\\u[dD][89a-fA-F]")


def _pairs(pairs: list[tuple[str, Json]]) -> dict[str, Json]:
    result = dict(pairs)
    if len(result) != len(pairs):
        seen: set[str] = set()
        for key, _ in pairs:
            if key in seen:
                raise _Refused(f"the key {key[:80]!r} stands twice in one object")
            seen.add(key)
    return result


def _constant(text: str) -> NoReturn:
    raise _Refused(f"{text} is not a JSON number")


_decode = json.JSONDecoder(
    object_pairs_hook=_pairs, parse_float=Number, parse_int=Number, parse_constant=_constant
).decode


def _emit(value: Json, parts: list[str]) -> None:
    # Texts are most of all values: they are spelled where they stand, without a call of their own.
    if isinstance(value, str):
        parts.append(_quoted(value))
    elif isinstance(value, dict):
        opening = "{"
        for key, item in value.items():
            if isinstance(item, str):
                parts.append(f"{opening}{_quoted(key)}:{_quoted(item)}")
            else:
                parts.append(f"{opening}{_quoted(key)}:")
                _emit(item, parts)
            opening = ","
        parts.append("}" if value else "{}")
    elif isinstance(value, list):
        opening = "["
        for item in value:
            parts.append(opening)
            _emit(item, parts)
            opening = ","
        parts.append("]" if value else "[]")
    elif isinstance(value, Number):
        parts.append(value.text)
    else:
        parts.append("null" if value is None else "true" if value else "false")


def _quoted(text: str) -> str:
    """A JSON string that escapes nothing but what it must."""
    # The function for ASCII alone is twice as fast, and escapes one character more.
    if text.isascii() and "\x7f" not in text:
        return encode_basestring_ascii(text)
    return encode_basestring(text)


def _children(value: Json) -> Iterator[Json]:
    if isinstance(value, dict):
        yield from value.values()
    elif isinstance(value, list):
        yield from value


def _marks(text: str, start: int = 0, end: int | None = None) -> int:
    return text.count(",", start, end) + text.count("[", start, end) + text.count("{", start, end)


def _check_values(text: str) -> None:
    """Before parsing, because the values themselves are what costs. Marks inside strings are not counted."""
    values, start = 0, 0
    for string in _STRING.finditer(text):
        values += _marks(text, start, string.start())
        start = string.end()
        if values > MAX_VALUES:
            break
    if values + _marks(text, start) > MAX_VALUES:
        raise _invalid(f"The body holds more than {MAX_VALUES} values.")


def _check_depth(value: Json) -> None:
    level, depth = [value], 1
    while level:
        below: list[Json] = []
        for parent in level:
            if isinstance(parent, dict):
                below += [item for item in parent.values() if isinstance(item, _HOLDERS)]
            elif isinstance(parent, list):
                below += [item for item in parent if isinstance(item, _HOLDERS)]
        level = below
        depth += bool(level)
        if depth > MAX_DEPTH:
            raise _too_deep()


def _check_surrogates(value: Json) -> None:
    waiting = [value]
    while waiting:
        item = waiting.pop()
        texts = [item] if isinstance(item, str) else item.keys() if isinstance(item, dict) else ()
        for text in texts:
            if not _encodes(text):
                raise _invalid("The body is not valid JSON: a text holds half of a surrogate pair.")
        waiting.extend(_children(item))


def _encodes(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _too_deep() -> InvalidRequest:
    return _invalid(f"The body is nested deeper than {MAX_DEPTH} levels.")


def _invalid(message: str) -> InvalidRequest:
    return InvalidRequest("invalid_json", message, advice="Send one JSON value in UTF-8.")
