"""A value at a path of a JSON text that is still being written: seen as soon as it stands there.

Reading goes on where it stopped: only a text that is not closed yet is looked at again.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass

from dynbranch.domain.template import Choice
from dynbranch.rendering.json_path import Every, Index, Key, Slice, Step

_BLANKS = re.compile(r"[ \t\r\n]*")
_STRING = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*"', re.DOTALL)
_BARE = re.compile(r"[^\s,\]}\[{:\"]+")
# Half an escape at the end, or the first half of a pair of escapes that are one character.
_CUT_ESCAPE = re.compile(
    r"(?<!\\)(?:\\\\)*(?P<cut>(?:\\u[dD][89abAB][0-9a-fA-F]{2})?(?:\\(?:u[0-9a-fA-F]{0,3})?)?)$"
)
_SURROGATE = re.compile("[\ud800-\udfff]")
_OFF_PATH = -1


@dataclass(slots=True)
class _Level:
    """An open object or list. ``matched``: how many steps of the path lead to it; negative: none do."""

    is_object: bool
    matched: int
    key: str | None = None
    index: int = 0


class JsonWatch:
    """Watches one path. ``feed`` takes what was added to the text."""

    def __init__(self, steps: tuple[Step, ...]) -> None:
        self._steps = steps
        self._only_one = not any(isinstance(step, Every | Slice) for step in steps)
        self._levels: list[_Level] = []
        self._pending = ""
        self._before = 0
        self._over = False
        self._closed: list[Choice] = []
        self._open: Choice | None = None

    @property
    def choices(self) -> tuple[Choice, ...]:
        """Those whose text is complete, and after them one that is still being written."""
        return (*self._closed, self._open) if self._open is not None else tuple(self._closed)

    def feed(self, added: str) -> None:
        if self._over or not added:
            return
        self._pending += added
        self._open = None
        place = 0
        while not self._over:
            place = _end_of_blanks(self._pending, place)
            if place >= len(self._pending):
                break
            after = self._token(place)
            if after is None:
                break
            place = after
        self._pending = self._pending[place:]
        self._before += place

    def _token(self, place: int) -> int | None:
        """Where the token that begins here ends; None: it is not complete."""
        mark = self._pending[place]
        if mark in "{[":
            self._levels.append(_Level(mark == "{", self._matched()))
        elif mark in "}]":
            self._leave()
        elif mark == ",":
            self._next()
        elif mark == '"':
            return self._string(place)
        elif mark != ":":
            return self._bare(place)
        return place + 1

    def _leave(self) -> None:
        if not self._levels:
            self._over = True
            return
        self._levels.pop()
        self._over = not self._levels

    def _next(self) -> None:
        if self._levels:
            self._levels[-1].key = None
            self._levels[-1].index += 1

    def _string(self, place: int) -> int | None:
        match = _STRING.match(self._pending, place)
        level = self._levels[-1] if self._levels else None
        is_key = level is not None and level.is_object and level.key is None
        if match is None:
            if not is_key and self._matched() == len(self._steps):
                self._open = self._seen_so_far(place)
            return None
        text = _decoded(match[0])
        if text is None:
            self._over = True
        elif is_key and level is not None:
            level.key = text
        else:
            self._value(text, match.end())
        return match.end()

    def _bare(self, place: int) -> int | None:
        match = _BARE.match(self._pending, place)
        if match is None or match.end() == len(self._pending):
            # A number may go on; only what follows it says that it is whole.
            return None
        self._value(match[0], match.end())
        return match.end()

    def _value(self, text: str, end: int) -> None:
        if self._matched() == len(self._steps):
            self._closed.append(Choice(text, closed=True, final=self._only_one, at=self._before + end))
        if not self._levels:
            self._over = True

    def _seen_so_far(self, place: int) -> Choice | None:
        written = self._pending[place:]
        match = _CUT_ESCAPE.search(written)
        text = _decoded((written if match is None else written[: match.start("cut")]) + '"')
        at = self._before + len(self._pending)
        return None if text is None else Choice(text, closed=False, final=False, at=at)

    def _matched(self) -> int:
        """How many steps of the path lead to the value that begins here."""
        if not self._levels:
            return 0
        level = self._levels[-1]
        if level.matched == _OFF_PATH or level.matched >= len(self._steps):
            return _OFF_PATH
        match self._steps[level.matched]:
            case Key(name):
                fits = level.is_object and level.key == name
            case Index(wanted):
                fits = not level.is_object and level.index == wanted
            case Every():
                fits = True
            case Slice():
                fits = False
        return level.matched + 1 if fits else _OFF_PATH


def _end_of_blanks(text: str, place: int) -> int:
    match = _BLANKS.match(text, place)
    return place if match is None else match.end()


def _decoded(quoted: str) -> str | None:
    try:
        text = json.loads(quoted, strict=False)
    except ValueError:
        return None
    return text if isinstance(text, str) and not _SURROGATE.search(text) else None
