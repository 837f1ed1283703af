"""How busy an engine is taken to be."""

from __future__ import annotations

from dynbranch.domain.engine import Occupancy
from dynbranch.domain.ids import Instant
from dynbranch.gateway.core.engine_load import EngineLoad
from hypothesis import given
from hypothesis import strategies as st


def at(seconds: float) -> Instant:
    return Instant(seconds)


def report(running: int, waiting: int = 0, engine: int | None = None) -> Occupancy:
    return Occupancy(
        1, True, slots=8, running=running, waiting=waiting, engine_running=engine, engine_waiting=None
    )


def test_own_work_counts_at_once_and_others_by_report() -> None:
    load = EngineLoad(mute_s=1)
    load.send(at(0))
    load.report(report(running=3))
    assert (load.in_flight, load.others) == (3, 2)
    load.send(at(0))
    assert load.in_flight == 4
    load.settle(at(0))
    load.settle(at(0))
    assert load.in_flight == 2


def test_waiting_is_as_the_last_report_says() -> None:
    load = EngineLoad(mute_s=1)
    load.report(report(running=8, waiting=1))
    assert load.waiting
    load.report(report(running=8, engine=8))
    assert not load.waiting


def test_work_past_the_agent_shows_in_the_engines_own_count() -> None:
    load = EngineLoad(mute_s=1)
    load.raw = 1
    load.report(report(running=0, engine=5))
    assert (load.in_flight, load.others) == (5, 4)
    load.report(report(running=2, engine=0))
    assert load.in_flight == 3


@given(
    st.lists(
        st.one_of(st.just("send"), st.just("settle"), st.tuples(st.integers(0, 9), st.integers(0, 9))),
        max_size=60,
    )
)
def test_never_below_what_is_surely_there(events: list[object]) -> None:
    load, own = EngineLoad(mute_s=1), 0
    for event in events:
        match event:
            case "send":
                load.send(at(0))
                own += 1
            case "settle" if own:
                load.settle(at(0))
                own -= 1
            case (int(running), int(waiting)):
                load.report(report(running, waiting))
                assert load.in_flight >= running + waiting
        assert load.in_flight >= own == load.ordered and load.others >= 0


def test_an_engine_that_owes_and_says_nothing_is_mute_until_it_speaks() -> None:
    load = EngineLoad(mute_s=2)
    assert not load.is_mute(at(100))
    load.send(at(100))
    assert not load.is_mute(at(102)) and load.is_mute(at(102.1))
    load.speak(at(103))
    assert not load.is_mute(at(104)) and load.is_mute(at(105.1))


def test_after_silence_it_is_given_one_at_a_time() -> None:
    load = EngineLoad(mute_s=2)
    load.send(at(0))
    load.settle(at(10))
    assert not load.is_mute(at(10))
    load.send(at(11))
    assert load.is_mute(at(11))
    load.speak(at(12))
    assert not load.is_mute(at(12))


def test_a_long_idle_engine_is_not_mute_at_its_next_request() -> None:
    load = EngineLoad(mute_s=2)
    load.send(at(0))
    load.speak(at(1))
    load.settle(at(1))
    load.send(at(1000))
    assert not load.is_mute(at(1001))
