"""When workflows begin: rates, phases, traces."""

from __future__ import annotations

from itertools import pairwise

import pytest
from dynbranch.sim.workloads.arrivals import (
    Closed,
    Phase,
    Phased,
    Poisson,
    Traced,
    begins,
    in_words,
    paper_phases,
    phase_of,
)
from dynbranch.sim.workloads.published import read_numbers
from dynbranch.sim.workloads.traces import TRACES
from dynbranch.sim.workloads.workload import workload


def test_poisson_arrivals_have_their_rate() -> None:
    found = [begin.at_s for begin in begins(Poisson(2.0, 4000), seed=1)]
    assert found == sorted(found)
    assert found[-1] / 4000 == pytest.approx(0.5, rel=0.05)


def test_a_closed_loop_has_no_times() -> None:
    assert [begin.at_s for begin in begins(Closed(3, 5), seed=1)] == [0.0] * 5


def test_phases_follow_one_another_each_with_its_rate_and_replay() -> None:
    phases = (Phase("A", 1.0, 200.0), Phase("B", 5.0, 100.0, 0.7))
    found = begins(Phased(phases), seed=1)
    first = [begin for begin in found if begin.at_s < 200]
    assert len(first) == pytest.approx(200, rel=0.2)
    assert len(found) - len(first) == pytest.approx(500, rel=0.2)
    assert {begin.replay for begin in first} == {None}
    assert {begin.replay for begin in found[len(first) :]} == {0.7}
    assert [phase_of(phases, at) for at in (0.0, 199.9, 200.0, 299.0, 500.0)] == ["A", "A", "B", "B", "B"]


def test_the_papers_phases_repeat_more_in_c() -> None:
    phases = paper_phases(read_numbers())
    assert [phase.name for phase in phases] == ["A", "B", "C", "D"]
    stream = workload("routing", phases=phases)
    repeated: dict[str, list[bool]] = {}
    for workflow in stream.workflows:
        repeated.setdefault(phase_of(phases, workflow.at_s), []).append(workflow.repeats is not None)
    shares = {name: sum(of) / len(of) for name, of in repeated.items()}
    assert shares["B"] == pytest.approx(0.22, abs=0.06)
    assert shares["C"] == pytest.approx(0.77, abs=0.06)
    assert len(repeated["B"]) == pytest.approx(630, rel=0.15)


def test_gaps_of_a_trace_are_kept_or_scaled() -> None:
    times = (0.0, 1.0, 4.0)
    assert [b.at_s for b in begins(Traced("t", times, 5), 1)] == [0.0, 1.0, 4.0, 5.0, 8.0]
    assert [b.at_s for b in begins(Traced("t", times, 3, rate=1.0), 1)] == [0.0, 0.5, 2.0]
    with pytest.raises(ValueError, match="gaps"):
        begins(Traced("t", (1.0,), 2), 1)


@pytest.mark.parametrize("name", [*TRACES])
def test_a_trace_is_a_workload_with_its_own_gaps_and_lengths(name: str) -> None:
    stream = workload(name, count=200)
    assert "gaps of" in stream.name
    assert not stream.template.decision_points
    calls = [workflow.turns[0].steps[0].call for workflow in stream.workflows]
    assert all(1 <= call.prompt_tokens <= 30_000 for call in calls)
    assert stream.workflows[-1].at_s > 0


def test_mooncakes_requests_share_their_beginnings() -> None:
    stream = workload("mooncake-conversation", count=400)
    known: set[object] = set()
    shared = 0
    for workflow in stream.workflows:
        blocks = workflow.turns[0].steps[0].call.blocks
        shared += bool(blocks) and blocks[0] in known
        known.update(blocks)
    assert shared > 40


def test_a_workload_can_come_as_a_trace_does() -> None:
    stream = workload("hci", trace="azure-code", rate=0.8, count=300)
    gaps = [b.at_s - a.at_s for a, b in pairwise(stream.workflows)]
    mean = sum(gaps) / len(gaps)
    assert sum((gap - mean) ** 2 for gap in gaps) / len(gaps) > 4 * mean**2, "bursts stay bursts"


def test_arrivals_are_told_in_words() -> None:
    assert in_words(Closed(2, 9)) == "2 clients"
    assert in_words(Poisson(0.8, 9)) == "0.8/s"
    assert in_words(Phased((Phase("A", 1.0, 20.0),))) == "phases A:1/s*20s"
    assert in_words(Traced("t", (0.0,), 1, 2.0)) == "gaps of t at 2/s"
