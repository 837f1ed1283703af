"""One short text per state: two states with the same one go on alike.

Whole object graphs are walked, with what only people read left out, and indexes that are checked to say what
the rest says. Mappings count as sets of pairs: where their order matters to a core, it is that of bounds
which an exhaustive run never reaches.
"""

from __future__ import annotations

import hashlib
import marshal
from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from functools import cache
from typing import Any, cast

FOR_PEOPLE = frozenset({
    "counters", "heat", "reason", "used_ms", "saved_ms", "spent_ms", "abort_ms", "duplicates", "late",
    "unknown", "peak", "execution_ms", "first_item_at", "resolved_by", "numbers", "answers", "detail",
})  # fmt: skip
"""No core decides by them."""

CONSTANT = frozenset({
    "decision", "limits", "bounds", "template", "point", "passport", "new_id", "scenario", "ids", "identity",
    "sliced", "_base", "_is_shadow",
})  # fmt: skip

SAID_ELSEWHERE = frozenset({
    "branch", "_fills", "_keys", "_by_source", "_by_fill", "_by_producer", "_by_demand", "answered",
    "held_bytes", "_written", "load_made",
})  # fmt: skip

HEAPS = frozenset({"_timers", "_deadlines", "_expiries", "_due"})

_Form = Callable[[Any], Any]


def digest_of(*parts: object) -> bytes:
    return hashlib.blake2b(marshal.dumps(form_of(parts), 2), digest_size=16).digest()


def form_of(value: Any) -> Any:
    """Nested tuples of plain values, equal for equal states."""
    return _way_of(type(value))(value)


def _find_way(kind: type) -> _Form:
    if issubclass(kind, Enum):
        return _of_enum
    if kind in (int, float, str, bytes, bool, type(None)) or issubclass(kind, int):
        return _itself
    if issubclass(kind, list | tuple):
        return _of_sequence
    if issubclass(kind, Mapping):
        return _of_mapping
    if issubclass(kind, set | frozenset):
        return _unordered
    if is_dataclass(kind):
        names = [field.name for field in fields(kind)]
        return _Object(kind.__name__, tuple(name for name in names if _counts(name)))
    return _of_object


def _counts(name: str) -> bool:
    return name not in FOR_PEOPLE and name not in CONSTANT and name not in SAID_ELSEWHERE


def _itself(value: Any) -> Any:
    return value


def _of_enum(value: Any) -> Any:
    return value.value


def _of_sequence(value: Any) -> Any:
    return tuple([_way_of(type(one))(one) for one in value])


def _of_mapping(value: Any) -> Any:
    return _unordered(value.items())


def _unordered(values: Iterable[Any]) -> Any:
    return ("{}", *sorted([marshal.dumps(form_of(one), 2) for one in values]))


def _of_object(value: Any) -> Any:
    found: list[Any] = [type(value).__name__]
    for name in sorted(vars(value)):
        if _counts(name):
            one = getattr(value, name)
            found.append(_unordered(one) if name in HEAPS else form_of(one))
    return tuple(found)


class _Object:
    """Of one dataclass."""

    def __init__(self, kind: str, names: tuple[str, ...]) -> None:
        self._kind = kind
        self._names = names

    def __call__(self, value: Any) -> Any:
        return (self._kind, *[_way_of(type(one := getattr(value, name)))(one) for name in self._names])


_way_of = cast(Callable[[type], _Form], cache(_find_way))
