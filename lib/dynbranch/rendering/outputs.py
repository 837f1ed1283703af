"""A stage's output from the items of its generation's log, whole or while it grows."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from dynbranch.domain.template import Output, ToolCall
from dynbranch.naming.assembly import read_log


def output_of(items: Iterable[bytes]) -> Output:
    """The first choice of a model's answer: what a harness goes on with. Raises MalformedLog."""
    choices = read_log(items).in_order()
    if not choices:
        return Output()
    choice = choices[0]
    return Output(
        text=choice.text("content"),
        calls=tuple(ToolCall(call.name, call.arguments) for call in choice.calls()),
        reasoning=choice.text("reasoning_content", "reasoning"),
        finish=choice.finish_reason if isinstance(choice.finish_reason, str) else "",
    )


def tool_output(body: bytes) -> Output:
    """A tool's result. Bytes that are no text are replaced: such a result is never quoted in a request."""
    return Output(text=body.decode("utf-8", "replace"), finish="stop")


@dataclass(slots=True)
class _GrowingCall:
    name: str = ""
    arguments: str = ""


@dataclass(frozen=True, slots=True)
class Added:
    """What one item added: text, pieces of calls as (place, name, arguments), and what was thought before."""

    text: str = ""
    calls: tuple[tuple[int, str, str], ...] = ()
    reasoning: str = ""


@dataclass(slots=True)
class GrowingOutput:
    """The first choice of a stream. Lenient, since it only foretells: what it can not read adds nothing."""

    _texts: list[str] = field(default_factory=list)
    _reasoning: list[str] = field(default_factory=list)
    _calls: dict[int, _GrowingCall] = field(default_factory=dict)
    _finish: str = ""

    def add(self, item: bytes) -> Added:
        choice = _first_choice(item)
        delta = choice.get("delta")
        if not isinstance(delta, dict):
            delta = {}
        finish = choice.get("finish_reason")
        if isinstance(finish, str):
            self._finish = finish
        text, reasoning = delta.get("content"), delta.get("reasoning_content") or delta.get("reasoning")
        if isinstance(reasoning, str):
            self._reasoning.append(reasoning)
        if isinstance(text, str):
            self._texts.append(text)
        calls = delta.get("tool_calls")
        pieces = tuple(self._grow(call) for call in calls if isinstance(call, dict)) if calls else ()
        return Added(
            text if isinstance(text, str) else "", pieces, reasoning if isinstance(reasoning, str) else ""
        )

    def output(self) -> Output:
        calls = tuple(ToolCall(c.name, c.arguments) for _, c in sorted(self._calls.items()))
        return Output("".join(self._texts), calls, "".join(self._reasoning), self._finish)

    def _grow(self, call: dict[str, Any]) -> tuple[int, str, str]:
        place = call.get("index")
        place = place if isinstance(place, int) else 0
        growing = self._calls.setdefault(place, _GrowingCall())
        called = call.get("function")
        called = called if isinstance(called, dict) else {}
        name, arguments = called.get("name"), called.get("arguments")
        if isinstance(name, str) and name != growing.name:
            growing.name += name
        added = arguments if isinstance(arguments, str) else ""
        growing.arguments += added
        return place, growing.name, added


def _first_choice(item: bytes) -> dict[str, Any]:
    try:
        choices = json.loads(item).get("choices")
    except (ValueError, AttributeError):
        return {}
    match choices:
        case [dict() as choice, *_] if choice.get("index", 0) == 0:
            return choice
        case _:
            return {}
