"""Inputs and outputs as gateways tell them to the controller: JSON texts that keep key order and numbers."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from dynbranch.domain.errors import InvalidRequest
from dynbranch.domain.template import Output, StageKind, ToolCall
from dynbranch.naming.document import Json, emit, parse_text
from dynbranch.rendering.outputs import tool_output


def told_values(inputs: Mapping[str, Json]) -> tuple[tuple[str, str], ...]:
    return tuple((name, emit(value)) for name, value in inputs.items())


def read_values(told: Iterable[tuple[str, str]]) -> dict[str, Json]:
    """Raises InvalidRequest for what ``told_values`` did not make."""
    return {name: parse_text(text) for name, text in told}


def told_output(output: Output, kind: StageKind) -> bytes:
    """The assistant message, or the tool's result as it is."""
    if kind is StageKind.TOOL:
        return output.text.encode()
    message: dict[str, Any] = {"role": "assistant", "content": output.text}
    if output.reasoning:
        message["reasoning_content"] = output.reasoning
    if output.calls:
        message["tool_calls"] = [
            {"type": "function", "function": {"name": call.name, "arguments": call.arguments}}
            for call in output.calls
        ]
    message["finish_reason"] = output.finish
    return json.dumps(message, ensure_ascii=False, separators=(",", ":")).encode()


def read_output(told: bytes, kind: StageKind) -> Output | None:
    """None for what ``told_output`` did not make: empty where the output was too large to tell."""
    if kind is StageKind.TOOL:
        return tool_output(told) if told else None
    try:
        message = parse_text(told.decode())
    except (InvalidRequest, UnicodeDecodeError):
        return None
    if not isinstance(message, dict):
        return None
    return message_output(message)


def message_output(message: dict[str, Json]) -> Output:
    """An assistant message of the Chat Completions protocol. ``finish_reason`` may stand in it."""
    calls = message.get("tool_calls")
    return Output(
        text=_text(message.get("content")),
        calls=tuple(_call(call) for call in calls) if isinstance(calls, list) else (),
        reasoning=_text(message.get("reasoning_content")),
        finish=_text(message.get("finish_reason")),
    )


def _call(call: Json) -> ToolCall:
    match call:
        case {"function": {"name": str() as name, "arguments": str() as arguments}}:
            return ToolCall(name, arguments)
        case _:
            return ToolCall("", "")


def _text(value: Json) -> str:
    return value if isinstance(value, str) else ""
