"""Where a JSON object ends that comes in pieces."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

_IN_TEXT: Final = re.compile(r'["\\]')
_OUTSIDE: Final = re.compile(r'["{}\[\]]')


@dataclass(slots=True)
class ObjectEnd:
    """``ended``: the object is whole. What is no object has no end."""

    ended: bool = False
    _depth: int = 0
    _begun: bool = False
    _is_object: bool = False
    _in_text: bool = False
    _escaped: bool = False

    def up_to(self, piece: str) -> str:
        """As much of the next piece as stands before the end."""
        if self.ended:
            return ""
        if not self._begun:
            bare = piece.lstrip()
            self._begun, self._is_object = bool(bare), bare.startswith("{")
        if not self._is_object:
            return piece
        at = 1 if self._escaped and piece else 0
        self._escaped = self._escaped and not piece
        while found := (_IN_TEXT if self._in_text else _OUTSIDE).search(piece, at):
            at = found.end()
            match found[0]:
                case '"':
                    self._in_text = not self._in_text
                case "\\":
                    self._escaped = at == len(piece)
                    at += 1
                case "{" | "[":
                    self._depth += 1
                case _:
                    self._depth -= 1
            if not self._depth:
                self.ended = True
                return piece[:at]
        return piece
