"""Chunks that say nothing but one more piece of text.

Engines stream thousands of them that differ in that piece alone. One is parsed; the others are recognised by
the bytes around the piece, and a JSON text between the same bytes is the same chunk with another piece.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any, Final

_OPENING: Final = b'"content":'
_PIECE: Final = re.compile(
    rb'[^"\\\x00-\x1f]*+(?:\\(?:["\\/bfnrt]|u(?![dD][89a-fA-F])[0-9a-fA-F]{4})[^"\\\x00-\x1f]*+)*+'
)
"""What may stand between the quotes of a JSON text. Halves of surrogate pairs are left to a parser: two
pieces may hold one each."""

_PLAIN: Final = re.compile(rb"[^\\\x00-\x1f\x7f-\xff]*+")
"""Printable ASCII without an escape."""

_BESIDE: Final = frozenset({"content", "role"})
_BESIDE_DELTA: Final = frozenset({"index", "delta"})


class TextPieces:
    """Learns from chunks that were parsed, one at a time."""

    __slots__ = ("_after", "_before", "choice")

    def __init__(self) -> None:
        self._before = b""
        self._after = b""
        self.choice = 0
        """The index of the choice that what was learned belongs to."""

    def piece_of(self, chunk: bytes) -> bytes | None:
        """The text as it is spelled in JSON, without its quotes; None for a chunk that must be parsed."""
        before, after = self._before, self._after
        if not before or not chunk.startswith(before) or not chunk.endswith(after):
            return None
        start, end = len(before), len(chunk) - len(after)
        if start > end or _PIECE.fullmatch(chunk, start, end) is None:
            return None
        piece = chunk[start:end]
        return piece if piece.isascii() or _is_utf8(piece) else None

    def is_alike(self, chunk: bytes) -> bool:
        """Whether it may be a chunk that says another piece: ``text_of`` looks at what stands between."""
        before = self._before
        return bool(before) and chunk.startswith(before) and chunk.endswith(self._after)

    def text_of(self, chunks: Sequence[bytes]) -> str | None:
        """What alike chunks say together; None if one of them must be parsed after all."""
        start, after = len(self._before), len(self._after)
        if min(map(len, chunks)) < start + after:
            return None
        pieces = [chunk[start:-after] for chunk in chunks]
        # A quote is no part of a piece: where there is no escape either, all may be looked at together.
        marked = b'"'.join(pieces)
        if _PLAIN.fullmatch(marked) is not None and marked.count(b'"') == len(pieces) - 1:
            return b"".join(pieces).decode()
        if any(self.piece_of(chunk) is None for chunk in chunks):
            return None
        text: str = json.loads(b'"' + b"".join(pieces) + b'"')
        return text

    def learn(self, chunk: bytes, parsed: dict[str, Any]) -> None:
        """``parsed`` is the chunk's value. What was learned before is gone.

        Whatever else a chunk says is said again by every chunk like it, so one that says more than a piece of
        one choice's text teaches nothing.
        """
        self._before = b""
        if chunk.count(_OPENING) != 1 or (found := _only_text(parsed)) is None:
            return
        self.choice, text = found
        start = chunk.index(_OPENING) + len(_OPENING)
        while chunk[start : start + 1] == b" ":
            start += 1
        match = _PIECE.match(chunk, start + 1)
        if chunk[start : start + 1] != b'"' or match is None or chunk[match.end() : match.end() + 1] != b'"':
            return
        before, after = chunk[: start + 1], chunk[match.end() :]
        # With an escape in it, a key could be spelled in a way that was not looked for.
        piece = chunk[start + 1 : match.end()]
        around = before + after
        # Of a line break between tokens a stream would make two lines.
        if b"\\" in around or b"\n" in around or b"\r" in around:
            return
        if piece == text.encode("utf-8", "replace") or json.loads(b'"' + piece + b'"') == text:
            self._before, self._after = before, after


def _only_text(parsed: dict[str, Any]) -> tuple[int, str] | None:
    """The choice and its piece."""
    choices = parsed.get("choices")
    if not isinstance(choices, list) or len(choices) != 1 or parsed.get("usage") is not None:
        return None
    (choice,) = choices
    if not isinstance(choice, dict) or not isinstance(choice.get("delta"), dict):
        return None
    delta, index = choice["delta"], choice.get("index", 0)
    text = delta.get("content")
    if not isinstance(text, str) or not text or type(index) is not int:
        # The first chunk of a choice says an empty text, and no other is like it.
        return None
    for key, value in choice.items():
        if value is not None and key not in _BESIDE_DELTA:
            return None
    for key, value in delta.items():
        if value is not None and key not in _BESIDE:
            return None
    return None if delta.get("role") not in (None, "assistant") else (index, text)


def _is_utf8(piece: bytes) -> bool:
    try:
        piece.decode()
    except UnicodeDecodeError:
        return False
    return True
