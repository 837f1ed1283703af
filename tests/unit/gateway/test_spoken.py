"""Names that an answer speaks of before it chooses one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from dynbranch.gateway.core.spoken import (
    MOST,
    MOST_AT_ONCE,
    MOST_LOOK_UPS,
    MOST_LOOK_UPS_AT_ONCE,
    MOST_OVERLAP,
    MOST_READ,
    MOST_REQUEST_CHARACTERS,
    MenuSpoken,
    RequestSpoken,
    RequestTexts,
    SpokenNames,
)
from dynbranch.gateway.listening import MAX_UNHEARD, SpokenWatch
from dynbranch.gateway.speaking import latest_texts, spoken_names
from dynbranch.gateway.templates import read_template
from dynbranch.naming.document import parse_body
from dynbranch.rendering.outputs import Added
from hypothesis import example, given
from hypothesis import strategies as st
from integration.gateway.fills import DECIDE, TEMPLATE, request

READ = (
    "Thought: The bridge stands in Torvale.\nAction: lookup[Torvale]\n",
    "Question: Where was the director of Blue Harbour born?\n"
    "Read: Blue Harbour is a 1962 film directed by Irma Lund and starring Peter Vale. Ångström & Søn wrote\n"
    "it for her. ",
)


def of_request(*texts: str) -> SpokenNames:
    return SpokenNames(RequestSpoken(RequestTexts(reversed(texts or READ))))


def of_menu(*menu: str) -> SpokenNames:
    return SpokenNames(MenuSpoken(menu))


def said(names: SpokenNames, *pieces: str) -> list[str]:
    return [name for piece in pieces for name in names.feed(piece)]


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("Thought: Irma Lund directed the film, so ", ["Irma Lund"]),
        ('{"thought":"Irma Lund\'s birth","entity":', ["Irma Lund"]),
        ('{"thought":"Find\\nIrma Lund", ', ["Irma Lund"]),
        ("Find Irma Lund. Not Peter Vale. ", ["Irma Lund", "Peter Vale"]),
        ("Ångström & Søn wrote ", ["Ångström & Søn"]),
        # A part of a name, a longer name, no capital, another spelling.
        ("Lund and Vale directed ", []),
        ("Irma Lund Hansen directed ", []),
        ("irma lund directed ", []),
        ("Irma Lünd directed ", []),
        # Labels of the form, and a sentence's first word.
        ("Thought: So. Action: Question. Read: ", []),
        ("Then 1962 it was ", []),
    ],
)
def test_names_of_the_request_are_spoken_of(text: str, names: list[str]) -> None:
    assert said(of_request(), text) == names
    assert said(of_request(), *text) == names, "letter by letter"


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("I call get weather now ", ["get_weather"]),
        ("get_weather(", ["get_weather"]),
        ("the GET-Weather call ", ["get_weather"]),
        ("New York, not York ", ["New York", "York"]),
        ("New Yorkshire ", []),
        ("getweather or get_weathers ", []),
        ("Cafe Zoé. ", ["Café Zoe"]),
        ("item 12, then 12.5 ", ["12", "12.5"]),
    ],
)
def test_items_of_a_menu_are_spoken_of(text: str, names: list[str]) -> None:
    menu = ("get_weather", "New York", "York", "Café Zoe", "12", "12.5", "", "...")
    assert said(of_menu(*menu), text) == names
    assert said(of_menu(*menu), *text) == names, "letter by letter"


def test_each_once_at_most_some_and_never_what_was_chosen_before() -> None:
    names = SpokenNames(MenuSpoken("abcdefgh"), without=["a"])
    assert said(names, *["a", "b", "a", "b", "b", "c", "d", "e", "f", ""], " ") == []
    assert said(names, "a b c b d e f ") == ["b", "c", "d"] and names.is_over
    assert names.feed("g ") == () and MOST == 3


def test_a_name_is_told_when_it_can_not_go_on() -> None:
    names = of_menu("Van Hook", "Van Hook Township")
    assert said(names, "Van Hook", " ") == []
    assert said(names, "Township", ",") == ["Van Hook Township"]
    assert said(names, "Van Hook is") == [] and said(names, " a") == ["Van Hook"]
    assert said(of_request(), "Irma Lund", " went") == [] and said(of_request(), "Irma Lund went ") != []


def test_the_one_item_that_a_choice_begins_with() -> None:
    names = of_menu("math.sum", "math.mean", "geo.area")
    assert names.begun("") == names.begun("math.") == names.begun("x") == ()
    assert names.begun("math.m") == ("math.mean",) and names.begun("math.mean") == ()
    assert of_request().begun("Irma") == ()


def test_another_answer_begins_anew_and_tells_nothing_twice() -> None:
    for names, other in ((of_menu("Irma Lund", "Peter"), "Peter"), (of_request(), "Peter Vale")):
        assert said(names, "Irma Lund, it is. ") == ["Irma Lund"]
        assert said(names, "Irma ") == []
        names.begin()
        assert said(names, "Lund, Irma Lund, ", f"{other}, ") == [other]


def test_only_the_last_texts_of_a_request_are_looked_at() -> None:
    filler = "word " * (MOST_REQUEST_CHARACTERS // 5)
    assert said(of_request("of Irma Lund", filler), "Irma Lund, ") == []
    assert said(of_request(filler, "of Irma Lund"), "Irma Lund, ") == ["Irma Lund"]
    assert said(of_request(filler + "of Irma Lund"), "Irma Lund, ") == ["Irma Lund"]


def test_what_never_ends_is_bounded() -> None:
    names = of_menu("Paris")
    for _ in range(64):
        assert names.feed("x" * 64) == ()
    assert said(names, "Paris is") == [] and said(names, " Paris is") == ["Paris"]
    of = of_request()
    for _ in range(64):
        of.feed("Irma " * 13)
    assert len(of._speech._text) <= MOST_OVERLAP + 65  # type: ignore[attr-defined]


@pytest.mark.parametrize("make", [of_request, lambda: of_menu("Irma Lund")])
def test_of_a_large_piece_the_beginning_is_read(make: Callable[[], SpokenNames]) -> None:
    filler = "it is. " * (MOST_AT_ONCE // 7 + 1)
    assert said(make(), "Irma Lund, " + filler) == ["Irma Lund"]
    names = make()
    assert said(names, filler + "Irma Lund, ") == []
    assert said(names, "Irma Lund, ") == ["Irma Lund"]
    assert said(make(), filler[: MOST_AT_ONCE - 5] + "Irma " + filler, "Lund, ") == []


@pytest.mark.parametrize("make", [of_request, lambda: of_menu("Irma Lund")])
def test_of_a_long_answer_the_beginning_is_read(make: Callable[[], SpokenNames]) -> None:
    names = make()
    assert said(names, *["it is. " * 100] * (MOST_READ // 700 + 1), "Irma Lund, ") == []
    names.begin()
    assert said(names, "Irma Lund, ") == ["Irma Lund"]


class Counting(RequestTexts):
    def __init__(self, *texts: str) -> None:
        super().__init__(texts)
        self.looked_for: list[str] = []

    def has(self, name: str) -> bool:
        self.looked_for.append(name)
        return super().has(name)


def test_few_names_are_looked_for_and_each_once() -> None:
    texts = Counting("Irma Lund")
    names = SpokenNames(RequestSpoken(texts))
    assert said(names, "Ed, Flo, " * 50, "Ed, ", "Irma Lund. ", "Irma Lund. ") == ["Irma Lund"]
    assert texts.looked_for == ["Ed", "Flo", "Irma Lund"]
    many = ["".join(f"N{piece}x{number}, " for number in range(100)) for piece in range(9)]
    texts = Counting("Irma Lund")
    names = SpokenNames(RequestSpoken(texts))
    assert said(names, many[0]) == [] and len(texts.looked_for) == MOST_LOOK_UPS_AT_ONCE
    assert said(names, "Irma Lund, ") == ["Irma Lund"], "each piece has its own"
    assert said(names, *many) == [] and len(texts.looked_for) == MOST_LOOK_UPS


def test_what_nobody_asks_for_any_more_is_not_looked_for() -> None:
    texts = Counting("Ada, Bo, Cy, Di, Ed")
    assert said(SpokenNames(RequestSpoken(texts)), "Ada, Bo, Cy, Di, Ed, ") == ["Ada", "Bo", "Cy"]
    assert texts.looked_for == ["Ada", "Bo", "Cy"]


TEXTS = st.lists(
    st.sampled_from(
        [
            "Irma",
            "Lund",
            "the",
            "of",
            "Vale",
            "Peter",
            ".",
            ",",
            '"',
            "\\n",
            "\n",
            "it",
            "Ö1",
            "12",
            "’s",
            "_",
        ]
        + [" "] * 8
    ),
    max_size=40,
).map("".join)


@given(TEXTS, TEXTS, st.lists(st.integers(1, 9), min_size=1, max_size=8))
@example('"', '"', [1])
@example("Irma  Lund", "Irma Lund", [1])
@example("Irma\\nLund", "Irma Lund", [1])
def test_however_it_is_cut_the_same_is_told_and_nothing_that_the_request_has_not(
    text: str, read: str, cuts: list[int]
) -> None:
    text += ". "
    pieces, place = [], 0
    while place < len(text):
        size = cuts[len(pieces) % len(cuts)]
        pieces.append(text[place : place + size])
        place += size
    for make in (lambda: of_request(read), lambda: of_menu("Irma Lund", "Lund", "Peter Vale of 12", "Ö1")):
        told = said(make(), *pieces)
        assert told == said(make(), text)
    # Of any blanks between its words a name makes one.
    spoken = " ".join(text.replace("\\n", "\n").split())
    for name in said(of_request(read), *pieces):
        assert name in read and name in spoken


@given(st.text(max_size=300), st.text(max_size=300))
def test_nothing_fails_whatever_it_reads(text: str, read: str) -> None:
    for name in said(of_request(read), text, *text):
        assert name in read
    said(SpokenNames(MenuSpoken(read.split())), *text)


# -- of a request ------------------------------------------------------------------------------------------

SPEAKING = TEMPLATE.replace("[offer, history]", "[offer, stream]")
OPEN = SPEAKING.replace("menu: {input: menu}", "unused: true")


def body(*messages: tuple[str, Any]) -> Any:
    return parse_body(request("", messages=[{"role": r, "content": c} for r, c in messages])).value


def names_of(template: str, value: Any) -> dict[str, SpokenNames]:
    made = read_template("picks", template)
    return spoken_names(made, made.template.stage("decide"), value)


def test_a_template_says_whether_names_are_told() -> None:
    value = parse_body(DECIDE).value
    assert names_of(TEMPLATE, value) == {} and not read_template("picks", TEMPLATE).speaking
    [(point, names)] = names_of(SPEAKING, value).items()
    assert point == "pick" and said(names, "blue or green? ") == ["blue"]
    waits = SPEAKING.replace("window: decode", "window: wait").replace(
        "{output: decide, path: $.pick}", "{request: act, path: $.model}"
    )
    assert not read_template("picks", waits).speaking


def test_instructions_are_not_what_a_request_is_about() -> None:
    value = body(
        ("system", "You are Irma Lund."),
        ("user", [{"type": "text", "text": "Ask Peter Vale"}, {"type": "image_url"}, "x"]),
        ("tool", "Anna Berg said no"),
        ("assistant", None),
    )
    assert list(latest_texts(value)) == ["Anna Berg said no", "Ask Peter Vale"]
    [names] = names_of(OPEN, value).values()
    assert said(names, "Irma Lund, Peter Vale, Anna Berg, ") == ["Peter Vale", "Anna Berg"]
    assert list(latest_texts([])) == list(latest_texts({"messages": ["x", 1]})) == []


def test_what_the_conversation_chose_before_is_not_told_again() -> None:
    value = body(("user", "Of Irma Lund and Peter Vale"), ("assistant", '{"pick":"Irma Lund"}'))
    [names] = names_of(OPEN, value).values()
    assert said(names, "Irma Lund, then Peter Vale, ") == ["Peter Vale"]


# -- of an answer ------------------------------------------------------------------------------------------


def watching() -> tuple[SpokenWatch, list[tuple[str, int]]]:
    told: list[tuple[str, int]] = []
    return SpokenWatch(lambda selection, items: told.append((*selection.chosen, items))), told


def test_thoughts_and_texts_are_read_and_no_name_goes_from_one_to_the_other() -> None:
    watch, told = watching()
    watch.know({"p": of_menu("x y", "c")})
    watch.read(Added(reasoning="so c or x"), 1)
    watch.read(Added("y it is"), 2)
    watch.read(Added(" ", ((0, "c", "x y "),)), 3)
    watch.read(Added(" x y, "), 4)
    assert told == [("c", 1), ("x y", 4)]


def test_what_is_said_before_the_names_are_known_is_heard_afterwards() -> None:
    watch, told = watching()
    watch.read(Added("c and x "), 1)
    watch.begun("p", "c", 1)
    watch.know({"p": of_menu("x y", "c")})
    watch.read(Added("y "), 2)
    assert told == [("c", 2), ("x y", 2)]
    late, told = watching()
    late.read(Added("c " * MAX_UNHEARD), 1)
    late.know({"p": of_menu("c")})
    late.read(Added("x "), 2)
    assert told == [], "too much was said"


def test_nothing_is_told_where_nothing_can_be_chosen() -> None:
    watch, told = watching()
    watch.know({})
    watch.read(Added("c x y "), 1)
    watch.begun("p", "c", 1)
    watch.begin()
    assert told == []
