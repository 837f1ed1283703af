"""The stream predictor, drafts, and how rankings are mixed."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from dynbranch.controller.core.predictors.drafts import draft_body, ranked_by_drafts
from dynbranch.controller.core.predictors.rates import Mixture, RankRates
from dynbranch.controller.core.predictors.stream import Stream, Visibility, resolved, visibility
from dynbranch.domain.template import Choice
from hypothesis import given
from hypothesis import strategies as st
from unit.controller.predictors.questions import HERE, among, asked, offered, propose, question

NAMES = among("get_weather", "get_time", "book")


def reading(partial: str, *visible: Choice) -> tuple[str, ...]:
    return propose(Stream(), replace(question(candidates=NAMES), partial=partial, visible=visible))


def test_a_candidate_that_the_decode_speaks_of_comes_first() -> None:
    assert reading("First") == ()
    assert reading("We could get time, but we had better book") == ("book", "get_time")


def test_the_beginning_of_a_choice_rules_others_out() -> None:
    assert reading('{"handler": "get_', Choice("get_", False, False, 16)) == ("get_weather", "get_time")
    assert reading('{"handler": "get_t', Choice("get_t", False, False, 17)) == ("get_time",)
    assert reading('{"handler": "x', Choice("x", False, False, 14)) == ()


def test_a_choice_that_is_there_is_the_ranking() -> None:
    closed = Choice("book", True, True, 20)
    assert reading('{"handler": "book"', closed) == ("book",)
    assert reading("", closed, Choice("get_", False, False, 30)) == ("book", "get_weather", "get_time")


def test_an_open_sets_choice_is_not_guessed_from_its_beginning() -> None:
    begun = replace(question(), visible=(Choice("Mountr", False, False, 8),))
    assert propose(Stream(), begun) == ()


def test_it_resolves_early_only_on_closed_choices_that_nothing_can_change() -> None:
    final, more = Choice("a", True, True, 3), Choice("b", True, False, 9)
    assert resolved((final,)) == ("a",)
    assert resolved((final, more)) is None
    assert resolved((replace(final, closed=False),)) is None
    assert resolved(()) is None


@pytest.mark.parametrize(
    ("tops", "closed", "seen"),
    [
        ((None, "b", "a", "a"), (False, False, False, True), Visibility(0.75, 1.0)),
        (("a", "a"), (False, True), Visibility(0.5, 1.0)),
        (("a", "b", "b"), (True, True, True), Visibility(1.0, 1 / 3)),
        ((), (), Visibility(1.0, 1.0)),
    ],
)
def test_visibility(tops: tuple[str | None, ...], closed: tuple[bool, ...], seen: Visibility) -> None:
    assert visibility(tops, closed, "a") == seen


def test_the_mixture_trusts_whoever_was_right_here() -> None:
    mixture = Mixture()
    rankings = {"one": ("a", "b"), "two": ("b", "a")}
    assert mixture.merge(HERE, rankings, 8) == ("a", "b")
    for _ in range(20):
        mixture.learn(HERE, {"one": ("x",), "two": ("y",)}, ("y",))
        mixture.validate_state()
    assert mixture.merge(HERE, rankings, 8) == ("b", "a")
    assert mixture.merge(HERE, rankings, 1) == ("b",)


def test_two_that_agree_outweigh_one() -> None:
    rankings = {"one": ("a", "c"), "two": ("b", "c"), "three": ("c",)}
    assert Mixture().merge(HERE, rankings, 8)[0] == "c"


def test_a_coordinate_that_is_new_starts_from_what_all_say() -> None:
    rates = RankRates()
    before = rates.rate("new", 0)
    for _ in range(50):
        rates.learn("seen", ("a",), ("a",))
    assert rates.rate("seen", 0) > 0.9 > before
    assert rates.rate("new", 0) > before
    assert rates.rate("new", 99) == rates.rate("new", 7)


@given(
    st.lists(st.tuples(st.text("ab", max_size=2), st.lists(st.sampled_from("xyz"), max_size=4)), max_size=60)
)
def test_rates_are_bounded_shares(past: list[tuple[str, list[str]]]) -> None:
    rates = RankRates(keys=3)
    for key, ranking in past:
        rates.learn(key, ranking, ("x",))
        rates.validate_state()
    assert all(0 <= rates.rate(key, rank) <= 1 for key in ("a", "b") for rank in range(9))


def test_candidates_are_ranked_by_how_many_drafts_name_them() -> None:
    about = question(candidates=among("get_weather", "weather", "book"))
    drafts = ["book", "Get weather, please", "get_weather", "I do not know", ""]
    assert ranked_by_drafts(about, drafts) == ("get_weather", "book")


def test_in_an_open_set_each_drafts_first_line_is_a_candidate() -> None:
    drafts = ["Mountrail County.\nIt is", "Mountrail County", " 'Stanley'", "\n"]
    assert ranked_by_drafts(question(), drafts) == ("Mountrail County", "Stanley")


def test_a_draft_is_asked_with_the_texts_that_fit() -> None:
    about = question(asked("z" * 100_000), offered("1. tea\n2. milk"), candidates=among("tea", "milk"))
    body = json.loads(draft_body(about, "small", max_tokens=8, temperature=0.7, seed=3))
    assert body["model"] == "small" and body["seed"] == 3 and body["max_tokens"] == 8
    assert "- tea\n- milk" in body["messages"][0]["content"]
    assert body["messages"][1]["content"].endswith("1. tea\n2. milk")
    assert len(body["messages"][1]["content"]) < 5_000
