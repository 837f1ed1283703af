"""What is kept of requests so that a later one can be compared with them."""

from __future__ import annotations

from dynbranch.domain.ids import Digest, Name
from dynbranch.domain.reuse import Identity
from dynbranch.gateway.core.recent_arrivals import MAX_OF_A_GROUP, RecentArrival, RecentArrivals, group_of
from hypothesis import given
from hypothesis import strategies as st

GROUP = group_of("tenant/a", Identity(workflow_type_id="t"), "m")
OTHER = group_of("tenant/b", Identity(workflow_type_id="t"), "m")


def arrival(number: int, workflow: str = "w", size: int = 10) -> RecentArrival:
    return RecentArrival(Name(number.to_bytes(32, "big")), workflow, "a", Digest(b"f"), b"x" * size)


def test_the_own_workflow_comes_first_and_the_newest_of_it() -> None:
    recent = RecentArrivals()
    for number, workflow in enumerate(("w", "v", "w", "v")):
        recent.note(GROUP, arrival(number, workflow))
    assert [one.name[-1] for one in recent.of(GROUP, "w")] == [2, 0, 3, 1]


def test_who_does_not_share_results_is_not_compared() -> None:
    recent = RecentArrivals()
    recent.note(GROUP, arrival(1))
    assert list(recent.of(OTHER, "w")) == []


def test_a_name_stands_once() -> None:
    recent = RecentArrivals()
    recent.note(GROUP, arrival(1, "w"))
    recent.note(GROUP, arrival(2, "w"))
    recent.note(GROUP, arrival(1, "v"))
    assert [(one.name[-1], one.workflow_id) for one in recent.of(GROUP, "v")] == [(1, "v"), (2, "w")]


def test_nothing_is_kept_where_nothing_may_be() -> None:
    recent = RecentArrivals(max_bytes=0)
    recent.note(GROUP, arrival(1))
    assert list(recent.of(GROUP, "w")) == [] and recent.held_bytes == 0


@given(st.lists(st.tuples(st.sampled_from([GROUP, OTHER]), st.integers(0, 99), st.integers(0, 60))))
def test_it_stays_within_its_bounds(notes: list[tuple[object, int, int]]) -> None:
    recent = RecentArrivals(max_bytes=200)
    for group, number, size in notes:
        recent.note(group, arrival(number, size=size))  # type: ignore[arg-type]
        recent.validate_state()


def test_a_group_is_bounded_in_number() -> None:
    recent = RecentArrivals()
    for number in range(MAX_OF_A_GROUP + 10):
        recent.note(GROUP, arrival(number))
    recent.validate_state()
    assert len(list(recent.of(GROUP, "w"))) == MAX_OF_A_GROUP
