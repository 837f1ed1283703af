"""The requests that were lately asked for by name, so that 'explain' can say what a new one has different.

Bounded in bytes and in number. Only a reference to a request's body is kept, and nothing is computed before
somebody asks: the way of a request pays one entry in a table.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from dynbranch.domain.ids import Digest, Name
from dynbranch.domain.reuse import Identity

MAX_BYTES: Final = 32 * 2**20
MAX_GROUPS: Final = 1024
MAX_OF_A_GROUP: Final = 64


@dataclass(frozen=True, slots=True)
class Group:
    """Requests that may be compared: of one tenant, who share results."""

    sharing_group: str
    tenant: str
    workflow_type_id: str
    target: str


@dataclass(frozen=True, slots=True)
class RecentArrival:
    """``body`` is in the form of Chat Completions, ``fingerprint`` that of the pool it was named for."""

    name: Name
    workflow_id: str
    agent_id: str
    fingerprint: Digest
    body: bytes


def group_of(sharing_group: str, identity: Identity, target: str) -> Group:
    return Group(sharing_group, identity.tenant, identity.workflow_type_id, target)


class RecentArrivals:
    def __init__(self, *, max_bytes: int = MAX_BYTES) -> None:
        self._max_bytes = max_bytes
        self._groups: OrderedDict[Group, OrderedDict[Name, RecentArrival]] = OrderedDict()
        self._bytes = 0

    @property
    def held_bytes(self) -> int:
        return self._bytes

    def note(self, group: Group, arrival: RecentArrival) -> None:
        known = self._groups.get(group)
        if known is None:
            known = self._groups[group] = OrderedDict()
        self._groups.move_to_end(group)
        self._forget(known, arrival.name)
        known[arrival.name] = arrival
        self._bytes += len(arrival.body)
        if len(known) > MAX_OF_A_GROUP:
            self._forget(known, next(iter(known)))
        while self._bytes > self._max_bytes or len(self._groups) > MAX_GROUPS:
            self._forget_oldest()

    def of(self, group: Group, workflow_id: str) -> Iterator[RecentArrival]:
        """Newest first; of the workflow itself before others of its type."""
        known = tuple(reversed(self._groups.get(group, {}).values()))
        yield from (one for one in known if one.workflow_id == workflow_id)
        yield from (one for one in known if one.workflow_id != workflow_id)

    def _forget(self, known: OrderedDict[Name, RecentArrival], name: Name) -> None:
        gone = known.pop(name, None)
        if gone is not None:
            self._bytes -= len(gone.body)

    def _forget_oldest(self) -> None:
        group, known = next(iter(self._groups.items()))
        if known:
            self._forget(known, next(iter(known)))
        if not known:
            del self._groups[group]

    def validate_state(self) -> None:
        assert self._bytes == sum(len(one.body) for known in self._groups.values() for one in known.values())
        assert self._bytes <= self._max_bytes and len(self._groups) <= MAX_GROUPS
        assert all(0 < len(known) <= MAX_OF_A_GROUP for known in self._groups.values())
