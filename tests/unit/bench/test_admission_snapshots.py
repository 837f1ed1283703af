"""What the benchmark of admission draws, decides and tells."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest
from dynbranch.bench import admission
from dynbranch.bench.admission_simulated import LOADS, simulated
from dynbranch.bench.admission_snapshots import (
    TIGHT,
    Ranges,
    Replayed,
    Snapshot,
    UnreadableSnapshots,
    draw,
    draw_one,
    exhaustive,
    one_shot,
    read_snapshots,
    replay,
    repriced,
    snapshot_from,
    snapshot_json,
    worth,
)
from dynbranch.bench.result import BenchFailed
from dynbranch.controller.core.pricing.load import View
from dynbranch.controller.core.pricing.ordering import Priceable, sequence_utility
from dynbranch.controller.core.pricing.prices import Curve, Footprint, PriceCurves, prior_curves

FEW = Ranges(of_two=4, of_three=6)


def test_snapshots_have_the_shape_of_the_archive() -> None:
    found = draw(Ranges(), Random(1))
    assert len(found) == 756 and sum(len(one.candidates) for one in found) == 2133
    for snapshot in found:
        (view,) = snapshot.views.values()
        held = sum(one.footprint.kv_share for one in snapshot.candidates)
        assert held <= 0.168 * (1 - view.o_kv) + 1e-9
        assert all(0 <= one.probability <= 1 and one.gain_ms > 0 for one in snapshot.candidates)
    assert draw(Ranges(), Random(1)) == found != draw(Ranges(), Random(2))


@pytest.mark.parametrize("ranges", [FEW, replace(TIGHT, of_two=4, of_three=6)])
def test_no_order_is_worth_more_than_the_oracles(ranges: Ranges) -> None:
    for snapshot in draw(ranges, Random(3)):
        row = replay(snapshot)
        assert row.repriced_ms <= row.oracle_ms + 1e-6 and row.one_shot_ms <= row.oracle_ms + 1e-6
        assert row.dynamic_program_ms == pytest.approx(row.oracle_ms, abs=1e-6)
        assert row.repriced_ms >= 0


def test_candidates_priced_once_do_not_see_one_another() -> None:
    """Two fills are each worth it alone, and the second is not beside the first."""
    steep = PriceCurves(Curve(((0.0, 0.0), (0.5, 0.0), (1.0, 2000.0))), Curve(((0.0, 0.0),)))
    view = View(rho_h=0.25, rho=0.25, o_fill=0.0, o_kv=0.0, backlog=0.0, slots=4, fill_slots=4)
    one = Priceable("a", 0.6, 1000.0, Footprint(3.0), ("engine",))
    far = replace(one, selection="c")
    snapshot = Snapshot((one, replace(one, selection="b"), far), {"engine": view}, steep)
    assert [selection for selection, _ in one_shot(snapshot)] == [0, 1, 2]
    assert [one.selection for one in repriced(snapshot) if one.admitted] == ["a", "b"]
    assert len(exhaustive(snapshot)) == 2
    assert (worth(snapshot, one_shot(snapshot)) or 0.0) < sequence_utility(repriced(snapshot))


def test_a_sequence_that_does_not_fit_is_worth_nothing() -> None:
    full = View(rho_h=0.1, rho=0.1, o_fill=0.75, o_kv=0.0, backlog=0.0, slots=4, fill_slots=4)
    one = Priceable("a", 0.9, 1000.0, Footprint(1.0), ("engine",))
    snapshot = Snapshot((one, replace(one, selection="b")), {"engine": full}, prior_curves())
    assert worth(snapshot, ((0, "engine"), (1, "engine"))) is None
    assert worth(snapshot, ((0, "elsewhere"),)) is None
    assert len(one_shot(snapshot)) == len(exhaustive(snapshot)) == 1


def test_snapshots_are_read_as_they_were_written(tmp_path: Path) -> None:
    snapshot = draw_one(Ranges(), 3, ("e1", "e2"), prior_curves(), Random(4))
    assert snapshot_from(json.loads(json.dumps(snapshot_json(snapshot)))) == snapshot
    (tmp_path / "a.jsonl").write_text(json.dumps(snapshot_json(snapshot)) + "\n")
    assert list(read_snapshots(tmp_path)) == [snapshot]
    (tmp_path / "b.jsonl").write_text('{"version": 7}\n')
    with pytest.raises(UnreadableSnapshots, match=r"b\.jsonl, line 1"):
        list(read_snapshots(tmp_path))


def test_table_b1_counts_only_where_something_is_to_be_won() -> None:
    rows = [
        Replayed(0.0, -5.0, 0.0, True, False, 0.0),
        Replayed(90.0, 50.0, 100.0, False, False, 100.0),
        Replayed(300.0, 300.0, 300.0, True, True, 300.0),
    ]
    table = admission.table_b1(rows)
    assert (table["snapshots"], table["positive_optimum"], table["same_set"]) == (3, 2, 1)
    assert table["utility_share"] == 0.975 and table["minimum"] == 0.9 and table["same_value"] == 1
    assert admission.share_of_oracle(rows, once=True).value == 0.875
    assert admission.table_b1(rows[:1]) == {"snapshots": 1, "positive_optimum": 0}


def test_a_small_run_has_every_figure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admission, "Ranges", lambda: FEW)
    monkeypatch.setattr(admission, "TIGHT", FEW)
    (tmp_path / "a.jsonl").write_text(json.dumps(snapshot_json(draw(FEW, Random(5))[0])) + "\n")
    few = {"rounds": 3, "drives": 1, "questions": 4, "learned": 200}
    found = admission.measure(lambda *_: None, data=tmp_path, seeds=(1,), **few)
    assert {
        "repriced_share_of_oracle",
        "simulated_repriced_share_of_oracle",
        "regret_second_half_share",
        "regret_over_median_threshold",
        "decision_k4_us",
        "decision_k8_us",
        "action0_us",
        "regime_change_branches_to_reopen",
        "real_repriced_share_of_oracle",
    } <= set(found.figures)
    assert not found.failures and len({len(row) for row in found.table}) == 1
    json.dumps(found.raw)
    (tmp_path / "a.jsonl").unlink()
    with pytest.raises(BenchFailed, match="no snapshots"):
        admission.measure(lambda *_: None, data=tmp_path, seeds=(1,), **few)


def test_simulated_snapshots_have_every_engine_and_replay() -> None:
    found = simulated(LOADS[1], seed=1, count=6)
    assert found == simulated(LOADS[1], seed=1, count=6)
    assert all(len(one.views) == len(one.candidates[0].engines) == 4 for one in found)
    assert {len(one.candidates) for one in found} <= {2, 3}
    (again,) = (snapshot_from(snapshot_json(one)) for one in found[:1])
    assert again == found[0]


def test_a_class_that_turns_is_known_for_it() -> None:
    for way in ("never_right", "never_in_time"):
        reopen, close = admission.turned(3, way)
        assert reopen <= 400 and close <= 100
    assert admission.turned(3, "never_right") == admission.turned(3, "never_right")
