"""A record says what the engine said, or it is none."""

from __future__ import annotations

import json
from typing import Any

import pytest
from dynbranch.naming.chunks import MalformedLog, compact
from dynbranch.naming.completion import says_the_same, whole_of
from hypothesis import given
from hypothesis import strategies as st


def chunk(delta: dict[str, Any], finish: str | None = None, **more: Any) -> bytes:
    choice = {"index": 0, "delta": delta, "finish_reason": finish, **more}
    return json.dumps({"id": "c", "created": 1, "model": "m", "choices": [choice]}).encode()


def call(index: int | None, name: str, arguments: Any) -> dict[str, Any]:
    place = {} if index is None else {"index": index}
    return {
        **place,
        "id": f"id-{name}",
        "type": "function",
        "function": {"name": name, "arguments": arguments},
    }


@pytest.mark.parametrize("text", ["content", "reasoning", "reasoning_content", "refusal"])
def test_a_delta_may_hold_text_and_a_call(text: str) -> None:
    log = [chunk({text: "I look.", "tool_calls": [call(0, "f", "{}")]}), chunk({}, "tool_calls")]
    record = compact(log)
    assert says_the_same(log, record)
    (choice,) = whole_of(record).choices
    assert [each["function"]["name"] for each in choice["message"]["tool_calls"]] == ["f"]
    assert choice["message"][text] == "I look."


def test_log_probabilities_stay_with_the_text_beside_a_call() -> None:
    probabilities = {"content": [{"token": "I", "logprob": -0.5}]}
    log = [chunk({"content": "I", "tool_calls": [call(0, "f", "{}")]}, logprobs=probabilities)]
    assert whole_of(compact(log)).choices[0]["logprobs"] == probabilities


@pytest.mark.promise("I1")
@pytest.mark.parametrize(
    "deltas",
    [
        [{"tool_calls": [call(None, "f", "{}")]}, {"tool_calls": [call(None, "g", '{"x":1}')]}],
        [{"tool_calls": [call(0, "f", {"x": 1})]}],
        [{"tool_calls": [call(0, "f", None)]}],
        [{"content": [{"type": "text", "text": "a"}]}],
        [{"content": 5}],
    ],
    ids=["calls without an index", "an object for arguments", "no arguments", "parts for a text", "a number"],
)
def test_what_a_record_can_not_say_is_seen(deltas: list[dict[str, Any]]) -> None:
    log = [*map(chunk, deltas), chunk({}, "stop")]
    assert not says_the_same(log, compact(log))


_texts = st.sampled_from(["", "a", " b", '"', "\\", "\n", "é", "😀", "{}"])
_NAMED = ("content", "reasoning", "refusal")


@st.composite
def logs(draw: st.DrawFn) -> list[bytes]:
    """A call is named once, by its first delta; its arguments go on whenever they like."""
    deltas: list[dict[str, Any]] = []
    calls = 0
    for _ in range(draw(st.integers(1, 8))):
        delta: dict[str, Any] = {}
        for key in draw(st.sets(st.sampled_from(_NAMED), max_size=2)):
            delta[key] = draw(_texts)
        match draw(st.sampled_from(["nothing", "a new call", "more of a call", "role", "novel"])):
            case "a new call":
                delta["tool_calls"] = [call(calls, draw(st.sampled_from("fg")), draw(_texts))]
                calls += 1
            case "more of a call" if calls:
                index = draw(st.integers(0, calls - 1))
                delta["tool_calls"] = [{"index": index, "function": {"arguments": draw(_texts)}}]
            case "role":
                delta["role"] = "assistant"
            case "novel":
                delta["novel"] = ["kept"]
            case _:
                pass
        deltas.append(delta)
    return [*map(chunk, deltas), chunk({}, draw(st.sampled_from(["stop", "length", "tool_calls"])))]


@pytest.mark.promise("I1")
@given(logs())
def test_any_of_these_logs_is_recorded_whole(log: list[bytes]) -> None:
    assert says_the_same(log, compact(log))


def test_more_than_one_value_is_no_item() -> None:
    with pytest.raises(MalformedLog):
        whole_of([b"{} {}"])
