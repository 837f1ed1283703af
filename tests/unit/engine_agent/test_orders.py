from __future__ import annotations

import json
from dataclasses import replace

import pytest
from dynbranch.domain.engine import GenerationOrder, ToolDescription, WireProtocol, WorkClass
from dynbranch.domain.errors import Conflict, InvalidRequest, NotFound
from dynbranch.domain.ids import Digest, GenerationId
from dynbranch.domain.reuse import Fingerprint, Level
from dynbranch.engine_agent.engines.port import BodyFields, EngineFacts
from dynbranch.engine_agent.fake import FAKE_MODEL
from dynbranch.engine_agent.orders import prepare, request_id
from dynbranch.naming.fingerprint import fingerprint_digest
from unit.engine_agent.samples import chat_order

TOOL = ToolDescription("search", Fingerprint((("tool", "search"),), Level.SOURCED))
FACTS = EngineFacts(4, "", (FAKE_MODEL,), (TOOL,))


def test_a_streaming_body_is_left_as_it_is() -> None:
    body = b'{ "stream":true, "temperature": 0.00, "stream_options":{"include_usage":true} }'
    assert prepare(chat_order(body=body), FACTS).order.body == body


@pytest.mark.parametrize("stream", [b"", b', "stream": false', b', "stream": true, "stream_options": null'])
def test_every_other_body_is_made_to_stream_with_numbers_and_order_kept(stream: bytes) -> None:
    body = b'{"z": 1.0e0, "a": "\\u00e9"' + stream + b"}"
    sent = prepare(chat_order(body=body), FACTS).order.body
    assert sent.replace(b" ", b"").replace(b"\\u00e9", "é".encode()).startswith('{"z":1.0e0,"a":"é"'.encode())
    assert list(json.loads(sent))[:2] == ["z", "a"] and json.loads(sent)["stream"] is True
    assert json.loads(sent)["stream_options"] == {"include_usage": True}


@pytest.mark.parametrize(("n", "width"), [(b"1", 1), (b"3", 3), (b"null", 1), (b"-2", 1), (b"1e9", 1)])
def test_each_choice_takes_a_slot(n: bytes, width: int) -> None:
    assert prepare(chat_order(body=b'{"n": ' + n + b"}"), FACTS).width == width


def test_an_alias_means_the_model() -> None:
    assert prepare(chat_order(target="fake-alias"), FACTS).fingerprint == FAKE_MODEL.fingerprint


def test_an_unknown_target() -> None:
    with pytest.raises(NotFound) as refusal:
        prepare(chat_order(target="other"), FACTS)
    assert refusal.value.reason == "unknown_model"
    with pytest.raises(NotFound) as refusal:
        prepare(replace(chat_order(), protocol=WireProtocol.TOOL), FACTS)
    assert refusal.value.reason == "unknown_tool"


@pytest.mark.promise("I1")
def test_a_changed_executor_is_refused() -> None:
    with pytest.raises(Conflict) as refusal:
        prepare(chat_order(digest=Digest(b"x" * 32)), FACTS)
    assert refusal.value.reason == "fingerprint_changed"


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b'{"a":1,"a":2}', b'{"a":NaN}', b"\xff"])
def test_a_body_that_no_engine_could_read(body: bytes) -> None:
    with pytest.raises(InvalidRequest):
        prepare(chat_order(body=body), FACTS)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("x-a", "b\r\nx-c: d"),
        ("x-a", "b\n"),
        ("x-a", "\0"),
        ("x-a", "\x7f"),
        ("authorization", "Bearer \u2603"),
        ("x-a", "\ud800"),
        ("x-a", "\u0100"),
        ("X-A", "b"),
        ("x a", "b"),
        ("x-\u00e9", "b"),
        ("", "b"),
    ],
)
def test_headers_that_can_not_be_forwarded(name: str, value: str) -> None:
    with pytest.raises(InvalidRequest):
        prepare(replace(chat_order(), forward_headers=((name, value),)), FACTS)


@pytest.mark.parametrize("value", ["", "a b\tc", "\u00e9", "\u00a0", "\u00ff\u0085"])
def test_headers_of_any_bytes_are_forwarded(value: str) -> None:
    """UTF-8 within them too: each byte is one character here."""
    headers = (("x-a", value),)
    assert prepare(replace(chat_order(), forward_headers=headers), FACTS).order.forward_headers == headers


def test_headers_of_the_connection_stay_behind() -> None:
    order = replace(
        chat_order(), forward_headers=(("authorization", "b"), ("content-length", "7"), ("host", "x"))
    )
    assert prepare(order, FACTS).order.forward_headers == (("authorization", "b"),)


def test_a_tool_body_is_left_as_it_is() -> None:
    order: GenerationOrder = replace(
        chat_order(body=b' {"q": 1.50} '),
        protocol=WireProtocol.TOOL,
        target="search",
        fingerprint_digest=fingerprint_digest(TOOL.fingerprint),
    )
    assert prepare(order, FACTS).order == order


LOWER_FIRST = {WorkClass.CANONICAL: 0, WorkClass.FILL: 10, WorkClass.DRAFT: 20}
FULL = BodyFields(LOWER_FIRST, "cache_salt", "rid", {"fake-model": {"temperature": "0.60", "top_p": "1.0"}})


def sent_body(fields: BodyFields, body: str, **changes: object) -> dict[str, object]:
    order = replace(chat_order(body=body.encode()), **changes)
    sent: dict[str, object] = json.loads(prepare(order, replace(FACTS, fields=fields)).order.body)
    del sent["stream"], sent["stream_options"]
    return sent


def test_an_engine_without_own_fields_gets_none() -> None:
    body = '{"messages": []}'
    assert sent_body(BodyFields(), body, work=WorkClass.FILL, cache_scope="g") == {"messages": []}


@pytest.mark.parametrize("work", WorkClass)
def test_each_class_of_work_has_its_priority(work: WorkClass) -> None:
    assert sent_body(BodyFields(LOWER_FIRST), "{}", work=work) == {"priority": LOWER_FIRST[work]}


def test_a_harness_ranks_its_own_requests_and_not_those_that_nobody_waits_for() -> None:
    fields, body = BodyFields(LOWER_FIRST), '{"priority": -5}'
    assert sent_body(fields, body) == {"priority": -5}
    assert sent_body(fields, body, work=WorkClass.FILL) == {"priority": 10}
    assert sent_body(fields, '{"priority": null}') == {"priority": 0}


def test_a_salt_keeps_sharing_groups_apart_whatever_the_harness_sends() -> None:
    fields = BodyFields(salt_field="cache_salt")
    assert sent_body(fields, "{}", cache_scope="") == {}
    assert sent_body(fields, "{}", cache_scope="a") == {"cache_salt": "a"}
    own = [sent_body(fields, '{"cache_salt": "b"}', cache_scope=scope)["cache_salt"] for scope in "aab"]
    assert own[0] == own[1] != own[2] and not {"a", "b"} & set(map(str, own))


def test_defaults_are_sent_where_the_request_is_silent_and_spelled_as_the_fingerprint_says() -> None:
    fields = BodyFields(defaults=FULL.defaults)
    assert sent_body(fields, '{"temperature": 0}') == {"temperature": 0, "top_p": 1.0}
    assert sent_body(fields, '{"temperature": null, "top_p": 0.5}') == {"temperature": 0.6, "top_p": 0.5}
    raw = prepare(chat_order(body=b"{ }", target="fake-alias"), replace(FACTS, fields=fields)).order.body
    assert b'"temperature":0.60' in raw


def test_request_ids_are_of_one_length_so_that_none_begins_with_another() -> None:
    ids = [request_id(GenerationId(bytes(range(length)))) for length in range(1, 65)]
    assert {len(name) for name in ids} == {32} and len(set(ids)) == len(ids)
    order = chat_order(body=b'{"rid": "mine"}')
    sent = json.loads(prepare(order, replace(FACTS, fields=FULL)).order.body)
    assert sent["rid"] == request_id(order.generation_id)
