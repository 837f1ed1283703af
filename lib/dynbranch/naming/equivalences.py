"""Spellings that render alike for some models, and the requests by which an engine shows that for its own.

An equivalence is applied only where a start-up probe rendered both requests of each of its pairs to equal
prompts.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from dynbranch.naming.document import Json
from dynbranch.naming.fields import CHAT, MESSAGE, PART, FieldClass, ObjectTable

SINGLE_TEXT_BLOCK: Final = "single_text_block_is_string"
"""The content ``[{"type": "text", "text": X}]`` renders like ``X``. Not for an empty X, and not for a last
message of the assistant's: engines take that one for the beginning of the answer, and treat an empty string
there in their own way."""

_TEMPLATE_FIELDS: Final = frozenset(
    {
        "add_generation_prompt",
        "chat_template",
        "chat_template_kwargs",
        "continue_final_message",
        "documents",
        "functions",
        "reasoning",
        "reasoning_effort",
        "tool_choice",
    }
)
"""Beside messages and tools, what chat templates are given. No probe covers it."""

_ROLES: Final = frozenset({"system", "user", "assistant"})


@dataclass(frozen=True, slots=True)
class ProbePair:
    """Two message lists that must render to equal prompts for ``equivalence`` to hold."""

    equivalence: str
    tools: bool
    """Whether the request offers a tool: templates often take another turn then."""
    first: tuple[dict[str, Json], ...]
    second: tuple[dict[str, Json], ...]


def probe_pairs() -> tuple[ProbePair, ...]:
    """Every role that the equivalence is applied to, in the middle and at the end; texts with blanks at their
    edges."""
    closing: dict[str, Json] = {"role": "user", "content": "And then?"}
    pairs = []
    for role in sorted(_ROLES):
        for text in ("One word", " a text\nwith edges \n"):
            plain: dict[str, Json] = {"role": role, "content": text}
            opening: dict[str, Json] = {"role": "user", "content": "Begin."}
            block: dict[str, Json] = {**plain, "content": [{"type": "text", "text": text}]}
            before = () if role == "system" else (opening,)
            ends: tuple[tuple[dict[str, Json], ...], ...] = (
                ((closing,), ()) if role == "user" else ((closing,),)
            )
            pairs += [
                ProbePair(SINGLE_TEXT_BLOCK, tools, (*before, plain, *end), (*before, block, *end))
                for end in ends
                for tools in (False, True)
            ]
    return tuple(pairs)


def with_plain_texts(body: dict[str, Json], messages: list[dict[str, Json]]) -> list[Json]:
    """The messages with single text blocks as strings, where SINGLE_TEXT_BLOCK says so.

    Only conversations of a probed shape are touched: plain messages, and nothing else in the request that a
    template could look at.
    """
    if not _TEMPLATE_FIELDS.isdisjoint(body) or not all(map(_is_probed, messages)) or _has_unknown(body):
        return list(messages)
    return [_plain(message, last=number == len(messages)) for number, message in enumerate(messages, 1)]


def _is_probed(message: dict[str, Json]) -> bool:
    determining = _determining(message, MESSAGE)
    return message.get("role") in _ROLES and determining == {"role", "content"}


def _has_unknown(body: dict[str, Json]) -> bool:
    return any(name not in CHAT.fields for name in body)


def _determining(value: dict[str, Json], table: ObjectTable) -> set[str]:
    fields = table.fields
    return {key for key in value if key not in fields or fields[key].field_class is FieldClass.DETERMINES}


def _plain(message: dict[str, Json], *, last: bool) -> Json:
    if last and message["role"] == "assistant":
        return message
    match message.get("content"):
        case [dict() as part] if _is_bare_text(part):
            return {**message, "content": part["text"]}
        case _:
            return message


def _is_bare_text(part: dict[str, Json]) -> bool:
    """A text, not empty, beside which nothing determines."""
    if part.get("type") != "text" or not part.get("text"):
        return False
    return _determining(part, PART) == {"type", "text"}
