"""Spellings that render alike for some models, and the requests by which an engine shows that for its own.

An equivalence is applied only where a start-up probe rendered both requests of each of its pairs to equal
prompts.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from dynbranch.naming.document import Json
from dynbranch.naming.fields import PART, FieldClass

SINGLE_TEXT_BLOCK: Final = "single_text_block_is_string"
"""The content ``[{"type": "text", "text": X}]`` renders like ``X``. Not for an empty X, and not for a last
message of the assistant's: engines take that one for the beginning of the answer, and treat an empty string
there in their own way."""

_ROLES: Final = frozenset({"system", "user", "assistant"})


@dataclass(frozen=True, slots=True)
class ProbePair:
    """Two message lists that must render to equal prompts for ``equivalence`` to hold."""

    equivalence: str
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
            pairs.append(ProbePair(SINGLE_TEXT_BLOCK, (*before, plain, closing), (*before, block, closing)))
            if role == "user":
                pairs.append(ProbePair(SINGLE_TEXT_BLOCK, (*before, plain), (*before, block)))
    return tuple(pairs)


def with_plain_texts(messages: list[Json]) -> list[Json]:
    """The messages with single text blocks as strings, where SINGLE_TEXT_BLOCK says so."""
    return [_plain(message, last=number == len(messages)) for number, message in enumerate(messages, 1)]


def _plain(message: Json, *, last: bool) -> Json:
    if not isinstance(message, dict) or message.get("role") not in _ROLES:
        return message
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
    determining = {
        key for key in part if key not in PART.fields or PART.fields[key].field_class is FieldClass.DETERMINES
    }
    return determining == {"type", "text"}
