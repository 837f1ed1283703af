"""The benchmark of the simulator itself, at a size that proves only that it works."""

from __future__ import annotations

import pytest
from dynbranch.bench.sim_speed import Size, measure

TINY = Size(count=3, repetitions=1, small=10, large=1_000, pairs=1, fleets=((2, 6), (3, 6)))


@pytest.fixture(scope="module")
def figures() -> dict[str, float]:
    return {name: figure.value for name, figure in measure(lambda *_: None, size=TINY).figures.items()}


def test_it_says_how_fast_and_whether_cost_stays(figures: dict[str, float]) -> None:
    assert figures["requests_per_min_core"] > figures["workflows_per_min_core"] > 0
    assert figures["floor_requests_per_min_core"] > 0
    assert figures["cost_per_request_1e3_over_1e1"] > 0


def test_it_says_what_one_core_of_each_service_takes(figures: dict[str, float]) -> None:
    for engines in (2, 3):
        assert figures[f"us_per_request_{engines}_engines"] > 0
        assert figures[f"controller_requests_per_s_core_{engines}_engines"] > 0
        assert figures[f"store_requests_per_s_core_{engines}_engines"] > 0
