"""Scripted answers: which requests a rule is for, and what the engine says then."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from dynbranch.enginemodel.messages import Pace
from dynbranch.stub_engine.faults import Fault, fault_from
from dynbranch.stub_engine.matching import Match, RequestView, ScriptError, checked, match_from


@dataclass(frozen=True, slots=True)
class ToolCall:
    """``arguments``: the JSON text. Without an id the stub makes a deterministic one."""

    name: str
    arguments: str
    id: str = ""


@dataclass(frozen=True, slots=True)
class Reply:
    """What the engine says. Without ``text`` and ``tool_calls`` it says its default text.

    ``chunks``: the text as it shall be cut in a stream, one a token. ``fault``: what goes wrong with it.
    ``events``: the stream's events themselves, without framing, in place of everything else. ``find``: a
    pattern; ``<<0>>``, ``<<1>>`` … in the arguments of calls stand for what it finds in the results of tools.
    In-process only:
    ``parts``, the bytes of the stream, framing and end mark included, under ``content_type``; ``gate``:
    nothing comes before it is set.
    """

    text: str | None = None
    reasoning: str = ""
    tool_calls: tuple[ToolCall, ...] = ()
    finish_reason: str = ""
    output_tokens: int = 0
    chunks: tuple[str, ...] = ()
    whole_arguments: bool = False
    usage: Mapping[str, Any] | None = None
    fault: Fault | None = None
    events: tuple[bytes, ...] | None = None
    parts: tuple[bytes, ...] | None = None
    content_type: str = ""
    pace: Pace | None = None
    gate: asyncio.Event | None = None
    find: str = ""

    def filled(self, results: str) -> Reply:
        """With what it finds in the results of tools. What is not there stays as it stands."""
        if not self.find:
            return self
        found = [
            match[0] if match.lastindex is None else match[1] for match in re.finditer(self.find, results)
        ]
        calls = []
        for call in self.tool_calls:
            arguments = call.arguments
            for number, text in enumerate(found):
                arguments = arguments.replace(f"<<{number}>>", text)
            calls.append(replace(call, arguments=arguments))
        return replace(self, tool_calls=tuple(calls))


DEFAULT_REPLY = Reply()


@dataclass(slots=True)
class Rule:
    """``times``: how often it may be used; None: for ever."""

    reply: Reply
    match: Match = field(default_factory=Match)
    times: int | None = None


class Script:
    """The first rule that fits and is not used up speaks."""

    def __init__(self, rules: tuple[Rule, ...] = ()) -> None:
        self.rules = list(rules)
        self._used: dict[int, int] = {}

    def reply(self, view: RequestView) -> Reply:
        for rule in self.rules:
            used = self._used.get(id(rule), 0)
            if (rule.times is None or used < rule.times) and rule.match.fits(view):
                self._used[id(rule)] = used + 1
                return rule.reply.filled(view.results) if rule.reply.find else rule.reply
        return DEFAULT_REPLY

    def reset(self) -> None:
        self._used.clear()


# -- from JSON ---------------------------------------------------------------------------------------------


def reply_from(document: Any) -> Reply:
    """``ttft_ms`` and ``token_ms`` make the pace. Raises ScriptError."""
    document = dict(document) if isinstance(document, dict) else document
    if not isinstance(document, dict):
        raise ScriptError("reply is not an object")
    first_ms, token_ms = document.pop("ttft_ms", None), document.pop("token_ms", None)
    values = checked(document, Reply, "reply", leave_out={"gate", "pace", "parts"})
    if first_ms is not None or token_ms is not None:
        values["pace"] = Pace(float(first_ms or 0), float(token_ms or 0))
    if "tool_calls" in values:
        values["tool_calls"] = tuple(_call_from(call) for call in values["tool_calls"])
    if "chunks" in values:
        values["chunks"] = tuple(values["chunks"])
        values.setdefault("text", "".join(values["chunks"]))
        if "".join(values["chunks"]) != values["text"]:
            raise ScriptError("reply.chunks is another text than reply.text")
    try:
        re.compile(values.get("find", ""))
    except (re.error, RecursionError, OverflowError) as error:
        raise ScriptError(f"reply.find: {error}") from None
    if "fault" in values:
        values["fault"] = fault_from(values["fault"])
    if "events" in values:
        values["events"] = tuple(
            event.encode() if isinstance(event, str) else json.dumps(event, separators=(",", ":")).encode()
            for event in values["events"]
        )
    return Reply(**values)


def rules_from(lines: str, source: str) -> tuple[Rule, ...]:
    """JSON lines of ``{"match": …, "reply": …, "times": …}``. Raises ScriptError."""
    rules = []
    for number, line in enumerate(lines.splitlines(), 1):
        if not line.strip() or line.lstrip().startswith("//"):
            continue
        try:
            document = json.loads(line)
            values = checked(document, Rule, "rule")
            rules.append(
                Rule(
                    reply_from(values.get("reply", {})),
                    match_from(values.get("match", {})),
                    values.get("times"),
                )
            )
        # ScriptError and JSONDecodeError are ValueErrors; the others are of values of a wrong kind.
        except (ValueError, TypeError, LookupError, AttributeError, ArithmeticError, RecursionError) as error:
            raise ScriptError(f"{source}, line {number}: {error}") from None
    return tuple(rules)


def rules_of(file: Path) -> tuple[Rule, ...]:
    """Raises ScriptError and OSError."""
    try:
        return rules_from(file.read_text(encoding="utf-8"), str(file))
    except UnicodeDecodeError as error:
        raise ScriptError(f"{file}: {error}") from None


def _call_from(document: Any) -> ToolCall:
    """``arguments`` may be an object in place of its text."""
    document = dict(document) if isinstance(document, dict) else document
    if isinstance(document, dict):
        arguments = document.get("arguments", {})
        if not isinstance(arguments, str):
            document["arguments"] = json.dumps(arguments, ensure_ascii=False, separators=(",", ":"))
    values = checked(document, ToolCall, "tool call")
    if not values.get("name"):
        raise ScriptError("a tool call has no name")
    return ToolCall(**values)
