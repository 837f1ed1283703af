"""The reuse name: equal exactly for requests that an engine treats alike."""

from __future__ import annotations

import copy
import json
from random import Random
from typing import Any

import pytest
from dynbranch.bench.name_pairs import CHANGES, draw_request, neighbour, rewrite, spell
from dynbranch.domain.ids import Digest, Name
from dynbranch.domain.reuse import Fingerprint, Level
from dynbranch.naming.document import parse_body
from dynbranch.naming.fields import CHAT, Accepts, FieldClass
from dynbranch.naming.fingerprint import fingerprint_digest
from dynbranch.naming.name import reuse_name
from dynbranch.naming.normalise import normalise_chat
from hypothesis import given, settings
from hypothesis import strategies as st

pytestmark = pytest.mark.promise("C1.name", "I1")

CHANCE = st.integers(0, 2**64 - 1).map(Random)
TEXT = st.text(st.characters(codec="utf-8"), max_size=5)
FINGERPRINT = fingerprint_digest(Fingerprint((("model", "m"),)))


def name_of(body: bytes) -> Name:
    return reuse_name("t", FINGERPRINT, normalise_chat(parse_body(body)).canonical)


def name_of_fields(**fields: Any) -> Name:
    return name_of(
        json.dumps({"model": "m", "messages": [{"role": "user", "content": "x"}], **fields}).encode()
    )


@given(CHANCE)
def test_rewritten_requests_keep_their_name(chance: Random) -> None:
    request = draw_request(chance)
    assert name_of(rewrite(chance, request)) == name_of(rewrite(chance, request))


@given(CHANCE)
@settings(max_examples=300)
def test_a_determining_change_changes_the_name(chance: Random) -> None:
    request = draw_request(chance)
    other, kind = neighbour(chance, request)
    assert name_of(rewrite(chance, request)) != name_of(rewrite(chance, other)), kind


@pytest.mark.parametrize("kind", sorted(CHANGES))
def test_every_kind_of_change_is_tried(kind: str) -> None:
    chance = Random(kind)
    applied = 0
    while applied < 20:
        request = draw_request(chance)
        other = copy.deepcopy(request)
        if CHANGES[kind](chance, other) and spell(other) != spell(request):
            applied += 1
            assert name_of(rewrite(chance, request)) != name_of(rewrite(chance, other))


@pytest.mark.parametrize("field", sorted(CHAT.fields))
def test_a_field_is_in_the_name_exactly_if_it_determines(field: str) -> None:
    kinds: dict[Accepts, Any] = {
        Accepts.OBJECT: {"type": "text"},
        Accepts.OBJECTS: [{"type": "x"}],
        Accepts.BOOLEAN: True,
        Accepts.REQUIRED_TEXT: "other",
        Accepts.REQUIRED_OBJECTS: [{"role": "user", "content": "y"}],
        Accepts.TEXT_OR_TEXTS: "y",
        Accepts.TEXT_OR_OBJECT: "y",
    }
    value = kinds.get(CHAT.fields[field].accepts, 7)
    changed = name_of_fields(**{field: value}) != name_of_fields()
    assert changed == (CHAT.fields[field].field_class is FieldClass.DETERMINES)


@given(
    st.text(alphabet="abcdefgh_", min_size=9), st.none() | st.booleans() | st.integers() | st.text(max_size=5)
)
def test_an_unknown_field_determines(field: str, value: Any) -> None:
    assert name_of_fields(**{field: value}) != name_of_fields()


@pytest.mark.parametrize(
    ("left", "right"),
    [
        ({"temperature": 0}, {}),
        ({"temperature": None}, {}),
        ({"temperature": 1}, {}),
        ({"n": 1}, {}),
        ({"max_tokens": 5}, {"max_completion_tokens": 5}),
        ({"stop": "x"}, {"stop": ["x"]}),
        ({"tools": []}, {}),
        ({"logprobs": False}, {}),
        ({"seed": 1}, {"seed": 1.0}),
        ({"unheard": 1}, {"unheard": 1.0}),
        ({"unheard": {"a": 1, "b": 2}}, {"unheard": {"b": 2, "a": 1}}),
        ({"chat_template_kwargs": {"a": 1, "b": 2}}, {"chat_template_kwargs": {"b": 2, "a": 1}}),
        ({"logit_bias": {"1": 1}}, {"logit_bias": {"1": 1.0}}),
        ({"messages": [{"role": "user"}]}, {"messages": [{"role": "user", "content": None}]}),
        (
            {"messages": [{"role": "user", "content": "\u00e9"}]},
            {"messages": [{"role": "user", "content": "e\u0301"}]},
        ),
        (
            {"tools": [{"type": "function", "a": 1, "b": 2}]},
            {"tools": [{"type": "function", "b": 2, "a": 1}]},
        ),
        ({"tools": [{"cache_control": {}}]}, {"tools": [{}]}),
    ],
)
def test_these_are_different_requests(left: dict[str, Any], right: dict[str, Any]) -> None:
    assert name_of_fields(**left) != name_of_fields(**right)


def test_these_are_the_same_request() -> None:
    assert name_of_fields(temperature=0) == name_of_fields(temperature=0.0)
    tools = [{"type": "function", "function": {"name": "f", "description": "d", "parameters": {}}}]
    swapped = [{"function": {"parameters": {}, "description": "d", "name": "f"}, "type": "function"}]
    assert name_of_fields(tools=tools) == name_of_fields(tools=swapped)


def test_the_name_covers_group_and_fingerprint() -> None:
    canonical = b"x"
    names = {
        reuse_name(group, Digest(fingerprint), content)
        for group in ("a", "b", "")
        for fingerprint in (b"a", b"ab", b"")
        for content in (canonical, b"bx", b"")
    }
    assert len(names) == 27
    assert all(len(name) == 32 for name in names)


def test_a_fingerprint_is_a_set_of_facts_and_a_level() -> None:
    facts = (("a", "1"), ("b", "2"))
    assert fingerprint_digest(Fingerprint(facts)) == fingerprint_digest(Fingerprint(facts[::-1]))
    others = [
        Fingerprint(facts, Level.BATCH_INVARIANT),
        Fingerprint((("a", "2"), ("b", "1"))),
        Fingerprint((("a1", ""), ("b", "2"))),
        Fingerprint((("a", "1"),)),
        Fingerprint(),
    ]
    assert len({fingerprint_digest(f) for f in (*others, Fingerprint(facts))}) == 6
