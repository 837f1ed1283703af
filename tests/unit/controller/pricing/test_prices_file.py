"""A curve file is taken as a whole, or refused with the place that is wrong."""

from __future__ import annotations

import json
import math

import pytest
from dynbranch.controller.core.pricing.prices import (
    Curve,
    PriceCurves,
    UnreadableCurves,
    curves_from,
    curves_json,
    prior_curves,
)
from hypothesis import given
from hypothesis import strategies as st

steps = st.lists(st.tuples(st.floats(0.01, 5.0), st.floats(0.0, 1000.0)), min_size=1, max_size=8)


def rising(found: list[tuple[float, float]]) -> Curve:
    points, x, y = [], 0.0, 0.0
    for right, up in found:
        x, y = x + right, y + up
        points.append((x, y))
    return Curve(tuple(points))


@given(slot=steps.map(rising), kv=steps.map(rising))
def test_curves_are_read_as_they_were_written(slot: Curve, kv: Curve) -> None:
    curves = PriceCurves(slot, kv)
    assert curves_from(json.loads(json.dumps(curves_json(curves)))) == curves


def test_what_else_a_file_holds_is_for_people() -> None:
    assert curves_from({**curves_json(prior_curves()), "engine": {"slots": 4}}) == prior_curves()


GOOD = [[0.5, 1.0], [1.0, 2.0]]


@pytest.mark.parametrize(
    ("document", "place"),
    [
        ({}, "version"),
        ({"version": 2, "curves": {"slot": GOOD, "kv": GOOD}}, "version is 2"),
        ({"version": 1}, "curves: "),
        ({"version": 1, "curves": {"slot": GOOD}}, r"curves\.kv"),
        ({"version": 1, "curves": {"slot": "rising", "kv": GOOD}}, r"curves\.slot"),
        ({"version": 1, "curves": {"slot": [[1.0]], "kv": GOOD}}, r"curves\.slot: \[1\.0\]"),
        ({"version": 1, "curves": {"slot": [[0, True]], "kv": GOOD}}, r"curves\.slot"),
        ({"version": 1, "curves": {"slot": [[0, math.nan]], "kv": GOOD}}, r"curves\.slot"),
        ({"version": 1, "curves": {"slot": [], "kv": GOOD}}, r"curves\.slot"),
        (
            {"version": 1, "curves": {"slot": GOOD, "kv": [[0, 2], [1, 1]]}},
            r"curves\.kv: a price curve rises",
        ),
    ],
)
def test_anything_else_is_refused(document: dict[str, object], place: str) -> None:
    with pytest.raises(UnreadableCurves, match=place):
        curves_from(document)
