"""The beginnings of a prompt, as chained digests of its blocks, to tell which engine has read them before.

The blocks are of the request's own text in the order in which chat templates render it: tools, instructions,
then each message. They need not be the engine's blocks: prompts that begin alike here begin alike there.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass

from dynbranch.naming.document import Json, Number

BLOCK_BYTES = 256
"""About 64 tokens: four blocks of an engine's prefix cache."""

MAX_BLOCKS = 4096
"""A megabyte of prompt. What follows goes wherever its beginning goes."""

BYTES_PER_TOKEN = 4
"""Of English text, about. It only says how much an engine is taken to hold."""

_INSTRUCTIONS = frozenset({"system", "developer"})
KEY_BYTES = 8
_KEYED_BYTES = 8192
"""How much of a text a key is made of: a key only spreads, and need not tell everything apart."""


@dataclass(frozen=True, slots=True)
class PromptPrefix:
    """``blocks[i]`` stands for the first ``i + 1`` blocks, in this process only. ``family`` stands for what
    many prompts share (tools and instructions, where they fill a block), ``opening`` for that and the first
    message, which a conversation keeps: both are the same in every gateway."""

    blocks: tuple[int, ...] = ()
    family: bytes = b""
    opening: bytes = b""

    @property
    def hint(self) -> bytes:
        """What gateways tell one another of it, by way of the engine's agent."""
        return self.family + self.opening


def read_hint(hint: bytes) -> tuple[bytes, bytes] | None:
    """Family and opening. None: it is not one of ours."""
    return (hint[:KEY_BYTES], hint[KEY_BYTES:]) if len(hint) == 2 * KEY_BYTES else None


NO_PREFIX = PromptPrefix()
"""Of a request that no engine's prefix cache helps: a tool's call."""


def prompt_prefix(body: Json, salt: str) -> PromptPrefix:
    """Of a Chat Completions body. Prompts of different ``salt`` share nothing."""
    match body:
        case {"messages": [*messages]}:
            texts = [_spelled(message) for message in messages]
            instructions = _leading_instructions(messages)
        case _:
            return NO_PREFIX
    tools = body.get("tools") if isinstance(body, dict) else None
    head = [salt, _json(tools) if tools else "", *texts[:instructions]]
    return prefix_of(head, texts[instructions:])


def prefix_of(head: Sequence[str], messages: Sequence[str]) -> PromptPrefix:
    """``head`` is what stands before the conversation itself."""
    begin = _bytes("\x00".join(head))
    family = hashlib.blake2b(begin[:_KEYED_BYTES], digest_size=KEY_BYTES)
    opening = family.copy()
    if messages:
        opening.update(b"\x01" + _bytes(messages[0][:_KEYED_BYTES]))
    text = b"\x01".join((begin, *map(_bytes, messages)))
    shared = family if len(begin) >= BLOCK_BYTES else opening
    return PromptPrefix(_chained(text), shared.digest(), opening.digest())


def blocks_of_tokens(tokens: int) -> int:
    return max(1, tokens * BYTES_PER_TOKEN // BLOCK_BYTES)


def _chained(text: bytes) -> tuple[int, ...]:
    """Whole blocks only. Python's own keyed hash has 64 bits, can not be steered by who does not know its
    key, and costs a fraction of a cryptographic one."""
    blocks = []
    chain = 0
    for end in range(BLOCK_BYTES, min(len(text), MAX_BLOCKS * BLOCK_BYTES) + 1, BLOCK_BYTES):
        chain = hash((chain, text[end - BLOCK_BYTES : end]))
        blocks.append(chain)
    return tuple(blocks)


def _leading_instructions(messages: Sequence[Json]) -> int:
    for index, message in enumerate(messages):
        if not isinstance(message, dict) or message.get("role") not in _INSTRUCTIONS:
            return index
    return len(messages)


def _spelled(message: Json) -> str:
    """Any one spelling that tells messages apart."""
    match message:
        case {"role": str() as role, "content": str() as content, **beside}:
            return f"{role}\x00{content}\x00{_json(beside)}" if beside else f"{role}\x00{content}"
        case _:
            return _json(message)


def _number(value: object) -> str:
    assert isinstance(value, Number)
    return value.text


_json = json.JSONEncoder(
    ensure_ascii=False, check_circular=False, separators=(",", ":"), default=_number
).encode


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")
