"""The stored entry that is most like a request which is not stored, and what is different: the first question
of everyone who expected a hit."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Any, Final

from dynbranch.domain.engine import ModelDescription
from dynbranch.domain.errors import InvalidRequest
from dynbranch.domain.ids import Name
from dynbranch.domain.reuse import Inspection
from dynbranch.gateway.arrivals import Arrival
from dynbranch.gateway.core.recent_arrivals import RecentArrival, RecentArrivals, group_of
from dynbranch.gateway.desk import Desk
from dynbranch.naming.differences import Difference, Kind, differences
from dynbranch.naming.document import parse_body
from dynbranch.naming.normalise import normalise_chat

COMPARED: Final = 16
SHOWN: Final = 20

Inspect = Callable[[Name], Awaitable[Inspection]]


@dataclass(frozen=True, slots=True)
class Compared:
    other: RecentArrival
    found: tuple[Difference, ...]


async def nearest_stored(
    arrival: Arrival, own: Name, recent: RecentArrivals, desk: Desk, inspect: Inspect
) -> Compared | None:
    """Of those that this gateway was lately asked for, by the same workflow before others of its type."""
    stage = arrival.stage
    group = group_of(stage.sharing_group, stage.identity, stage.target)
    workflow = stage.identity.workflow_id
    others = [one for one in recent.of(group, workflow) if one.name != own]
    read = [await desk.read(one.body, partial(_compared, arrival, one)) for one in islice(others, COMPARED)]
    known = [one for one in read if one is not None]
    known.sort(key=lambda one: (one.other.workflow_id != workflow, len(one.found)))
    for one in known:
        if (await inspect(one.other.name)).entry is not None:
            return one
    return None


def as_json(compared: Compared | None, arrival: Arrival) -> dict[str, Any] | None:
    """Of another workflow's request only where it differs: of who tries text after text, the place of the
    first difference would be told the other's letter by letter."""
    if compared is None:
        return None
    other, found = compared.other, compared.found
    own = bool(other.workflow_id) and other.workflow_id == arrival.stage.identity.workflow_id
    return {
        "name": other.name.hex(),
        "workflow": other.workflow_id or None,
        "agent": other.agent_id or None,
        "same_workflow": own,
        "differences": [
            {
                "path": one.path,
                "kind": one.kind.value,
                "here": (one.here or None) if own else None,
                "there": (one.there or None) if own else None,
                "from_character": one.from_character if own else None,
            }
            for one in found[:SHOWN]
        ],
        "more": max(0, len(found) - SHOWN),
    }


def _compared(arrival: Arrival, other: RecentArrival) -> Compared | None:
    model = arrival.pool.executor
    assert isinstance(model, ModelDescription)
    try:
        request = normalise_chat(parse_body(other.body), model.equivalences, served_model=model.id)
    except InvalidRequest:
        return None
    found = differences(arrival.request.canonical, request.canonical)
    if other.fingerprint != arrival.pool.fingerprint:
        # The same engine that was restarted with other settings, or another one.
        engine = Difference(
            "fingerprint", Kind.CHANGED, arrival.pool.fingerprint.hex(), other.fingerprint.hex()
        )
        found = (engine, *found)
    return Compared(other, found)
