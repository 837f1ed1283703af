"""The context ranker: handlers that a request speaks of, names in what was read."""

from __future__ import annotations

from dynbranch.controller.core.predictors.context import ContextRanker
from dynbranch.controller.core.predictors.entities import FEATURES, Entities, found, same_name
from dynbranch.controller.core.predictors.mentions import Mentions
from dynbranch.controller.core.predictors.port import Candidate
from dynbranch.wording.spans import spans
from dynbranch.wording.words import plain, stems
from hypothesis import given, settings
from hypothesis import strategies as st
from unit.controller.predictors.questions import asked, learn, propose, question, read, step

REQUEST = "Find the greatest common divisor of 96 and 128, and then list the primes below 50."
HANDLERS = (
    Candidate("list_primes", "all prime numbers below a limit"),
    Candidate("gcd", "greatest common divisor of two numbers"),
    Candidate("weather.get", "the weather of a city"),
)
PASSAGE = (
    "Van Hook Township is a township in Mountrail County in the U.S. state of North Dakota. At the time of"
    " the 2000 Census, its population was 42."
)


def test_handlers_come_in_the_order_in_which_they_are_spoken_of() -> None:
    about = question(asked(REQUEST), candidates=HANDLERS)
    assert propose(Mentions(), about) == ("gcd", "list_primes", "weather.get")


def test_the_handler_called_just_now_comes_after_the_next_one_and_before_the_others() -> None:
    about = question(asked(REQUEST), candidates=HANDLERS, picked=("gcd",))
    assert propose(Mentions(), about) == ("list_primes", "gcd", "weather.get")
    both = question(asked(REQUEST), candidates=HANDLERS[:2], picked=("gcd", "list_primes"))
    assert propose(Mentions(), both) == ("list_primes", "gcd")


def test_without_a_closed_set_there_are_no_handlers() -> None:
    assert propose(Mentions(), question(asked(REQUEST))) == ()


def test_words_of_identifiers_and_of_prose_meet() -> None:
    assert stems("calculateDistances_byRoute") == stems("calculating distance, by route")


def test_names_are_found_with_what_ties_them_together() -> None:
    names = [
        span.name
        for span in spans("He met Ludwig van Beethoven's pupil at the University of Vienna in May 1801.")
    ]
    assert "Ludwig van Beethoven" in names
    assert "University of Vienna" in names
    assert "He" not in names


def test_a_run_that_may_be_two_names_is_read_both_ways() -> None:
    names = {span.name for span in spans("It was founded by Buechner and Orth.")}
    assert {"Buechner", "Orth", "Buechner and Orth"} <= names


@given(st.text(max_size=400))
def test_every_name_stands_in_the_text(text: str) -> None:
    squeezed = " ".join(text.split())
    for span in spans(text):
        assert span.name in squeezed
        assert text[span.at] == span.name[0]


@given(st.text(max_size=60))
def test_plain_text_is_as_long_as_the_text(text: str) -> None:
    assert len(plain(text)) == len(text)


def test_the_name_that_answers_the_step_comes_first() -> None:
    about = question(
        asked("What is the seat of the county where Van Hook Township is located?"),
        step("Van Hook Township >> located in the county"),
        read(PASSAGE, "Van Hook Township"),
    )
    ranking = propose(Entities(), about)
    assert ranking[0] == "Mountrail County"
    assert ranking.index("Mountrail County") < ranking.index("Van Hook Township")


def test_entities_learn_which_names_are_looked_up_next() -> None:
    entities = Entities([0.0] * len(FEATURES), step=0.5)
    texts = [f"Alma Adams came by train. The town of Bern {n} greeted Carla Curie." for n in range(30)]
    for text in texts:
        learn(entities, question(asked("Who is next?"), read(text)), "Carla Curie")
    assert propose(entities, question(asked("Who is next?"), read(texts[0])))[0] == "Carla Curie"


def test_candidates_of_a_closed_set_are_ranked_by_the_text() -> None:
    about = question(
        asked("Which county is it in?"),
        read(PASSAGE),
        candidates=(Candidate("Cass County"), Candidate("Mountrail County")),
    )
    assert {entity.name for entity in found(about)} == {"Cass County", "Mountrail County"}


def test_the_context_ranker_reads_what_there_is() -> None:
    ranker = ContextRanker()
    assert propose(ranker, question(asked(REQUEST), candidates=HANDLERS))[0] == "gcd"
    assert "Mountrail County" in propose(ranker, question(asked("Which county?"), read(PASSAGE)))
    assert propose(ranker, question()) == ()


def test_names_are_the_same_where_one_holds_the_other_and_is_not_much_longer() -> None:
    assert same_name("the Mountrail County", "Mountrail County")
    assert same_name("Henry Baring of Cromer Hall", "Henry Baring") is False
    assert same_name("Michael Faraday", "Faraday")
    assert not same_name("Faraday", "Maxwell")
    assert not same_name("", "Maxwell")


@settings(max_examples=60, deadline=None)
@given(st.text(max_size=200), st.text(max_size=60), st.text(max_size=60), st.integers(1, 9))
def test_any_text_gets_an_answer_and_the_same_one(body: str, task: str, aim: str, at_most: int) -> None:
    about = question(asked(task), step(aim), read(body, aim), at_most=at_most)
    ranking = propose(Entities(), about)
    assert len(set(ranking)) == len(ranking) <= at_most
    assert propose(Entities(), about) == ranking
    learning = Entities()
    learn(learning, about, *ranking[:1])
    assert all(abs(weight) < 10 for weight in learning.weights.values())
