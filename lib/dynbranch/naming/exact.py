"""Numbers compared by exact decimal value: never rounded, never expanded."""

from __future__ import annotations

import re
from typing import Final

_NUMBER = re.compile(r"(-?)(\d+)(?:\.(\d*))?(?:[eE]([+-]?\d+))?")

_MAX_PLAIN_DIGITS: Final = 15
"""Integers this short are exact in a double, so an engine that reads ``100`` as an integer and ``1e2`` as a
double comes to the same value. Longer ones may be rounded once or twice: their spelling is kept."""

_MAX_EXPONENT_DIGITS: Final = 18
"""Beyond this an exponent is not computed with: the spelling is kept."""


def exact_spelling(text: str) -> str:
    """One spelling per value, ``digits e exponent``: ``0``, ``0.0`` and ``-0e7`` become ``0e0``, ``1.50``
    becomes ``15e-1``.

    A number that engines may not all read alike keeps its own spelling. Raises ValueError for other texts.
    """
    match = _NUMBER.fullmatch(text)
    if match is None:
        raise ValueError(f"{text[:40]!r} is not a JSON number")
    sign, whole, fraction, power = match[1], match[2], match[3] or "", match[4] or "0"
    digits = (whole + fraction).lstrip("0")
    if not digits:
        return "0e0"
    is_integer_literal = match[3] is None and match[4] is None
    if len(power) > _MAX_EXPONENT_DIGITS or (is_integer_literal and len(digits) > _MAX_PLAIN_DIGITS):
        return text
    significant = digits.rstrip("0")
    exponent = int(power) - len(fraction) + len(digits) - len(significant)
    return f"{sign}{significant}e{exponent}"


def is_integral(text: str) -> bool:
    """True for ``3``, ``3.0`` and ``30e-1``. A number that keeps its spelling counts as integral if it is
    spelled so."""
    significant, e, exponent = exact_spelling(text).lower().partition("e")
    return "." not in significant and (not e or not exponent.startswith("-"))
