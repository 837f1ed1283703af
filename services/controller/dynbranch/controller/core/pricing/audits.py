"""Which refused work runs all the same: a seeded hash of branch and level, so that a replay agrees."""

from __future__ import annotations

import hashlib

from dynbranch.domain.ids import BranchId

OPENING = 0
FILLING = 1


def is_audited(seed: int, branch_id: BranchId, level: int, share: float) -> bool:
    digest = hashlib.blake2b(branch_id, key=seed.to_bytes(8, "big"), salt=bytes([level]), digest_size=8)
    return int.from_bytes(digest.digest(), "big") < share * 2.0**64
