"""The two-level ablation: what is asked, what the simulated world promises, and what is made of its runs."""

from __future__ import annotations

import pytest
from dynbranch.bench.two_level import (
    BLOCK,
    CELLS,
    CONTROL,
    LOOSE,
    LOOSEST,
    NOTHING,
    PRICED,
    STRICTEST,
    Cell,
    Job,
    Run,
    Size,
    figures_of,
    knee_of,
    run,
)
from dynbranch.bench.two_level_traffic import TEMPLATE, Traffic, questions
from dynbranch.bench.two_level_world import World
from dynbranch.controller.core.branches.priced import LoadPriced
from dynbranch.controller.core.pricing.gate import Gate
from dynbranch.enginemodel.parameters import H200_QWEN3_32B

FEW = Size(rates=(2.0,), seeds=(1,), more_seeds=(), count=24, unseen=4)


def test_a_seed_asks_the_same_questions_at_any_rate() -> None:
    slow, fast = (questions(Traffic(), rate=rate, count=50, seed=3) for rate in (0.5, 2.0))
    assert [(one.tenant, one.hops, one.answer) for one in slow] == [
        (one.tenant, one.hops, one.answer) for one in fast
    ]
    assert [one.at for one in slow] == pytest.approx([4 * one.at for one in fast])
    assert slow != questions(Traffic(), rate=0.5, count=50, seed=4)


def test_questions_are_as_they_are_stated_to_be() -> None:
    asked = questions(Traffic(), rate=1.0, count=4000, seed=1)
    hops = [hop for one in asked for hop in one.hops]
    assert all(one.hops[-1].chosen == "" and all(hop.chosen for hop in one.hops[:-1]) for one in asked)
    assert sum(len(one.hops) - 1 for one in asked) / len(asked) == pytest.approx(2.5, abs=0.05)
    assert sum(len(hop.ranked) for hop in hops) / len(hops) == pytest.approx(2.67, abs=0.03)
    first = sum(hop.ranked[0] == hop.chosen for hop in hops) / len(hops)
    assert 1 - first == pytest.approx(0.53, abs=0.02)
    for tenant, rate in enumerate(Traffic().first):
        mine = [hop for one in asked if one.tenant == tenant for hop in one.hops[:-1]]
        assert sum(hop.ranked[0] == hop.chosen for hop in mine) / len(mine) == pytest.approx(rate, abs=0.05)


def test_every_question_is_answered_and_nothing_stays_reserved() -> None:
    world = World(LoadPriced(Gate(), width=3), H200_QWEN3_32B, Traffic())
    finished = world.run(questions(Traffic(), rate=2.0, count=30, seed=1))
    world.validate_state()
    assert sorted(one.number for one in finished) == list(range(30))
    assert world.reserved == 0
    assert world.fills and world.drafts
    outcomes = [outcome for one in finished for outcome in one.outcomes]
    assert {"adopted", "promoted"} <= set(outcomes)


def test_without_a_controller_nothing_runs_ahead() -> None:
    world = World(None, H200_QWEN3_32B, Traffic())
    finished = world.run(questions(Traffic(), rate=2.0, count=10, seed=1))
    world.validate_state()
    assert {outcome for one in finished for outcome in one.outcomes} == {"miss"}
    assert not world.fills and not world.drafts


def test_a_seed_replays() -> None:
    job = Job(PRICED, 2.0, 1, FEW)
    assert run(job) == run(job)


def test_the_strictest_threshold_lets_nothing_run_and_predicts_all_the_same() -> None:
    found = run(Job(CONTROL, 2.0, 1, FEW))
    assert len(found.latencies_s) == FEW.count - FEW.unseen
    assert sum(found.fills) == 0 and sum(found.drafts) > 0


def test_cells_are_the_four_and_the_thresholds() -> None:
    assert {(cell.action0, cell.threshold) for cell in CELLS[:4]} == {
        (True, None), (True, LOOSEST), (False, None), (False, LOOSEST),
    }  # fmt: skip
    assert {cell.threshold for cell in CELLS if not cell.action0} > {None, LOOSEST, STRICTEST}
    assert len(set(CELLS)) == len(CELLS)


def test_the_template_decides_on_what_may_run() -> None:
    (point,) = TEMPLATE.decision_points
    assert [TEMPLATE.stage(name).name for name in point.then] == ["note"]


def test_the_knee_is_where_throughput_over_latency_is_largest() -> None:
    means = {1.0: 20.0, 2.0: 30.0, 3.0: 60.0}
    assert knee_of([_run(NOTHING, rate, mean, 0) for rate, mean in means.items()]) == 2.0


def test_figures_compare_the_same_questions() -> None:
    knee = [_run(PRICED, 2.0, 45.0, 1), _run(LOOSE, 2.0, 90.0, 6), _run(CONTROL, 2.0, 50.0, 0)]
    low = [_run(PRICED, 0.3, 18.0, 2), _run(LOOSE, 0.3, 18.0, 6), _run(CONTROL, 0.3, 20.0, 0)]
    figures = figures_of(knee, low)
    assert figures["fills_a0off_a1fixed_over_both_priced"].value == 6.0
    assert figures["priced_fills_per_request"].value == 1.0
    assert figures["priced_mean_over_p999"].value == pytest.approx(0.9)
    assert figures["priced_mean_over_a0off_a1fixed"].value == 0.5
    assert figures["low_priced_mean_over_p999"].value == pytest.approx(0.9)
    assert figures["priced_mean_over_p999"].n == 2


def _run(cell: Cell, rate: float, mean_s: float, fills: int) -> Run:
    count = 2 * BLOCK
    return Run(
        cell, rate, 1, (mean_s,) * count, (fills,) * count, (1,) * count, (0,) * count, {"miss": count}
    )
