"""Paths into JSON: ``$.messages[0].content``, ``$.tools[*].name``, ``$['x-y'][-1]``, ``$.messages[1:]``.

A step into a text reads that text as JSON first, since arguments of calls and results of tools are JSON
inside JSON.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from dynbranch.domain.errors import InvalidRequest
from dynbranch.naming.document import Json, parse_text


@dataclass(frozen=True, slots=True)
class Key:
    name: str


@dataclass(frozen=True, slots=True)
class Index:
    """Negative ones count from the end."""

    place: int


@dataclass(frozen=True, slots=True)
class Every:
    """All items of a list, or all values of an object."""


@dataclass(frozen=True, slots=True)
class Slice:
    """Part of a list, as one list."""

    begin: int | None
    end: int | None


Step = Key | Index | Every | Slice


class BadPath(ValueError):
    """The message says at which character, and what is expected there."""


MAX_CHARACTERS = 4_096
"""Of a path."""

_STEP = re.compile(
    r"""\.(?P<key>[A-Za-z_][\w-]*)
      | \['(?P<quoted>[^']*)'\]
      | \[(?P<index>-?\d+)\]
      | (?P<every>\[\*\]|\.\*)
      | \[(?P<begin>-?\d+)?:(?P<end>-?\d+)?\]""",
    re.VERBOSE,
)


def parse_path(text: str) -> tuple[Step, ...]:
    """Raises BadPath."""
    if len(text) > MAX_CHARACTERS:
        raise BadPath(f"the path {text[:40]!r}… has {len(text):,} characters, at most {MAX_CHARACTERS:,} do")
    if not text.startswith("$"):
        raise BadPath(f"the path {text!r} must begin with '$'")
    steps: list[Step] = []
    place = 1
    while place < len(text):
        match = _STEP.match(text, place)
        if match is None:
            raise BadPath(
                f"the path {text!r} breaks at character {place + 1}: "
                "expected .name, ['name'], [0], [*] or [1:]"
            )
        steps.append(_step(match))
        place = match.end()
    return tuple(steps)


def spell(steps: Iterable[Step]) -> str:
    """The text that ``parse_path`` reads back."""
    parts = ["$"]
    for step in steps:
        match step:
            case Key(name) if re.fullmatch(r"[A-Za-z_][\w-]*", name):
                parts.append(f".{name}")
            case Key(name):
                parts.append(f"['{name}']")
            case Index(place):
                parts.append(f"[{place}]")
            case Every():
                parts.append("[*]")
            case Slice(begin, end):
                parts.append(f"[{'' if begin is None else begin}:{'' if end is None else end}]")
    return "".join(parts)


def values_at(value: Json, steps: tuple[Step, ...]) -> list[Json]:
    """Every value that the path leads to; none where it leads nowhere."""
    found = [value]
    for step in steps:
        found = [inner for item in found for inner in _inside(item, step)]
    return found


def _step(match: re.Match[str]) -> Step:
    groups = match.groupdict()
    if groups["key"] is not None or groups["quoted"] is not None:
        return Key(groups["key"] if groups["key"] is not None else groups["quoted"])
    if groups["index"] is not None:
        return Index(int(groups["index"]))
    if groups["every"] is not None:
        return Every()
    begin, end = groups["begin"], groups["end"]
    return Slice(None if begin is None else int(begin), None if end is None else int(end))


def _inside(value: Json, step: Step) -> list[Json]:
    if isinstance(value, str):
        try:
            value = parse_text(value)
        except InvalidRequest:
            return []
        if isinstance(value, str):
            return []
    match step, value:
        case Key(name), dict():
            return [value[name]] if name in value else []
        case Index(place), list():
            return [value[place]] if -len(value) <= place < len(value) else []
        case Every(), list():
            return value
        case Every(), dict():
            return [*value.values()]
        case Slice(begin, end), list():
            return [value[begin:end]]
        case _:
            return []
