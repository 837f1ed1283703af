"""Taking one JSON object apart without respelling anything."""

from __future__ import annotations

import json

import pytest
from dynbranch.gateway.protocols.members import NotAnObject, dump, members
from hypothesis import given
from hypothesis import strategies as st

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=10,
)


@given(st.dictionaries(st.text(max_size=8), JSON, max_size=5), st.sampled_from([None, 1, "\t"]))
def test_every_member_keeps_its_spelling(value: dict[str, object], indent: object) -> None:
    text = json.dumps(value, indent=indent)  # type: ignore[arg-type]
    found = members(text)
    assert {part.key: part.value for part in found} == value
    for part in found:
        assert part.spelling in text and json.loads(part.spelling) == part.value


def test_numbers_are_not_respelled() -> None:
    assert [part.spelling for part in members('{"a": 1.50e+3, "b" : -0.0}')] == ["1.50e+3", "-0.0"]


@pytest.mark.parametrize("text", ["", "[]", "{", '{"a"}', '{"a":1,}', '{"a":1} x', '{"a":1 "b":2}', "{a:1}"])
def test_what_is_no_object_is_refused(text: str) -> None:
    with pytest.raises(NotAnObject):
        members(text)


def test_half_a_surrogate_pair_is_escaped() -> None:
    assert dump({"a": "\ud83d"}) == b'{"a":"\\ud83d"}'
    assert dump({"a": "é"}) == '{"a":"é"}'.encode()
