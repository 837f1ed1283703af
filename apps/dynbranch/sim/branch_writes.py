"""A write that looks in steps for what it fells, and deletes that in slices, while others are answered."""

from __future__ import annotations

from dynbranch.csl.core.events import DeleteSlice, Moment, Write
from dynbranch.csl.core.store import Batch
from dynbranch.csl.key_value import MemoryKeyValue
from dynbranch.sim.branch_acts import must_hold
from dynbranch.sim.branch_parts import StoreSide

NODES = 1
"""Looked at in one step, and deleted in one slice: whatever is larger has fewer interleavings."""


def plan(side: StoreSide, write: Write, now: Moment) -> None:
    """Begin. The reverse index is read as it is now."""
    side.library.begin_write(write, side.rows, now)
    side.index = MemoryKeyValue()
    side.index.apply(Batch(dict(side.rows.scan(b""))))


def look_further(side: StoreSide) -> bool:
    """True: nothing was left to look at, and what was found has fallen."""
    library, index = side.library, side.index
    assert index is not None, "no write is under way"
    if not library.step_plan(side.rows, index, NODES):
        return False
    side.rows.apply(library.finish_plan(side.rows, index).batch)
    side.index = None
    must_hold(side)
    return True


def delete_slice(side: StoreSide) -> None:
    number = side.library.slices[0]
    side.rows.apply(side.library.delete_slice(DeleteSlice(number), side.rows).batch)
    side.library.slice_deleted(number)
    must_hold(side)
