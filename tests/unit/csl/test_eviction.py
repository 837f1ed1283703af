"""Eviction: the least worth goes, and it is never an invalidation."""

from __future__ import annotations

import pytest
from dynbranch.csl.core.eviction import worth
from dynbranch.csl.core.limits import Limits
from dynbranch.csl.core.rows import EntryRow
from dynbranch.csl.fake import SteppedLibrary, digest, name_of
from dynbranch.domain.ids import UnixMs
from dynbranch.domain.reuse import Committed, Hit, Level, Miss, ReadScope, Refusal, Refused

DOCS = ReadScope(sources=("docs",))


def stored(library: SteppedLibrary, *whats: str) -> list[str]:
    return [what for what in whats if isinstance(library.demand(what, may_execute=False), Hit)]


@pytest.mark.promise("C1.bounds")
def test_entries_and_bytes_never_exceed_their_bounds() -> None:
    library = SteppedLibrary(limits=Limits(max_entries=5, max_stored_bytes=40))
    for number in range(30):
        outcome = library.commit(library.lease(f"n{number}"), "x" * (number % 13))
        assert isinstance(outcome, Committed)
        stats = library.library.stats(library.store)
        assert stats.entries <= 5 and stats.payload_bytes <= 40
    assert library.library.counters.evicted_entries >= 25


@pytest.mark.promise("C1.bounds")
def test_what_is_hit_stays_and_what_is_idle_goes() -> None:
    library = SteppedLibrary(limits=Limits(max_entries=3))
    for what in ("a", "b", "c"):
        library.commit(library.lease(what))
    library.clock.advance(600)
    assert stored(library, "a", "c") == ["a", "c"]
    library.commit(library.lease("d"))
    assert stored(library, "a", "b", "c", "d") == ["a", "c", "d"]


@pytest.mark.promise("I3")
@pytest.mark.promise("C1.splice")
def test_a_write_still_reaches_the_children_of_an_evicted_entry() -> None:
    library = SteppedLibrary(limits=Limits(max_entries=2))
    library.commit(
        library.lease("get", workflow="w", scope=DOCS), "passage", reads=["docs/1"], execution_ms=1
    )
    library.commit(library.lease("answer", workflow="w", inputs=["passage"]), "text")
    library.clock.advance(60)
    library.demand("answer")
    library.commit(library.lease("third"))
    assert stored(library, "get", "answer", "third") == ["answer", "third"]
    assert library.write("docs/1").invalidated_names == (name_of("answer"),)


@pytest.mark.promise("I3")
@pytest.mark.promise("C1.splice")
def test_a_grandchild_inherits_the_producers_of_an_evicted_entry() -> None:
    library = SteppedLibrary(limits=Limits(max_entries=3))
    library.commit(library.lease("get", workflow="w", scope=DOCS), "passage", reads=["docs/1"])
    library.commit(library.lease("middle", workflow="w", inputs=["passage"]), "text", execution_ms=0)
    library.commit(library.lease("last", workflow="w", inputs=["text"]), "end")
    library.commit(library.lease("other"))
    assert stored(library, "get", "middle", "last", "other") == ["get", "last", "other"]
    assert library.write("docs/1").invalidated_names == (name_of("get"), name_of("last"))


@pytest.mark.promise("C1.splice")
def test_a_child_keeps_one_derivation_for_each_of_its_lost_producer() -> None:
    library = SteppedLibrary(limits=Limits(max_entries=2))
    library.commit(
        library.lease("get", workflow="w", scope=DOCS), "passage", reads=["docs/1"], execution_ms=1
    )
    library.commit(library.lease("get", scope=DOCS, may_hit=False), "passage", reads=["docs/2"])
    library.commit(library.lease("answer", workflow="w", inputs=["passage"]), "text")
    library.clock.advance(60)
    library.demand("answer")
    library.commit(library.lease("third"))
    assert library.write("docs/1").invalidated_entries == 0
    assert stored(library, "answer") == ["answer"]
    assert library.write("docs/2").invalidated_names == (name_of("answer"),)


@pytest.mark.promise("C1.splice")
def test_an_entry_that_too_much_hangs_on_is_not_evicted() -> None:
    library = SteppedLibrary(limits=Limits(max_entries=3, max_spliced_children=1))
    library.commit(
        library.lease("get", workflow="w", scope=DOCS), "passage", reads=["docs/1"], execution_ms=0
    )
    for what in ("one", "two"):
        library.commit(library.lease(what, workflow="w", inputs=["passage"]), what, execution_ms=1e6)
    library.commit(library.lease("third"))
    assert "get" in stored(library, "get", "one", "two")


def test_a_result_larger_than_the_store_is_refused_and_costs_nothing() -> None:
    library = SteppedLibrary(limits=Limits(max_stored_bytes=10))
    library.commit(library.lease("a"))
    outcome = library.commit(library.lease("big"), "x" * 11)
    assert isinstance(outcome, Refused) and outcome.reason is Refusal.TOO_LARGE
    assert isinstance(library.demand("big"), Miss)
    assert stored(library, "a") == ["a"]


def test_no_producer_of_a_commit_makes_room_for_it() -> None:
    library = SteppedLibrary(limits=Limits(max_entries=1))
    library.commit(library.lease("get", workflow="w", scope=DOCS), "passage", reads=["docs/1"])
    outcome = library.commit(library.lease("answer", workflow="w", inputs=["passage"]), "text")
    assert isinstance(outcome, Refused) and outcome.reason is Refusal.UNAVAILABLE


def test_worth_is_time_saved_per_byte_weighed_by_hits_and_idleness() -> None:
    def entry(ms: float, size: int) -> EntryRow:
        return EntryRow(1, Level.GREEDY, size, ms, UnixMs(0), 1, (0,), digest("x"), "", ())

    assert worth(entry(500, 100), frequency=0, idle_s=0) > worth(entry(100, 100), frequency=0, idle_s=0)
    assert worth(entry(500, 100), frequency=0, idle_s=0) > worth(entry(500, 9_000), frequency=0, idle_s=0)
    assert worth(entry(500, 100), frequency=3, idle_s=0) > worth(entry(500, 100), frequency=0, idle_s=0)
    assert worth(entry(500, 100), frequency=3, idle_s=0) > worth(entry(500, 100), frequency=3, idle_s=600)
