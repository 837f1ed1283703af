"""Who asks, by the headers that real harnesses were seen to send."""

from __future__ import annotations

import json
from typing import Any

import pytest
from dynbranch.gateway.core.request_headers import parse_identity
from dynbranch.gateway.protocols.harness import (
    MAX_ID_CHARACTERS,
    Who,
    decoded_greedily,
    masked,
    system_prompt,
    who_asks,
    workflow_type,
)
from dynbranch.naming.document import parse_body
from hypothesis import given
from hypothesis import strategies as st

SESSION = "03dbfeaf-f2b8-477b-b4a3-359af7a37844"
OTHER = "01a22b7e-9053-7962-81fc-89e1d7efeab4"

CLAUDE_CODE = {
    "user-agent": "claude-cli/2.1.197 (external, sdk-cli)",
    "x-claude-code-session-id": SESSION,
    "anthropic-version": "2023-06-01",
    "x-api-key": "any",
    "x-app": "cli",
}
CODEX = {
    "user-agent": "codex_exec/0.171.0 (Debian 12.0.0; x86_64) unknown (codex_exec; 0.171.0)",
    "originator": "codex_exec",
    "x-codex-beta-features": "remote_compaction_v2",
    "x-codex-window-id": f"{OTHER}:0",
    "x-codex-turn-metadata": "{}",
    "x-client-request-id": OTHER,
    "session-id": OTHER,
    "thread-id": OTHER,
}
OPENCODE = {
    "user-agent": "opencode/1.18.33 ai-sdk/provider-utils/4.0.23 runtime/bun/1.3.14",
    "x-session-affinity": "ses_dd48158c5ffelVZl3dL5zpkFF0",
    "x-session-id": "ses_dd48158c5ffelVZl3dL5zpkFF0",
}
QWEN_CODE = {
    "user-agent": "QwenCode/0.15.10 (linux; x64)",
    "x-stainless-lang": "js",
    "x-stainless-package-version": "5.11.0",
}
DEEPSEEK = {"x-deepseek-harness-session-id": "dsh-1"}
OTHERS = [
    {},
    {"user-agent": "AsyncOpenAI/Python 3.57.0", "x-stainless-lang": "python"},
    {"user-agent": "Anthropic/Python 2.14.0"},
    {"session-id": "a", "thread-id": "b"},
    {"user-agent": "curl/8.1", "x-session-id": "a"},
]

REQUEST: dict[str, Any] = {
    "messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "hi"}],
    "tools": [{"type": "function", "function": {"name": name}} for name in ("read", "bash")],
}


def asks(headers: dict[str, str], request: Any = REQUEST) -> Who:
    who = who_asks(headers, request)
    assert who is not None
    return who


@pytest.mark.promise("H.identity")
@pytest.mark.parametrize(
    ("headers", "told"),
    [
        (CLAUDE_CODE, ("claude-code", SESSION, "main", "")),
        ({**CLAUDE_CODE, "x-claude-code-agent-id": "a1b2"}, ("claude-code", SESSION, "a1b2", "main")),
        (CODEX, ("codex", OTHER, OTHER, "")),
        (
            {**CODEX, "thread-id": SESSION, "x-codex-parent-thread-id": OTHER, "x-openai-subagent": "collab"},
            ("codex", OTHER, SESSION, OTHER),
        ),
        (OPENCODE, ("opencode", OPENCODE["x-session-id"], OPENCODE["x-session-id"], "")),
        (
            {**OPENCODE, "x-session-id": "ses_b", "x-parent-session-id": "ses_a"},
            ("opencode", "ses_a", "ses_b", "ses_a"),
        ),
        (DEEPSEEK, ("deepseek-harness", "dsh-1", "dsh-1", "")),
    ],
    ids=lambda value: value[0] if isinstance(value, tuple) else "",
)
def test_what_a_harness_tells(headers: dict[str, str], told: tuple[str, str, str, str]) -> None:
    who = asks(headers)
    assert (who.harness, who.workflow_id, who.agent_id, who.parent_id) == told
    assert who.workflow_type_id.startswith(f"{told[0]}/")


@pytest.mark.parametrize("headers", OTHERS, ids=str)
def test_other_programs_are_nobodys_harness(headers: dict[str, str]) -> None:
    assert who_asks(headers, REQUEST) is None


def test_agents_that_tell_nothing_differ_by_what_they_were_told_first() -> None:
    def agent(*said: str) -> str:
        messages = [{"role": "user", "content": text} for text in said]
        return asks(QWEN_CODE, {"messages": [REQUEST["messages"][0], *messages]}).agent_id

    assert agent("hi") == agent("hi", "and then?") != agent("ho")
    assert asks(QWEN_CODE).workflow_id == ""


def test_a_session_may_stand_in_the_body_alone() -> None:
    told = json.dumps({"device_id": "d", "account_uuid": "", "session_id": SESSION})
    headers = {"user-agent": CLAUDE_CODE["user-agent"]}
    assert asks(headers, {**REQUEST, "metadata": {"user_id": told}}).workflow_id == SESSION
    for other in ("user-1", "[]", "{", json.dumps({"session_id": "a\nb"})):
        assert asks(headers, {**REQUEST, "metadata": {"user_id": other}}).workflow_id == ""


def test_a_tag_stands_before_what_is_derived() -> None:
    tags = {"x-dynbranch-workflow": "mine", "x-dynbranch-workflow-type": "reviews"}
    headers = {**CLAUDE_CODE, **tags}
    identity = parse_identity(asks(headers).told_in(headers), "t")
    assert (identity.workflow_type_id, identity.workflow_id, identity.agent_id) == ("reviews", "mine", "main")


@pytest.mark.parametrize("text", ["", "a b", "é", "x" * (MAX_ID_CHARACTERS + 1), "a\x7f"])
def test_what_can_not_be_an_id_is_none(text: str) -> None:
    headers = {**CLAUDE_CODE, "x-claude-code-session-id": text}
    assert asks(headers).workflow_id == ""
    assert parse_identity(asks(headers).told_in(headers), "t").workflow_id == ""


@pytest.mark.parametrize(
    "temperature", [b"", b',"temperature":1', b',"temperature":null', b',"temperature":0']
)
def test_greedy_is_temperature_0_and_nothing_else(temperature: bytes) -> None:
    document = parse_body(b'{"model":"m","top_p":0.50,"seed":1e0' + temperature + b"}")
    greedy = decoded_greedily(document)
    assert greedy.source == b'{"model":"m","top_p":0.50,"seed":1e0,"temperature":0}'
    assert parse_body(greedy.source).value == greedy.value
    assert decoded_greedily(greedy) is greedy


# -- the type of a workflow ----------------------------------------------------------------------------------

PROMPT = """You are an agent. See https://example.org/a for help.
# Environment
 - Primary working directory: {cwd}
 - Is a git repository: {git}
 - OS Version: {system}
Memory is at `{home}/.agent/projects/x/memory/`.
Today's date: {date}
You were started at {time}.
Session {session}.
{status}"""

RUNS = [
    {
        "cwd": "/home/ann/work/app",
        "git": "true",
        "system": "Linux 6.1",
        "home": "/home/ann",
        "date": "Mon Nov 30 2026",
        "time": "2026-11-30T08:07:44Z",
        "session": SESSION,
        "status": "gitStatus: as it was\nCurrent branch: main\nStatus:\nM a.py\n\nRecent commits:\nab12cd3 A",
    },
    {
        "cwd": "/srv/build/17",
        "git": "false",
        "system": "Darwin 25",
        "home": "/root/x",
        "date": "Fri Jan 1 2027",
        "time": "2027-01-01 10:00:01",
        "session": OTHER,
        "status": "",
    },
]


def test_runs_of_one_agent_have_one_type() -> None:
    types = {
        workflow_type(
            "claude-code", {**REQUEST, "messages": [{"role": "system", "content": PROMPT.format(**run)}]}
        )
        for run in RUNS
    }
    assert len(types) == 1


@pytest.mark.parametrize(
    "other",
    [
        {"messages": [{"role": "system", "content": "Be long."}]},
        {"messages": [{"role": "user", "content": "Be brief."}]},
        {"tools": []},
        {"tools": [{"type": "function", "function": {"name": "write"}}, *REQUEST["tools"]]},
    ],
)
def test_another_agent_has_another_type(other: dict[str, Any]) -> None:
    assert workflow_type("codex", REQUEST) != workflow_type("codex", {**REQUEST, **other})
    assert workflow_type("codex", REQUEST) != workflow_type("opencode", REQUEST)


def test_neither_the_conversation_nor_the_order_of_tools_is_in_a_type() -> None:
    later = {
        "messages": [*REQUEST["messages"], {"role": "assistant", "content": "ho"}],
        "tools": REQUEST["tools"][::-1],
    }
    assert workflow_type("codex", REQUEST) == workflow_type("codex", later)


def test_words_stay_as_they_are() -> None:
    text = "Use read/write tools, e.g. `a/b`, at https://example.org/a/b and version 2.1.197; see README.md."
    assert masked(text) == text
    blocks = {"messages": [{"role": "system", "content": [{"type": "text", "text": "a"}, {"type": "x"}]}]}
    assert system_prompt(blocks) == "a"


@given(
    st.recursive(
        st.none() | st.booleans() | st.text(max_size=5),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(
                st.sampled_from(["messages", "tools", "role", "content", "text", "metadata", "user_id"]),
                inner,
            )
        ),
        max_leaves=10,
    ),
    st.sampled_from([CLAUDE_CODE, CODEX, OPENCODE, QWEN_CODE, DEEPSEEK]),
)
def test_no_request_is_too_odd(request_: Any, headers: dict[str, str]) -> None:
    who = who_asks(headers, request_)
    assert who is None or parse_identity(who.told_in(headers), "t").workflow_type_id
