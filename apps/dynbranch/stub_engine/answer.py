"""The output of a request: its tokens, and the deltas that carry them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from dynbranch.enginemodel.messages import Pace
from dynbranch.stub_engine import toy_tokens
from dynbranch.stub_engine.asking import Asked
from dynbranch.stub_engine.script import Reply, ToolCall

_quoted = json.JSONEncoder(ensure_ascii=False).encode


@dataclass(frozen=True, slots=True)
class Answer:
    """Tokens come in this order: reasoning, text, calls. A call costs a token for its beginning, and those of
    its arguments."""

    text: str
    tokens: int
    finish_reason: str
    reasoning: str = ""
    calls: tuple[ToolCall, ...] = ()
    chunks: tuple[str, ...] = ()
    whole_arguments: bool = False
    usage: Mapping[str, Any] | None = None
    pace: Pace | None = None


def default_text(digest: bytes, tokens: int) -> str:
    """Words of three hexadecimal digits from the digest, a token each. A longer one begins with the
    shorter."""
    digits = hashlib.shake_256(digest).hexdigest((3 * tokens + 1) // 2)[: 3 * tokens].encode()
    text = bytearray(b" " * (toy_tokens.TOKEN_BYTES * tokens))
    for place in range(3):
        text[place + 1 :: toy_tokens.TOKEN_BYTES] = digits[place::3]
    return text.decode()


def answer_to(asked: Asked, reply: Reply, *, output_tokens: int, default_output_tokens: int) -> Answer:
    """``output_tokens``: how long the engine speaks by itself; 0: as long as it may."""
    shown = reply.parts if reply.parts is not None else reply.events
    if shown is not None:
        return Answer("", max(1, len(shown)), "stop", pace=reply.pace)
    if reply.text is None and not reply.tool_calls:
        call = _demanded_call(asked) if asked.chat else None
        if call is None:
            return _default(asked, reply, reply.output_tokens or output_tokens, default_output_tokens)
        reply = replace(reply, tool_calls=(call,))
    return _scripted(asked, reply)


def _default(asked: Asked, reply: Reply, output_tokens: int, default_output_tokens: int) -> Answer:
    natural = max(output_tokens, asked.min_tokens)
    if asked.ignore_eos or not output_tokens:
        natural = asked.max_tokens + 1 if asked.max_tokens else max(default_output_tokens, natural)
    tokens, reason = natural, "stop"
    if asked.max_tokens and asked.max_tokens < natural:
        tokens, reason = asked.max_tokens, "length"
    text = default_text(asked.digest, tokens)
    for stop in asked.stop:
        if (found := text.find(stop)) >= 0:
            text, reason = text[:found], "stop"
            tokens = max(1, toy_tokens.count_tokens(found))
    return Answer(text, tokens, reply.finish_reason or reason, usage=reply.usage, pace=reply.pace)


def _scripted(asked: Asked, reply: Reply) -> Answer:
    text = reply.text or ""
    reason = "tool_calls" if reply.tool_calls else "stop"
    chunks = reply.chunks
    for stop in asked.stop:
        if (found := text.find(stop)) >= 0:
            text, reason, chunks = text[:found], "stop", ()
    calls = tuple(
        call if call.id else replace(call, id=_call_id(asked, number))
        for number, call in enumerate(reply.tool_calls)
    )
    answer = Answer(
        text, 0, reason, reply.reasoning, calls, chunks, reply.whole_arguments, reply.usage, reply.pace
    )
    answer = replace(answer, tokens=max(1, len(deltas(answer))))
    if asked.max_tokens and answer.tokens > asked.max_tokens:
        answer = cut(answer, asked.max_tokens)
    return replace(answer, finish_reason=reply.finish_reason) if reply.finish_reason else answer


def cut(answer: Answer, tokens: int) -> Answer:
    """Its first tokens."""
    left = tokens
    reasoning = toy_tokens.pieces(answer.reasoning)[:left]
    left -= len(reasoning)
    chunks = (list(answer.chunks) or toy_tokens.pieces(answer.text))[:left]
    left -= len(chunks)
    calls = []
    for call in answer.calls:
        if left > 0:
            arguments = toy_tokens.pieces(call.arguments)[: left - 1]
            calls.append(replace(call, arguments="".join(arguments)))
            left -= 1 + len(arguments)
    return replace(
        answer,
        tokens=tokens,
        finish_reason="length",
        reasoning="".join(reasoning),
        text="".join(chunks),
        chunks=tuple(chunks) if answer.chunks else (),
        calls=tuple(calls),
    )


def _demanded_call(asked: Asked) -> ToolCall | None:
    """A tool call where the request insists on one."""
    choice, tools = asked.body.get("tool_choice"), asked.body.get("tools")
    if not tools or choice in (None, "auto", "none"):
        return None
    named = choice.get("function", {}).get("name") if isinstance(choice, dict) else None
    name = named or tools[0].get("function", {}).get("name") or "tool"
    return ToolCall(str(name), json.dumps({"stub": asked.digest.hex()[:16]}))


def _call_id(asked: Asked, number: int) -> str:
    return "call_" + hashlib.sha256(asked.digest + b"call%d" % number).hexdigest()[:24]


def deltas(answer: Answer) -> list[str]:
    """The JSON of each token's delta; empty where a token shows nothing."""
    found = [f'{{"reasoning_content":{_quoted(piece)}}}' for piece in toy_tokens.pieces(answer.reasoning)]
    found += [f'{{"content":{_quoted(p)}}}' if p else "" for p in text_pieces(answer)]
    for index, call in enumerate(answer.calls):
        arguments = toy_tokens.pieces(call.arguments)
        first = call.arguments if answer.whole_arguments else ""
        found.append(
            f'{{"tool_calls":[{{"index":{index},"id":{_quoted(call.id)},"type":"function",'
            f'"function":{{"name":{_quoted(call.name)},"arguments":{_quoted(first)}}}}}]}}'
        )
        if answer.whole_arguments:
            found += [""] * len(arguments)
        else:
            found += [
                f'{{"tool_calls":[{{"index":{index},"function":{{"arguments":{_quoted(piece)}}}}}]}}'
                for piece in arguments
            ]
    return found


def text_pieces(answer: Answer) -> list[str]:
    return list(answer.chunks) or toy_tokens.pieces(answer.text)


def message(answer: Answer) -> dict[str, Any]:
    """The message of an answer that is given whole."""
    found: dict[str, Any] = {"role": "assistant", "content": answer.text}
    if answer.reasoning:
        found["reasoning_content"] = answer.reasoning
    if answer.calls:
        found["content"] = answer.text or None
        found["tool_calls"] = [
            {
                "id": call.id,
                "type": "function",
                "function": {"name": call.name, "arguments": call.arguments},
            }
            for call in answer.calls
        ]
    return found
