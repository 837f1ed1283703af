"""One digest for everything about an executor that determines its output."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from functools import lru_cache

from dynbranch.domain.ids import Digest
from dynbranch.domain.reuse import Fingerprint

_LENGTH_BYTES = 8


@lru_cache(maxsize=256)
@lru_cache(maxsize=256)
def fingerprint_digest(fingerprint: Fingerprint) -> Digest:
    """Facts count as a set: the order in which an agent found them does not matter. The level is one of
    them."""
    facts = sorted(set(fingerprint.facts))
    texts = [fingerprint.level.value, *(text for fact in facts for text in fact)]
    return Digest(joined_digest(b"dynbranch/fingerprint/1", (text.encode() for text in texts)))


def joined_digest(domain: bytes, parts: Iterable[bytes]) -> bytes:
    """SHA-256 of parts with their lengths, so that no two lists of parts read alike, under a domain of its
    own."""
    digest = hashlib.sha256()
    for part in (domain, *parts):
        digest.update(len(part).to_bytes(_LENGTH_BYTES, "big"))
        digest.update(part)
    return digest.digest()
