"""Decisions are read from whole outputs and from half written ones, and both say the same."""

from __future__ import annotations

import json
from itertools import pairwise

import pytest
from dynbranch.domain.template import Ambiguous, Choice, Origin, Output, OutputPart, ToolCall, Where
from dynbranch.naming.document import parse_text
from dynbranch.rendering.json_path import BadPath, parse_path, spell, values_at
from dynbranch.rendering.json_stream import JsonWatch
from dynbranch.rendering.outputs import Added, GrowingOutput, output_of, tool_output
from dynbranch.rendering.selectors import Selector
from hypothesis import given
from hypothesis import strategies as st

HANDLER = Where(Origin.OUTPUT, "route", path="$.handler")
ACTION = Where(Origin.OUTPUT, "think", regex=r"Action: (\w+)\n")
NAMES = Where(Origin.OUTPUT, "plan", part=OutputPart.CALL_NAME)
QUERIES = Where(Origin.OUTPUT, "plan", part=OutputPart.CALL_ARGUMENTS, call="search", path="$.query")

texts = st.text(st.characters(exclude_categories=("Cs",)), max_size=12)
documents = st.recursive(
    st.none() | st.booleans() | st.integers() | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=12,
)


def cut(text: str, places: list[int]) -> list[str]:
    """The text in pieces."""
    marks = sorted({place % (len(text) + 1) for place in places} | {0, len(text)})
    return [text[a:b] for a, b in pairwise(marks)]


@pytest.mark.parametrize(
    ("output", "selected"),
    [
        (Output('{"reason":"r","handler":"b"}', finish="stop"), ("b",)),
        (Output('{"handler": 7}', finish="stop"), ("7",)),
        (Output('{"reason":"r"}', finish="stop"), None),
        (Output("", finish="stop"), None),
        (Output('{"handler":"b', finish="length"), Ambiguous("the output was cut off")),
        (Output("b", finish="stop"), Ambiguous("not JSON")),
        (Output('{"handler":["b"]}', finish="stop"), Ambiguous("the value is neither a text nor a number")),
    ],
)
def test_a_choice_at_a_path(output: Output, selected: object) -> None:
    assert Selector(HANDLER, several=False).select(output) == selected


def test_a_choice_by_a_regular_expression() -> None:
    selector = Selector(ACTION, several=False)
    assert selector.select(Output("Thought: x\nAction: search\n")) == ("search",)
    assert selector.select(Output("Action: a\nAction: b\n")) == Ambiguous("more than one selection")
    assert Selector(ACTION, several=True).select(Output("Action: a\nAction: b\n")) == ("a", "b")


def test_a_match_that_may_still_grow_is_not_shown() -> None:
    selector = Selector(Where(Origin.OUTPUT, "x", regex=r"go to (\w+)"), several=False)
    assert selector.visible(Output("go to Ams")) == ()
    assert selector.visible(Output("go to Amsterdam.")) == (Choice("Amsterdam", True, False, 15),)


def test_parallel_calls_choose_several() -> None:
    output = Output(calls=(ToolCall("search", '{"query":"a"}'), ToolCall("get", '{"id":"1"}')))
    assert Selector(NAMES, several=True).select(output) == ("search", "get")
    assert Selector(NAMES, several=False).select(output) == Ambiguous("more than one selection")
    assert Selector(QUERIES, several=True).select(output) == ("a",)


def test_a_call_s_name_closes_when_its_arguments_begin() -> None:
    watch = Selector(NAMES, several=True).watch()
    (growing,) = watch.feed(Added(calls=((0, "sea", ""),)))
    assert (growing.value, growing.closed) == ("sea", False)
    (closed,) = watch.feed(Added(calls=((0, "search", "{"),)))
    assert (closed.value, closed.closed, closed.final) == ("search", True, False)
    assert [c.closed for c in watch.feed(Added(calls=((1, "get", ""),)))] == [True, False]


def test_arguments_of_a_call_show_before_the_call_ends() -> None:
    watch = Selector(QUERIES, several=True).watch()
    assert watch.feed(Added(calls=((0, "search", '{"query": "Van'),)))[0].value == "Van"
    (choice,) = watch.feed(Added(calls=((0, "search", ' Hook", "k'),)))
    assert (choice.value, choice.closed) == ("Van Hook", True)


def test_a_person_s_pick_is_in_the_request() -> None:
    where = Where(Origin.REQUEST, "act", path="$.messages[-1].content", regex=r"^I pick: (.*)$")
    body = parse_text('{"messages":[{"role":"user","content":"I pick: Yes"}]}')
    assert Selector(where, several=False).select_request(body) == ("Yes",)


@given(document=documents, key=texts, value=texts | st.integers(), places=st.lists(st.integers(0, 400)))
def test_a_stream_shows_what_the_whole_text_selects(
    document: object, key: str, value: str | int, places: list[int]
) -> None:
    text = json.dumps({"a": document, "chosen": value, "b": [document]}, indent=len(key) % 3 or None)
    selector = Selector(Where(Origin.OUTPUT, "s", path="$.chosen"), several=False)
    watch = selector.watch()
    shown = [watch.feed(Added(piece)) for piece in cut(text, places)]
    assert selector.select(Output(text)) == (str(value),)
    assert [choice.value for choice in shown[-1]] == [str(value)]
    assert shown[-1][0].closed
    assert shown[-1][0].final
    for choices in shown:
        for choice in choices:
            # What shows early is the beginning of what is chosen, and what is closed is all of it.
            assert str(value).startswith(choice.value)
            assert not choice.closed or choice.value == str(value)


@given(document=documents, path=st.sampled_from(["$[*]", "$[1]", "$.a[*]", "$[*].b", "$"]))
def test_a_watched_path_leads_where_the_path_leads(document: object, path: str) -> None:
    text = json.dumps(document) + " "
    steps = parse_path(path)
    watch = JsonWatch(steps)
    watch.feed(text)
    scalars = [v for v in values_at(parse_text(text), steps) if not isinstance(v, dict | list)]
    expected = [json.dumps(None) if v is None else v for v in scalars]
    plain = [str(getattr(v, "text", v)).replace("True", "true").replace("False", "false") for v in expected]
    # A text that holds JSON is read on by a path, but not by a stream.
    if not any(isinstance(v, str) for v in scalars) and '"' not in text:
        assert [choice.value for choice in watch.choices] == plain


def test_what_is_not_json_shows_nothing() -> None:
    watch = JsonWatch(parse_path("$.a"))
    watch.feed('{"a" oops "\\ud8" }}}]] "a"')
    assert all(not choice.closed or isinstance(choice.value, str) for choice in watch.choices)


@pytest.mark.parametrize("text", ["$", "$.a[0][-1]", "$['x y'][*]", "$.messages[1:]", "$.a[:2]", "$[1:3]"])
def test_paths_are_spelled_as_they_are_read(text: str) -> None:
    assert spell(parse_path(text)) == text


@pytest.mark.parametrize("text", ["a.b", "$a", "$.", "$[x]", "$..a"])
def test_a_bad_path_says_where(text: str) -> None:
    with pytest.raises(BadPath, match=r"begin with|breaks at character"):
        parse_path(text)


def test_a_path_goes_on_into_json_that_stands_in_a_text() -> None:
    body = parse_text('{"arguments": "{\\"id\\": \\"7\\"}"}')
    assert values_at(body, parse_path("$.arguments.id")) == ["7"]


def test_a_growing_output_becomes_the_recorded_one() -> None:
    deltas = [
        {"role": "assistant", "content": "a"},
        {"content": "b", "reasoning_content": "hm"},
        {"tool_calls": [{"index": 0, "id": "x", "function": {"name": "f", "arguments": "{"}}]},
        {"tool_calls": [{"index": 0, "function": {"name": "f", "arguments": "}"}}]},
        {"tool_calls": [{"index": 1, "id": "y", "function": {"name": "g", "arguments": "{}"}}]},
    ]
    items = [json.dumps({"choices": [{"index": 0, "delta": delta}]}).encode() for delta in deltas]
    items.append(b'{"choices":[{"index":0,"delta":{},"finish_reason":"tool_calls"}]}')
    growing = GrowingOutput()
    for item in [*items, b"garbage", b"[]", b'{"choices":[]}']:
        growing.add(item)
    assert growing.output() == output_of(items)


def test_a_tool_s_result_is_its_text() -> None:
    assert tool_output(b'{"a":1}') == Output('{"a":1}', finish="stop")
