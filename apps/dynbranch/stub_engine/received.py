"""What a stub engine remembers of the requests it got."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any

from dynbranch.stub_engine.generation import Ending, Generation

_KEPT_BODY_BYTES = 256 * 1024


@dataclass(slots=True)
class Received:
    """One request. ``body`` is empty when it was very large; its digest is of the whole."""

    number: int
    at: float
    path: str
    raw_headers: list[tuple[bytes, bytes]]
    body: bytes
    size_bytes: int
    generation: Generation | None = None
    error: str = ""
    _large_digest: str = ""

    @classmethod
    def of(
        cls, number: int, at: float, path: str, headers: list[tuple[bytes, bytes]], body: bytes
    ) -> Received:
        if len(body) <= _KEPT_BODY_BYTES:
            return cls(number, at, path, headers, body, len(body))
        return cls(number, at, path, headers, b"", len(body), _large_digest=hashlib.sha256(body).hexdigest())

    @property
    def headers(self) -> dict[str, str]:
        """By lower-case name; of a name that came several times, the last."""
        return {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in self.raw_headers}

    @property
    def digest(self) -> str:
        return self._large_digest or hashlib.sha256(self.body).hexdigest()

    @property
    def ending(self) -> Ending:
        return self.generation.ending if self.generation else Ending.REFUSED

    def as_json(self) -> dict[str, Any]:
        found: dict[str, Any] = {
            "number": self.number,
            "at_s": round(self.at, 6),
            "path": self.path,
            "body_sha256": self.digest,
            "body_bytes": self.size_bytes,
            "ending": self.ending.value,
        }
        if self.error:
            found["error"] = self.error
        if generation := self.generation:
            found |= {
                "id": generation.shape.id,
                "prompt_tokens": generation.prompt_tokens,
                "prefix_hit_tokens": generation.hit_tokens,
                "output_tokens": generation.sent_tokens,
                "output_planned_tokens": generation.answer.tokens,
            }
        return found
