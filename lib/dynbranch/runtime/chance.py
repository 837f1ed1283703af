"""Randomness of the outside world. A pure core gets it as an argument."""

from __future__ import annotations

import os

ID_BYTES = 16


def new_id(n: int = ID_BYTES) -> bytes:
    """``n`` bytes that nobody can guess: the id of a demand, a generation or a lease."""
    return os.urandom(n)
