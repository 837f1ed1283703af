"""Words of a text, cut to stems, so that "calculating" and "calculate" are one."""

from __future__ import annotations

import re
import unicodedata
from dataclasses import dataclass

_WORD = re.compile(r"[^\W\d_]+|\d+(?:[.,]\d+)*")
_CAMEL = re.compile(r"(?<=[a-z])(?=[A-Z])")
_ENDINGS = (
    "ization",
    "ations",
    "ation",
    "ings",
    "ing",
    "ions",
    "ion",
    "ers",
    "er",
    "ies",
    "es",
    "ed",
    "ly",
    "al",
    "s",
    "e",
)
_SHORTEST_STEM = 3


def word_set(text: str) -> frozenset[str]:
    return frozenset(text.split())


IDLE = word_set(
    """
    a an the of to in on for and or is are was were with by at from this that it its be been as what
    which who whom whose how much many when where do does did me my i you your can could please also
    then given find get want would like using use used if has have had his her their
    """
)
"""Words that tell nothing apart."""


@dataclass(frozen=True, slots=True)
class Word:
    stem: str
    at: int


def stem(word: str) -> str:
    for ending in _ENDINGS:
        if word.endswith(ending) and len(word) - len(ending) >= _SHORTEST_STEM:
            return word[: -len(ending)]
    return word


def plain(text: str) -> str:
    """Lower case without accents; as long as the text."""
    if text.isascii():
        return text.lower()
    return "".join((unicodedata.normalize("NFKD", c)[:1] or c).lower()[:1] for c in text)


def words(text: str) -> tuple[Word, ...]:
    """Words that tell something, with where they begin in ``text``."""
    found = ((m.group(), m.start()) for m in _WORD.finditer(plain(text)))
    return tuple(Word(stem(word), at) for word, at in found if word not in IDLE)


def stems(text: str) -> tuple[str, ...]:
    """Of prose or of an identifier: ``parseDate`` and ``parse_date`` are two words."""
    return tuple(word.stem for word in words(_CAMEL.sub(" ", text)))


def name_words(text: str) -> tuple[str, ...]:
    """A name as compared with another: no case, accents, punctuation, articles or possessive."""
    bare = plain(text).replace("'s", "").replace("’s", "")
    return tuple(word for word in _WORD.findall(bare) if word not in ("the", "a", "an"))


def holds(outer: tuple[str, ...], inner: tuple[str, ...]) -> bool:
    """Whether ``inner`` stands in ``outer`` in one piece. Nothing holds an empty name."""
    size = len(inner)
    return 0 < size <= len(outer) and any(outer[i : i + size] == inner for i in range(len(outer) - size + 1))
