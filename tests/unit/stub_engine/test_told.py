"""Rules that look further back than the last message, and calls that hold what only a harness knows."""

from __future__ import annotations

import json
from typing import Any

import pytest
from dynbranch.stub_engine.matching import Match, RequestView, ScriptError
from dynbranch.stub_engine.script import Script, rules_from


def view(*messages: dict[str, Any]) -> RequestView:
    return RequestView("/v1/chat/completions", {"messages": list(messages)})


ASKED = {"role": "user", "content": [{"type": "text", "text": "Start two agents."}]}
REMINDED = {"role": "user", "content": "Go on."}
CALLED = {"role": "assistant", "content": "Start two agents."}
STARTED = [
    {"role": "tool", "content": '{"agent_id":"01-a","nickname":"Curie"}'},
    {"role": "tool", "content": '{"agent_id":"02-b","nickname":"Euclid"}'},
]


def test_what_a_user_said_at_any_time() -> None:
    assert Match(said="two agents").fits(view(ASKED, CALLED, REMINDED))
    assert not Match(said="two agents").fits(view(CALLED, REMINDED))


def test_calls_hold_what_is_found_in_results() -> None:
    reply = {
        "find": 'agent_id":"([^"]+)',
        "tool_calls": [{"name": "wait", "arguments": {"targets": ["<<1>>", "<<0>>", "<<2>>"]}}],
    }
    script = Script(rules_from(json.dumps({"reply": reply}), "here"))
    (call,) = script.reply(view(ASKED, CALLED, *STARTED)).tool_calls
    assert json.loads(call.arguments) == {"targets": ["02-b", "01-a", "<<2>>"]}
    (call,) = script.reply(view(ASKED)).tool_calls
    assert json.loads(call.arguments) == {"targets": ["<<1>>", "<<0>>", "<<2>>"]}


def test_a_pattern_that_is_none_is_refused() -> None:
    with pytest.raises(ScriptError, match=r"reply\.find"):
        rules_from('{"reply": {"find": "("}}', "here")
