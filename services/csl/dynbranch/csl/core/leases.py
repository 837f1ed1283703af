"""Leases: executions in flight. They live in memory; losing them costs duplicates, never correctness."""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

from dynbranch.csl.core.written import Written
from dynbranch.domain.ids import DemandId, FillId, GenerationId, Instant, LeaseId, Name, RecordId, source_of
from dynbranch.domain.reuse import GenerationRef, Lease, ReadScope

_Key = TypeVar("_Key")

WorkflowKey = tuple[str, str]
"""Tenant and workflow id."""


@dataclass(slots=True)
class LeaseRow:
    """``closed_by`` is empty while the lease may be joined and committed. ``workflows`` are served its
    output. ``adopted_by`` is the demand that took a fill over.
    """

    lease: Lease
    deadline: Instant
    demand_id: DemandId
    workflows: set[WorkflowKey] = field(default_factory=set)
    closed_by: str = ""
    adopted_by: DemandId | None = None

    @property
    def is_fill(self) -> bool:
        """Whether no demand has authorised it."""
        return self.lease.fill is not None and self.adopted_by is None


def sources_of(scope: ReadScope) -> frozenset[str]:
    return frozenset(scope.sources) | {source_of(read.record) for read in scope.declared}


class LeaseTable:
    """At most ``max_leases`` at a time. ``max_workflows`` of those served by one lease are remembered."""

    def __init__(self, *, max_leases: int, max_workflows: int = 64) -> None:
        self._max_leases = max_leases
        self._max_workflows = max_workflows
        self._rows: dict[LeaseId, LeaseRow] = {}
        self._joinable: dict[Name, LeaseId] = {}
        self._by_demand: dict[DemandId, LeaseId] = {}
        self._by_source: dict[str, set[LeaseId]] = {}
        self._by_producer: dict[Name, set[LeaseId]] = {}
        self._by_fill: dict[FillId, set[LeaseId]] = {}
        self._closed_fills: list[LeaseRow] = []
        self._run_out: list[LeaseRow] = []
        self._deadlines: list[tuple[Instant, LeaseId]] = []

    def __len__(self) -> int:
        return len(self._rows)

    @property
    def full(self) -> bool:
        return len(self._rows) >= self._max_leases

    def get(self, lease_id: LeaseId) -> LeaseRow | None:
        return self._rows.get(lease_id)

    def of_demand(self, demand_id: DemandId) -> LeaseRow | None:
        """The lease that this very demand was given, if it is still known."""
        lease_id = self._by_demand.get(demand_id)
        return None if lease_id is None else self._rows[lease_id]

    def joinable(self, name: Name, exclude: frozenset[GenerationId]) -> LeaseRow | None:
        """The lease whose generation a new demand for the name may follow."""
        lease_id = self._joinable.get(name)
        if lease_id is None:
            return None
        row = self._rows[lease_id]
        return None if row.lease.generation.generation_id in exclude else row

    def join(self, row: LeaseRow, workflow: WorkflowKey) -> None:
        if workflow[1] and len(row.workflows) < self._max_workflows:
            row.workflows.add(workflow)

    def live(self, name: Name) -> tuple[GenerationRef, ...]:
        """Canonical executions in flight. A fill is seen by nobody."""
        row = self.joinable(name, frozenset())
        return () if row is None or row.is_fill else (row.lease.generation,)

    @property
    def fills(self) -> int:
        """How many fills hold leases, adopted ones among them."""
        return sum(map(len, self._by_fill.values()))

    def of_fill(self, fill: FillId) -> tuple[LeaseRow, ...]:
        return tuple(self._rows[lease_id] for lease_id in sorted(self._by_fill.get(fill, ())))

    def is_executing(self, name: Name) -> bool:
        """Whether any open lease, joinable or not, has the name."""
        return name in self._joinable

    def grant(
        self, lease: Lease, *, deadline: Instant, demand_id: DemandId, workflow: WorkflowKey, joinable: bool
    ) -> None:
        assert not self.full and lease.lease_id not in self._rows
        row = LeaseRow(lease, deadline, demand_id)
        self.join(row, workflow)
        self._rows[lease.lease_id] = row
        self._by_demand[demand_id] = lease.lease_id
        if joinable:
            self._joinable[lease.name] = lease.lease_id
        for source in sources_of(lease.scope):
            self._by_source.setdefault(source, set()).add(lease.lease_id)
        for producer in lease.producers:
            self._by_producer.setdefault(producer.name, set()).add(lease.lease_id)
        if lease.fill is not None:
            self._by_fill.setdefault(lease.fill.fill_id, set()).add(lease.lease_id)
        heapq.heappush(self._deadlines, (deadline, lease.lease_id))

    def renew(self, lease_id: LeaseId, deadline: Instant) -> bool:
        """False: not known, or of a fill that was closed, which nobody needs to run on."""
        row = self._rows.get(lease_id)
        if row is None:
            return False
        row.deadline = max(row.deadline, deadline)
        return not (row.closed_by and row.is_fill)

    def drop(self, lease_id: LeaseId) -> LeaseRow | None:
        row = self._rows.pop(lease_id, None)
        if row is None:
            return None
        self._unjoin(row)
        if self._by_demand.get(row.demand_id) == lease_id:
            del self._by_demand[row.demand_id]
        for source in sources_of(row.lease.scope):
            _discard(self._by_source, source, lease_id)
        for producer in row.lease.producers:
            _discard(self._by_producer, producer.name, lease_id)
        if row.lease.fill is not None:
            _discard(self._by_fill, row.lease.fill.fill_id, lease_id)
        return row

    def expire(self, now: Instant) -> int:
        """Drop leases that nobody renewed. Returns how many."""
        dropped = 0
        while self._deadlines and self._deadlines[0][0] <= now:
            _, lease_id = heapq.heappop(self._deadlines)
            row = self._rows.get(lease_id)
            if row is None:
                continue
            if row.deadline > now:
                heapq.heappush(self._deadlines, (row.deadline, lease_id))
            else:
                self.drop(lease_id)
                dropped += 1
                if row.adopted_by is not None:
                    self._run_out.append(row)
        return dropped

    def close_written(self, records: tuple[RecordId, ...]) -> int:
        """A write: leases that may have read an older version accept no follower and commit nothing."""
        closed = 0
        written = Written(records)
        touched = {lease_id for source in written.sources for lease_id in self._by_source.get(source, ())}
        for lease_id in touched:
            row = self._rows[lease_id]
            record = None if row.closed_by else written.hit_in(row.lease.scope)
            if record is not None:
                closed += self._close(row, f"write to {record}")
        return closed

    def close_orphaned(self, fallen: Mapping[Name, object]) -> int:
        """Leases whose producers fell."""
        return sum(
            self._close(self._rows[lease_id], f"producer {name.hex()[:16]} fell")
            for name in sorted(self._by_producer.keys() & fallen.keys())
            for lease_id in tuple(self._by_producer.get(name, ()))
        )

    def close_all(self) -> int:
        """A new epoch: no token of the old one commits."""
        return sum(self._close(row, "new epoch") for row in tuple(self._rows.values()))

    def _close(self, row: LeaseRow, reason: str) -> bool:
        closed = self.close(row, reason)
        if closed and row.is_fill:
            self._closed_fills.append(row)
        return closed

    def close(self, row: LeaseRow, reason: str) -> bool:
        """It accepts no follower and commits nothing from now on. False: it was closed already."""
        if row.closed_by:
            return False
        row.closed_by = reason
        self._unjoin(row)
        return True

    def take_closed_fills(self) -> list[LeaseRow]:
        """Fills that writes and new epochs have closed since the last call, but for adopted ones."""
        closed, self._closed_fills = self._closed_fills, []
        return closed

    def take_run_out(self) -> list[LeaseRow]:
        """Adopted fills whose leases nobody has renewed, since the last call."""
        run_out, self._run_out = self._run_out, []
        return run_out

    def _unjoin(self, row: LeaseRow) -> None:
        if self._joinable.get(row.lease.name) == row.lease.lease_id:
            del self._joinable[row.lease.name]

    def violations(self) -> Iterator[str]:
        """What is wrong with the indexes; nothing, if the code is right."""
        for name, lease_id in self._joinable.items():
            row = self._rows.get(lease_id)
            if row is None or row.closed_by or row.lease.name != name:
                yield f"joinable lease of {name.hex()[:16]} is not an open lease"
        if any(lease_id not in self._rows for lease_id in self._by_demand.values()):
            yield "a demand points to a lease that is gone"
        sources = {(s, i) for i, row in self._rows.items() for s in sources_of(row.lease.scope)}
        if sources != {(s, i) for s, ids in self._by_source.items() for i in ids}:
            yield "the index of leases by source is not exact"
        producers = {(p.name, i) for i, row in self._rows.items() for p in row.lease.producers}
        if producers != {(p, i) for p, ids in self._by_producer.items() for i in ids}:
            yield "the index of leases by producer is not exact"
        fills = {(f.fill_id, i) for i, row in self._rows.items() if (f := row.lease.fill) is not None}
        if fills != {(f, i) for f, ids in self._by_fill.items() for i in ids}:
            yield "the index of leases by fill is not exact"
        if len(self._rows) > self._max_leases:
            yield "there are more leases than allowed"
        known = {lease_id for _, lease_id in self._deadlines}
        if not known.issuperset(self._rows):
            yield "a lease has no deadline"


def _discard(index: dict[_Key, set[LeaseId]], key: _Key, lease_id: LeaseId) -> None:
    ids = index.get(key)
    if ids is not None:
        ids.discard(lease_id)
        if not ids:
            del index[key]
