"""A small run of the benchmark of faults."""

from __future__ import annotations

import pytest
from dynbranch.bench.chaos import measure


@pytest.mark.promise("I4")
def test_a_fault_at_every_await_leaves_nothing_and_serves_no_draw_twice() -> None:
    measured = measure(lambda *_: None, branches=1)
    figures = measured.figures
    assert not measured.failures
    assert figures["leaked_slots_kv_trials"].value == 0 and figures["leaked_slots_kv_trials"].n
    assert figures["sampled_wrongly_reused"].value == 0 and figures["sampled_wrongly_reused"].n
    struck = measured.raw["struck_by_place"]
    assert all(struck.values()), struck
