"""Numbers by exact value."""

from __future__ import annotations

from decimal import Decimal
from random import Random

import pytest
from dynbranch.bench.name_pairs import respelled
from dynbranch.naming.exact import exact_spelling, is_integral
from hypothesis import given
from hypothesis import strategies as st

DECIMALS = st.decimals(allow_nan=False, allow_infinity=False, places=6, min_value=-(10**6), max_value=10**6)


@given(DECIMALS, st.randoms(use_true_random=False))
def test_every_spelling_of_a_value_is_one(value: Decimal, chance: Random) -> None:
    text = format(value, "f")
    assert exact_spelling(respelled(chance, text)) == exact_spelling(text)


@given(DECIMALS, DECIMALS)
def test_different_values_stay_different(left: Decimal, right: Decimal) -> None:
    same = exact_spelling(format(left, "f")) == exact_spelling(format(right, "f"))
    assert same == (left == right)


@pytest.mark.parametrize("text", ["0", "0.0", "0e0", "-0", "-0.00e7", "0E+99999999999999999999999"])
def test_zero_is_zero(text: str) -> None:
    assert exact_spelling(text) == "0e0"


def test_nothing_is_rounded_or_expanded() -> None:
    assert exact_spelling("0.1") != exact_spelling("0.1000000000000000000000000000001")
    assert exact_spelling("1e999999999") == exact_spelling("10e999999998")
    assert exact_spelling("1e" + "9" * 5000) == "1e" + "9" * 5000


def test_a_long_integer_is_not_the_double_beside_it() -> None:
    assert exact_spelling("9007199254740993") != exact_spelling("9007199254740993.0")
    assert exact_spelling("100") == exact_spelling("1e2")


@pytest.mark.parametrize(
    ("text", "integral"),
    [
        ("3", True),
        ("3.0", True),
        ("30e-1", True),
        ("3.5", False),
        ("1e-1", False),
        ("9" * 20, True),
        ("-2", True),
    ],
)
def test_integral(text: str, integral: bool) -> None:
    assert is_integral(text) is integral


@pytest.mark.parametrize("text", ["", "x", "1_0", "0x1", "1e"])
def test_other_texts_are_not_numbers(text: str) -> None:
    with pytest.raises(ValueError, match="not a JSON number"):
        exact_spelling(text)
