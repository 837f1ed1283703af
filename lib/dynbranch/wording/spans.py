"""Names in a text: runs of capitalised words, with what ties them together."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from dynbranch.wording.words import word_set

MOST_CHARACTERS = 16_384
LONGEST_NAME_WORDS = 12

_TOKEN = re.compile(r"[^\W\d_][\w'’.\-&]*|\d[\w.,\-–]*|[^\w\s]")
_INSIDE = word_set(
    """
    of the de von van der la le du del di da bin al el y des
    """
)
_BETWEEN = frozenset(["and", "&", "in", "on", "at", "for"])
"""They may belong to a name or stand between two: both readings are candidates."""

_LEADING = word_set(
    """
    the a an in on at of by for from to with as it its he she they his her their this that these
    those when while after before during since although though however but and or if there also both
    many most some several other another one two three early late like even once later then
    following according despite being because under over between where which who whom what why how
    not no all any each every such only first second new
    """
)
"""Capitalised because a sentence begins with them."""

CALENDAR = word_set(
    """
    january february march april may june july august september october november december monday
    tuesday wednesday thursday friday saturday sunday
    """
)


@dataclass(frozen=True, slots=True)
class Span:
    name: str
    at: int


@dataclass(frozen=True, slots=True)
class _Token:
    text: str
    begin: int
    end: int

    @property
    def capitalised(self) -> bool:
        return self.text[0].isupper()

    @property
    def short_number(self) -> bool:
        return self.text[0].isdigit() and len(self.text) <= 4

    @property
    def belongs(self) -> bool:
        """To a name, or to what may stand in one."""
        return self.capitalised or self.short_number or self.text in _INSIDE or self.text in _BETWEEN

    @property
    def ends_a_sentence(self) -> bool:
        return self.text.endswith(".") and len(self.text) > 3


def spans(text: str) -> tuple[Span, ...]:
    """Every occurrence of every name, in the order of the text. A run that may be one name or two gives
    both readings."""
    text = text[:MOST_CHARACTERS]
    tokens = [_Token(m.group(), m.start(), m.end()) for m in _TOKEN.finditer(text)]
    return tuple(span for run in _runs(text, tokens) for span in _readings(text, tokens, run))


def joined_so_far(text: str) -> int:
    """Where in a text that is still being written the run begins that its end may belong to: what stands
    before is what it is, whatever follows."""
    tokens = [_Token(m.group(), m.start(), m.end()) for m in _TOKEN.finditer(text)]
    if not tokens:
        return 0
    last = tokens[-1]
    is_mark = not last.text[0].isalnum() and last.text not in _BETWEEN
    if is_mark or (last.end < len(text) and (last.ends_a_sentence or not last.belongs)):
        # It ends every run, and does not go on itself.
        return last.end
    place = len(tokens) - 1
    while place and _may_join(text, tokens[place - 1], tokens[place]):
        place -= 1
    return tokens[place].begin


def _may_join(text: str, one: _Token, other: _Token) -> bool:
    return one.belongs and not one.ends_a_sentence and not text[one.end : other.begin].strip(" \n\t")


_Run = tuple[int, int]


def _runs(text: str, tokens: list[_Token]) -> Iterator[_Run]:
    place = 0
    while place < len(tokens):
        if not tokens[place].capitalised:
            place += 1
            continue
        last = place
        while (grown := _grown(text, tokens, last)) is not None and grown - place < LONGEST_NAME_WORDS:
            last = grown
        yield place, last
        place = last + 1


def _grown(text: str, tokens: list[_Token], last: int) -> int | None:
    """The next token of the name that ``last`` belongs to, across at most two that tie."""
    if tokens[last].ends_a_sentence:
        return None
    for place in range(last + 1, min(last + 4, len(tokens))):
        if text[tokens[place - 1].end : tokens[place].begin].strip(" \n\t"):
            return None
        token = tokens[place]
        if token.capitalised or (token.short_number and place == last + 1):
            return place
        if token.text not in _INSIDE and token.text not in _BETWEEN:
            return None
    return None


def _readings(text: str, tokens: list[_Token], run: _Run) -> Iterator[Span]:
    whole = _pieces(tokens, run, _BETWEEN)
    joined = _pieces(tokens, run, _BETWEEN - {"and", "&"})
    for begin, end in dict.fromkeys([*whole, *joined]):
        yield from _trimmed(text, tokens, begin, end)
        for owner in range(begin, end):
            if tokens[owner].text.endswith(("'s", "’s")):
                yield from _trimmed(text, tokens, begin, owner)
                yield from _trimmed(text, tokens, owner + 1, end)


def _pieces(tokens: list[_Token], run: _Run, splitting: frozenset[str]) -> list[_Run]:
    first, last = run
    pieces = []
    begin = first
    for place in range(first, last + 1):
        if tokens[place].text in splitting:
            pieces.append((begin, place - 1))
            begin = place + 1
    return [*pieces, (begin, last)]


def _trimmed(text: str, tokens: list[_Token], first: int, last: int) -> Iterator[Span]:
    while first <= last and tokens[first].text.lower() in _LEADING:
        first += 1
    while last >= first and tokens[last].text in _INSIDE:
        last -= 1
    if first > last:
        return
    name = text[tokens[first].begin : tokens[last].end].rstrip(".,'’-")
    if name.endswith(("'s", "’s")):
        name = name[:-2]
    if len(name) > 1:
        yield Span(" ".join(name.split()), tokens[first].begin)
