"""History, offers and the menus they read."""

from __future__ import annotations

import pytest
from dynbranch.controller.core.predictors.history import History
from dynbranch.controller.core.predictors.menus import read_menu
from dynbranch.controller.core.predictors.offer import Offer
from dynbranch.controller.core.predictors.recurrence import Bounds, Recurrence
from hypothesis import given, settings
from hypothesis import strategies as st
from unit.controller.predictors.questions import among, learn, offered, propose, question


def test_history_ranks_by_frequency_and_proposes_only_what_it_has_seen() -> None:
    history = History()
    assert propose(history, question()) == ()
    for pick in ("b", "a", "b", "c", "b", "a"):
        learn(history, question(), pick)
    assert propose(history, question()) == ("b", "a", "c")
    assert propose(history, question(at_most=1)) == ("b",)
    assert propose(history, question(candidates=among("a", "x"))) == ("a",)


def test_a_special_context_speaks_louder_once_it_has_seen_enough() -> None:
    history = History()
    for _ in range(20):
        learn(history, question(facts=("hotels",)), "book")
    for _ in range(8):
        learn(history, question(facts=("cars",)), "decline")
    assert propose(history, question(facts=("cars",)))[0] == "decline"
    assert propose(history, question(facts=("hotels",)))[0] == "book"
    assert propose(history, question(facts=("trains",)))[0] == "book"


def test_what_followed_what_is_learned() -> None:
    history = History()
    for _ in range(6):
        learn(history, question(), "search")
        learn(history, question(trail=("search",)), "open")
        learn(history, question(trail=("search", "open")), "edit")
    assert propose(history, question(trail=("search",)))[0] == "open"
    assert propose(history, question(trail=("search", "open")))[0] == "edit"


def test_old_habits_fade() -> None:
    history = History(window=10)
    for _ in range(50):
        learn(history, question(), "old")
    for _ in range(10):
        learn(history, question(), "new")
    assert propose(history, question())[0] == "new"


@settings(max_examples=30, deadline=None)
@given(
    st.lists(
        st.tuples(st.lists(st.sampled_from("abc"), max_size=3), st.text("xyz", max_size=2)), max_size=120
    )
)
def test_memory_is_bounded_and_shares_are_shares(past: list[tuple[list[str], str]]) -> None:
    seen = Recurrence(Bounds(contexts=5, selections=3, window=2))
    for context, selection in past:
        seen.count([tuple(context[:n]) for n in range(len(context) + 1)], selection)
        seen.validate_state()
    shares = seen.shares([(), ("a",)], {})
    assert all(0 <= share <= 1 + 1e-9 for share in shares.values())
    assert sum(shares.values()) <= 1 + 1e-9


def test_fading_for_long_loses_no_precision() -> None:
    seen = Recurrence(Bounds(window=2))
    for number in range(5000):
        seen.count([()], "ab"[number % 2])
    seen.validate_state()
    shares = seen.shares([()], {})
    assert shares["b"] / shares["a"] == pytest.approx(2)


def test_people_take_what_is_offered_first_until_they_are_seen_to_take_something_else() -> None:
    offer = Offer()
    assert propose(offer, question(candidates=among("x", "y", "z"))) == ("x", "y", "z")
    for number in range(8):
        menu = among(f"a{number}", f"b{number}", f"c{number}")
        learn(offer, question(candidates=menu), f"b{number}")
    assert propose(offer, question(candidates=among("x", "y", "z")))[0] == "y"


def test_an_item_that_was_picked_before_comes_first_wherever_it_stands() -> None:
    offer = Offer()
    for _ in range(5):
        learn(offer, question(candidates=among("no", "yes")), "yes")
    assert propose(offer, question(candidates=among("no", "later", "yes")))[0] == "yes"


def test_an_offer_is_read_from_the_last_output() -> None:
    about = question(offered("1. Ask\n2. Wait"), offered('{"options": ["Hotel Ibis", "Hotel Lux"]}'))
    assert propose(Offer(), about) == ("Hotel Ibis", "Hotel Lux")
    assert propose(Offer(), question(offered("I have nothing to offer."))) == ()


@pytest.mark.parametrize(
    ("text", "items"),
    [
        ('["a", "b", "a"]', ("a", "b")),
        ('{"results": [{"id": "p1", "text": "…"}, {"id": "p2"}]}', ("p1", "p2")),
        ('Here you are: [{"name": "Lux", "price": 3}, {"name": "Ibis"}] Which one?', ("Lux", "Ibis")),
        ("I found:\n1. **Lux**: dear\n2. **Ibis** – cheap\n3. Ritz", ("Lux", "Ibis", "Ritz")),
        ("- red\n- green", ("red", "green")),
        ("a) yes\nb) no", ("yes", "no")),
        ('{"choice": "a"}', ()),
        ("only [one", ()),
        ("[1, 2, 3]", ("1", "2", "3")),
        ("[[[" * 5000, ()),
        ("", ()),
    ],
)
def test_menus(text: str, items: tuple[str, ...]) -> None:
    assert read_menu(text) == items


@given(st.text(max_size=300))
def test_reading_a_menu_never_fails(text: str) -> None:
    assert len(read_menu(text)) != 1
