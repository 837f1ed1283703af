"""What was learned survives a restart, and what can not be read is said to be so."""

from __future__ import annotations

import json
from typing import Any

import pytest
from dynbranch.controller.core.pricing.estimates import SEEN, SPOKEN
from dynbranch.controller.core.pricing.gate import Gate
from dynbranch.controller.core.pricing.snapshot import BadSnapshot, snapshot_of, take_up
from dynbranch.domain.ids import BranchId, Instant, TrialId
from unit.controller.pricing.loads import KEY, Town, reading


def learned() -> Gate:
    town = Town()
    for number in range(60):
        town.branch(number % 3 == 0)
    return town.gate


@pytest.mark.promise("C3.restart")
def test_a_gate_that_starts_again_decides_as_before() -> None:
    before, after = learned(), Gate()
    take_up(after, json.loads(json.dumps(snapshot_of(before))))
    assert snapshot_of(after) == snapshot_of(before)
    now = Instant(1000.0)
    for gate in (before, after):
        gate.see(reading(), now)
    openings = [gate.open(BranchId(b"b"), TrialId(b"b"), KEY, [reading()], now) for gate in (before, after)]
    assert openings[0] == openings[1]


def test_trials_under_way_are_void_after_a_restart() -> None:
    before, after = learned(), Gate()
    before.open(BranchId(b"b"), TrialId(b"b"), KEY, [reading()], Instant(100.0))
    take_up(after, snapshot_of(before))
    assert after.classes.get(KEY).pending == 0 and len(after.trials) == 0
    after.consume(TrialId(b"b"), BranchId(b"f"), 0, 5.0)  # type: ignore[arg-type]
    assert after.trials.ignored == 1


def test_what_an_older_version_did_not_write_begins_anew() -> None:
    snapshot = snapshot_of(learned())
    del snapshot["windows"], snapshot["stages"]
    gate = Gate()
    take_up(gate, snapshot)
    assert gate.estimates.left_ms(KEY, 0.0) is None and gate.classes.get(KEY).n == 60


def test_what_is_spoken_of_is_kept_and_older_snapshots_know_nothing_of_it() -> None:
    before, after, older = learned(), Gate(), Gate()
    before.select(KEY, [(SPOKEN, True), (SPOKEN, True), (SEEN, True)])
    snapshot = snapshot_of(before)
    take_up(after, snapshot)
    assert after.estimates.selection(KEY, SPOKEN) == before.estimates.selection(KEY, SPOKEN)
    ranks = [row for row in snapshot["ranks"] if row[1] != SPOKEN]
    take_up(older, {**snapshot, "version": 2, "ranks": ranks})
    assert older.estimates.selection(KEY, SPOKEN) < after.estimates.selection(KEY, SPOKEN)
    assert older.estimates.selection(KEY, SEEN) == after.estimates.selection(KEY, SEEN)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"version": 99}, "version 99"),
        ({"version": "1"}, "no version"),
        ({"models": [[["a"], {"q": [1.0]}]]}, "damaged"),
        ({"ranks": [["a", "b"]]}, "damaged"),
        ({"consumption": [float("nan")]}, "damaged"),
    ],
)
def test_what_can_not_be_taken_up_is_said(change: dict[str, Any], says: str) -> None:
    with pytest.raises(BadSnapshot, match=says):
        take_up(Gate(), {**snapshot_of(learned()), **change})
    with pytest.raises(BadSnapshot, match="no version"):
        take_up(Gate(), [1])
