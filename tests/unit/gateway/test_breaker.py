"""The breaker: when it opens, when it closes, that it never lets two probes out."""

from __future__ import annotations

import pytest
from dynbranch.domain.ids import Instant
from dynbranch.gateway.core.breaker import Breaker, BreakerPolicy, CallEnd, Position

POLICY = BreakerPolicy(bad_calls_to_open=3, open_s=1.0, slow_s=0.1)


def at(seconds: float) -> Instant:
    return Instant(seconds)


def test_calls_that_are_not_answered_at_all_open_it_sooner() -> None:
    breaker = Breaker(POLICY).ended(CallEnd.HUNG, at(0))
    assert breaker.position is Position.CLOSED
    assert breaker.ended(CallEnd.HUNG, at(0)).position is Position.OPEN
    assert breaker.ended(CallEnd.GOOD, at(0)).bad_calls == 0


def opened() -> Breaker:
    breaker = Breaker(POLICY)
    for _ in range(3):
        breaker, admitted = breaker.admit(at(0))
        assert admitted
        breaker = breaker.ended(CallEnd.BAD, at(0))
    assert breaker.position is Position.OPEN
    return breaker


def test_it_opens_after_bad_calls_in_a_row_only() -> None:
    breaker = Breaker(POLICY)
    for end in (CallEnd.BAD, CallEnd.BAD, CallEnd.GOOD, CallEnd.BAD, CallEnd.BAD):
        breaker = breaker.ended(end, at(0))
    assert breaker.position is Position.CLOSED


def test_a_slow_answer_is_a_bad_call() -> None:
    breaker = Breaker(POLICY)
    for _ in range(3):
        breaker = breaker.ended(CallEnd.GOOD, at(0), elapsed_s=0.2)
    assert breaker.position is Position.OPEN


def test_open_it_admits_nothing_then_one_probe_and_a_good_probe_closes_it() -> None:
    breaker, admitted = opened().admit(at(0.5))
    assert not admitted
    breaker, admitted = breaker.admit(at(1.0))
    assert admitted
    breaker, second = breaker.admit(at(1.0))
    assert not second
    breaker = breaker.ended(CallEnd.GOOD, at(1.1))
    assert breaker.position is Position.CLOSED


def test_a_bad_probe_opens_it_again() -> None:
    breaker, _ = opened().admit(at(1.0))
    breaker = breaker.ended(CallEnd.BAD, at(1.2))
    assert breaker.position is Position.OPEN
    assert not breaker.admit(at(2.0))[1]
    assert breaker.admit(at(2.3))[1]


def test_an_abandoned_probe_lets_the_next_call_probe() -> None:
    breaker, _ = opened().admit(at(1.0))
    breaker = breaker.ended(CallEnd.ABANDONED, at(1.1))
    assert breaker.admit(at(1.1))[1]


@pytest.mark.parametrize("late", [CallEnd.BAD, CallEnd.ABANDONED])
def test_a_call_admitted_before_the_opening_does_not_prolong_it(late: CallEnd) -> None:
    breaker = opened().ended(late, at(0.9))
    assert breaker.admit(at(1.0))[1]
