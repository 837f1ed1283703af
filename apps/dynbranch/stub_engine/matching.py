"""Which requests a rule or a fault is for."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Final

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

    def was_said(self, text: str) -> bool:
        """By a user, at any time."""
        return any(
            text in toy_tokens.content_text(message.get("content"))
            for message in self.messages
            if message.get("role") == "user"
        )

    @property
    def last_result(self) -> str:
        """What the newest call of a tool gave."""
        for message in reversed(self.messages):
            if message.get("role") == "tool":
                return toy_tokens.content_text(message.get("content"))
        return ""

    @property
    def results(self) -> str:
        """What all calls of tools gave, oldest first."""
        given = (message.get("content") for message in self.messages if message.get("role") == "tool")
        return "\n".join(map(toy_tokens.content_text, given))

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
    ``regex`` is searched in it; ``said`` is a part of any message of a user. ``result`` is a part of what the
    newest call of a tool gave. ``tools`` must all be offered. ``turn``: so many answers came before."""

    path: str = ""
    model: str = ""
    last_user: str | None = None
    contains: str = ""
    regex: str = ""
    said: str = ""
    result: str = ""
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
        if self.result not in view.last_result:
            return False
        if self.said and not view.was_said(self.said):
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


def match_from(document: Any) -> Match:
    """Raises ScriptError."""
    values = checked(document, Match, "match")
    tools = values.get("tools", ())
    if not isinstance(tools, list | tuple) or not all(isinstance(tool, str) for tool in tools):
        raise ScriptError("match.tools is not a list of names")
    values["tools"] = tuple(tools)
    try:
        re.compile(values.get("regex", ""))
    except (re.error, RecursionError, OverflowError) as error:
        raise ScriptError(f"match.regex: {error}") from None
    return Match(**values)


_PLAIN: Final[Mapping[str, tuple[type, ...]]] = {
    "str": (str,),
    "str | None": (str, type(None)),
    "int": (int,),
    "int | None": (int, type(None)),
    "bool": (bool,),
}
"""What JSON has for the members whose kind is plain."""


def checked(
    document: Any, kind: type, what: str, leave_out: frozenset[str] | set[str] = frozenset()
) -> dict[str, Any]:
    """The members of a JSON object that a dataclass has. Raises ScriptError for others."""
    if not isinstance(document, dict):
        raise ScriptError(f"{what} is not an object")
    known = {one.name: str(one.type) for one in fields(kind) if one.name not in leave_out}
    for key, value in document.items():
        if key not in known:
            raise ScriptError(f"{what} has no {key!r}; it has {', '.join(sorted(known))}")
        wanted = _PLAIN.get(known[key])
        if wanted is not None and type(value) not in wanted:
            raise ScriptError(f"{what}.{key} is not of the kind {known[key]}")
    return dict(document)
