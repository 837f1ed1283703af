"""A toy tokenizer and a toy chat template: deterministic, reversible, and nothing that a real model has.

A token is four bytes of UTF-8 (the last one of a text may be shorter). Its id is the little-endian number
of its bytes plus the number of all shorter tokens, so that every id has one text.
"""

from __future__ import annotations

import codecs
import json
from collections.abc import Hashable, Mapping, Sequence
from typing import Any

TOKEN_BYTES = 4
_FIRST_ID = (0, 0, 1 << 8, (1 << 8) + (1 << 16), (1 << 8) + (1 << 16) + (1 << 24))
TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n"
    "{{ message['content'] }}<|im_end|>\n{% endfor %}<|im_start|>assistant\n"
)
"""What a llama-server would show of ``render``; the calls and tools of a conversation are left out here."""


class UnknownToken(ValueError):
    """An id that no text has."""


def count_tokens(size_bytes: int) -> int:
    return -(-size_bytes // TOKEN_BYTES)


def encode(text: bytes) -> list[int]:
    return [
        int.from_bytes(piece, "little") + _FIRST_ID[len(piece)]
        for piece in (text[start : start + TOKEN_BYTES] for start in range(0, len(text), TOKEN_BYTES))
    ]


def decode(tokens: Sequence[int]) -> bytes:
    """Raises UnknownToken."""
    pieces = []
    for token in tokens:
        size = next((size for size in (4, 3, 2, 1) if token >= _FIRST_ID[size]), 0)
        value = token - _FIRST_ID[size]
        if not size or value >= 1 << (8 * size):
            raise UnknownToken(f"there is no token {token}")
        pieces.append(value.to_bytes(size, "little"))
    return b"".join(pieces)


def pieces(text: str) -> list[str]:
    """The text of each token. A character that a token cuts comes whole with its last byte."""
    if text.isascii():
        return [text[start : start + TOKEN_BYTES] for start in range(0, len(text), TOKEN_BYTES)]
    decoder = codecs.getincrementaldecoder("utf-8")("surrogatepass")
    source = text.encode("utf-8", "surrogatepass")
    return [
        decoder.decode(source[start : start + TOKEN_BYTES]) for start in range(0, len(source), TOKEN_BYTES)
    ]


def render(messages: Sequence[Mapping[str, Any]], tools: Any = None, *, open_answer: bool = True) -> str:
    """The prompt of a conversation. A list of text parts reads as the texts, one a line."""
    parts = []
    if tools:
        parts.append(f"<|im_start|>tools\n{_json(tools)}<|im_end|>\n")
    for message in messages:
        parts.append(f"<|im_start|>{message.get('role')}\n{_spoken(message)}<|im_end|>\n")
    if open_answer:
        parts.append("<|im_start|>assistant\n")
    return "".join(parts)


def content_text(content: Any) -> str:
    if isinstance(content, str):
        return content
    if content is None:
        return ""
    if isinstance(content, list):
        return "\n".join(
            part["text"] if isinstance(part, dict) and isinstance(part.get("text"), str) else _json(part)
            for part in content
        )
    return _json(content)


def _spoken(message: Mapping[str, Any]) -> str:
    text = content_text(message.get("content"))
    if len(message) > 2:
        for key in ("name", "tool_call_id", "reasoning_content", "tool_calls"):
            if message.get(key):
                text += f"\n<{key}>{_json(message[key])}"
    return text


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def prefix_blocks(text: bytes, block_tokens: int, salt: str) -> tuple[Hashable, ...]:
    """One value for each full block, which stands for everything before it, too."""
    if not block_tokens:
        return ()
    size = block_tokens * TOKEN_BYTES
    chain = hash(salt)
    blocks = []
    for start in range(0, len(text) - size + 1, size):
        chain = hash((chain, text[start : start + size]))
        blocks.append(chain)
    return tuple(blocks)
