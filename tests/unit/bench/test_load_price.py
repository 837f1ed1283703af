"""The benchmark of prices under load: its arrivals, and what it makes of its segments."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from dynbranch.bench.load_price import FORESEEING, PAIRINGS, SHARES
from dynbranch.bench.load_price_figures import (
    BLOCK,
    Load,
    Segment,
    Served,
    figures_of,
    p99,
    rows_of,
    table_of,
)
from dynbranch.bench.load_price_traffic import LEAST, PLACES, arrivals, turns, with_pick_at
from dynbranch.demo.branch_arms import write_templates
from dynbranch.demo.flows import MENUS
from dynbranch.rendering.reading import parse_template


def test_arrivals_are_the_same_for_the_same_seed_and_as_many_as_the_rate_says() -> None:
    found = arrivals(2.0, 500.0, seed="a")
    assert found == arrivals(2.0, 500.0, seed="a")
    assert found != arrivals(2.0, 500.0, seed="b")
    assert len(found) == 1000 and all(0 <= one.at <= 500 for one in found)
    assert [one.number for one in found] == list(range(len(found)))
    assert sorted(one.at for one in found) == [one.at for one in found]
    assert all(one.pause_s > 0 for one in found)


def test_a_slow_engine_has_something_to_compare_all_the_same() -> None:
    assert len(arrivals(0.01, 1.0, seed="a")) == LEAST


def test_every_turn_offers_what_is_picked() -> None:
    assert turns() and all(turn.pick in turn.options for turn in turns())


def test_the_pick_stands_where_it_is_drawn_to_stand() -> None:
    turn = max(turns(), key=lambda one: len(one.options))
    for place in range(len(turn.options)):
        moved = with_pick_at(turn, place)
        assert moved.options.index(turn.pick) == place
        assert sorted(moved.options) == sorted(turn.options)
    assert with_pick_at(turn, 1_000).options[-1] == turn.pick
    found = [one.turn.options.index(one.turn.pick) for one in arrivals(1.0, 5000.0, seed="a")]
    assert found.count(0) / len(found) == pytest.approx(PLACES[0], abs=0.03)


def test_what_only_fills_the_engine_does_not_count() -> None:
    found = arrivals(2.0, 50.0, seed="a", at_once=4)
    assert [one.counts for one in found] == [False] * 4 + [True] * 100
    assert [one.at for one in found[:4]] == [0.0] * 4
    assert [one.number for one in found] == list(range(104))


def test_every_load_has_a_floor_and_a_share() -> None:
    assert set(PAIRINGS) == set(SHARES) == set(Load)
    assert all(any("floor" in {arm.name for arm in pairing} for pairing in of) for of in PAIRINGS.values())


def test_every_arm_that_runs_ahead_has_a_template_of_its_own(tmp_path: Path) -> None:
    write_templates(tmp_path, FORESEEING)
    for arm in FORESEEING:
        file = tmp_path / f"{MENUS}{arm.suffix}.yaml"
        assert parse_template(file.read_text(), file=file.name).workflow_type == MENUS + arm.suffix


def test_figures_are_of_the_same_workflows_in_two_arms() -> None:
    found = figures_of(_segments())
    assert found["saturated_priced_mean_over_floor"].value == pytest.approx(0.9)
    assert found["saturated_priced_p99_over_floor"].value == pytest.approx(0.9)
    assert found["saturated_always_mean_over_priced"].value == pytest.approx(1.5 / 0.9)
    assert found["low_load_share_of_always_gain"].value == pytest.approx(0.45 / 0.5)
    assert found["fresh_mean_over_floor"].value == pytest.approx(1.01)
    assert found["equal_share"].value == 1.0
    assert found["saturated_priced_mean_over_floor"].n == 6


def test_what_was_said_otherwise_is_told() -> None:
    first, *others = _segments()
    assert first.arm == "floor" and first.load is Load.SATURATED
    other = replace(first, served=tuple(replace(one, said="x") for one in first.served))
    found = figures_of([other, *others])
    assert 0 < found["equal_share"].value < 1
    assert 0 < found["floor_vs_floor_equal_share"].value < 1
    assert figures_of(_segments())["floor_vs_floor_equal_share"].value == 1.0


def test_rows_and_table_tell_every_segment() -> None:
    segments = _segments()
    assert len(rows_of(segments)) == len(segments)
    assert {row["arm"] for row in rows_of(segments)} == {"floor", "priced", "always"}
    heads, *rows = table_of(segments)
    assert len(rows) == 2 * 5 and all(len(row) == len(heads) for row in rows)


def test_the_99th_percentile_of_few_is_their_largest() -> None:
    assert p99([3.0, 1.0, 2.0]) == 3.0
    assert p99([float(value) for value in range(1, 201)]) == 198.0


def _segments() -> list[Segment]:
    factors = {
        (Load.SATURATED, "floor", "priced"): (1.0, 0.9),
        (Load.SATURATED, "always", "priced"): (1.5, 0.9),
        (Load.LOW, "floor", "priced"): (1.0, 0.55),
        (Load.LOW, "floor", "always"): (1.0, 0.5),
        (Load.FRESH, "floor", "priced"): (1.0, 1.01),
    }
    return [
        Segment(load, arm, beside, pair, tuple(_served(factor, number) for number in range(2 * BLOCK)))
        for pair in range(3)
        for (load, one, other), (mine, its) in factors.items()
        for arm, beside, factor in ((one, other, mine), (other, one, its))
    ]


def _served(factor: float, number: int) -> Served:
    return Served(factor * (1000.0 + number), ("miss", "promoted"), f"said {number}")
