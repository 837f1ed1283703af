"""The members of one JSON object, each with the exact bytes that it was written in.

A relay that changes two members of an object must not respell the others: numbers keep their spelling, keys
their order, unknown members their place.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from json.decoder import scanstring  # type: ignore[attr-defined]
from json.scanner import make_scanner
from typing import Any, cast

_scanstring = cast(Callable[[str, int], tuple[str, int]], scanstring)
_scan_value: Callable[[str, int], tuple[Any, int]] = make_scanner(cast(Any, json.JSONDecoder()))
_BLANKS = " \t\n\r"


class NotAnObject(ValueError):
    """The text is not one JSON object."""


@dataclass(frozen=True, slots=True)
class Member:
    """``spelling`` is the value's own text."""

    key: str
    spelling: str
    value: Any


def members(text: str) -> list[Member]:
    """Split one JSON object. Raises NotAnObject."""
    try:
        found, end = _split(text, _skip(text, 0))
    except (StopIteration, IndexError, ValueError, RecursionError) as problem:
        raise NotAnObject(str(problem)) from None
    if _skip(text, end) != len(text):
        raise NotAnObject("text after the object")
    return found


def _split(text: str, at: int) -> tuple[list[Member], int]:
    at = _expect(text, at, "{")
    found: list[Member] = []
    if text[at] == "}":
        return found, at + 1
    while True:
        key, at = _scanstring(text, _expect(text, at, '"', blanks=False))
        at = _expect(text, _skip(text, at), ":")
        value, end = _scan_value(text, at)
        found.append(Member(key, text[at:end], value))
        at = _skip(text, end)
        if text[at] == "}":
            return found, at + 1
        at = _expect(text, at, ",")


def _expect(text: str, at: int, mark: str, *, blanks: bool = True) -> int:
    if text[at] != mark:
        raise NotAnObject(f"{mark!r} expected at {at}")
    return _skip(text, at + 1) if blanks else at + 1


def _skip(text: str, at: int) -> int:
    end = len(text)
    while at < end and text[at] in _BLANKS:
        at += 1
    return at


_COMPACT = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"))
"""Made once: json.dumps makes one for each value."""


def dump(value: object) -> bytes:
    """Compact JSON in UTF-8. Halves of surrogate pairs, which UTF-8 can not hold, are escaped."""
    text = _COMPACT.encode(value)
    try:
        return text.encode()
    except UnicodeEncodeError:
        return json.dumps(value, separators=(",", ":")).encode()
