"""The input of a Responses request as messages of Chat Completions.

Reasoning, texts and calls of the model that follow one another are one message of the assistant's, as they
were one answer. Results become one message each, in the order of the calls. Ids of items and of calls are
made up anew in every run; calls are known by their place in the conversation.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from dynbranch.gateway.protocols.parts import Part, call_id, content_of
from dynbranch.gateway.protocols.refusal import (
    missing,
    objects_in,
    only,
    text_at,
    unclaimed,
    unserved,
    wrong_type,
    wrong_value,
)
from dynbranch.gateway.protocols.responses.content import parts_of
from dynbranch.gateway.protocols.responses.tools import flat_name
from dynbranch.gateway.protocols.signatures import thinking_in
from dynbranch.naming.document import Json

MESSAGE_MEMBERS: Final = frozenset({"type", "id", "role", "content", "status"})
REASONING_MEMBERS: Final = frozenset({"type", "id", "summary", "content", "encrypted_content", "status"})
CALL_MEMBERS: Final = frozenset(
    {"type", "id", "call_id", "name", "namespace", "arguments", "status", "caller", "async"}
)
RESULT_MEMBERS: Final = frozenset(
    {"type", "id", "call_id", "output", "status", "caller", "name", "namespace"}
)

BEFORE: Final = "previous_response_id"
"""The path of what a request goes on from."""

_OURS: Final = frozenset({"role", "function", "tool_call_id", "tool_calls", "content", "index"})

Message = dict[str, Json]


def chat_messages(instructions: Json, given: Json, before: Sequence[Json] = ()) -> list[Json]:
    """``before`` are the items of the conversation that this one goes on from. Raises InvalidRequest."""
    conversation = _Conversation()
    if instructions is not None:
        if not isinstance(instructions, str):
            raise wrong_type("instructions", "a string", instructions)
        conversation.instructed([{"type": "text", "text": instructions}] if instructions else [])
    for index, item in enumerate(before):
        conversation.add(item, f"{BEFORE}[{index}]")
    match given:
        case None:
            raise missing("input")
        case str():
            conversation.add({"role": "user", "content": given}, "input")
        case list():
            for index, item in enumerate(given):
                conversation.add(item, f"input[{index}]")
        case _:
            raise wrong_type("input", "a string or an array of items", given)
    messages = conversation.ended()
    if not messages:
        raise wrong_value("input", "at least one item is required")
    return messages


@dataclass(slots=True)
class _Turn:
    """What the model said without a break."""

    spoken: list[Part] = field(default_factory=list)
    thought: list[str] = field(default_factory=list)
    calls: list[Json] = field(default_factory=list)
    ends_in_text: bool = False

    def message(self) -> Message:
        message: Message = {"role": "assistant", "content": content_of(self.spoken)}
        if any(self.thought):
            message["reasoning_content"] = "".join(self.thought)
        if self.calls:
            message["content"] = message["content"] or None
            message["tool_calls"] = list(self.calls)
        return message


class _Conversation:
    def __init__(self) -> None:
        self._messages: list[Json] = []
        self._instructions: list[Part] = []
        """All that is said before anybody else speaks: templates take it as one message."""
        self._has_begun = False
        self._turn: _Turn | None = None
        self._results: list[tuple[int, Message]] = []
        self._beside_results: list[Part] = []
        self._places: dict[str, int] = {}
        """Of each call so far, by its id in the request."""

    def instructed(self, parts: list[Part]) -> None:
        if self._has_begun:
            self._say({"role": "system", "content": content_of(parts)})
        else:
            self._instructions += parts

    def ended(self) -> list[Json]:
        self._begin()
        self._end_turn()
        self._end_results()
        return self._messages

    def add(self, item: Json, path: str) -> None:
        if not isinstance(item, dict):
            raise wrong_type(path, "an object", item)
        match item.get("type"):
            case "message":
                self._message(item, path)
            case None if "role" in item:
                self._message(item, path)
            case "reasoning":
                self._spoken().thought.append(_reasoning(item, path))
            case "function_call":
                turn = self._spoken()
                turn.calls.append(self._call(item, path))
                turn.ends_in_text = False
            case "function_call_output":
                self._result(item, path)
            case None:
                raise missing(f"{path}.type")
            case str() as kind:
                raise unserved(f"{path}.type", f"items of type {kind[:80]!r} are not known here")
            case other:
                raise wrong_type(f"{path}.type", "a string", other)

    def _message(self, item: dict[str, Json], path: str) -> None:
        only(item, MESSAGE_MEMBERS, path)
        role = text_at(item, "role", path)
        parts = parts_of(item.get("content"), f"{path}.content" if path != "input" else path)
        match role:
            case "system" | "developer":
                self.instructed(parts)
            case "user":
                self._say({"role": "user", "content": content_of(parts)})
            case "assistant":
                turn = self._spoken()
                if turn.ends_in_text:
                    self._end_turn()
                    turn = self._spoken()
                turn.spoken += parts
                turn.ends_in_text = True
            case _:
                raise wrong_value(
                    f"{path}.role", f"{role[:80]!r} is none of user, assistant, system, developer"
                )

    # -- who speaks ----------------------------------------------------------------------------------------

    def _begin(self) -> None:
        if not self._has_begun:
            self._has_begun = True
            if self._instructions:
                self._messages.append({"role": "system", "content": content_of(self._instructions)})

    def _say(self, message: Message) -> None:
        self._begin()
        self._end_turn()
        self._end_results()
        self._messages.append(message)

    def _spoken(self) -> _Turn:
        self._begin()
        self._end_results()
        if self._turn is None:
            self._turn = _Turn()
        return self._turn

    def _end_turn(self) -> None:
        turn, self._turn = self._turn, None
        if turn is not None and (turn.spoken or turn.calls or any(turn.thought)):
            self._messages.append(turn.message())

    def _end_results(self) -> None:
        """A tool's message holds texts alone: what else it brought follows as the person's."""
        self._messages += [message for _, message in sorted(self._results, key=lambda result: result[0])]
        if self._beside_results:
            self._messages.append({"role": "user", "content": content_of(self._beside_results)})
        self._results, self._beside_results = [], []

    # -- calls ---------------------------------------------------------------------------------------------

    def _call(self, item: dict[str, Json], path: str) -> Json:
        sent = text_at(item, "call_id", path)
        if sent in self._places:
            raise wrong_value(
                f"{path}.call_id", f"the id {sent[:80]!r} stands twice; ids of calls must differ"
            )
        _check_caller(item, path)
        if item.get("async") not in (None, False):
            raise unserved(f"{path}.async", "the model waits for every result")
        space = text_at(item, "namespace", path) if item.get("namespace") is not None else ""
        place = self._places[sent] = len(self._places)
        function: Json = {
            "name": flat_name(space, text_at(item, "name", path)),
            "arguments": text_at(item, "arguments", path),
        }
        return {
            "id": call_id(place),
            "type": "function",
            "function": function,
            **unclaimed(item, CALL_MEMBERS, _OURS, path),
        }

    def _result(self, item: dict[str, Json], path: str) -> None:
        sent = text_at(item, "call_id", path)
        place = self._places.get(sent)
        if place is None:
            raise wrong_value(f"{path}.call_id", f"no function_call before it has the id {sent[:80]!r}")
        _check_caller(item, path)
        self._begin()
        self._end_turn()
        texts: list[Part] = []
        for part in parts_of(item.get("output"), f"{path}.output"):
            (texts if part["type"] == "text" else self._beside_results).append(part)
        message: Message = {"role": "tool", "tool_call_id": call_id(place), "content": content_of(texts)}
        self._results.append((place, {**message, **unclaimed(item, RESULT_MEMBERS, _OURS, path)}))


def _check_caller(item: dict[str, Json], path: str) -> None:
    match item.get("caller"):
        case None | {"type": "direct"}:
            return
        case _:
            raise unserved(f"{path}.caller", "calls are made by the model alone")


def _reasoning(item: dict[str, Json], path: str) -> str:
    """The reasoning of an item that came back: shown, held by ourselves, or at least what it came to."""
    only(item, REASONING_MEMBERS, path)
    shown = _texts(item.get("content"), f"{path}.content")
    sealed = item.get("encrypted_content")
    if sealed is not None and not isinstance(sealed, str):
        raise wrong_type(f"{path}.encrypted_content", "a string", sealed)
    text = thinking_in(shown, sealed or "") or _texts(item.get("summary"), f"{path}.summary")
    if not text and sealed:
        raise unserved(f"{path}.encrypted_content", "sealed reasoning can be read by its maker alone")
    return text


def _texts(parts: Json, path: str) -> str:
    if parts is None:
        return ""
    if not isinstance(parts, list):
        raise wrong_type(path, "an array", parts)
    return "\n\n".join(text_at(part, "text", at) for at, part in objects_in(parts, path))
