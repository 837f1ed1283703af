"""Scripted answers: which requests a rule is for, and what the engine says then."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from dynbranch.enginemodel.messages import Pace
from dynbranch.stub_engine import toy_tokens


class ScriptError(ValueError):
    """A script line that is not one. The message says which and why."""


@dataclass(frozen=True, slots=True)
class RequestView:
    """What rules and faults look at."""

    path: str
    body: Mapping[str, Any]

    @property
    def messages(self) -> list[Any]:
        found = self.body.get("messages")
        return [message for message in found if isinstance(message, dict)] if isinstance(found, list) else []

    @property
    def last_user(self) -> str:
        """The last message of a user, or the prompt of a completion."""
        for message in reversed(self.messages):
            if message.get("role") == "user":
                return toy_tokens.content_text(message.get("content"))
        prompt = self.body.get("prompt")
        return prompt if isinstance(prompt, str) else ""

    @property
    def tool_names(self) -> frozenset[str]:
        tools = self.body.get("tools")
        functions = [tool.get("function") for tool in tools or () if isinstance(tool, dict)]
        return frozenset(str(one.get("name")) for one in functions if isinstance(one, dict))

    @property
    def turn(self) -> int:
        """How many answers of the model the conversation has already."""
        return sum(message.get("role") == "assistant" for message in self.messages)


@dataclass(frozen=True, slots=True)
class Match:
    """Every part that is given must hold. ``last_user`` is the whole text, ``contains`` a part of it,
    ``regex`` is searched in it. ``tools`` must all be offered. ``turn``: so many answers came before."""

    path: str = ""
    model: str = ""
    last_user: str | None = None
    contains: str = ""
    regex: str = ""
    tools: tuple[str, ...] = ()
    turn: int | None = None

    def fits(self, view: RequestView) -> bool:
        if self == ANYTHING:
            return True
        if self.path and self.path != view.path:
            return False
        if self.model and self.model != view.body.get("model"):
            return False
        if self.turn is not None and self.turn != view.turn:
            return False
        return self._fits_text(view) and (not self.tools or view.tool_names.issuperset(self.tools))

    def _fits_text(self, view: RequestView) -> bool:
        if self.last_user is None and not self.contains and not self.regex:
            return True
        text = view.last_user
        if self.last_user is not None and text != self.last_user:
            return False
        return self.contains in text and (not self.regex or re.search(self.regex, text) is not None)


ANYTHING = Match()


@dataclass(frozen=True, slots=True)
class ToolCall:
    """``arguments``: the JSON text. Without an id the stub makes a deterministic one."""

    name: str
    arguments: str
    id: str = ""


@dataclass(frozen=True, slots=True)
class Reply:
    """What the engine says. Without ``text`` and ``tool_calls`` it says its default text.

    ``chunks``: the text as it shall be cut in a stream, one a token. ``events``: the stream's events
    themselves, without framing, in place of everything else. ``gate``: nothing comes before it is set
    (in-process only).
    """

    text: str | None = None
    reasoning: str = ""
    tool_calls: tuple[ToolCall, ...] = ()
    finish_reason: str = ""
    output_tokens: int = 0
    chunks: tuple[str, ...] = ()
    whole_arguments: bool = False
    usage: Mapping[str, Any] | None = None
    events: tuple[bytes, ...] | None = None
    pace: Pace | None = None
    gate: asyncio.Event | None = None


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
                return rule.reply
        return DEFAULT_REPLY

    def reset(self) -> None:
        self._used.clear()


# -- from JSON ---------------------------------------------------------------------------------------------


def match_from(document: Any) -> Match:
    """Raises ScriptError."""
    values = checked(document, Match, "match")
    if "tools" in values:
        values["tools"] = tuple(values["tools"])
    try:
        re.compile(values.get("regex", ""))
    except re.error as error:
        raise ScriptError(f"match.regex: {error}") from None
    return Match(**values)


def reply_from(document: Any) -> Reply:
    """``ttft_ms`` and ``token_ms`` make the pace. Raises ScriptError."""
    document = dict(document) if isinstance(document, dict) else document
    if not isinstance(document, dict):
        raise ScriptError("reply is not an object")
    first_ms, token_ms = document.pop("ttft_ms", None), document.pop("token_ms", None)
    values = checked(document, Reply, "reply", leave_out={"gate", "pace"})
    if first_ms is not None or token_ms is not None:
        values["pace"] = Pace(float(first_ms or 0), float(token_ms or 0))
    if "tool_calls" in values:
        values["tool_calls"] = tuple(_call_from(call) for call in values["tool_calls"])
    if "chunks" in values:
        values["chunks"] = tuple(values["chunks"])
        values.setdefault("text", "".join(values["chunks"]))
        if "".join(values["chunks"]) != values["text"]:
            raise ScriptError("reply.chunks is another text than reply.text")
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
        except (ScriptError, json.JSONDecodeError) as error:
            raise ScriptError(f"{source}, line {number}: {error}") from None
    return tuple(rules)


def rules_of(file: Path) -> tuple[Rule, ...]:
    """Raises ScriptError and OSError."""
    return rules_from(file.read_text(encoding="utf-8"), str(file))


def checked(
    document: Any, kind: type, what: str, leave_out: frozenset[str] | set[str] = frozenset()
) -> dict[str, Any]:
    """The members of a JSON object that a dataclass has. Raises ScriptError for others."""
    if not isinstance(document, dict):
        raise ScriptError(f"{what} is not an object")
    known = {one.name for one in fields(kind)} - leave_out
    for key in document:
        if key not in known:
            raise ScriptError(f"{what} has no {key!r}; it has {', '.join(sorted(known))}")
    return dict(document)


def _call_from(document: Any) -> ToolCall:
    values = checked(document, ToolCall, "tool call")
    arguments = values.get("arguments", {})
    if not isinstance(arguments, str):
        values["arguments"] = json.dumps(arguments, ensure_ascii=False, separators=(",", ":"))
    if not values.get("name"):
        raise ScriptError("a tool call has no name")
    return ToolCall(**values)
