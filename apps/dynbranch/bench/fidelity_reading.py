"""Answers as clients read them: a plain one from its JSON, a streamed one put together from its events, both
in one shape, without ids, times, and the mark that counts of tokens have where a record was served.

This is written from the public API references and shares no code with what the gateway writes them by, but
for one thing: what a client makes of the arguments of a call that the token limit cut.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from dynbranch.gateway.protocols.anthropic.unfinished import completed_object

Read = dict[str, Any]


class Unreadable(Exception):
    """What came is no answer of the protocol."""


def events_in(body: bytes) -> Iterator[tuple[str, Any]]:
    """Each event's name and its data; ``[DONE]`` as a text. Comments are passed over."""
    *whole, rest = body.decode().split("\n\n")
    if rest:
        raise Unreadable("the stream does not end after an event")
    for part in whole:
        fields = [line.partition(": ")[::2] for line in part.split("\n") if not line.startswith(":")]
        data = "\n".join(value for key, value in fields if key == "data")
        if data:
            name = next((value for key, value in fields if key == "event"), "")
            yield name, data if data == "[DONE]" else json.loads(data)


# -- Chat Completions ----------------------------------------------------------------------------------------


def chat_plain(body: bytes) -> Read:
    answer = json.loads(body)
    (choice,) = answer["choices"]
    return _chat(answer, choice["message"], choice)


def chat_streamed(body: bytes) -> Read:
    message: Read = {}
    calls: dict[int, Read] = {}
    choice: Read = {}
    answer: Read = {}
    *chunks, done = [data for _, data in events_in(body)]
    if done != "[DONE]":
        raise Unreadable("no mark of the end")
    for chunk in chunks:
        answer |= {key: value for key, value in chunk.items() if key != "choices"}
        for one in chunk["choices"]:
            delta = one.pop("delta")
            choice |= {key: value for key, value in one.items() if value is not None}
            for call in delta.pop("tool_calls", None) or ():
                _grow_call(calls.setdefault(call.get("index", len(calls)), {}), call)
            if delta.get("function_call"):
                _grow(message.setdefault("function_call", {}), delta.pop("function_call"))
            _grow(message, delta)
    message["tool_calls"] = [calls[index] for index in sorted(calls)]
    return _chat(answer, message, choice)


def _grow_call(call: Read, piece: Read) -> None:
    function = call.setdefault("function", {"name": "", "arguments": ""})
    name, arguments = piece.get("function", {}).get("name"), piece.get("function", {}).get("arguments")
    if name and name != function["name"]:
        function["name"] += name
    function["arguments"] += arguments or ""


def _grow(message: Read, delta: Read) -> None:
    for key, value in delta.items():
        if isinstance(value, str) and key != "role":
            message[key] = message.get(key, "") + value


def _chat(answer: Read, message: Read, choice: Read) -> Read:
    beside = {key: value for key, value in choice.items() if key not in ("message", "index", "logprobs")}
    calls = [
        (call["function"]["name"], call["function"]["arguments"]) for call in message.get("tool_calls") or ()
    ]
    return {
        "model": answer["model"],
        "texts": {
            key: message[key]
            for key in ("content", "reasoning_content", "reasoning", "refusal")
            if message.get(key)
        },
        "calls": calls,
        "function_call": message.get("function_call"),
        "beside": {key: value for key, value in beside.items() if value is not None},
        "usage": _counts(answer.get("usage")),
    }


def _counts(usage: Any) -> Read:
    counts = dict(usage or {})
    counts.pop("prompt_tokens_details", None)
    return {key: value for key, value in counts.items() if value}


# -- Messages ------------------------------------------------------------------------------------------------


def messages_plain(body: bytes) -> Read:
    return _message(json.loads(body))


def messages_streamed(body: bytes) -> Read:
    message: Read = {}
    inputs: dict[int, str] = {}
    ended = False
    for name, event in events_in(body):
        if name != event["type"] or ended:
            raise Unreadable(f"{name!r} is not {event['type']!r}, or comes after the end")
        match event:
            case {"type": "message_start", "message": message}:
                pass
            case {"type": "content_block_start", "index": index, "content_block": block}:
                if index != len(message["content"]):
                    raise Unreadable("a block is out of its place")
                message["content"].append(block)
            case {"type": "content_block_delta", "index": index, "delta": delta}:
                _grow_block(message["content"][index], delta, inputs, index)
            case {"type": "content_block_stop", "index": index} if index in inputs:
                message["content"][index]["input"] = _as_read(inputs[index])
            case {"type": "message_delta", "delta": delta, "usage": usage}:
                message |= delta
                message["usage"] = {**message["usage"], **usage}
            case {"type": "message_stop"}:
                ended = True
    if not ended:
        raise Unreadable("no end")
    return _message(message)


def _grow_block(block: Read, delta: Read, inputs: dict[int, str], index: int) -> None:
    match delta:
        case {"type": "text_delta", "text": text}:
            block["text"] += text
        case {"type": "thinking_delta", "thinking": text}:
            block["thinking"] += text
        case {"type": "signature_delta", "signature": text}:
            block["signature"] = block.get("signature", "") + text
        case {"type": "input_json_delta", "partial_json": text}:
            inputs[index] = inputs.get(index, "") + text
        case _:
            raise Unreadable(f"a delta of type {delta.get('type')!r}")


def _as_read(arguments: str) -> Any:
    try:
        return json.loads(arguments or "{}")
    except ValueError:
        return json.loads(completed_object(arguments))


def _message(message: Read) -> Read:
    usage = message.pop("usage")
    prompt = sum(usage.get(key) or 0 for key in ("input_tokens", "cache_read_input_tokens"))
    content = [
        {key: value for key, value in block.items() if key != "id"} for block in message.pop("content")
    ]
    known = {key: value for key, value in message.items() if key != "id" and value is not None}
    return {**known, "content": content, "usage": (prompt, usage["output_tokens"])}


# -- Responses -----------------------------------------------------------------------------------------------

_OWN = ("id", "created_at", "call_id")


def responses_plain(body: bytes) -> Read:
    return _response(json.loads(body))


def responses_streamed(body: bytes) -> Read:
    """The last event's response; what came in pieces before has to be what it holds."""
    grown: dict[str, str] = {}
    items: list[Read] = []
    last: Read = {}
    number = 0
    for name, event in events_in(body):
        if event == "[DONE]":
            continue
        if name != event["type"] or event["sequence_number"] != number:
            raise Unreadable(f"{name!r} is out of its place")
        number, last = number + 1, event
        if name.endswith(".delta"):
            grown[event["item_id"]] = grown.get(event["item_id"], "") + event["delta"]
        elif name == "response.output_item.done":
            items.append(event["item"])
    if last.get("type") not in ("response.completed", "response.incomplete"):
        raise Unreadable("no end")
    if items != last["response"]["output"] or any(grown.get(one["id"], "") != _said(one) for one in items):
        raise Unreadable("the end is not what came in pieces")
    return _response(last["response"])


def _said(item: Read) -> str:
    if "arguments" in item:
        return str(item["arguments"])
    (part,) = item["content"]
    return str(part.get("text", part.get("refusal")))


def _response(response: Read) -> Read:
    usage = response.pop("usage")
    usage.pop("input_tokens_details")
    output = [_without_own(item) for item in response.pop("output")]
    return {**_without_own(response), "output": output, "usage": usage}


def _without_own(holder: Read) -> Read:
    return {key: value for key, value in holder.items() if key not in _OWN}
