"""What may be reused at level greedy."""

from __future__ import annotations

import json
from typing import Any

import pytest
from dynbranch.domain.reuse import Fingerprint
from dynbranch.naming.document import parse_body
from dynbranch.naming.normalise import normalise_chat
from dynbranch.naming.verdict import ReuseVerdict

pytestmark = pytest.mark.promise("C1.greedy")


def verdict(defaults: dict[str, str] | None = None, **fields: Any) -> ReuseVerdict:
    body = {"model": "m", "messages": [{"role": "user", "content": "x"}], **fields}
    fingerprint = None if defaults is None else Fingerprint(tuple(defaults.items()))
    return normalise_chat(parse_body(json.dumps(body).encode()), fingerprint=fingerprint).reuse


@pytest.mark.parametrize(
    "fields",
    [
        {"temperature": 0},
        {"temperature": 0.0, "top_k": 40},
        {"temperature": 1.5, "top_k": 1},
        {
            "temperature": 0,
            "n": 3,
            "seed": 5,
            "tools": [{"type": "function"}, {"type": "custom"}],
            "tool_choice": "auto",
        },
        {"temperature": 0, "parallel_tool_calls": True, "response_format": {"type": "json_object"}},
        {
            "temperature": 0,
            "logprobs": False,
            "top_logprobs": None,
            "modalities": ["text"],
            "cache_prompt": False,
        },
        {
            "temperature": 0,
            "mirostat": 0.0,
            "xtc_probability": 0,
            "best_of": 1,
            "id_slot": -1,
            "some_novelty": 1,
        },
    ],
)
def test_greedy_requests_are_reusable(fields: dict[str, Any]) -> None:
    assert verdict(**fields).reusable
    assert verdict(**fields).reason == "greedy"


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"temperature": None},
        {"temperature": 0.1},
        {"temperature": 1e-300},
        {"top_k": 2},
        {"temperature": -1},
    ],
)
def test_sampled_requests_are_not(fields: dict[str, Any]) -> None:
    assert not verdict(**fields).reusable
    assert verdict(**fields).reason == "sampled"


def test_the_engines_defaults_count_where_the_request_is_silent() -> None:
    greedy = {"default.temperature": "0.0"}
    assert verdict(greedy).reusable
    assert verdict(greedy, temperature=None).reusable
    assert not verdict(greedy, temperature=0.5).reusable
    assert verdict({"default.temperature": "0.8", "default.top_k": "1"}).reusable
    assert not verdict({"default.temperature": "0.8", "default.top_k": "40"}).reusable
    assert not verdict({"default.temperature": "unknown"}).reusable


@pytest.mark.parametrize(
    ("fields", "reason", "param"),
    [
        ({"logprobs": True}, "logprobs", "logprobs"),
        ({"logprobs": 1}, "logprobs", "logprobs"),
        ({"top_logprobs": 2}, "logprobs", "top_logprobs"),
        ({"n_probs": 1}, "logprobs", "n_probs"),
        ({"prompt_logprobs": 0}, "logprobs", "prompt_logprobs"),
        ({"samplers": ["temperature"]}, "stochastic", "samplers"),
        ({"mirostat": 2}, "stochastic", "mirostat"),
        ({"dynatemp_range": 0.5}, "stochastic", "dynatemp_range"),
        ({"xtc_probability": 0.1}, "stochastic", "xtc_probability"),
        ({"t_max_predict_ms": 100}, "time_limited", "t_max_predict_ms"),
        ({"cache_prompt": True}, "stateful", "cache_prompt"),
        ({"id_slot": 0}, "stateful", "id_slot"),
        ({"use_beam_search": True}, "beam_search", "use_beam_search"),
        ({"best_of": 4}, "beam_search", "best_of"),
        ({"logits_processors": ["x"]}, "extension", "logits_processors"),
        ({"web_search_options": {}}, "outside_input", "web_search_options"),
        ({"chat_template": "{{ strftime_now('%H') }}"}, "outside_input", "chat_template"),
        ({"modalities": ["text", "audio"]}, "not_text", "modalities"),
        ({"audio": {"voice": "x"}}, "not_text", "audio"),
        ({"tools": [{"type": "function"}, {"type": "web_search"}]}, "server_side_tool", "tools[1].type"),
    ],
)
def test_greedy_requests_that_more_than_the_request_decides_are_not(
    fields: dict[str, Any], reason: str, param: str
) -> None:
    found = verdict(temperature=0, **fields)
    assert (found.reusable, found.reason, found.param) == (False, reason, param)
    assert param in found.explanation
    assert found.explanation.endswith(".")


@pytest.mark.promise("I1")
@pytest.mark.parametrize(
    "part",
    [
        {"type": "image_url", "image_url": {"url": "https://example.org/now.png"}},
        {"type": "image_url", "image_url": "https://example.org/now.png"},
        {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}, "uuid": "x"},
        {"type": "video_url", "video_url": {"url": "file:///x"}},
        {"type": "file", "file": {"file_id": "f"}},
        {"type": "file", "file": {"file_id": "f", "file_data": "data:,x"}},
        {"type": "hologram", "text": "x"},
    ],
)
def test_a_part_that_names_content_kept_elsewhere_is_not_reused(part: dict[str, Any]) -> None:
    messages = [{"role": "user", "content": [{"type": "text", "text": "x"}, part]}]
    found = verdict(temperature=0, messages=messages)
    assert (found.reason, found.param) == ("outside_input", "messages[0].content[1]")


@pytest.mark.parametrize(
    "part",
    [
        {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}},
        {"type": "input_audio", "input_audio": {"data": "AA==", "format": "wav"}},
        {"type": "file", "file": {"file_data": "data:,x", "filename": "x"}},
    ],
)
def test_a_part_that_holds_its_content_is(part: dict[str, Any]) -> None:
    assert verdict(temperature=0, messages=[{"role": "user", "content": [part]}]).reusable


def test_an_audio_answer_is_named_by_id_only() -> None:
    spoken = {"role": "assistant", "audio": {"id": "a"}}
    assert not verdict(temperature=0, messages=[spoken, {"role": "user", "content": "x"}]).reusable
