"""What the benchmark of overlap makes of its pairs."""

from __future__ import annotations

from dynbranch.bench.overlap import TEMPLATE, Durations, Pair, figures_of
from dynbranch.rendering.reading import parse_template


def test_the_bound_is_the_shorter_of_the_two() -> None:
    pair = Pair(Durations(2000, 4000), floor_ms=6000, ahead_ms=4100, outcome="adopted", steps_ms=(2050, 2050))
    assert pair.hidden == 0.95
    other = Pair(Durations(4000, 2000), floor_ms=6000, ahead_ms=4020, outcome="promoted", steps_ms=(4010, 10))
    figures = figures_of([pair, pair, other])
    assert figures["hidden_over_bound_min"].value == 0.95
    assert figures["hidden_over_bound_max"].value == 0.99
    assert figures["hidden_over_bound_min"].n == 2


def test_the_template_is_one() -> None:
    assert parse_template(TEMPLATE, file="overlap.yaml").workflow_type == "overlap"
