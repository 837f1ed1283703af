"""What is measured, and which curves come of it: on an engine whose times follow a formula."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import islice, pairwise
from random import Random

import pytest
from dynbranch.calibration.curves import Probes, TooFewProbes, curves_of, isotonic, kv_share
from dynbranch.calibration.fake import FormulaEngine
from dynbranch.calibration.plan import Level, Machine, NothingToMeasure, Plan, plan_for, rounds
from dynbranch.calibration.probing import PROBE_TOKENS, Prober
from dynbranch.calibration.run import Calibrated, Wanted, measure
from dynbranch.controller.core.pricing.load import View
from dynbranch.controller.core.pricing.prices import Footprint, curves_from, prior_curves
from dynbranch.enginemodel.parameters import BatchParameters
from dynbranch.runtime.clock import ManualClock
from hypothesis import given
from hypothesis import strategies as st

MACHINE = Machine("model", slots=4, kv_budget_tokens=10_000, context_tokens=8192)
PARAMETERS = BatchParameters(
    decode_step_ms=100.0,
    batched_extra_ms=0.0,
    sequence_ms=25.0,
    kilotoken_ms=10.0,
    prefill_tokens_per_s=1e6,
    kv_pool_tokens=100_000,
)


class Ticking(ManualClock):
    """Sleeps pass at once: nothing else moves the time on."""

    async def sleep(self, seconds: float) -> None:
        self.advance(seconds)


async def calibrated(
    parameters: BatchParameters = PARAMETERS, machine: Machine = MACHINE, *, seconds: float = 120.0
) -> Calibrated:
    clock = Ticking()
    engine = FormulaEngine(parameters, clock, probe_most=PROBE_TOKENS[0] * 4)
    return await measure(engine, machine, Wanted(seconds=seconds), clock, lambda *_: None)


async def test_the_slot_price_is_what_one_more_fill_costs() -> None:
    done = await calibrated()
    # 125 ms a step alone, 25 more for each fill: the marginal shares fall, and so they are pooled.
    marginal = [1000 * (1 - (125 + 25 * k) / (150 + 25 * k)) for k in range(3)]
    points = done.curves.slot.points
    assert [at for at, _ in points[:3]] == [0.25, 0.5, 0.75]
    for _, price_ms in points[:3]:
        assert price_ms == pytest.approx(sum(marginal) / 3, rel=0.02)
    assert all(a <= b for (_, a), (_, b) in pairwise(points)), "it rises"
    assert points[-1][1] > points[0][1] and all(ms <= 1000 for _, ms in points), "steep near capacity"


async def test_the_kv_price_is_what_longer_contexts_cost() -> None:
    done = await calibrated()
    contexts = [level for level in done.stretches if level.context_tokens]
    assert [level.fills for level in contexts] == [1, 1, 1]
    held = [kv_share(level, MACHINE) for level in contexts]
    stretch = [done.stretches[level].median for level in contexts]
    expected = 1000 * math.log(stretch[-1] / done.stretches[Level(1)].median) / held[-1]
    assert done.curves.kv.points[0][1] == pytest.approx(expected, rel=0.05)
    assert done.curves.kv.points[0][1] > 100 and not done.notes


async def test_without_a_budget_the_kv_price_stays_the_prior() -> None:
    done = await calibrated(machine=replace(MACHINE, kv_budget_tokens=0))
    assert done.curves.kv == prior_curves().kv
    assert "prior" in done.notes[0]


async def test_an_engine_that_does_not_slow_down_asks_for_nothing_below_capacity() -> None:
    done = await calibrated(replace(PARAMETERS, sequence_ms=0.0, kilotoken_ms=0.0))
    view = View(rho_h=0.25, rho=0.25, o_fill=0.0, o_kv=0.0, backlog=0.0, slots=4, fill_slots=2)
    assert done.curves.cost(view, Footprint(4.0, 0.1, 0.4)) == pytest.approx(0.0, abs=1e-6)


async def test_the_file_says_what_was_measured_and_is_read_back() -> None:
    done = await calibrated()
    assert curves_from(done.document) == done.curves
    assert done.document["engine"]["slots"] == 4
    assert done.document["probe"]["alone_ms"] == pytest.approx(8 * 125, rel=0.01)
    assert {row["fills"] for row in done.document["samples"]} == {0, 1, 2, 3}
    assert all(2 <= row["rounds"] <= Wanted().most_rounds for row in done.document["samples"])


async def test_one_round_is_too_few() -> None:
    with pytest.raises(TooFewProbes):
        await calibrated(seconds=1.0)


async def test_a_probe_is_sized_to_the_engines_pace() -> None:
    clock = Ticking()
    engine = FormulaEngine(replace(PARAMETERS, decode_step_ms=5, sequence_ms=0), clock, probe_most=999)
    prober = Prober(engine, clock, Random(1))
    await prober.size(0.5)
    assert 60 <= prober.probe_tokens <= 110
    assert prober.words_per_token == 1.0
    assert Prober(engine, clock, Random(1), context_tokens=64, probe_tokens=200).fill_tokens == 32


def test_many_slots_are_measured_at_a_few_counts() -> None:
    counts = [level.fills for level in plan_for(Machine("m", 256), most_fills=48, output_tokens=64).slots]
    assert counts[:3] == [0, 1, 2] and counts[-1] == 48 and len(counts) <= 8
    assert counts == sorted(set(counts))
    few = plan_for(Machine("m", 2), most_fills=48, output_tokens=64)
    assert few == Plan((Level(0), Level(1)), ())
    with pytest.raises(NothingToMeasure):
        plan_for(Machine("m", 1), most_fills=48, output_tokens=64)


def test_contexts_too_short_to_show_anything_are_left_out() -> None:
    short = Machine("m", 4, kv_budget_tokens=1_000_000, context_tokens=2048)
    assert plan_for(short, most_fills=3, output_tokens=64).kv == ()
    assert plan_for(replace(short, context_tokens=64), most_fills=3, output_tokens=64).kv == ()


def test_every_level_comes_once_a_round_in_both_orders() -> None:
    plan = plan_for(MACHINE, most_fills=3, output_tokens=64)
    first, second = islice(rounds(plan, Random(1)), 2)
    assert first[1:-1] == tuple(reversed(second[1:-1]))
    assert sorted(set(first)) == sorted(plan.levels) and first[0] == first[-1] == Level(0)


def test_drift_between_rounds_goes_out() -> None:
    plan = Plan((Level(0), Level(1)), ())
    slow = [{Level(0): [100.0 * n, 110.0 * n], Level(1): [157.5 * n]} for n in (1, 2, 3)]
    found = Probes([*slow, {Level(1): [1.0]}]).stretches(plan)[Level(1)]
    assert (found.median, found.n) == (pytest.approx(1.5), 3)
    with pytest.raises(TooFewProbes):
        curves_of({}, plan, MACHINE, prior_curves())


@given(st.lists(st.tuples(st.floats(-100, 100), st.floats(0.1, 10)), min_size=1, max_size=12))
def test_isotonic_rises_and_keeps_the_weighted_sum(rows: list[tuple[float, float]]) -> None:
    values, weights = [value for value, _ in rows], [weight for _, weight in rows]
    found = isotonic(values, weights)
    assert all(a <= b + 1e-9 for a, b in pairwise(found))
    before = sum(value * weight for value, weight in rows)
    after = sum(value * weight for value, weight in zip(found, weights, strict=True))
    assert after == pytest.approx(before, abs=1e-6)
    assert isotonic(sorted(values), weights) == sorted(values)
