from __future__ import annotations

from dynbranch.domain.ids import GenerationId
from dynbranch.engine_agent.core.engine_view import EngineView, told
from dynbranch.engine_agent.core.ledger import Slots
from hypothesis import given
from hypothesis import strategies as st

few = st.integers(0, 50)


def test_an_engine_without_counts_stays_without() -> None:
    assert told(None, None, 0.5, own_peak=3) == EngineView(None, 0, 0.5)
    assert EngineView().fused(3) is None


@given(running=few, waiting=few)
def test_alone_the_report_and_the_books_say_the_same(running: int, waiting: int) -> None:
    own = running + waiting
    assert told(running, waiting, None, own_peak=own).fused(own) == (running, waiting)


@given(running=few, waiting=few, peak=few, own=few)
def test_never_below_what_is_known_to_be_there(running: int, waiting: int, peak: int, own: int) -> None:
    fused = told(running, waiting, None, own_peak=peak).fused(own)
    assert fused is not None and min(fused) >= 0 and sum(fused) >= own


@given(others=few, began=few, ended=few, kept=few)
def test_a_report_that_is_overtaken_is_not_believed(others: int, began: int, ended: int, kept: int) -> None:
    """It was made before some of ours ended and others began: the sum is right all the same."""
    view = told(others + kept + ended, 0, None, own_peak=kept + ended)
    fused = view.fused(kept + began)
    assert fused is not None and sum(fused) == others + kept + began


def test_slots_remember_the_most_that_were_used() -> None:
    slots = Slots(8)
    for number in range(3):
        slots.enqueue(GenerationId(bytes([number])), 2)
        slots.occupy(GenerationId(bytes([number])))
    for number in range(2):
        slots.release(GenerationId(bytes([number])))
    assert slots.take_peak() == 6
    assert slots.take_peak() == 2
