"""The reuse name: H(sharing group ‖ stage fingerprint ‖ the request as the engine will receive it)."""

from __future__ import annotations

from dynbranch.domain.ids import Digest, Name
from dynbranch.naming.fingerprint import joined_digest


def reuse_name(group: str, fingerprint: Digest, canonical: bytes) -> Name:
    """Equal names authorise reuse, so nothing that could change the result may be missing from the
    arguments."""
    return Name(joined_digest(b"dynbranch/name/1", (group.encode(), fingerprint, canonical)))
