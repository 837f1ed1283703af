"""What is done to one core of a world with a branch, and what its shells hold, in short."""

from __future__ import annotations

import marshal
from dataclasses import replace
from enum import Enum
from typing import Any

from dynbranch.controller.core.branches.book import BranchBook
from dynbranch.controller.core.branches.messages import Effect as BookEffect
from dynbranch.controller.core.branches.messages import Event as BookEvent
from dynbranch.controller.core.branches.messages import StageKey
from dynbranch.csl.core import consistency, founding
from dynbranch.csl.core.events import DeleteSlice, Moment
from dynbranch.csl.core.events import Event as StoreEvent
from dynbranch.csl.core.heat import Heat
from dynbranch.csl.core.limits import Limits
from dynbranch.csl.key_value import MemoryKeyValue
from dynbranch.domain.engine import GenerationEnd
from dynbranch.domain.errors import NotFound
from dynbranch.domain.fills import Settlement
from dynbranch.domain.ids import GenerationId, Instant
from dynbranch.engine_agent.core import messages as agent
from dynbranch.engine_agent.core.registry import Registry
from dynbranch.sim.branch_cast import LEASE_S, BranchCores, Discarding, Ids, Request, Work
from dynbranch.sim.branch_parts import Part, StoreSide
from dynbranch.sim.fingerprint import digest_of

LEASE_MS = round(LEASE_S * 1000)


class Broken(AssertionError):
    """A promise that did not hold. ``promise`` names it."""

    def __init__(self, promise: str, what: str) -> None:
        super().__init__(f"{promise}: {what}")
        self.promise = promise


def store_side(cores: BranchCores, *, sliced: bool = False) -> StoreSide:
    ids, rows = Ids(), MemoryKeyValue()
    rows.apply(founding.found(1))
    limits = Limits(lease_ttl_ms=LEASE_MS, max_lease_ttl_ms=LEASE_MS, max_shadow_ttl_ms=LEASE_MS)
    if sliced:
        limits = replace(limits, slice_nodes=1)
    library = cores.library(limits=limits, new_id=ids, view=rows)
    # Nothing is evicted for want of room here, and every state holds the whole of it.
    library.memory.heat = Heat(bits=2)
    return StoreSide(library, rows, ids, sliced)


def settlement_in(side: StoreSide, number: int) -> Settlement:
    """As it is told, but for its number: only the store goes by it."""
    found = side.library.settlements(side.rows, after=0, at_most=1000)
    return replace(next(one for one in found if one.number == number), number=0)


def past_key(row: Settlement, past: dict[str, Settlement]) -> str:
    """Raises Broken when it came before."""
    key = f"{row.origin.fill_id.hex()}.{row.origin.stage} {row.kind.value}"
    if key in past:
        raise Broken("I4", f"settled twice: {key}")
    return key


def heard(book: BranchBook, event: BookEvent, now: Instant) -> tuple[BookEffect, ...]:
    effects = book.handle(event, now)
    book.validate_state()
    return tuple(effects)


def asked(side: StoreSide, event: StoreEvent, now: Moment, step: str, made: int) -> tuple[object, int]:
    library, rows = side.library, side.rows
    side.ids.step, side.ids.made = step, made
    decision = library.handle(event, rows, now)
    rows.apply(decision.batch)
    for number in () if side.sliced else library.slices:
        rows.apply(library.delete_slice(DeleteSlice(number), rows).batch)
        library.slice_deleted(number)
    must_hold(side)
    return decision.reply, side.ids.made


def must_hold(side: StoreSide) -> None:
    """Raises Broken."""
    found = [*consistency.violations(side.rows), *side.library.violations(side.rows)]
    if found:
        raise Broken("store", "; ".join(found))


def worked(
    registry: Registry, event: agent.Event, now: Instant
) -> tuple[tuple[agent.Effect, ...], dict[GenerationId, GenerationEnd]] | NotFound:
    try:
        effects = registry.handle(event, now)
    except NotFound as unknown:
        return unknown
    registry.validate_state()
    ends = {one: known.end for one, known in registry.generations.items() if known.end is not None}
    return tuple(effects), ends


def form_of(value: Any, told: dict[int, tuple[object, bytes]]) -> Any:
    """Nested tuples of plain values. Messages last as long as the exploration: each is looked at once."""
    match value:
        case Enum():
            return value.value
        case str() | bytes() | int() | float() | None:
            return value
        case Part():
            return value.number
        case StageKey():
            return (value.fill_id, value.number)
        case dict():
            pairs = [(form_of(key, told), form_of(one, told)) for key, one in value.items()]
            return sorted([marshal.dumps(pair, 2) for pair in pairs])
        case set() | frozenset():
            return sorted([marshal.dumps(form_of(one, told), 2) for one in value])
        case list() | tuple():
            return [form_of(one, told) for one in value]
        case Work() | Discarding() | Request():
            return [form_of(getattr(value, name), told) for name in value.__slots__]
        case _:
            known = told.get(id(value))
            if known is None:
                known = told[id(value)] = (value, digest_of(value))
            return known[1]
