"""A response that later requests may go on from: what is kept of it, and under which name.

Nobody but its owner can name it: the name covers the tenant and the key, and the key itself is not kept.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from dynbranch.domain.ids import Name, RecordId
from dynbranch.naming.fingerprint import joined_digest

MAX_KEPT_BYTES: Final = 4 * 2**20
"""Of one response with all of its conversation; a longer one is not kept. So no chain grows for ever."""

SOURCE: Final = "dynbranch.responses"
"""Of the records that kept responses hang on: to delete one is to write its record."""

_LENGTH_BYTES: Final = 4


@dataclass(frozen=True, slots=True)
class Owner:
    """``key`` is what the request was authorised by; empty where it was by nothing."""

    tenant: str
    key: str = ""


@dataclass(frozen=True, slots=True)
class KeptResponse:
    """JSON texts. ``earlier`` is an array of the items before the request's own, ``asked`` the request as it
    came, ``answered`` the response."""

    earlier: bytes
    asked: bytes
    answered: bytes

    @property
    def size(self) -> int:
        return len(self.earlier) + len(self.asked) + len(self.answered)

    def encoded(self) -> bytes:
        parts = (self.earlier, self.asked, self.answered)
        return b"".join(len(part).to_bytes(_LENGTH_BYTES, "big") + part for part in parts)


def decoded(payload: bytes) -> KeptResponse | None:
    """None: it is no such record."""
    parts: list[bytes] = []
    at = 0
    while at < len(payload) and len(parts) < 3:
        begin = at + _LENGTH_BYTES
        at = begin + int.from_bytes(payload[at:begin], "big")
        parts.append(payload[begin:at])
    return KeptResponse(*parts) if len(parts) == 3 and at == len(payload) else None


def name_of(owner: Owner, response_id: str) -> Name:
    parts = (owner.tenant, owner.key, response_id)
    return Name(
        joined_digest(b"dynbranch/kept-response/1", (part.encode("utf-8", "replace") for part in parts))
    )


def record_of(name: Name) -> RecordId:
    return RecordId(f"{SOURCE}/{name.hex()}")
