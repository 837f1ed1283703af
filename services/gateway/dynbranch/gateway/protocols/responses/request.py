"""A Responses request as the Chat Completions request that its engine receives, and what of it its answer
repeats."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from dynbranch.gateway.protocols.parts import streaming
from dynbranch.gateway.protocols.refusal import (
    beyond,
    is_positive,
    only,
    text_at,
    unserved,
    wrong_type,
    wrong_value,
)
from dynbranch.gateway.protocols.responses.continuing import unknown_response
from dynbranch.gateway.protocols.responses.conversation import chat_messages
from dynbranch.gateway.protocols.responses.tools import chosen_tool, offered_tools
from dynbranch.naming.document import Document, Json, Number, emit, parse_body

IDENTITY: Final = frozenset(
    {
        "access_programs",
        "client_metadata",
        "max_tool_calls",
        "prompt_cache_key",
        "prompt_cache_options",
        "prompt_cache_retention",
        "safety_identifier",
        "service_tier",
    }
)
"""Who asks, who pays and how soon, and a bound on tools that do not run here: nothing of it reaches a
model."""

UNSERVED: Final = {
    "background": "an answer goes to who asks for it",
    "background_options": "an answer goes to who asks for it",
    "context_management": "conversations are not shortened here",
    "conversation": "conversations are not kept here",
    "image": "pictures are not made here",
    "moderation": "nobody judges requests here",
    "prompt": "prompts are not kept here",
}
"""Promises that nobody here could keep. Null, false, and an empty list, ask for nothing."""

TRANSLATED: Final = frozenset(
    {
        "include",
        "input",
        "instructions",
        "max_output_tokens",
        "metadata",
        "model",
        "parallel_tool_calls",
        "previous_response_id",
        "reasoning",
        "store",
        "stream",
        "stream_options",
        "temperature",
        "text",
        "tool_choice",
        "tools",
        "top_logprobs",
        "top_p",
        "truncation",
        "user",
    }
)

_SAID_OTHERWISE: Final = frozenset(
    {
        "audio",
        "echo",
        "function_call",
        "functions",
        "logprobs",
        "max_completion_tokens",
        "max_tokens",
        "messages",
        "modalities",
        "n",
        "prompt_logprobs",
        "reasoning_effort",
        "response_format",
        "verbosity",
    }
)
"""Fields of Chat Completions that Responses has its own word for, or whose answer it can not hold."""

SEALED: Final = "reasoning.encrypted_content"
_AS_SENT: Final = ("temperature", "top_p", "parallel_tool_calls", "metadata", "user")
_EFFORTS: Final = {"xhigh": "high", "max": "high"}


@dataclass(frozen=True, slots=True)
class Repeated:
    """What an answer says of its request. ``fields`` are members of a JSON object. ``namespaced``: the
    namespace and the name of tools by the name that the engine knows. ``seals``: reasoning is also given in
    a form that comes back."""

    fields: bytes
    namespaced: Mapping[str, tuple[str, str]]
    left_out: tuple[str, ...]
    seals: bool


@dataclass(frozen=True, slots=True)
class AskedResponse(Document):
    """``keeps``: a later request may go on from the answer; ``asked`` and ``earlier`` are what it would need:
    the body as it came, and the conversation before it."""

    repeated: Repeated
    keeps: bool = False
    asked: bytes = b""
    earlier: bytes = b""


def read_responses(body: bytes, earlier: bytes = b"") -> AskedResponse:
    """The request as Chat Completions. ``earlier`` are the items that it goes on from, a JSON array. Raises
    InvalidRequest with the path of the Responses field in ``facts["param"]``."""
    asked = parse_body(body).value
    if not isinstance(asked, dict):
        raise wrong_type("body", "an object", asked)
    _check(asked)
    before = _before(asked, earlier)
    offered = offered_tools(asked.get("tools"))
    chat: dict[str, Json] = {
        "model": text_at(asked, "model", ""),
        "messages": chat_messages(asked.get("instructions"), asked.get("input"), before),
    }
    _add_length(chat, asked)
    for name in _AS_SENT:
        if asked.get(name) is not None:
            chat[name] = asked[name]
    if offered.functions:
        chat["tools"] = offered.functions
    choice = chosen_tool(asked.get("tool_choice"))
    if choice is not None:
        chat["tool_choice"] = choice
    _add_output(chat, asked)
    _add_reasoning(chat, asked.get("reasoning"))
    # Whatever is not known goes on under its own name.
    chat.update(beyond(asked, TRANSLATED | IDENTITY | UNSERVED.keys() | _SAID_OTHERWISE))
    chat |= streaming(asked.get("stream"))
    repeated = Repeated(
        fields=_fields(asked),
        namespaced=offered.namespaced,
        left_out=tuple(dict.fromkeys(offered.left_out)),
        seals=_seals(asked.get("include")),
    )
    return AskedResponse(
        emit(chat).encode(),
        chat,
        repeated,
        keeps=_keeps(asked.get("store")),
        asked=body,
        earlier=earlier or b"[]",
    )


def _check(asked: dict[str, Json]) -> None:
    for name, why in UNSERVED.items():
        if asked.get(name) not in (None, False, []):
            raise unserved(name, why)
    for name in asked.keys() & _SAID_OTHERWISE:
        if asked[name] is not None:
            raise unserved(name, "it is a field of Chat Completions")
    if asked.get("truncation") not in (None, "disabled"):
        raise unserved("truncation", "nothing of a request is left out")
    match asked.get("top_logprobs"):
        case None | Number("0"):
            pass
        case _:
            raise unserved("top_logprobs", "probabilities of tokens are not told")


def _before(asked: dict[str, Json], earlier: bytes) -> list[Json]:
    previous = asked.get("previous_response_id")
    if previous is None:
        return []
    if not isinstance(previous, str):
        raise wrong_type("previous_response_id", "a string", previous)
    items = parse_body(earlier).value if earlier else None
    if not isinstance(items, list):
        raise unknown_response(previous)
    return items


def _keeps(store: Json) -> bool:
    match store:
        case None | True:
            return True
        case False:
            return False
        case other:
            raise wrong_type("store", "a boolean", other)


def _add_length(chat: dict[str, Json], asked: dict[str, Json]) -> None:
    length = asked.get("max_output_tokens")
    if length is None:
        return
    if not is_positive(length):
        raise wrong_value("max_output_tokens", "expected an integer of at least 1")
    chat["max_tokens"] = length


def _seals(include: Json) -> bool:
    if include is None:
        return False
    if not isinstance(include, list):
        raise wrong_type("include", "an array of strings", include)
    for index, wanted in enumerate(include):
        if wanted != SEALED:
            named = f"{wanted[:80]!r}" if isinstance(wanted, str) else "this"
            raise unserved(f"include[{index}]", f"{named} is not known here")
    return bool(include)


# -- how the model is to think and to write ----------------------------------------------------------------


def _add_output(chat: dict[str, Json], asked: dict[str, Json]) -> None:
    text = asked.get("text")
    if text is None:
        return
    if not isinstance(text, dict):
        raise wrong_type("text", "an object", text)
    only(text, frozenset({"format", "verbosity"}), "text")
    if text.get("verbosity") is not None:
        chat["verbosity"] = text_at(text, "verbosity", "text")
    wanted = text.get("format")
    if wanted is not None:
        chat |= _format(wanted)


def _format(wanted: Json) -> dict[str, Json]:
    match wanted:
        case {"type": "text"}:
            return {}
        case {"type": "json_object"}:
            return {"response_format": {"type": "json_object"}}
        case dict() if wanted.get("type") == "json_schema":
            text_at(wanted, "name", "text.format")
            if not isinstance(wanted.get("schema"), dict):
                raise wrong_type("text.format.schema", "an object", wanted.get("schema"))
            schema: Json = beyond(wanted, frozenset({"type"}))
            return {"response_format": {"type": "json_schema", "json_schema": schema}}
        case _:
            raise wrong_value("text.format", "expected a type text, json_object or json_schema")


def _add_reasoning(chat: dict[str, Json], reasoning: Json) -> None:
    """Summaries are not made: reasoning is told as the model wrote it."""
    if reasoning is None:
        return
    if not isinstance(reasoning, dict):
        raise wrong_type("reasoning", "an object", reasoning)
    if reasoning.get("context") not in (None, "auto", "all_turns"):
        raise unserved("reasoning.context", "what of the conversation a model sees is its template's to say")
    if reasoning.get("mode") not in (None, "standard"):
        raise unserved("reasoning.mode", "engines have one way to reason")
    known = frozenset({"effort", "summary", "generate_summary", "context", "mode"})
    only(reasoning, known, "reasoning")
    if reasoning.get("effort") is not None:
        effort = text_at(reasoning, "effort", "reasoning")
        chat["reasoning_effort"] = _EFFORTS.get(effort, effort)


# -- what the answer repeats -------------------------------------------------------------------------------

_REPEATED: Final[dict[str, Json]] = {
    "background": False,
    "frequency_penalty": None,
    "instructions": None,
    "max_output_tokens": None,
    "max_tool_calls": None,
    "metadata": {},
    "parallel_tool_calls": True,
    "presence_penalty": None,
    "previous_response_id": None,
    "prompt_cache_key": None,
    "reasoning": {"effort": None, "summary": None},
    "safety_identifier": None,
    "service_tier": "default",
    "temperature": None,
    "text": {"format": {"type": "text"}},
    "tool_choice": "auto",
    "tools": [],
    "top_logprobs": Number("0"),
    "top_p": None,
    "truncation": "disabled",
    "user": None,
}
"""What stands where the request is silent. What the engine would then take is not known here, and null."""


def _fields(asked: dict[str, Json]) -> bytes:
    said = {
        name: asked[name] if asked.get(name) is not None else silent for name, silent in _REPEATED.items()
    }
    # Whatever was asked. What is kept is said where that is known.
    said["service_tier"] = "default"
    return emit(said)[1:-1].encode()
