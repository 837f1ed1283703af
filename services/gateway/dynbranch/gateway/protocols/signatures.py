"""Signatures of thinking, which harnesses give back with it and may not read.

Thinking that is shown needs no secret: its signature is a digest. Thinking that the harness asked not to be
shown, or may not send back in the clear, travels in its signature, so that the model meets it again in the
next turn.
"""

from __future__ import annotations

import base64
import hashlib
from typing import Final

_SHOWN: Final = "dynbranch.1."
_HELD: Final = "dynbranch.held.1."


class GrowingSignature:
    """Of thinking that is still being written."""

    def __init__(self, *, holds_text: bool) -> None:
        self._digest = hashlib.sha256(b"dynbranch/thinking/1")
        self._held: list[str] | None = [] if holds_text else None

    def add(self, text: str) -> None:
        if self._held is not None:
            self._held.append(text)
        else:
            self._digest.update(text.encode("utf-8", "replace"))

    def text(self) -> str:
        if self._held is not None:
            held = "".join(self._held).encode("utf-8", "replace")
            return _HELD + base64.b64encode(held).decode()
        return _SHOWN + base64.b64encode(self._digest.digest()).decode()


def thinking_in(shown: str, signature: str) -> str:
    """The thinking of a block that came back. Signatures of others' making hold nothing for us."""
    if shown or not signature.startswith(_HELD):
        return shown
    try:
        return base64.b64decode(signature.removeprefix(_HELD), validate=True).decode()
    except ValueError:
        return shown
