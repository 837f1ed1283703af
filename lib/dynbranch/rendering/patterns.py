"""Regular expressions that a template may use: those whose search does not explode.

They are searched in what users and models write, on the way of requests, and a search can not be stopped.
"""

from __future__ import annotations

import re
import re._constants as codes  # type: ignore[import-not-found]
import re._parser as parser  # type: ignore[import-not-found]
from collections.abc import Iterator
from typing import Any, Final

_FEW: Final = 16
"""Repetitions that are no danger, within each other or not."""

_REPEATS: Final = frozenset({codes.MAX_REPEAT, codes.MIN_REPEAT})
_NEVER_TRIED_AGAIN: Final = frozenset({codes.ATOMIC_GROUP, codes.POSSESSIVE_REPEAT})


def checked_pattern(text: str) -> re.Pattern[str]:
    """Raises ValueError with what is wrong, for people."""
    try:
        compiled = re.compile(text, re.MULTILINE)
        tree = parser.parse(text, re.MULTILINE)
    except (re.error, OverflowError, RecursionError) as error:
        raise ValueError(f"the regular expression {text!r} can not be used: {error}") from None
    if _explodes(tree, within=False):
        raise ValueError(
            f"the regular expression {text!r} repeats a repetition, and may then search for years. Make the "
            "inner one possessive, as in (?:a++,)*, or the group atomic, as in (?>a+,)*"
        )
    return compiled


def _explodes(tree: Any, *, within: bool) -> bool:
    """Whether a repetition may be split in many ways among the rounds of one around it."""
    for code, argument in tree:
        if code in _NEVER_TRIED_AGAIN:
            # What stands in one of these is matched in one way. Within, the counting begins anew.
            if any(_explodes(inner, within=False) for inner in _inside(argument)):
                return True
            continue
        repeats = code in _REPEATS and argument[1] > _FEW
        if repeats and within:
            return True
        branches = within and code is codes.BRANCH and _overlap(argument[1])
        if branches or any(_explodes(inner, within=within or repeats) for inner in _inside(argument)):
            return True
    return False


def _overlap(alternatives: list[Any]) -> bool:
    """Whether two may begin with the same character; what is no plain character may be any."""
    firsts = [_first(one) for one in alternatives]
    return None in firsts or len(set(firsts)) < len(firsts)


def _first(alternative: Any) -> int | None:
    for code, argument in alternative:
        return argument if code is codes.LITERAL else None
    return None


def _inside(argument: Any) -> Iterator[Any]:
    if isinstance(argument, parser.SubPattern):
        yield argument
    elif isinstance(argument, tuple | list):
        for part in argument:
            yield from _inside(part)
