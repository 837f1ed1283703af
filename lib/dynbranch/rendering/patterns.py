"""Regular expressions of templates: searched in a time that grows with the text, and with nothing else.

They are searched in what users and models write, on the way of requests, and a search can not be stopped. So
they are RE2's, which never goes back, and each search looks at no more than a fixed amount of text.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import re2

MAX_CHARACTERS: Final = 2**18
"""Of one text so many are searched; of a larger expression (``MAX_STEPS``) fewer."""

MAX_TEXT_CHARACTERS: Final = 4_096
"""Of an expression: to read a longer one may take minutes, and it would be too large all the same."""

MAX_SIZE: Final = 2_500
"""Instructions of an expression. A class such as ``\\pL`` takes 1,200 of them."""

MAX_STEPS: Final = 2**27
"""Characters of a text times instructions: the most that one search does where RE2 has to follow every way at
once, less than a second."""

MAX_LOOKED_AT: Final = 2**27
"""Characters that all matches of one text may look at: each may look at all that follows it."""

_ADVICE: Final = {
    "(?=": "it can not look ahead or behind: write out what follows, and put the value into a group",
    "(?!": "it can not look ahead or behind: say what may stand there, as in [^x]",
    "(?<": "it can not look ahead or behind: write out what precedes, and put the value into a group",
    "(?>": "a group need not be atomic, nothing is tried twice: write (?:…)",
    "\\Z": "write \\z for the end of the text",
    "bad repetition operator": "a repetition need not be possessive, nothing is tried twice: write + or *",
}


@dataclass(frozen=True, slots=True)
class Found:
    """A match from character ``begin`` to ``end``. ``value``: the group of that name, else the first group,
    else all of it."""

    value: str
    begin: int
    end: int


class Pattern:
    """One expression in RE2's syntax; ``^`` and ``$`` match at lines. Raises ValueError, told for people."""

    def __init__(self, text: str) -> None:
        if len(text) > MAX_TEXT_CHARACTERS:
            raise ValueError(
                f"the regular expression {text[:40]!r}… has {len(text):,} characters, and at most "
                f"{MAX_TEXT_CHARACTERS:,} are allowed"
            )
        self.text = text
        options = re2.Options()
        options.log_errors = False
        try:
            self._regex: Any = re2.compile(f"(?m){text}", options)
        except (re2.error, UnicodeEncodeError) as error:
            told = _told(error)
            raise ValueError(f"the regular expression {text!r} can not be used: {told}") from None
        size = self._regex.programsize
        if size > MAX_SIZE:
            raise ValueError(
                f"the regular expression {text!r} is too large: {size} instructions, and at most {MAX_SIZE} "
                "are allowed; repeat less by counts such as {100}"
            )
        self.longest = min(MAX_CHARACTERS, MAX_STEPS // max(1, size))
        """Characters of a text that are searched."""
        self._group = self._regex.groupindex.get("value", 1 if self._regex.groups else 0)

    def found(self, text: str, start: int = 0) -> Iterator[Found]:
        """All matches that begin at ``start`` or later, in their order. Lone surrogates match as ``?``."""
        searched = _encodable(text[: self.longest])
        looked_at = 0
        for match in self._regex.finditer(searched, start):
            yield Found(match[self._group] or "", match.start(), match.end())
            looked_at += len(searched) - match.start()
            if looked_at > MAX_LOOKED_AT:
                return

    def first(self, text: str) -> Found | None:
        return next(self.found(text), None)


def _encodable(text: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode(errors="replace").decode()
    return text


def _told(error: Exception) -> str:
    reason = error.args[0] if error.args else ""
    told = reason.decode(errors="replace") if isinstance(reason, bytes) else str(error)
    told = told.replace("(?m)", "")
    advice = next((better for mark, better in _ADVICE.items() if mark in told), "")
    return f"{told}; {advice}" if advice else told
