"""Names that an answer speaks of before it chooses one.

A thought names what it is about to do. For each decision point whose template asks for it, the pieces of an
answer are read as they come, and each name that might be chosen is yielded when the answer speaks of it for
the first time. What may be chosen is a closed menu, or, where the set is open, the capitalised names that
stand in the request itself. Pure; a piece costs its own length and a bounded overlap.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Protocol

from dynbranch.wording.spans import joined_so_far, spans
from dynbranch.wording.words import name_words

MOST = 3
"""Names told of one answer at one decision point. Each may cost a fill; of real thoughts few speak of more
before they choose, and what comes after three is talk."""
MOST_ITEMS = 512
"""Of a menu. A longer one is no menu that a thought goes through."""
LONGEST_ITEM = 200
"""Characters of a name that is looked for."""
MOST_REQUEST_CHARACTERS = 32_768
"""Of a request's last messages: what a thought is about was read lately."""
MOST_OVERLAP = 256
"""Characters of an answer that are kept because a name may go on: longer than any name of twelve words."""
MOST_OCCURRENCES = 8
"""Looked at of one name: where none of them stands for itself, the name is a part of others."""
MOST_AT_ONCE = 4096
"""Characters read of one piece, which take some milliseconds: everybody waits for them. Of a larger piece, as
of an answer that is there all at once, the rest is passed over."""
MOST_READ = 65_536
"""Characters read of one answer. A thought that has named nothing by then is not about to choose."""
MOST_LOOK_UPS_AT_ONCE = 64
"""Names of one piece that are looked for in the request: of the slowest, a third of a millisecond each."""
MOST_LOOK_UPS = 256
"""Names that are looked for in one request: what was found out of one is remembered, and others than these
are not told."""
_AROUND = 64
_MOST_DROPPED = 3
"""Words before a name that are capitalised because a sentence begins with them: "Next Find Irma Lund"."""

_ESCAPE = re.compile(r"\\[nrtbf\"/]")
"""Answers may be JSON: a line break in a text is two characters then."""


class Speech(Protocol):
    """One answer at one decision point."""

    def begin(self) -> None:
        """Another answer comes in its place."""
        ...

    def feed(self, added: str) -> Iterable[str]:
        """Names that are spoken of now, in the answer's or the menu's own spelling. Some may come twice.
        Those that nobody asks for are not looked for."""
        ...

    def begun(self, beginning: str) -> str | None:
        """The one name that a choice with this beginning can only be."""
        ...


@dataclass(slots=True)
class _Node:
    name: str | None = None
    next: dict[str, _Node] = field(default_factory=dict)


class MenuSpoken:
    """Items of a closed menu. The longest that stands there counts: "York" is none in "New York", if both are
    items; and a word is no part of another one."""

    def __init__(self, menu: Iterable[str]) -> None:
        self._items = tuple(dict.fromkeys(menu))[:MOST_ITEMS]
        self._root = _Node()
        self._text = ""
        self._waiting: list[str] = []
        for item in self._items:
            told = name_words(_apart(item)) if len(item) <= LONGEST_ITEM else ()
            node = self._root
            for word in told:
                node = node.next.setdefault(word, _Node())
            if told and node.name is None:
                node.name = item

    def begin(self) -> None:
        self._text, self._waiting = "", []

    def feed(self, added: str) -> list[str]:
        text = self._text + added
        closed = _open_end(text)
        # Of a word that is longer than any name what is kept can not become one.
        self._text = text[max(closed, len(text) - MOST_OVERLAP) :]
        *whole, last = _unescaped(text[:closed]).split("\n")
        found = [name for line in whole for name in self._matches(line, ends=True)]
        return [*found, *self._matches(last, ends=False)]

    def begun(self, beginning: str) -> str | None:
        fitting = [item for item in self._items if item.startswith(beginning)] if beginning else []
        return fitting[0] if len(fitting) == 1 else None

    def _matches(self, line: str, *, ends: bool) -> list[str]:
        """No name goes over the end of a line."""
        found, waiting, place = [], [*self._waiting, *name_words(_apart(line))], 0
        while place < len(waiting):
            node, at = self._root, place
            last: tuple[str, int] | None = None
            while at < len(waiting) and (following := node.next.get(waiting[at])) is not None:
                node, at = following, at + 1
                if node.name is not None:
                    last = (node.name, at)
            if not ends and at == len(waiting) and node.next and node is not self._root:
                # It may go on.
                break
            if last is not None:
                found.append(last[0])
            place = place + 1 if last is None else last[1]
        self._waiting = waiting[place:]
        return found


class RequestTexts:
    """The last texts of a request, as far as they are looked at. ``latest`` come the last one first."""

    def __init__(self, latest: Iterable[str]) -> None:
        kept: list[str] = []
        left = MOST_REQUEST_CHARACTERS
        for text in latest:
            if left <= 0:
                break
            kept.append(text[-left:])
            left -= len(text)
        self._kept = kept[::-1]

    @cached_property
    def _text(self) -> str:
        """Joined when the first name is looked for: many answers speak of none."""
        return "\n\n".join(self._kept)

    def has(self, name: str) -> bool:
        """Whether it stands there for itself: in no longer name, and as no label ("Thought:")."""
        text, place = self._text, -1
        one_word = " " not in name
        for _ in range(MOST_OCCURRENCES):
            place = text.find(name, place + 1)
            if place < 0:
                return False
            if one_word and text[place + len(name) : place + len(name) + 1] == ":":
                continue
            begin = text.rfind("\n", 0, place) + 1
            # From the beginning of a word on.
            begin = max(begin, text.find(" ", max(0, place - _AROUND), place))
            around = text[begin : place + len(name) + _AROUND].partition("\n")[0]
            if any(_is_meant(name, span.name, around, span.at) for span in spans(around)):
                return True
        return False


def _is_meant(name: str, found: str, around: str, at: int) -> bool:
    """``Irma Lund``, also where a sentence begins with "Ask Irma Lund"."""
    if found == name:
        return True
    begins = around[:at].rstrip(" ")[-1:] in ("", "\n", ".", "!", "?", ":", '"')
    return begins and " " in name and found.partition(" ")[2] == name


class RequestSpoken:
    """Capitalised names that stand in the request, too."""

    def __init__(self, request: RequestTexts) -> None:
        self._request = request
        self._text = ""
        self._stands: dict[str, bool] = {}

    def begin(self) -> None:
        self._text = ""

    def feed(self, added: str) -> Iterator[str]:
        text = _unescaped(self._text + added)
        # What it begins shows with the next piece.
        escape = "\\" * text.endswith("\\")
        text = text[: len(text) - len(escape)]
        closed = max(joined_so_far(text), len(text) - MOST_OVERLAP)
        self._text = text[closed:] + escape
        return self._found(text[:closed])

    def _found(self, text: str) -> Iterator[str]:
        most, taken = min(MOST_LOOK_UPS, len(self._stands) + MOST_LOOK_UPS_AT_ONCE), 0
        for span in sorted(spans(text), key=lambda span: (span.at, -len(span.name))):
            name = self._standing(span.name, most) if span.at >= taken else None
            if name is not None:
                yield name
                # "Lund & Vale" is one; of "Lund and Vale" nobody knows whether it is one or two.
                taken = taken if " and " in name else span.at + len(span.name)

    def begun(self, beginning: str) -> str | None:
        """Of an open set nothing is known before its end."""
        return None

    def _standing(self, name: str, most: int) -> str | None:
        """``most``: names that may have been looked for by then."""
        if len(name) > LONGEST_ITEM:
            return None
        for _ in range(_MOST_DROPPED):
            if name not in self._stands and len(self._stands) < most:
                self._stands[name] = self._request.has(name)
            if self._stands.get(name, False):
                return name
            _, _, name = name.partition(" ")
            if not name[:1].isupper():
                break
        return None


class SpokenNames:
    """What one answer speaks of at one decision point: each name once, ``MOST`` at most."""

    def __init__(self, speech: Speech, *, without: Iterable[str] = ()) -> None:
        """``without``: what can not be chosen any more."""
        self._speech = speech
        self._told: set[str] = set()
        self._without = frozenset(without)
        self._unread = MOST_READ

    @property
    def is_over(self) -> bool:
        return len(self._told) >= MOST

    def begin(self) -> None:
        """Another answer comes in its place. What was told stays told."""
        self._speech.begin()
        self._unread = MOST_READ

    def feed(self, added: str) -> tuple[str, ...]:
        read = added[: min(MOST_AT_ONCE, self._unread)]
        if self.is_over or not read:
            return ()
        self._unread -= len(read)
        fresh = self._fresh(self._speech.feed(read))
        if len(read) < len(added):
            # No name goes on behind what is passed over.
            self._speech.begin()
        return fresh

    def begun(self, beginning: str) -> tuple[str, ...]:
        """The choice itself is being written, and this is its beginning."""
        name = None if self.is_over else self._speech.begun(beginning)
        return self._fresh((name,)) if name is not None else ()

    def _fresh(self, found: Iterable[str]) -> tuple[str, ...]:
        fresh = []
        for name in found:
            if name not in self._told and name not in self._without:
                self._told.add(name)
                fresh.append(name)
                if self.is_over:
                    break
        return tuple(fresh)


def _apart(text: str) -> str:
    """``sum_of_multiples`` is three words."""
    return text.replace("_", " ")


def _open_end(text: str) -> int:
    """Where the word or number begins that the end of a text may go on with."""
    place = len(text.rstrip(".,"))
    if place < len(text) and not text[place - 1 : place].isdigit():
        return len(text)
    while place and (text[place - 1].isalnum() or text[place - 1] in "'’.,"):
        place -= 1
    return place - (text[place - 1 : place] == "\\")


def _unescaped(text: str) -> str:
    return _ESCAPE.sub("\n", text) if "\\" in text else text
