"""In what two requests differ, as far as their names can tell."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from enum import Enum
from itertools import islice
from typing import Final

from dynbranch.naming.document import Json, Number, kind_of, parse_text

MAX_DIFFERENCES: Final = 100
"""More are not looked for."""

_SHOWN_DIGITS: Final = 20


class Kind(Enum):
    """``here``: in the first of the two."""

    CHANGED = "changed"
    ONLY_HERE = "only_here"
    ONLY_THERE = "only_there"


@dataclass(frozen=True, slots=True)
class Difference:
    """``path`` reads like ``messages[3].content``. ``here`` and ``there`` describe the values without telling
    texts; ``from_character`` is where two texts begin to differ."""

    path: str
    kind: Kind
    here: str = ""
    there: str = ""
    from_character: int | None = None


def differences(here: bytes, there: bytes) -> tuple[Difference, ...]:
    """Of two canonical requests, in the order of their fields; at most ``MAX_DIFFERENCES``."""
    form, _, first = here.partition(b"\n")
    other_form, _, second = there.partition(b"\n")
    if form != other_form:
        return (Difference("", Kind.CHANGED, form.decode(), other_form.decode()),)
    found = _between(parse_text(first.decode()), parse_text(second.decode()), "")
    return tuple(islice(found, MAX_DIFFERENCES))


def _between(here: Json, there: Json, path: str) -> Iterator[Difference]:
    match here, there:
        case dict(), dict():
            yield from _of_objects(here, there, path)
        case list(), list():
            for number, (one, other) in enumerate(zip(here, there, strict=False)):
                yield from _between(one, other, f"{path}[{number}]")
            for number in range(len(there), len(here)):
                yield Difference(f"{path}[{number}]", Kind.ONLY_HERE, here=_described(here[number]))
            for number in range(len(here), len(there)):
                yield Difference(f"{path}[{number}]", Kind.ONLY_THERE, there=_described(there[number]))
        case str(), str() if here != there:
            place = _first_difference(here, there)
            yield Difference(path, Kind.CHANGED, _described(here), _described(there), place)
        case _ if here != there:
            yield Difference(path, Kind.CHANGED, _described(here), _described(there))


def _of_objects(here: dict[str, Json], there: dict[str, Json], path: str) -> Iterator[Difference]:
    begin = f"{path}." if path else ""
    for key, value in here.items():
        if key in there:
            yield from _between(value, there[key], begin + key)
        else:
            yield Difference(begin + key, Kind.ONLY_HERE, here=_described(value))
    for key, value in there.items():
        if key not in here:
            yield Difference(begin + key, Kind.ONLY_THERE, there=_described(value))
    shared, others = [key for key in here if key in there], [key for key in there if key in here]
    if shared != others:
        yield Difference(path, Kind.CHANGED, "keys in another order", "keys in another order")


def _first_difference(here: str, there: str) -> int:
    return next(
        (place for place, (one, other) in enumerate(zip(here, there, strict=False)) if one != other),
        min(len(here), len(there)),
    )


def _described(value: Json) -> str:
    """A value for people who may not read the text in it."""
    match value:
        case Number(text):
            return _plain(text)
        case bool():
            return "true" if value else "false"
        case str():
            return f"a text of {len(value)} characters"
        case list() | dict():
            return f"{kind_of(value)} of {len(value)}"
        case _:
            return kind_of(value)


def _plain(spelling: str) -> str:
    """A number as people write it, where that is short."""
    try:
        number = Decimal(spelling)
    except InvalidOperation:
        # JSON bounds no exponent, and no number can be reckoned with beyond some.
        return spelling
    return format(number, "f") if abs(number.adjusted()) < _SHOWN_DIGITS else spelling
