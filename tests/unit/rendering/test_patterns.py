"""Which regular expressions a template may use, and what they find."""

from __future__ import annotations

from itertools import islice

import pytest
from dynbranch.rendering.patterns import MAX_CHARACTERS, MAX_LOOKED_AT, MAX_SIZE, Found, Pattern
from dynbranch.rendering.problems import TemplateInvalid
from dynbranch.rendering.reading import parse_template
from dynbranch.templates.shapes import _escaped
from hypothesis import given
from hypothesis import strategies as st


@pytest.mark.parametrize(
    "text",
    [
        "(a+)+$",
        "^(?:[a-z]+ ?)*$",
        "(?:a|aa)*b",
        "(a*)*b",
        "a*a*a*a*b",
        r"(\w+\s*)+$",
        "(x+?)+?y",
        r"(?s).*.*=.*",
    ],
)
def test_a_search_that_would_take_years_by_going_back_ends(text: str) -> None:
    assert len(list(islice(Pattern(text).found("a" * 100_000 + "!"), 3))) <= 3


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("(?=(a+)+$)", "ahead"),
        ("(?<=x)y", "behind|group"),
        (r"(a)\1", "invalid escape"),
        ("(?:a++,)*", "possessive"),
        ("(?>a+,)*", "atomic"),
        (r"a\Z", r"\\z"),
        ("(", "missing"),
        ("(?:a{100}){100}", "repetition|too large"),
        (".{900}", "too large"),
        ("\ud800", "can not be used"),
    ],
)
def test_what_the_engine_does_not_take_is_refused_and_told(text: str, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        Pattern(text)


def test_the_mark_for_lines_is_not_told_to_people() -> None:
    with pytest.raises(ValueError, match=r"missing \): \($"):
        Pattern("(")


@pytest.mark.parametrize(
    ("text", "searched", "found"),
    [
        ("^- (.*)$", "a\n- one\n- two", [Found("one", 2, 7), Found("two", 8, 13)]),
        (r"^\* (?P<value>.*)$", "* x", [Found("x", 0, 3)]),
        (r"\pL+", "Füße 3", [Found("Füße", 0, 4)]),
        ("(?P<other>a)(?P<value>b)?", "ab a", [Found("b", 0, 2), Found("", 3, 4)]),
        (r"(?s)\A<(.*)>\z", "<a\n>", [Found("a\n", 0, 4)]),
        ("x.y", "x\ud800y", [Found("x?y", 0, 3)]),
    ],
)
def test_what_is_found(text: str, searched: str, found: list[Found]) -> None:
    assert list(Pattern(text).found(searched)) == found


def test_a_text_is_searched_up_to_a_length() -> None:
    assert Pattern("b").first("a" * MAX_CHARACTERS + "b") is None
    large = Pattern(r"\pL\pL")
    assert large.longest < MAX_CHARACTERS
    assert Pattern("b").longest == MAX_CHARACTERS
    with pytest.raises(ValueError, match=f"at most {MAX_SIZE}"):
        Pattern(r"\pL\pL\pL")


def test_matches_that_each_look_at_all_that_follows_are_bounded() -> None:
    text = "a" * 50_000
    matches = sum(1 for _ in Pattern("(?s)a.*b|a").found(text))
    assert matches <= MAX_LOOKED_AT // len(text) * 2


@given(st.text(st.characters(exclude_categories=("Cs",))))
def test_what_learn_escapes_is_found(text: str) -> None:
    assert Pattern(f"(?s)\\A{_escaped(text)}(.*)\\z").first(text + "rest") == Found("rest", 0, len(text) + 4)


@pytest.mark.parametrize("regex", ["(?=a)b", "a++", "("])
def test_the_file_s_message_names_the_place(regex: str) -> None:
    text = f"workflow_type: t\nversion: 1\ninputs:\n  a: {{request: s, regex: '{regex}'}}\nstages:\n"
    with pytest.raises(TemplateInvalid, match=r"t\.yaml:4: inputs\.a\.regex: the regular expression"):
        parse_template(text + "  s: {kind: chat, request: x}\n", "t.yaml")
