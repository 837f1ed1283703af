"""Normalised requests: what is refused, what is sent to the engine, what explain shows."""

from __future__ import annotations

import hashlib
import json
from typing import Any

import pytest
from dynbranch.domain.errors import InvalidRequest
from dynbranch.naming.document import parse_body
from dynbranch.naming.equivalences import SINGLE_TEXT_BLOCK, probe_pairs
from dynbranch.naming.fields import FieldClass
from dynbranch.naming.normalise import NormalisedRequest, model_of, normalise_chat, normalise_tool

USER = {"role": "user", "content": "hi"}


def chat(body: Any, *equivalences: str, served_model: str | None = None) -> NormalisedRequest:
    source = body if isinstance(body, bytes) else json.dumps(body).encode()
    return normalise_chat(parse_body(source), frozenset(equivalences), served_model=served_model)


def with_user(content: Any, **fields: Any) -> dict[str, Any]:
    return {"model": "m", "messages": [{"role": "user", "content": content}], **fields}


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ([], ""),
        ("x", ""),
        ({}, "model"),
        ({"model": "m"}, "messages"),
        ({"model": None, "messages": [USER]}, "model"),
        ({"model": "", "messages": [USER]}, "model"),
        ({"model": 3, "messages": [USER]}, "model"),
        ({"model": "m", "messages": None}, "messages"),
        ({"model": "m", "messages": {}}, "messages"),
        ({"model": "m", "messages": []}, "messages"),
        ({"model": "m", "messages": [USER, "x"]}, "messages[1]"),
        ({"model": "m", "messages": [{"content": "x"}]}, "messages[0].role"),
        ({"model": "m", "messages": [{"role": 1, "content": "x"}]}, "messages[0].role"),
        (with_user(7), "messages[0].content"),
        (with_user({"type": "text"}), "messages[0].content"),
        (with_user([{"type": "text", "text": 1}]), "messages[0].content[0].text"),
        (with_user([{"type": "text"}]), "messages[0].content[0].text"),
        (with_user([1]), "messages[0].content[0]"),
        ({"model": "m", "messages": [{"role": "assistant", "tool_calls": {}}]}, "messages[0].tool_calls"),
        (
            {"model": "m", "messages": [{"role": "assistant", "tool_calls": ["x"]}]},
            "messages[0].tool_calls[0]",
        ),
        (with_user("x", temperature="0"), "temperature"),
        (with_user("x", temperature=True), "temperature"),
        (with_user("x", top_p=[]), "top_p"),
        (with_user("x", n=0), "n"),
        (with_user("x", n=-1), "n"),
        (with_user("x", n=1.5), "n"),
        (with_user("x", n="1"), "n"),
        (with_user("x", max_tokens=1.5), "max_tokens"),
        (with_user("x", seed="s"), "seed"),
        (with_user("x", stream="yes"), "stream"),
        (with_user("x", stream=1), "stream"),
        (with_user("x", stream_options=[]), "stream_options"),
        (with_user("x", stop=3), "stop"),
        (with_user("x", stop=["x", None]), "stop[1]"),
        (with_user("x", tools={}), "tools"),
        (with_user("x", tools=[3]), "tools[0]"),
        (with_user("x", tool_choice=1), "tool_choice"),
        (with_user("x", response_format="json"), "response_format"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_malformed_requests_name_the_field_at_fault(body: Any, param: str) -> None:
    with pytest.raises(InvalidRequest) as raised:
        chat(body)
    assert raised.value.facts["param"] == param
    assert param in raised.value.message


@pytest.mark.parametrize(
    "body",
    [
        {"model": "m", "messages": [{"role": "critic", "content": "x"}]},
        {"model": "m", "messages": [{"role": "assistant"}]},
        with_user([{"type": "hologram", "x": 1}]),
        with_user(["plain", {"image_url": "x"}]),
        with_user(None),
        with_user("x", temperature=None, n=None, stop=None, tools=None, stream=None, seed=-5, max_tokens=0),
        with_user("x", temperature=-1, top_p=7, n=2.0, never_heard_of={"a": [1]}),
        with_user("x", tools=[{"type": "web_search"}], tool_choice={"type": "custom", "x": 1}),
        with_user("x", logprobs=3, logit_bias=[1], metadata=5, user=[]),
    ],
)
def test_what_some_engine_may_accept_is_let_through(body: Any) -> None:
    request = chat(body)
    sent = json.loads(request.engine_body)
    assert {**body, "stream": True, "stream_options": {"include_usage": True}} == sent


def test_the_engine_gets_the_body_as_it_came_but_for_the_stream() -> None:
    body = (
        b'{ "n" : 1.0, "z":{"b":1e2,"a":1},"model":"\\u0041","messages":[{"role":"user","content":"x"}],'
        b'"stream":false}'
    )
    expected = (
        b'{"n":1.0,"z":{"b":1e2,"a":1},"model":"A","messages":[{"role":"user","content":"x"}],'
        b'"stream":true,"stream_options":{"include_usage":true}}'
    )
    request = chat(body)
    assert request.engine_body == expected
    assert chat(expected).engine_body == expected
    assert (request.streaming, request.include_usage, request.model) == (False, False, "A")


def test_a_body_that_streams_already_keeps_its_bytes() -> None:
    options = b'"stream_options":{"include_usage":true}'
    body = b'{"stream" : true, ' + options + b', "model":"m",  "messages":[{"role":"user"}]}'
    assert chat(body).engine_body == body
    assert chat(body).streaming
    assert chat(body).include_usage


def test_other_stream_options_are_kept() -> None:
    request = chat(with_user("x", stream=True, stream_options={"chunk_size": 3, "include_usage": False}))
    assert json.loads(request.engine_body)["stream_options"] == {"chunk_size": 3, "include_usage": True}
    assert not request.include_usage


def test_an_alias_is_named_as_the_served_model() -> None:
    alias = chat({**with_user("x"), "model": "alias"}, served_model="served")
    assert alias.canonical == chat({**with_user("x"), "model": "served"}).canonical
    assert alias.model == "alias"
    assert json.loads(alias.engine_body)["model"] == "alias"
    assert model_of(parse_body(json.dumps(with_user("x")).encode())) == "m"


@pytest.mark.promise("C1.equivalence")
def test_a_single_text_block_is_a_string_only_where_the_engine_renders_it_so() -> None:
    block, text = with_user([{"type": "text", "text": "x", "cache_control": {}}]), with_user("x")
    assert chat(block).canonical != chat(text).canonical
    assert chat(block, SINGLE_TEXT_BLOCK).canonical == chat(text, SINGLE_TEXT_BLOCK).canonical
    assert chat(text, SINGLE_TEXT_BLOCK).canonical == chat(text).canonical


@pytest.mark.parametrize(
    "content",
    [
        [],
        [{"type": "text", "text": ""}],
        [{"type": "text", "text": "x"}, {"type": "text", "text": ""}],
        [{"type": "text", "text": "x", "annotations": []}],
        [{"type": "hologram", "text": "x"}],
        ["x"],
    ],
)
def test_other_blocks_stay_blocks(content: Any) -> None:
    request = chat(with_user(content), SINGLE_TEXT_BLOCK)
    assert request.canonical == chat(with_user(content)).canonical


def test_the_beginning_of_an_answer_stays_as_it_is_written() -> None:
    def prefilled(content: Any) -> bytes:
        messages = [USER, {"role": "assistant", "content": content}]
        return chat({"model": "m", "messages": messages}, SINGLE_TEXT_BLOCK).canonical

    assert prefilled("x") != prefilled([{"type": "text", "text": "x"}])


@pytest.mark.promise("C1.equivalence")
@pytest.mark.parametrize(
    "beside",
    [
        {"chat_template_kwargs": {"enable_thinking": False}},
        {"documents": []},
        {"tool_choice": "none"},
        {"something_new": 1},
        {"messages": [{"role": "assistant", "content": None, "tool_calls": []}]},
        {"messages": [{"role": "tool", "content": "y"}]},
        {"messages": [{**USER, "name": "n"}]},
    ],
)
def test_in_a_conversation_that_no_probe_has_seen_blocks_stay_blocks(beside: dict[str, Any]) -> None:
    def named(content: Any) -> bytes:
        messages = [*beside.get("messages", []), {"role": "user", "content": content}]
        return chat({**with_user("x"), **beside, "messages": messages}, SINGLE_TEXT_BLOCK).canonical

    assert named("x") != named([{"type": "text", "text": "x"}])


def test_probe_pairs_are_what_the_equivalence_makes_equal() -> None:
    for pair in probe_pairs():
        first, second = ({"model": "m", "messages": list(messages)} for messages in (pair.first, pair.second))
        assert chat(first).canonical != chat(second).canonical
        assert chat(first, pair.equivalence).canonical == chat(second, pair.equivalence).canonical


@pytest.mark.promise("C1.provenance")
def test_input_digests_are_of_assistant_and_tool_content() -> None:
    messages = [
        {"role": "system", "content": "no"},
        {"role": "user", "content": "no"},
        {
            "role": "assistant",
            "content": "said",
            "tool_calls": [
                {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{ }"}},
                {"id": "2", "type": "custom", "custom": {"name": "g", "input": "in"}},
                {"id": "3", "type": "function", "function": {"name": "f", "arguments": {}}},
            ],
        },
        {
            "role": "tool",
            "tool_call_id": "1",
            "content": [{"type": "text", "text": "re"}, {"type": "text", "text": "sult"}],
        },
        {"role": "assistant", "content": None},
        {"role": "assistant", "content": "said"},
    ]
    expected = tuple(hashlib.sha256(text).digest() for text in (b"said", b"f\0{ }", b"g\0in", b"result"))
    assert chat({"model": "m", "messages": messages}).input_digests == expected


def test_explain_shows_every_field_and_what_is_unusual_inside() -> None:
    body = with_user([{"type": "text", "text": "x", "cache_control": {}}], user="u", stream=True, novel=1)
    body["messages"][0]["flavour"] = "y"
    shown = {field.path: (field.field_class, field.known) for field in chat(body).fields}
    assert shown == {
        "model": (FieldClass.DETERMINES, True),
        "messages": (FieldClass.DETERMINES, True),
        "messages[0].content[0].cache_control": (FieldClass.IDENTITY, True),
        "messages[0].flavour": (FieldClass.DETERMINES, False),
        "user": (FieldClass.IDENTITY, True),
        "stream": (FieldClass.PRESENTATION, True),
        "novel": (FieldClass.DETERMINES, False),
    }


def test_a_tool_call_keeps_key_order_and_numbers_and_goes_as_it_came() -> None:
    body = b'{"k": 2, "q": "caf\\u00e9"}'
    request = normalise_tool("search", parse_body(body))
    assert request.engine_body == body
    assert request.model == "search"
    assert request.reuse.reusable
    same = normalise_tool("search", parse_body('{"k":2,"q":"caf\u00e9"}'.encode()))
    assert request.canonical == same.canonical
    for name, other in (
        ("get", body),
        ("search", b'{"k":2.0,"q":"x"}'),
        ("search", b'{"q":"caf\\u00e9","k":2}'),
    ):
        assert normalise_tool(name, parse_body(other)).canonical != request.canonical
