"""What the simulated races found in the store, each in its shortest form."""

from __future__ import annotations

import pytest
from dynbranch.csl.core.limits import Limits
from dynbranch.csl.fake import SteppedLibrary
from dynbranch.domain.ids import RecordId, Version
from dynbranch.domain.reuse import Committed, DeclaredRead, Hit, Live, Miss, ReadScope

NOTES = ReadScope(sources=("notes",))


@pytest.mark.promise("I3")
def test_a_late_copy_of_a_demand_does_not_lead_followers_to_the_old_log() -> None:
    """The agent still has the finished log of the first execution when the copy is granted a lease."""
    library = SteppedLibrary()
    first = library.demand("a", scope=NOTES, generation=b"g" * 16, demand_id=b"d" * 16)
    assert isinstance(first, Miss) and first.lease is not None
    assert isinstance(library.commit(first.lease, reads=["notes/1"]), Committed)
    library.write("notes/1")
    late = library.demand("a", scope=NOTES, generation=b"g" * 16, demand_id=b"d" * 16)
    assert isinstance(late, Miss) and late.lease is not None
    assert late.lease.generation.generation_id != first.lease.generation.generation_id
    assert library.demand("a", scope=NOTES) == Live(late.lease.generation)


@pytest.mark.promise("I3")
def test_nobody_joins_an_execution_whose_harness_had_read_an_older_version() -> None:
    library = SteppedLibrary()
    old = library.write("notes/1").version
    new = library.write("notes/1").version
    stale = ReadScope(declared=(DeclaredRead(RecordId("notes/1"), old),))
    fresh = ReadScope(declared=(DeclaredRead(RecordId("notes/1"), new),))
    assert isinstance(library.demand("a", scope=stale), Miss)
    leader = library.demand("a", scope=fresh)
    assert isinstance(leader, Miss) and leader.lease is not None
    assert library.demand("a", scope=fresh) == Live(leader.lease.generation)


@pytest.mark.promise("I3")
def test_nobody_joins_an_execution_whose_reads_may_be_older_than_what_is_remembered() -> None:
    library = SteppedLibrary()
    scope = ReadScope(declared=(DeclaredRead(RecordId("notes/1"), Version(0, 0)),))
    assert isinstance(library.demand("a", scope=scope), Miss)
    assert isinstance(library.demand("a", scope=scope), Miss)


@pytest.mark.promise("I3")
def test_nobody_joins_an_execution_whose_producer_is_gone() -> None:
    """An evicted producer leaves nothing that a write could reach the execution by."""
    library = SteppedLibrary(limits=Limits(max_entries=1))
    made = library.lease("page", workflow="w", scope=NOTES)
    assert isinstance(library.commit(made, "page text", reads=["notes/1"]), Committed)
    built = library.lease("answer", workflow="w", inputs=["page text"])
    assert built.producers
    assert library.demand("answer") == Live(built.generation)
    assert isinstance(library.commit(library.lease("other"), "something"), Committed)
    assert not isinstance(library.demand("page", may_execute=False), Hit)
    again = library.demand("answer")
    assert isinstance(again, Miss) and again.lease is not None
    assert library.demand("answer") == Live(again.lease.generation)
