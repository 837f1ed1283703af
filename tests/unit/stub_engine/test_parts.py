"""The stub engine's tokenizer, scripts, default texts and command line."""

from __future__ import annotations

from pathlib import Path

import pytest
from dynbranch.cli.main import app
from dynbranch.stub_engine import toy_tokens
from dynbranch.stub_engine.answer import default_text
from dynbranch.stub_engine.faults import Fault, FaultKind, Faults, fault_from
from dynbranch.stub_engine.matching import Match, RequestView, ScriptError
from dynbranch.stub_engine.script import Reply, Rule, Script, rules_from
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

TEXTS = st.text(st.characters(exclude_categories=["Cs"]))


@given(TEXTS)
def test_tokens_give_their_text_back(text: str) -> None:
    source = text.encode()
    tokens = toy_tokens.encode(source)
    assert len(tokens) == toy_tokens.count_tokens(len(source))
    assert toy_tokens.decode(tokens) == source
    pieces = toy_tokens.pieces(text)
    assert "".join(pieces) == text and len(pieces) == len(tokens)


@given(st.integers(0, 2**33))
def test_a_token_has_one_text(token: int) -> None:
    try:
        text = toy_tokens.decode([token])
    except toy_tokens.UnknownToken:
        return
    assert toy_tokens.encode(text) == [token]


@given(st.binary(max_size=400), st.binary(max_size=200))
def test_a_longer_text_has_the_blocks_of_its_prefix(text: bytes, more: bytes) -> None:
    blocks = toy_tokens.prefix_blocks(text, 8, "salt")
    assert toy_tokens.prefix_blocks(text + more, 8, "salt")[: len(blocks)] == blocks
    assert not set(blocks) & set(toy_tokens.prefix_blocks(text, 8, "pepper"))


@given(st.binary(min_size=32, max_size=32), st.integers(0, 300), st.integers(0, 300))
def test_a_longer_default_text_begins_with_the_shorter(digest: bytes, less: int, more: int) -> None:
    less, more = sorted((less, more))
    assert len(default_text(digest, more)) == 4 * more
    assert default_text(digest, more).startswith(default_text(digest, less))


def view(text: str = "hi", **fields: object) -> RequestView:
    return RequestView("/v1/chat/completions", {"messages": [{"role": "user", "content": text}], **fields})


@pytest.mark.parametrize(
    ("match", "fits"),
    [
        (Match(), True),
        (Match(last_user="hi"), True),
        (Match(last_user="h"), False),
        (Match(contains="h", regex="^h"), True),
        (Match(regex="^i"), False),
        (Match(model="m"), True),
        (Match(model="n"), False),
        (Match(tools=("look",)), True),
        (Match(tools=("look", "buy")), False),
        (Match(turn=0), True),
        (Match(turn=1), False),
        (Match(path="/v1/completions"), False),
    ],
)
def test_whom_a_rule_is_for(match: Match, fits: bool) -> None:
    tools = [{"type": "function", "function": {"name": "look"}}]
    assert match.fits(view(model="m", tools=tools)) is fits


@pytest.mark.parametrize(("part", "fits"), [("it rains", True), ("It", False), ("dry", False), ("", True)])
def test_a_rule_may_look_at_what_a_tool_gave(part: str, fits: bool) -> None:
    said = [
        {"role": "tool", "content": "It is dry."},
        {"role": "assistant", "content": "Hm."},
        {"role": "tool", "content": [{"type": "text", "text": "Now it rains."}]},
        {"role": "user", "content": "hi"},
    ]
    assert Match(result=part).fits(view(messages=said)) is fits


def test_rules_are_used_up() -> None:
    script = Script((Rule(Reply(text="a"), times=1), Rule(Reply(text="b"), times=1)))
    assert [script.reply(view()).text for _ in range(3)] == ["a", "b", None]
    script.reset()
    assert script.reply(view()).text == "a"


def test_faults_are_skipped_and_used_up() -> None:
    faults = Faults((Fault(FaultKind.CUT, skip=1, times=2), Fault(FaultKind.HEALTH, status=500)))
    assert [faults.strike(view()) is not None for _ in range(4)] == [False, True, True, False]
    assert faults.health_status() == 500


@pytest.mark.parametrize(
    "line",
    [
        "{",
        "[]",
        '{"answer": {}}',
        '{"reply": {"txt": ""}}',
        '{"match": {"regex": "("}, "reply": {}}',
        '{"reply": {"text": "ab", "chunks": ["a"]}}',
        '{"reply": {"tool_calls": [{"arguments": {}}]}}',
        '{"reply": {"fault": {"kind": "none"}}}',
    ],
)
def test_a_wrong_line_is_told_with_its_number(line: str) -> None:
    with pytest.raises(ScriptError, match="line 2"):
        rules_from("\n" + line, "script")


def test_a_whole_rule() -> None:
    (rule,) = rules_from(
        '{"match": {"contains": "x"}, "times": 3, "reply": {"text": "t", "ttft_ms": 5, "token_ms": 1,'
        ' "fault": {"kind": "cut", "after_tokens": 1}}}',
        "script",
    )
    assert rule.times == 3 and rule.match == Match(contains="x")
    assert rule.reply.pace is not None and rule.reply.pace.time_to_first_token_ms == 5
    assert rule.reply.fault == fault_from({"kind": "cut", "after_tokens": 1})


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        (["--preset", "h100"], "no preset"),
        (["--preset", "h200-qwen3-32b", "--ttft-ms", "5"], "--preset fixed"),
        (["--script", "nowhere.jsonl"], "nowhere.jsonl"),
        (["--faults", "wrong.jsonl"], "fault.kind"),
    ],
)
def test_wrong_options_are_told(
    options: list[str], complaint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "wrong.jsonl").write_text('{"kind": "smoke"}\n')
    result = CliRunner().invoke(app, ["stub-engine", *options])
    assert result.exit_code == 1 and complaint in result.output


@pytest.mark.parametrize(
    "line",
    [
        "{",
        "[" * 100_000,
        "[]",
        "5",
        '{"reply": 5}',
        '{"reply": {"text": 5}}',
        '{"reply": {"ttft_ms": "soon"}}',
        '{"reply": {"ttft_ms": [1]}}',
        '{"reply": {"tool_calls": 5}}',
        '{"reply": {"tool_calls": [{"name": 5}]}}',
        '{"reply": {"chunks": [1]}}',
        '{"reply": {"events": 5}}',
        '{"reply": {"events": ["\\ud800"]}}',
        '{"reply": {"fault": {"kind": ["cut"]}}}',
        '{"reply": {"fault": {"kind": "cut", "after_tokens": 1.5}}}',
        '{"match": {"regex": 5}}',
        '{"match": {"regex": "("}}',
        '{"match": {"tools": 5}}',
        '{"match": {"tools": [5]}}',
        '{"match": {"turn": "one"}}',
        '{"times": "once"}',
        '{"times": ' + "9" * 5000 + "}",
    ],
)
def test_whatever_is_wrong_with_a_script_names_its_line(line: str) -> None:
    with pytest.raises(ScriptError, match="the file, line 2: "):
        rules_from(f"// a comment\n{line}\n", "the file")
