"""JSON spelled as a harness spells it: its blanks, its escapes. Key order and numbers stay as they are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from json.encoder import encode_basestring, encode_basestring_ascii
from typing import Any, Final

from dynbranch.naming.document import Number


@dataclass(frozen=True, slots=True)
class Spelling:
    """``ascii``: everything else is escaped."""

    ascii: bool
    comma: str
    colon: str


DEFAULT: Final = Spelling(ascii=True, comma=", ", colon=": ")
"""Python's ``json.dumps(value)``."""

UNICODE: Final = Spelling(ascii=False, comma=", ", colon=": ")
"""Python's ``json.dumps(value, ensure_ascii=False)``."""

COMPACT: Final = Spelling(ascii=False, comma=",", colon=":")
"""The ``openai`` client's, and JavaScript's ``JSON.stringify``."""

COMPACT_ASCII: Final = Spelling(ascii=True, comma=",", colon=":")

SPELLINGS: Final[Mapping[str, Spelling]] = {
    "json": DEFAULT,
    "json_unicode": UNICODE,
    "json_compact": COMPACT,
    "json_compact_ascii": COMPACT_ASCII,
}
"""By the name of the filter that writes it."""


def spell_json(value: Any, spelling: Spelling) -> str:
    """Raises TypeError for what is not JSON."""
    parts: list[str] = []
    _spell(value, spelling, parts)
    return "".join(parts)


def spell_inside(text: str, *, ascii: bool) -> str:
    """A text as it stands between the quotes of a JSON string."""
    return (encode_basestring_ascii(text) if ascii else encode_basestring(text))[1:-1]


def _spell(value: Any, spelling: Spelling, parts: list[str]) -> None:
    match value:
        case str():
            parts.append(_string(value, spelling))
        case bool() | None:
            parts.append("null" if value is None else "true" if value else "false")
        case int() | float():
            parts.append(repr(value))
        case Number(text):
            parts.append(text)
        case Mapping():
            opening = "{"
            for key, item in value.items():
                parts += (opening, _string(key, spelling), spelling.colon)
                _spell(item, spelling, parts)
                opening = spelling.comma
            parts.append("}" if value else "{}")
        case Sequence():
            opening = "["
            for item in value:
                parts.append(opening)
                _spell(item, spelling, parts)
                opening = spelling.comma
            parts.append("]" if value else "[]")
        case _:
            raise TypeError(f"{type(value).__name__} is not JSON")


def _string(text: str, spelling: Spelling) -> str:
    return encode_basestring_ascii(text) if spelling.ascii else encode_basestring(text)
