"""What an agent tells of the prompts that it was sent."""

from __future__ import annotations

from dynbranch.engine_agent.core.recent_prompts import MAX_HINTS, RecentPrompts
from hypothesis import given
from hypothesis import strategies as st


@given(st.lists(st.lists(st.binary(max_size=2), max_size=8), max_size=8))
def test_every_reader_reads_each_hint_once_and_in_order(batches: list[list[bytes]]) -> None:
    recent, read, seen = RecentPrompts(), 0, []
    for batch in batches:
        for hint in batch:
            recent.add(hint)
        seen += recent.since(read)
        read = recent.count
        assert recent.since(read) == ()
    assert seen == [hint for batch in batches for hint in batch if hint]
    assert list(recent.since(0)) == seen


def test_only_the_last_ones_are_kept() -> None:
    recent = RecentPrompts()
    for number in range(MAX_HINTS + 10):
        recent.add(b"%d" % number)
    assert len(recent.since(0)) == MAX_HINTS and recent.since(0)[0] == b"10"
    assert recent.since(recent.count - 2) == (b"%d" % (MAX_HINTS + 8), b"%d" % (MAX_HINTS + 9))
