"""The pool of a request, by the rule that the controller follows too: see ``naming.pool``."""

from __future__ import annotations

from dynbranch.naming.pool import (
    Executor,
    Member,
    NoPool,
    Offer,
    Pool,
    calmest_first,
    choose_member,
    choose_pool,
    names_of,
)

__all__ = [
    "Executor",
    "Member",
    "NoPool",
    "Offer",
    "Pool",
    "calmest_first",
    "choose_member",
    "choose_pool",
    "names_of",
]
