"""A write is planned in steps: what may come between them, and what that changes."""

from __future__ import annotations

import pytest
from dynbranch.csl.core.limits import Limits
from dynbranch.csl.fake import SteppedLibrary, name_of
from dynbranch.domain.reuse import Committed, Hit, Lease, Miss, ReadScope, Refusal, Refused

DOCS = ReadScope(sources=("docs",))


@pytest.fixture
def library() -> SteppedLibrary:
    return SteppedLibrary(limits=Limits(max_entries=100))


def store(library: SteppedLibrary, what: str, *reads: str, inputs: str = "") -> None:
    lease = library.lease(
        what,
        workflow="w",
        scope=DOCS if reads else ReadScope(),
        inputs=[inputs] if inputs else [],
        may_hit=False,
    )
    assert isinstance(library.commit(lease, f"out of {what}", reads=reads or None), Committed)


def is_hit(library: SteppedLibrary, what: str) -> bool:
    return isinstance(library.demand(what, workflow="w", may_execute=False), Hit)


def run_steps(library: SteppedLibrary) -> None:
    while not library.step_write():
        pass


@pytest.mark.promise("C1.linearisable")
def test_until_its_last_step_a_write_changes_nothing_that_is_served(library: SteppedLibrary) -> None:
    store(library, "get", "docs/1")
    store(library, "answer", inputs="out of get")
    library.begin_write("docs/1")
    run_steps(library)
    assert is_hit(library, "get") and is_hit(library, "answer")
    assert library.finish_write().invalidated_names == (name_of("get"), name_of("answer"))
    assert not is_hit(library, "get") and not is_hit(library, "answer")


@pytest.mark.promise("I3")
def test_what_is_committed_beside_a_write_falls_with_it_where_it_read_the_record(
    library: SteppedLibrary,
) -> None:
    store(library, "get", "docs/1")
    library.begin_write("docs/1")
    run_steps(library)
    store(library, "late reader", "docs/1")
    store(library, "late reader of all", "docs/*")
    store(library, "late child", inputs="out of get")
    store(library, "late grandchild", inputs="out of late child")
    store(library, "other", "docs/2")
    assert library.finish_write().invalidated_entries == 5
    assert is_hit(library, "other")


@pytest.mark.promise("I3")
def test_a_lease_from_beside_a_write_commits_nothing_after_it(library: SteppedLibrary) -> None:
    store(library, "get", "docs/1")
    library.begin_write("docs/1")
    reader: Lease = library.lease("reader", scope=DOCS)
    child = library.lease("child", workflow="w", inputs=["out of get"])
    run_steps(library)
    assert isinstance(library.demand("get", workflow="w"), Hit)
    library.finish_write()
    for lease, reads in ((reader, ["docs/1"]), (child, None)):
        assert isinstance(library.commit(lease, reads=reads), Refused)


@pytest.mark.promise("C1.cascade")
def test_support_that_comes_before_an_entry_is_found_dead_saves_it(library: SteppedLibrary) -> None:
    store(library, "get", "docs/1")
    store(library, "get", "docs/2")
    library.begin_write("docs/1", "docs/2")
    assert not library.step_write(1)
    library.step_write(1)
    assert not library.library.is_falling(name_of("get"))
    store(library, "get", "docs/3")
    assert library.finish_write().invalidated_entries == 0
    assert is_hit(library, "get")
    assert library.write("docs/3").invalidated_entries == 1


@pytest.mark.promise("I3")
def test_support_that_comes_too_late_is_answered_and_not_recorded(library: SteppedLibrary) -> None:
    store(library, "get", "docs/1")
    library.begin_write("docs/1")
    run_steps(library)
    assert library.library.is_falling(name_of("get"))
    store(library, "get", "docs/2")
    assert library.finish_write().invalidated_names == (name_of("get"),)
    assert not is_hit(library, "get")


@pytest.mark.promise("C1.bounds")
def test_nothing_makes_room_beside_a_write() -> None:
    library = SteppedLibrary(limits=Limits(max_entries=2))
    store(library, "a", "docs/1")
    store(library, "b")
    library.begin_write("docs/1")
    run_steps(library)
    refused = library.commit(library.lease("c"))
    assert isinstance(refused, Refused) and refused.reason is Refusal.UNAVAILABLE
    assert library.finish_write().invalidated_entries == 1
    assert isinstance(library.commit(library.lease("c")), Committed)


def test_a_write_that_is_given_up_leaves_no_trace(library: SteppedLibrary) -> None:
    store(library, "get", "docs/1")
    library.begin_write("docs/1")
    run_steps(library)
    library.restart()
    assert is_hit(library, "get")
    assert library.write("docs/1").invalidated_entries == 1


def test_many_children_of_one_entry_are_found_page_by_page(library: SteppedLibrary) -> None:
    library = SteppedLibrary(limits=Limits(slice_nodes=50), checked=False)
    store(library, "get", "docs/1")
    for number in range(300):
        store(library, f"child{number}", inputs="out of get")
    assert library.write("docs/1").invalidated_entries == 301
    assert library.violations() == []
    assert isinstance(library.demand("child7"), Miss)
