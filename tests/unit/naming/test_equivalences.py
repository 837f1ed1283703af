"""Conversations with calls, spelled as harnesses spell them: what the probe has shown to render alike has one
name, and nothing else has."""

from __future__ import annotations

import json
from typing import Any

import pytest
from dynbranch.gateway.protocols.anthropic.request import read_messages
from dynbranch.gateway.protocols.responses.request import read_responses
from dynbranch.naming.document import Document, parse_body
from dynbranch.naming.equivalences import (
    ABSENT_CONTENT,
    BLOCK_BESIDE_CALLS,
    CALL_IDS,
    EMPTY_CONTENT,
    probe_pairs,
)
from dynbranch.naming.normalise import normalise_chat
from hypothesis import given
from hypothesis import strategies as st

pytestmark = pytest.mark.promise("C1.equivalence")

ALL = frozenset(pair.equivalence for pair in probe_pairs())
WORDS = st.sampled_from(["a", "b", " a\n", '{"type":"text"}', "call00000"])
IDS = st.sampled_from(["x", "y", "z", "call00000", "call00001", "call_1"])

Message = dict[str, Any]
Meaning = tuple[Any, ...]


def canonical(body: Any, equivalences: frozenset[str] = ALL) -> bytes:
    document = body if isinstance(body, Document) else parse_body(json.dumps(body).encode())
    return normalise_chat(document, equivalences).canonical


def asked(messages: list[Message], **fields: Any) -> Message:
    return {"model": "m", "messages": messages, **fields}


def called(*ids: str, **fields: Any) -> Message:
    function = {"name": "look", "arguments": "{}"}
    calls = [{"id": one, "type": "function", "function": function} for one in ids]
    return {"role": "assistant", "content": None, "tool_calls": calls, **fields}


def result(of: str, content: Any = "ok") -> Message:
    return {"role": "tool", "tool_call_id": of, "content": content}


USER = {"role": "user", "content": "hi"}


@st.composite
def spelled(draw: st.DrawFn, text: str) -> Any:
    return text if draw(st.booleans()) else [{"type": "text", "text": text}]


@st.composite
def conversations(draw: st.DrawFn) -> tuple[list[Message], Meaning]:
    """As a harness may spell it, and what it says: the place of the call that a result is of, and no id."""
    messages: list[Message] = [{"role": "user", "content": draw(spelled("go"))}]
    meaning: list[Any] = ["go"]
    ids = draw(st.lists(IDS, min_size=1, max_size=4, unique=True))
    places = list(range(len(ids)))
    first = draw(st.integers(1, len(ids)))
    for turn in (places[:first], places[first:]):
        if not turn:
            continue
        words = draw(st.sampled_from(["", "I look.", "a"]))
        arguments = [draw(st.sampled_from(["{}", '{"a": 1}'])) for _ in turn]
        calls = [
            {"id": ids[place], "type": "function", "function": {"name": "look", "arguments": given}}
            for place, given in zip(turn, arguments, strict=True)
        ]
        said: Message = {"role": "assistant", "tool_calls": calls}
        empty = draw(st.sampled_from(["absent", "null", "empty"]))
        if words or empty != "absent":
            said["content"] = draw(spelled(words)) if words else None if empty == "null" else ""
        messages.append(said)
        meaning.append((words, tuple(arguments)))
        for place in draw(st.permutations(turn)):
            text = draw(WORDS)
            messages.append(result(ids[place], draw(spelled(text))))
            meaning.append((place, text))
    return messages, tuple(meaning)


@given(conversations(), conversations())
def test_names_are_equal_exactly_where_the_conversations_say_the_same(
    one: tuple[list[Message], Meaning], other: tuple[list[Message], Meaning]
) -> None:
    (first, means), (second, other_means) = one, other
    assert (canonical(asked(first)) == canonical(asked(second))) == (means == other_means)


@given(conversations(), st.data())
def test_ids_are_made_up_anew_in_every_run(one: tuple[list[Message], Meaning], data: st.DataObject) -> None:
    messages, _ = one
    ids = [call["id"] for message in messages for call in message.get("tool_calls", ())]
    fresh = data.draw(st.lists(st.text("abc", min_size=1), min_size=len(ids), max_size=len(ids), unique=True))
    names = dict(zip(ids, fresh, strict=True))
    renamed = json.loads(json.dumps(messages))
    for message in renamed:
        for call in message.get("tool_calls", ()):
            call["id"] = names[call["id"]]
        if "tool_call_id" in message:
            message["tool_call_id"] = names[message["tool_call_id"]]
    assert canonical(asked(renamed)) == canonical(asked(messages))
    without = ALL - {CALL_IDS}
    assert (canonical(asked(renamed), without) == canonical(asked(messages), without)) == (ids == fresh)


@pytest.mark.parametrize(
    ("equivalence", "one", "other"),
    [
        (CALL_IDS, called("x"), called("x")),
        (ABSENT_CONTENT, called("x"), {k: v for k, v in called("x").items() if k != "content"}),
        (EMPTY_CONTENT, called("x"), called("x", content="")),
        (BLOCK_BESIDE_CALLS, called("x", content="a"), called("x", content=[{"type": "text", "text": "a"}])),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
@pytest.mark.parametrize("tools", [{}, {"tools": [], "seed": 1}], ids=["bare", "fields"])
def test_each_holds_by_itself_and_only_where_the_engine_has_shown_it(
    equivalence: str, one: Message, other: Message, tools: Message
) -> None:
    ids = ("x", "y") if equivalence == CALL_IDS else ("x", "x")
    other = json.loads(json.dumps(other).replace('"x"', f'"{ids[1]}"'))
    first, second = (
        asked([USER, message, result(of)], **tools) for message, of in ((one, ids[0]), (other, ids[1]))
    )
    assert canonical(first, frozenset({equivalence})) == canonical(second, frozenset({equivalence}))
    assert canonical(first, ALL - {equivalence}) != canonical(second, ALL - {equivalence})


@pytest.mark.parametrize(
    "messages",
    [
        [USER, called("x", "x"), result("x")],
        [USER, called("x"), result("x"), called("x"), result("x")],
        [USER, called("x"), result("y")],
        [USER, result("x"), called("x")],
        [USER, called("x"), {**result("x"), "is_error": True}],
        [USER, called("x"), {**result("x"), "name": "look"}],
        [USER, called("x"), result("x"), {"role": "developer", "content": "a"}],
        [USER, called("x", refusal="No."), result("x")],
        [USER, called("x"), result("x"), {"role": "assistant", "content": "The answer is"}],
        [{**USER, "name": "Ann"}, called("x"), result("x")],
    ],
)
def test_a_conversation_that_no_probe_has_shown_stays_as_it_is_written(messages: list[Message]) -> None:
    assert canonical(asked(messages)) == canonical(asked(messages), frozenset())


@pytest.mark.parametrize(
    ("fields", "is_touched"),
    [
        ({}, True),
        ({"tool_choice": "auto", "tools": [{"type": "function", "function": {"name": "look"}}]}, True),
        ({"tool_choice": "auto"}, False),
        ({"tool_choice": "none", "tools": [{"type": "function", "function": {"name": "look"}}]}, False),
        ({"chat_template_kwargs": {}}, False),
        ({"reasoning_effort": "low"}, False),
        ({"of_tomorrow": 1}, False),
    ],
    ids=str,
)
def test_nothing_else_may_stand_in_the_request_that_a_template_could_look_at(
    fields: Message, is_touched: bool
) -> None:
    first, second = (asked([USER, called(of), result(of)], **fields) for of in ("x", "y"))
    assert (canonical(first) == canonical(second)) == is_touched


def test_one_task_has_one_name_in_every_protocol_where_ids_are_not_printed() -> None:
    chat = asked([USER, called("call_9a"), result("call_9a", "found")])
    messages = read_messages(
        json.dumps(
            {
                "model": "m",
                "max_tokens": 9,
                "messages": [
                    {"role": "user", "content": [{"type": "text", "text": "hi", "cache_control": {}}]},
                    {
                        "role": "assistant",
                        "content": [{"type": "tool_use", "id": "toolu_1", "name": "look", "input": {}}],
                    },
                    {
                        "role": "user",
                        "content": [{"type": "tool_result", "tool_use_id": "toolu_1", "content": "found"}],
                    },
                ],
            }
        ).encode()
    )
    responses = read_responses(
        json.dumps(
            {
                "model": "m",
                "max_output_tokens": 9,
                "input": [
                    {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "hi"}]},
                    {"type": "function_call", "call_id": "c", "name": "look", "arguments": "{}"},
                    {"type": "function_call_output", "call_id": "c", "output": "found"},
                ],
            }
        ).encode()
    )
    spellings = [{**chat, "max_tokens": 9}, messages, responses]
    assert len({canonical(body) for body in spellings}) == 1
    assert len({canonical(body, ALL - {CALL_IDS}) for body in spellings}) == 2
