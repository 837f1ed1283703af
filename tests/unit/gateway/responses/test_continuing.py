"""A request that goes on from a kept response asks what it would ask if it sent all of it."""

from __future__ import annotations

import json
from typing import Any

import pytest
from dynbranch.bench.corpus.answers import TOLD, items_of
from dynbranch.bench.corpus.responses import item
from dynbranch.bench.corpus.shapes import Object, Told
from dynbranch.gateway.core.kept_response import KeptResponse, Owner, decoded, name_of
from dynbranch.gateway.protocols.responses.continuing import conversation_in, previous_in
from dynbranch.gateway.protocols.responses.rendering import whole_response
from dynbranch.gateway.protocols.responses.request import read_responses
from hypothesis import given
from hypothesis import strategies as st
from unit.gateway.responses.test_answers import head


def body_of(**fields: Any) -> bytes:
    return json.dumps({"model": "m", **fields}).encode()


def chat_of(body: bytes, earlier: bytes = b"") -> Any:
    return json.loads(read_responses(body, earlier).source)


@pytest.mark.promise("H.kept_responses")
@pytest.mark.parametrize("told", TOLD, ids=lambda told: told.name)
@pytest.mark.parametrize(
    "given_input", ["hi", [item("developer", "Mind."), item("user", "hi")]], ids=["text", "items"]
)
def test_to_go_on_is_to_send_all(told: Told, given_input: Any) -> None:
    answered = whole_response(items_of(told), head(), cached=False)
    kept = KeptResponse(b"[]", body_of(input=given_input, instructions="Not of the conversation."), answered)
    asked: list[Object] = [item("user", "hi")] if given_input == "hi" else given_input
    whole = [*asked, *json.loads(answered)["output"], item("user", "more")]
    earlier = conversation_in(kept)
    assert chat_of(body_of(input="more", previous_response_id="resp_1"), earlier) == chat_of(
        body_of(input=whole)
    )
    further = KeptResponse(earlier, body_of(input="more"), answered)
    longer = [*whole, *json.loads(answered)["output"], item("user", "yet")]
    if all(one["type"] != "function_call" for one in json.loads(answered)["output"]):
        assert chat_of(body_of(input="yet", previous_response_id="r"), conversation_in(further)) == chat_of(
            body_of(input=longer)
        )


def test_the_spelling_of_numbers_and_the_order_of_keys_outlive_being_kept() -> None:
    call = b'{"type":"function_call","call_id":"c","name":"n","arguments":"{}","x":{"b":1.50,"a":1e2}}'
    kept = KeptResponse(b"[]", b'{"input":[%b]}' % call, b'{"output":[]}')
    assert b'{"b":1.50,"a":1e2}' in conversation_in(kept)


@pytest.mark.parametrize(
    ("body", "previous"),
    [
        (b'{"previous_response_id":"resp_1"}', "resp_1"),
        (b'{"previous_response_id":null}', ""),
        (b'{"previous_response_id":3}', ""),
        (b'{"input":"previous_response_id"}', ""),
        (b'["previous_response_id"]', ""),
        (b"{}", ""),
    ],
)
def test_what_a_request_goes_on_from(body: bytes, previous: str) -> None:
    assert previous_in(body) == previous


@given(st.binary(), st.binary(), st.binary())
def test_what_is_kept_comes_back(earlier: bytes, asked: bytes, answered: bytes) -> None:
    kept = KeptResponse(earlier, asked, answered)
    assert decoded(kept.encoded()) == kept


@given(st.binary(max_size=40))
def test_another_record_is_none(payload: bytes) -> None:
    kept = decoded(payload)
    assert kept is None or kept.encoded() == payload


TEXTS = st.text(max_size=4)


@given(st.tuples(TEXTS, TEXTS, TEXTS), st.tuples(TEXTS, TEXTS, TEXTS))
def test_no_two_owners_or_ids_share_a_name(one: tuple[str, str, str], other: tuple[str, str, str]) -> None:
    names = [name_of(Owner(tenant, key), response_id) for tenant, key, response_id in (one, other)]
    assert (names[0] == names[1]) == (one == other)
