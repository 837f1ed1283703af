"""Entries that were kept for their whole time go like evicted ones: their children inherit what they read."""

from __future__ import annotations

import pytest
from dynbranch.csl.core.events import ExpireEntries
from dynbranch.csl.core.limits import Limits
from dynbranch.csl.fake import SteppedLibrary, name_of
from dynbranch.domain.reuse import Hit, ReadScope

DOCS = ReadScope(sources=("docs",))
HOUR_S = 3600


def a_library(**limits: int) -> SteppedLibrary:
    return SteppedLibrary(limits=Limits(entry_ttl_ms=HOUR_S * 1000, **limits))


def sweep(library: SteppedLibrary) -> None:
    while library.handle(ExpireEntries()):
        pass


def stored(library: SteppedLibrary, *whats: str) -> list[str]:
    return [what for what in whats if isinstance(library.demand(what, may_execute=False), Hit)]


@pytest.mark.promise("C1.ttl")
def test_only_what_is_older_than_its_time_goes() -> None:
    library = a_library()
    library.commit(library.lease("old"))
    library.clock.advance(HOUR_S / 2)
    library.commit(library.lease("new"))
    sweep(library)
    assert stored(library, "old", "new") == ["old", "new"]
    library.clock.advance(HOUR_S / 2 + 1)
    sweep(library)
    assert stored(library, "old", "new") == ["new"]
    assert library.library.counters.expired_entries == 1


@pytest.mark.promise("C1.ttl")
@pytest.mark.promise("I3")
def test_expiry_is_not_invalidation_and_a_write_still_reaches_the_children() -> None:
    library = a_library()
    library.commit(library.lease("get", workflow="w", scope=DOCS), "passage", reads=["docs/1"])
    library.clock.advance(HOUR_S - 1)
    library.commit(library.lease("answer", workflow="w", inputs=["passage"]), "text")
    library.clock.advance(2)
    sweep(library)
    assert stored(library, "get", "answer") == ["answer"]
    assert library.write("docs/1").invalidated_names == (name_of("answer"),)


@pytest.mark.promise("C1.ttl")
def test_what_much_hangs_on_goes_in_several_rounds() -> None:
    library = a_library(max_spliced_children=3)
    library.commit(library.lease("get", workflow="w", scope=DOCS), "passage", reads=["docs/1"])
    library.clock.advance(HOUR_S - 1)
    for number in range(10):
        library.commit(library.lease(f"n{number}", workflow="w", inputs=["passage"]), f"text {number}")
    library.clock.advance(2)
    for _ in range(4):
        sweep(library)
    assert stored(library, "get") == []
    assert library.write("docs/1").invalidated_entries == 10


@pytest.mark.promise("C1.ttl")
def test_without_a_time_nothing_goes() -> None:
    library = SteppedLibrary(limits=Limits(entry_ttl_ms=0))
    library.commit(library.lease("old"))
    library.clock.advance(1e9)
    sweep(library)
    assert stored(library, "old") == ["old"]


def test_a_great_many_go_in_steps() -> None:
    library = a_library(expired_per_step=7)
    for number in range(30):
        library.commit(library.lease(f"n{number}"))
    library.clock.advance(HOUR_S + 1)
    assert library.handle(ExpireEntries()) == 7
    sweep(library)
    assert library.library.stats(library.store).entries == 0
