"""Generations that outlive who asked for them."""

from __future__ import annotations

from dataclasses import replace

from dynbranch.domain.ids import Digest, GenerationId, Instant
from dynbranch.domain.reuse import GenerationRef, Identity
from dynbranch.gateway.core.left_behind import (
    MAX_OF_ONE_AGENT,
    Asker,
    LeftBehind,
    LeftGenerations,
    asker_of,
)
from hypothesis import given
from hypothesis import strategies as st

MODEL = Digest(bytes(32))
ME = Asker("group", "tenant", "w", "a", "model", MODEL)
YOU = replace(ME, agent_id="b")


def left(number: int, until: float = 10.0, body: bytes = b"{}") -> LeftBehind:
    return LeftBehind(GenerationRef(GenerationId(bytes([number]) * 16), "a:1"), body, Instant(until))


def test_nobody_has_no_way_back() -> None:
    who = Identity("tenant", workflow_id="w", agent_id="a")
    assert asker_of("group", Identity("tenant", agent_id="a"), "model", MODEL) is None
    assert asker_of("group", who, "model", MODEL) == ME
    assert asker_of("group", replace(who, tenant="other"), "model", MODEL) != ME
    assert asker_of("group", who, "other-model", MODEL) != ME
    assert asker_of("group", who, "model", Digest(bytes([1] * 32))) != ME


def test_the_newest_is_found_first_and_once() -> None:
    known = LeftGenerations()
    known.leave(ME, left(1))
    known.leave(ME, left(2))
    assert known.of(ME, Instant(1)) == (left(2), left(1))
    assert known.of(YOU, Instant(1)) == ()
    assert known.take(ME, left(2).generation)
    assert not known.take(ME, left(2).generation)
    assert known.of(ME, Instant(1)) == (left(1),)


def test_what_has_ended_by_itself_is_not_found() -> None:
    known = LeftGenerations()
    known.leave(ME, left(1, until=5))
    assert known.of(ME, Instant(5)) == ()
    assert len(known) == 0


def test_what_has_ended_is_not_held_for_whoever_does_not_come_back() -> None:
    known = LeftGenerations()
    known.leave(ME, left(1, until=5))
    known.leave(ME, left(2, until=7))
    known.leave(YOU, left(3, until=5))
    known.forget_ended(Instant(5))
    known.validate_state()
    assert len(known) == 1 and known.of(ME, Instant(6)) == (left(2, until=7),)
    assert known.of(replace(ME, workflow_id="x"), Instant(7)) == () and len(known) == 0


@given(
    st.lists(
        st.tuples(
            st.sampled_from([ME, YOU]),
            st.integers(0, 9),
            st.integers(0, 9),
            st.integers(0, 40),
            st.booleans(),
        )
    )
)
def test_it_stays_within_its_bounds(steps: list[tuple[Asker, int, int, int, bool]]) -> None:
    known = LeftGenerations(max_left=6, max_bytes=100)
    for asker, number, until, size, leaves in steps:
        if leaves:
            known.leave(asker, left(number, until, b"x" * size))
        else:
            found = known.of(asker, Instant(number))
            assert len(found) <= MAX_OF_ONE_AGENT and all(one.until > number for one in found)
        known.validate_state()
