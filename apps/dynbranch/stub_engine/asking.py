"""What a request asks for, read from its body once."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from dynbranch.stub_engine import toy_tokens

_SHAPING = frozenset(
    {
        "seed", "temperature", "top_p", "top_k", "min_p", "frequency_penalty", "presence_penalty",
        "repetition_penalty", "logit_bias", "response_format", "tool_choice", "structured_outputs",
        "guided_json", "guided_regex", "guided_choice", "bad_words", "allowed_token_ids",
        "chat_template_kwargs", "reasoning_effort", "parallel_tool_calls",
    }
)  # fmt: skip
_DEFAULTS: Mapping[str, Any] = {
    "temperature": 1, "top_p": 1, "min_p": 0, "frequency_penalty": 0, "presence_penalty": 0,
    "repetition_penalty": 1, "tool_choice": "auto",
}  # fmt: skip


class BadRequest(Exception):
    """The body asks for something that is not there or can not be."""

    def __init__(self, message: str, status: int = 400, param: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.param = param


@dataclass(frozen=True, slots=True)
class Asked:
    """``digest``: of the prompt and of every field that shapes the output, defaults resolved; not of what
    only says how much of it is sent and how. ``max_tokens`` of 0: not given."""

    body: Mapping[str, Any]
    chat: bool
    prompt: str
    digest: bytes
    model: str
    streaming: bool
    include_usage: bool
    max_tokens: int
    min_tokens: int
    ignore_eos: bool
    stop: tuple[str, ...]
    priority: int
    salt: str
    request_id: str


def read(source: bytes, *, chat: bool) -> Asked:
    """Raises BadRequest."""
    try:
        body = json.loads(source)
    except ValueError as error:
        raise BadRequest(f"The body is not JSON: {error}") from None
    if not isinstance(body, dict):
        raise BadRequest("The body is not a JSON object.")
    if body.get("n", 1) not in (1, None):
        raise BadRequest("The stub engine gives one choice.", param="n")
    prompt = _prompt(body, chat)
    stop = body.get("stop") or ()
    options = body.get("stream_options") or {}
    return Asked(
        body=body,
        chat=chat,
        prompt=prompt,
        digest=_digest(prompt, body),
        model=str(body.get("model") or ""),
        streaming=body.get("stream") is True,
        include_usage=isinstance(options, dict) and options.get("include_usage") is True,
        max_tokens=_number(body, "max_completion_tokens") or _number(body, "max_tokens"),
        min_tokens=_number(body, "min_tokens"),
        ignore_eos=body.get("ignore_eos") is True,
        stop=(stop,) if isinstance(stop, str) else tuple(str(one) for one in stop if one),
        priority=_number(body, "priority", least=None),
        salt=f"{body.get('cache_salt') or ''}\0{body.get('extra_key') or ''}",
        request_id=str(body.get("rid") or body.get("request_id") or ""),
    )


def _prompt(body: Mapping[str, Any], chat: bool) -> str:
    if not chat:
        prompt = body.get("prompt", "")
        if isinstance(prompt, list) and all(isinstance(token, int) for token in prompt):
            try:
                return toy_tokens.decode(prompt).decode("utf-8", "replace")
            except toy_tokens.UnknownToken as error:
                raise BadRequest(str(error), param="prompt") from None
        if not isinstance(prompt, str) or not prompt:
            raise BadRequest("The prompt is not a text.", param="prompt")
        return prompt
    messages = body.get("messages")
    if not isinstance(messages, list) or not messages or not all(isinstance(one, dict) for one in messages):
        raise BadRequest("messages is not a list of messages.", param="messages")
    return toy_tokens.render(messages, body.get("tools"))


def _digest(prompt: str, body: Mapping[str, Any]) -> bytes:
    shaping = []
    for key in sorted(_SHAPING.intersection(body)):
        value = body[key]
        if value is not None and value != _DEFAULTS.get(key):
            number = isinstance(value, float) and value.is_integer()
            shaping.append((key, int(value) if number else value))
    digest = hashlib.sha256(prompt.encode("utf-8", "surrogatepass"))
    digest.update(b"\0" + repr(shaping).encode("utf-8", "surrogatepass"))
    return digest.digest()


def _number(body: Mapping[str, Any], name: str, least: int | None = 0) -> int:
    value = body.get(name)
    if value is None:
        return 0
    if isinstance(value, bool) or not isinstance(value, int) or (least is not None and value < least):
        raise BadRequest(f"{name} is not a number from {least} on.", param=name)
    return value
