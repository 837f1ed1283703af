"""Anthropic Messages, as far as a harness needs it of an engine."""

from __future__ import annotations

import json
from typing import Any

from dynbranch.stub_engine.answer import Answer
from dynbranch.stub_engine.asking import BadRequest
from dynbranch.stub_engine.generation import Shape
from dynbranch.stub_engine.native import Block, Counted, Kind, blocks_of, compact, function, shown
from dynbranch.stub_engine.toy_tokens import content_text

_STOPS = {"tool_calls": "tool_use", "length": "max_tokens", "content_filter": "refusal"}


class Messages:
    def as_chat(self, body: dict[str, Any]) -> dict[str, Any]:
        told = body.get("messages")
        if not isinstance(told, list) or not all(isinstance(one, dict) for one in told):
            raise BadRequest("messages is not a list of messages.", param="messages")
        messages: list[dict[str, Any]] = []
        if body.get("system"):
            messages.append({"role": "system", "content": content_text(body["system"])})
        for message in told:
            messages += _spoken(str(message.get("role")), message.get("content"))
        chat: dict[str, Any] = {"model": body.get("model"), "messages": messages}
        tools = [tool for tool in body.get("tools") or () if isinstance(tool, dict)]
        if tools:
            chat["tools"] = [function(tool, "input_schema") for tool in tools]
        for name, ours in (
            ("max_tokens", "max_tokens"),
            ("temperature", "temperature"),
            ("stream", "stream"),
        ):
            if name in body:
                chat[ours] = body[name]
        if body.get("stop_sequences"):
            chat["stop"] = body["stop_sequences"]
        return chat

    def spelling(self, body: dict[str, Any], answer: Answer, shape: Shape) -> MessageSpelling:
        return MessageSpelling(answer, shape)


def _spoken(role: str, content: Any) -> list[dict[str, Any]]:
    """One message may hold results of tools, each of which is a message of its own."""
    if not isinstance(content, list):
        return [{"role": role, "content": content_text(content)}]
    results: list[dict[str, Any]] = []
    texts: list[str] = []
    calls: list[dict[str, Any]] = []
    for block in content:
        match block:
            case {"type": "text", "text": str() as text}:
                texts.append(text)
            case {"type": "tool_use", "id": str() as call_id, "name": str() as name}:
                arguments = compact(block.get("input") or {})
                calls.append(
                    {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}
                )
            case {"type": "tool_result", "tool_use_id": str() as call_id}:
                text = content_text(block.get("content"))
                results.append({"role": "tool", "tool_call_id": call_id, "content": text})
            case {"type": "thinking"}:
                pass
            case _:
                texts.append(compact(block))
    message: dict[str, Any] = {"role": role, "content": "\n".join(texts)}
    if calls:
        message["tool_calls"] = calls
    return [*results, message] if texts or calls or not results else results


class MessageSpelling:
    def __init__(self, answer: Answer, shape: Shape) -> None:
        self._shape = shape
        self._blocks = blocks_of(answer)

    def opening(self) -> str:
        return _event("message_start", {"message": self._message([], None, Counted(0, 0, 0))})

    def tokens(self) -> list[str]:
        found = []
        for block, number, piece in shown(self._blocks):
            text = ""
            if number == 0:
                text = _stop(block.place - 1) if block.place else ""
                start = {"index": block.place, "content_block": _block(block, begun=True)}
                text += _event("content_block_start", start)
            if piece:
                text += _event("content_block_delta", {"index": block.place, "delta": _delta(block, piece)})
            found.append(text)
        return found

    def closing(self, tokens: int, reason: str, counted: Counted) -> str:
        last = None
        for number, (block, _, _) in enumerate(shown(self._blocks)):
            if number < tokens:
                last = block
        text = _stop(last.place) if last is not None else ""
        ending = {"stop_reason": _STOPS.get(reason, "end_turn"), "stop_sequence": None}
        text += _event("message_delta", {"delta": ending, "usage": _usage(counted)})
        return text + _event("message_stop", {})

    def whole(self, reason: str, counted: Counted) -> str:
        blocks = [_block(block, begun=False) for block in self._blocks]
        return compact(self._message(blocks, _STOPS.get(reason, "end_turn"), counted))

    def _message(self, content: list[Any], stop: str | None, counted: Counted) -> dict[str, Any]:
        return {
            "id": f"msg_{self._shape.id}",
            "type": "message",
            "role": "assistant",
            "content": content,
            "model": self._shape.model,
            "stop_reason": stop,
            "stop_sequence": None,
            "usage": _usage(counted),
        }


def _block(block: Block, *, begun: bool) -> dict[str, Any]:
    text = "" if begun else block.text
    match block.kind:
        case Kind.TEXT:
            return {"type": "text", "text": text}
        case Kind.REASONING:
            return {"type": "thinking", "thinking": text, "signature": "" if begun else "stub"}
        case Kind.CALL:
            assert block.call is not None
            given = {} if begun else _parsed(text)
            return {"type": "tool_use", "id": block.call.id, "name": block.call.name, "input": given}


def _delta(block: Block, piece: str) -> dict[str, Any]:
    match block.kind:
        case Kind.TEXT:
            return {"type": "text_delta", "text": piece}
        case Kind.REASONING:
            return {"type": "thinking_delta", "thinking": piece}
        case Kind.CALL:
            return {"type": "input_json_delta", "partial_json": piece}


def _parsed(arguments: str) -> Any:
    try:
        return json.loads(arguments or "{}")
    except ValueError:
        return {}


def _usage(counted: Counted) -> dict[str, int]:
    return {
        "input_tokens": counted.prompt - counted.cached,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": counted.cached,
        "output_tokens": counted.output,
    }


def _stop(place: int) -> str:
    return _event("content_block_stop", {"index": place})


def _event(kind: str, members: dict[str, Any]) -> str:
    return f"event: {kind}\ndata: {compact({'type': kind, **members})}\n\n"
