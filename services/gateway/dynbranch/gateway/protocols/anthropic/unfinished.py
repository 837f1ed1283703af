"""The whole part of a JSON object that was cut short."""

from __future__ import annotations

import json
from collections import deque
from typing import Final

_CLOSING: Final = {"{": "}", "[": "]"}
_TRIED: Final = 8
"""A key without its value, a comma and an opening may follow the last whole value: never more than a few."""


def completed_object(text: str) -> str:
    """The longest beginning of an object that can be closed, closed; ``{}`` where there is none.

    A text or a number that was cut is left out, as half of it may mean something else.
    """
    for end, open_marks in reversed(_places_to_close(text)):
        candidate = text[:end] + "".join(_CLOSING[mark] for mark in reversed(open_marks))
        try:
            value = json.loads(candidate)
        except (ValueError, RecursionError):
            continue
        return candidate if isinstance(value, dict) else "{}"
    return "{}"


def _places_to_close(text: str) -> deque[tuple[int, str]]:
    """The last ends of values and beginnings of lists and objects, each with what is open there."""
    places: deque[tuple[int, str]] = deque(maxlen=_TRIED)
    open_marks: list[str] = []
    in_text = escaped = False
    for at, character in enumerate(text):
        if in_text:
            if escaped:
                escaped = False
            elif character == "\\":
                escaped = True
            elif character == '"':
                in_text = False
                places.append((at + 1, "".join(open_marks)))
        elif character == '"':
            in_text = True
        elif character in _CLOSING:
            open_marks.append(character)
            places.append((at + 1, "".join(open_marks)))
        elif character in "}]" and open_marks:
            open_marks.pop()
            places.append((at + 1, "".join(open_marks)))
        elif character == ",":
            places.append((at, "".join(open_marks)))
    return places
