"""The conversation of a Messages request as messages of Chat Completions.

A message of the person's that brings results of tools becomes one message for each result, in the order of
the calls, and one for whatever else it says. Ids of calls are replaced by their place in the conversation:
harnesses make them up anew in every run, and some templates print them.
"""

from __future__ import annotations

from typing import Final

from dynbranch.gateway.protocols.anthropic.blocks import blocks_in, parts_of, text_part
from dynbranch.gateway.protocols.parts import Part, call_id, content_of
from dynbranch.gateway.protocols.refusal import (
    missing,
    only,
    text_at,
    unclaimed,
    unserved,
    wrong_type,
    wrong_value,
)
from dynbranch.gateway.protocols.signatures import thinking_in
from dynbranch.naming.document import Json, emit

MESSAGE_MEMBERS: Final = frozenset({"role", "content"})
THINKING_MEMBERS: Final = frozenset({"type", "thinking", "signature", "cache_control"})
CALL_MEMBERS: Final = frozenset({"type", "id", "name", "input", "cache_control", "caller"})
RESULT_MEMBERS: Final = frozenset({"type", "tool_use_id", "content", "is_error", "cache_control"})
_OURS: Final = frozenset({"role", "function", "tool_call_id", "tool_calls", "index"})
_BILLING: Final = "x-anthropic-billing-header:"

Message = dict[str, Json]


def chat_messages(system: Json, messages: Json) -> list[Json]:
    """Raises InvalidRequest."""
    if messages is None:
        raise missing("messages")
    if not isinstance(messages, list):
        raise wrong_type("messages", "an array of messages", messages)
    if not messages:
        raise wrong_value("messages", "at least one message is required")
    conversation = _Conversation()
    if system is not None:
        conversation.system(system, "system")
    for index, message in enumerate(messages):
        conversation.add(message, f"messages[{index}]")
    if not conversation.messages:
        raise wrong_value("messages", "at least one message that says something is required")
    return conversation.messages


def is_open(messages: list[Json]) -> bool:
    """Whether the last message is the beginning of the answer, for the model to go on with."""
    match messages:
        case [*_, {"role": "assistant", "content": content, **beside}]:
            return bool(content) and "tool_calls" not in beside
        case _:
            return False


class _Conversation:
    def __init__(self) -> None:
        self.messages: list[Json] = []
        self._places: dict[str, int] = {}
        """Of each call so far, by its id in the request."""

    def add(self, message: Json, path: str) -> None:
        if not isinstance(message, dict):
            raise wrong_type(path, "an object", message)
        only(message, MESSAGE_MEMBERS, path)
        match text_at(message, "role", path):
            case "user":
                self._user(message.get("content"), f"{path}.content")
            case "assistant":
                self._assistant(message.get("content"), f"{path}.content")
            case "system":
                self.system(message.get("content"), f"{path}.content")
            case role:
                raise wrong_value(f"{path}.role", f"{role[:80]!r} is none of user, assistant, system")

    def system(self, content: Json, path: str) -> None:
        parts: list[Part] = []
        for index, block in enumerate(blocks_in(content, path)):
            if block.get("type") != "text":
                raise unserved(f"{path}[{index}].type", "only texts can stand here")
            part = text_part(block, f"{path}[{index}]")
            if not _is_billing(part["text"]):
                parts.append(part)
        spoken = content_of(parts)
        if spoken:
            self.messages.append({"role": "system", "content": spoken})

    # -- what the person and the tools say -----------------------------------------------------------------

    def _user(self, content: Json, path: str) -> None:
        blocks = blocks_in(content, path)
        results: list[tuple[int, Message]] = []
        beside: list[Part] = []
        spoken: list[Part] = []
        for index, block in enumerate(blocks):
            at = f"{path}[{index}]"
            if block.get("type") != "tool_result":
                spoken += parts_of(block, at)
                continue
            if spoken:
                raise wrong_value(at, "results of tools must stand before anything else in a message")
            results.append(self._result(block, at, beside))
        results.sort(key=lambda result: result[0])
        self.messages += [message for _, message in results]
        spoken = beside + spoken
        if spoken or not results:
            self.messages.append({"role": "user", "content": content_of(spoken)})

    def _result(self, block: dict[str, Json], path: str, beside: list[Part]) -> tuple[int, Message]:
        """The result's place and its message. A tool's message holds texts alone: what else it brought is put
        ``beside`` it."""
        sent = text_at(block, "tool_use_id", path)
        place = self._places.get(sent)
        if place is None:
            raise wrong_value(f"{path}.tool_use_id", f"no tool_use before it has the id {sent[:80]!r}")
        texts: list[Part] = []
        content = block.get("content")
        inner = f"{path}.content"
        for index, inside in enumerate([] if content is None else blocks_in(content, inner)):
            for part in parts_of(inside, f"{inner}[{index}]"):
                (texts if part["type"] == "text" else beside).append(part)
        message: Message = {"role": "tool", "tool_call_id": call_id(place), "content": content_of(texts)}
        match block.get("is_error"):
            case None | False:
                pass
            case True:
                message["is_error"] = True
            case other:
                raise wrong_type(f"{path}.is_error", "a boolean", other)
        return place, {**message, **unclaimed(block, RESULT_MEMBERS, _OURS, path)}

    # -- what the model said -------------------------------------------------------------------------------

    def _assistant(self, content: Json, path: str) -> None:
        spoken: list[Part] = []
        thought: list[str] = []
        calls: list[Json] = []
        for index, block in enumerate(blocks_in(content, path)):
            at = f"{path}[{index}]"
            match block.get("type"):
                case "text":
                    spoken.append(text_part(block, at))
                case "thinking":
                    thought.append(_thinking(block, at))
                case "tool_use":
                    calls.append(self._call(block, at))
                case "redacted_thinking":
                    raise unserved(f"{at}.type", "redacted thinking can be read by its maker alone")
                case _:
                    spoken += parts_of(block, at)
        message: Message = {"role": "assistant", "content": content_of(spoken)}
        if any(thought):
            message["reasoning_content"] = "".join(thought)
        if calls:
            message["content"] = message["content"] or None
            message["tool_calls"] = calls
        self.messages.append(message)

    def _call(self, block: dict[str, Json], path: str) -> Json:
        sent = text_at(block, "id", path)
        if sent in self._places:
            raise wrong_value(f"{path}.id", f"the id {sent[:80]!r} stands twice; ids of calls must differ")
        match block.get("caller"):
            case None | {"type": "direct"}:
                pass
            case _:
                raise unserved(f"{path}.caller", "calls are made by the model alone")
        given = block.get("input")
        if not isinstance(given, dict):
            raise wrong_type(f"{path}.input", "an object", given)
        place = self._places[sent] = len(self._places)
        return {
            "id": call_id(place),
            "type": "function",
            "function": {"name": text_at(block, "name", path), "arguments": emit(given)},
            **unclaimed(block, CALL_MEMBERS, _OURS, path),
        }


def _thinking(block: dict[str, Json], path: str) -> str:
    only(block, THINKING_MEMBERS, path)
    signature = block.get("signature")
    if signature is not None and not isinstance(signature, str):
        raise wrong_type(f"{path}.signature", "a string", signature)
    return thinking_in(text_at(block, "thinking", path), signature or "")


def _is_billing(text: Json) -> bool:
    """A header that a harness spells as a text, for the API's own accounts and not for the model."""
    return isinstance(text, str) and text.startswith(_BILLING) and "\n" not in text.strip()
