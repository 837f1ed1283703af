"""What two requests have different, for people."""

from __future__ import annotations

import json
from typing import Any

import pytest
from dynbranch.naming.differences import MAX_DIFFERENCES, Difference, Kind, differences
from dynbranch.naming.document import parse_body
from dynbranch.naming.normalise import normalise_chat
from hypothesis import given
from hypothesis import strategies as st

ASKED: dict[str, Any] = {
    "model": "m",
    "messages": [{"role": "user", "content": "What does it say?"}],
    "temperature": 0,
}


def canonical(body: dict[str, Any]) -> bytes:
    return normalise_chat(parse_body(json.dumps(body).encode())).canonical


def between(here: dict[str, Any], there: dict[str, Any]) -> list[Difference]:
    return list(differences(canonical(here), canonical(there)))


def test_equal_requests_differ_in_nothing() -> None:
    assert between(ASKED, {**ASKED, "stream": True, "user": "me"}) == []


def test_a_text_that_goes_on_otherwise() -> None:
    there = {**ASKED, "messages": [{"role": "user", "content": "What does she say?"}]}
    assert between(ASKED, there) == [
        Difference(
            "messages[0].content",
            Kind.CHANGED,
            "a text of 17 characters",
            "a text of 18 characters",
            from_character=10,
        )
    ]


def test_numbers_are_told_and_texts_are_not() -> None:
    there = {**ASKED, "temperature": 0.5, "stop": "secret"}
    found = {one.path: one for one in between(ASKED, there)}
    assert found["temperature"] == Difference("temperature", Kind.CHANGED, "0", "0.5")
    assert found["stop"] == Difference("stop", Kind.ONLY_THERE, there="a text of 6 characters")


@pytest.mark.parametrize("spelling", ["1e9999999999999999999", "-1E-9999999999999999999", "1e999", "0e30"])
def test_a_number_is_told_as_it_is_spelled_where_it_can_not_be_reckoned_with(spelling: str) -> None:
    here = b'form\n{"default":%s}' % spelling.encode()
    (found,) = differences(here, b'form\n{"default":2}')
    assert found == Difference("default", Kind.CHANGED, spelling, "2")


def test_a_longer_conversation() -> None:
    more = [*ASKED["messages"], {"role": "assistant", "content": "Hm."}]
    assert [(one.path, one.kind) for one in between({**ASKED, "messages": more}, ASKED)] == [
        ("messages[1]", Kind.ONLY_HERE)
    ]


def test_keys_in_another_order_where_a_template_may_print_them() -> None:
    def tool(schema: dict[str, Any]) -> dict[str, Any]:
        return {**ASKED, "tools": [{"type": "function", "function": {"name": "f", "parameters": schema}}]}

    here, there = tool({"type": "object", "title": "x"}), tool({"title": "x", "type": "object"})
    assert [one.path for one in between(here, there)] == ["tools[0].function.parameters"]


def test_there_is_an_end_to_it() -> None:
    long = {**ASKED, "messages": ASKED["messages"] * (2 * MAX_DIFFERENCES)}
    assert len(between(long, ASKED)) == MAX_DIFFERENCES


texts = st.text(max_size=4)
bodies = st.fixed_dictionaries(
    {
        "model": st.just("m"),
        "messages": st.lists(st.fixed_dictionaries({"role": st.just("user"), "content": texts}), min_size=1),
        "temperature": st.sampled_from([0, 0.0, 1]),
    },
    optional={"stop": texts, "seed": st.integers(0, 2), "stream": st.booleans()},
)


@given(bodies, bodies)
def test_differences_are_found_exactly_where_names_differ(
    here: dict[str, Any], there: dict[str, Any]
) -> None:
    assert bool(between(here, there)) == (canonical(here) != canonical(there))
