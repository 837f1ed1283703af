"""The evaluation: what its parts make of runs, and that a part runs at all."""

from __future__ import annotations

import json
import tomllib
from dataclasses import replace
from pathlib import Path

import pytest
from dynbranch.bench.paper.arms import asked_of, kind_of, redrafted, run
from dynbranch.bench.paper.cells import ARMS as COMPARED
from dynbranch.bench.paper.cells import (
    CELLS,
    Cell,
    figures_of,
    identical_share,
    is_lowest,
    published_rate,
    strongest,
)
from dynbranch.bench.paper.elsewhere import recurrence
from dynbranch.bench.paper.measure import PARTS, choose, measure
from dynbranch.bench.paper.page import evaluated
from dynbranch.bench.paper.parts import greatest, least, mean_ratio, p99_ratio, reduction
from dynbranch.bench.paper.runs import BASELINES, Seen, Size, Spec
from dynbranch.bench.result import BenchFailed
from dynbranch.demo.measures import Figure
from dynbranch.sim.arms import ARMS, UnknownArm, arm_of

TINY = Size((1,), count=16, unseen=2, serial=12, serial_unseen=2, curve_s=5.0, knee_s=5.0)


def test_every_part_is_found_by_its_number_and_an_unknown_one_is_refused() -> None:
    assert choose(()) == tuple(PARTS)
    assert [part.name for part in choose(("8", "table 1", "figure 8"))] == ["figure 8", "table 1"]
    with pytest.raises(BenchFailed, match="figure 14"):
        choose(("99",))


def test_a_reduction_is_of_the_same_turns() -> None:
    slow, fast = _seen(2.0), _seen(1.0)
    assert mean_ratio([slow], [fast]).value == pytest.approx(2.0)
    sooner = reduction([fast], [slow])
    assert (sooner.value, sooner.ci_low, sooner.ci_high) == pytest.approx((0.5, 0.5, 0.5))
    assert p99_ratio([fast], [slow]).value == pytest.approx(0.5)


def test_the_least_and_the_greatest_take_each_end_for_itself() -> None:
    figures = [Figure(0.5, 0.2, 0.6, 3), Figure(0.4, 0.3, 0.9, 4)]
    assert least(figures) == Figure(0.4, 0.2, 0.6, 7)
    assert greatest(figures) == Figure(0.5, 0.3, 0.9, 7)


def test_recurrence_counts_what_came_before() -> None:
    assert recurrence([["a", "b"], ["c"], ["a", "c"], ["d", "b"]]) == (0.5, pytest.approx(3 / 7))
    assert recurrence([]) == (0.0, 0.0)


def test_cells_compare_dynbranch_with_all_and_name_the_strongest() -> None:
    means = {arm: 4.0 for arm in COMPARED} | {"helium": 3.0, "dynbranch": 2.0}
    seen = {(cell, arm): [_seen(means[arm])] for cell in CELLS for arm in COMPARED}
    cell = Cell("react", "load", "32B")
    assert strongest(cell, seen) == "helium" and is_lowest(cell, seen)
    figures = figures_of(seen)
    assert figures["cells_dynbranch_lowest"] == Figure(16, 16, 16, 16)
    assert figures["vs_floor_min_32b"].value == pytest.approx(0.5)
    assert figures["vs_best_baseline_react_load_32b"].value == pytest.approx(1 / 3)
    assert figures["p99_over_floor_max_ci_high"].value == pytest.approx(0.5)
    assert figures["task_results_identical_share"].value == 1.0
    wrong = {**seen, (cell, "helium"): [replace(_seen(3.0), wrong=1)]}
    assert identical_share(wrong).value < 1.0
    assert not is_lowest(cell, {**seen, (cell, "dynbranch"): [_seen(3.5)]})


def test_another_predictor_is_right_as_often_as_it_is_said_to_be() -> None:
    asked = asked_of(Spec("react", "c2", rate=1.0, count=300), (), None)
    decisions = [
        step.decision
        for workflow in redrafted(asked, (0.34, 0.61, 0.5), 1).workflows
        for turn in workflow.turns
        for step in turn.steps
        if step.decision is not None and step.decision.picked
    ]
    first = sum(one.ranked[:1] == one.picked for one in decisions) / len(decisions)
    three = sum(one.picked[0] in one.ranked for one in decisions) / len(decisions)
    assert first == pytest.approx(0.34, abs=0.06) and three == pytest.approx(0.61, abs=0.06)
    assert all(one.spent_s == 0.5 and len(one.ranked) <= 3 for one in decisions)
    assert all(name in one.chains for one in decisions for name in one.ranked)


def test_every_arm_can_be_raised() -> None:
    assert set(BASELINES) < set(ARMS) and set(COMPARED) < set(ARMS)
    for arm in ARMS:
        assert callable(arm_of(arm))
    with pytest.raises(UnknownArm, match="c2-oracle"):
        arm_of("c3")


def test_loads_are_those_of_the_workloads_file() -> None:
    file = Path(__file__).parents[3] / "apps/dynbranch/sim/workloads/paper.toml"
    rates = tomllib.loads(file.read_text())["rates"]
    assert published_rate("routing", "low") == rates["low"]["value"]
    assert published_rate("hci", "low") == rates["low_hci"]["value"]
    assert published_rate("sub-agent", "load", "8B") == rates["small_load"]["value"]


@pytest.mark.parametrize("arm", ["floor", "helium", "spagent", "dynbranch", "c2-oracle"])
def test_arms_give_the_same_results(arm: str) -> None:
    seen = run(Spec("routing", arm, rate=0.5, count=TINY.count), TINY)
    assert seen.workflows == 14 and seen.wrong == 0 and len(seen.latencies_s) == 14
    assert seen.calls == sum(seen.outcomes.values()) > 0


def test_phases_are_told_apart() -> None:
    seen = run(Spec("routing", "c1", phased=True), TINY)
    assert set(seen.phases) == set(seen.by_phase) == {"A", "B", "C", "D"}
    assert {"repeat", "fresh"} <= set(seen.kinds)


def test_a_part_runs_by_itself() -> None:
    measured = measure(lambda what, done, total: None, parts=("table 1", "7"), size=TINY)
    assert set(measured.figures) == {"c1_alone_partial_overlap"}
    assert measured.raw["parts"]["figure 7"]["subgraph name"] == ["v1", "v2", "x1", "x2"]
    assert [title.partition(":")[0] for title, _ in measured.tables] == ["Table 1", "Figure 7"]
    assert all(len(row) == len(rows[0]) for _, rows in measured.tables for row in rows)


def test_what_a_workflow_shares_is_its_kind() -> None:
    asked = asked_of(Spec("sub-agent", "c1", clients=1, count=40, mix="table 1"), (), None)
    assert {kind_of(workflow) for workflow in asked.workflows} == {"repeat", "partial", "fresh"}


def _seen(latency_s: float) -> Seen:
    return Seen((latency_s,) * 100, workflows=100)


def test_every_table_has_its_place_on_the_page() -> None:
    """``python -m dynbranch.bench.paper.page bench/results docs/evaluation.md`` fills them."""
    root = Path(__file__).parents[3]
    page = (root / "docs/evaluation.md").read_text()
    result = root / "bench/results/paper.json"
    if result.exists():
        assert evaluated(page, json.loads(result.read_text())) == page
    with pytest.raises(ValueError, match="no place"):
        evaluated(page, {"raw": {"tables": [{"title": "Figure 99", "rows": [["a"], ["b"]]}]}})
