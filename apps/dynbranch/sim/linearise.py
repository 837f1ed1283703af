"""An exact search for an order that explains a short history (Wing and Gong 1993, with the memory of Lowe
2017).

The sequential store here is the specification in a page: what one demand, commit, write, renewal or release
does when nothing else happens. It knows no rows, no planning and no flush.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import assert_never

from dynbranch.domain.ids import LeaseId, Name, RecordId, Version, is_whole, source_of
from dynbranch.domain.reuse import Committed, Hit, Lease, Live, Miss
from dynbranch.sim.histories import Call, CommitEnded, Demanded, Released, Renewed, WriteEnded


@dataclass(frozen=True, slots=True)
class SequentialStore:
    """``entries`` have the reads of their one derivation; ``leases`` are open or closed; none lapses."""

    version: Version
    entries: frozenset[tuple[Name, tuple[RecordId, ...]]] = frozenset()
    leases: frozenset[tuple[LeaseId, Name, bool]] = frozenset()
    followed: frozenset[tuple[Name, LeaseId]] = frozenset()
    written: tuple[tuple[tuple[RecordId, ...], Version], ...] = field(default=())

    def after(self, call: Call, grants: dict[LeaseId, Lease]) -> SequentialStore | None:
        """The store after the call; None if it would have answered otherwise."""
        match call:
            case Demanded():
                return self._demanded(call, grants)
            case CommitEnded():
                return self._committed(call)
            case WriteEnded():
                return self._written(call, grants)
            case Renewed(lease_id=lease_id, known=known):
                return self if known == any(lease_id == one for one, _, _ in self.leases) else None
            case Released(lease_id=lease_id):
                return self._without(lease_id)
            case _:
                assert_never(call)

    def _demanded(self, call: Demanded, grants: dict[LeaseId, Lease]) -> SequentialStore | None:
        stands = any(name == call.name for name, _ in self.entries)
        live = next((lease_id for name, lease_id in self.followed if name == call.name), None)
        if live is not None and grants[live].generation.generation_id in call.excluded:
            live = None
        match call.outcome:
            case Hit(payload=payload):
                return self if stands and call.may_hit and payload == call.payload else None
            case Live(generation):
                joins = live is not None and grants[live].generation == generation
                return self if joins and call.may_hit and not stands else None
            case Miss(lease=Lease() as lease):
                if (call.may_hit and (stands or live is not None)) or lease.read_token != self.version:
                    return None
                joinable = call.may_hit or all(name != call.name for name, _ in self.followed)
                kept = {pair for pair in self.followed if not joinable or pair[0] != call.name}
                return replace(
                    self,
                    leases=self.leases | {(lease.lease_id, call.name, False)},
                    followed=frozenset(kept | ({(call.name, lease.lease_id)} if joinable else set())),
                )
            case Miss():
                return None

    def _committed(self, call: CommitEnded) -> SequentialStore | None:
        closed = any(call.lease.lease_id == one and shut for one, _, shut in self.leases)
        stale = any(
            version > call.lease.read_token
            and any(_covers(write, read) for write in records for read in call.reads)
            for records, version in self.written
        )
        if isinstance(call.outcome, Committed) == (closed or stale):
            return None
        after = self._without(call.lease.lease_id)
        if closed or stale or any(name == call.lease.name for name, _ in self.entries):
            return after
        return replace(after, entries=after.entries | {(call.lease.name, call.reads)})

    def _written(self, call: WriteEnded, grants: dict[LeaseId, Lease]) -> SequentialStore | None:
        version = Version(self.version.epoch, self.version.sequence + 1)
        if call.version != version:
            return None
        sources = {source_of(record) for record in call.records}
        leases = frozenset(
            (one, name, shut or bool(sources & set(grants[one].scope.sources)))
            for one, name, shut in self.leases
        )
        shut = {one for one, _, is_shut in leases if is_shut}
        standing = (
            (name, reads)
            for name, reads in self.entries
            if not any(_covers(record, read) for record in call.records for read in reads)
        )
        return replace(
            self,
            version=version,
            entries=frozenset(standing),
            leases=leases,
            followed=frozenset(pair for pair in self.followed if pair[1] not in shut),
            written=(*self.written, (call.records, version)),
        )

    def _without(self, lease_id: LeaseId) -> SequentialStore:
        return replace(
            self,
            leases=frozenset(row for row in self.leases if row[0] != lease_id),
            followed=frozenset(pair for pair in self.followed if pair[1] != lease_id),
        )


def _covers(written: RecordId, read: RecordId) -> bool:
    if written == read:
        return True
    return source_of(written) == source_of(read) and (is_whole(written) or is_whole(read))


def order(history: Sequence[Call], start: SequentialStore) -> list[Call] | None:
    """An order of single steps that explains every answer and respects time; None if there is none."""
    grants = {
        call.outcome.lease.lease_id: call.outcome.lease
        for call in history
        if isinstance(call, Demanded) and isinstance(call.outcome, Miss) and call.outcome.lease is not None
    }
    everything = (1 << len(history)) - 1
    dead_ends: set[tuple[int, SequentialStore]] = set()
    path: list[Call] = []

    def search(done: int, store: SequentialStore) -> bool:
        if done == everything:
            return True
        if (done, store) in dead_ends:
            return False
        left = [number for number in range(len(history)) if not done >> number & 1]
        first_return = min(history[number].span.returned for number in left)
        for number in left:
            call = history[number]
            if call.span.invoked > first_return:
                continue  # another had come back before this one began
            after = store.after(call, grants)
            if after is not None:
                path.append(call)
                if search(done | 1 << number, after):
                    return True
                path.pop()
        dead_ends.add((done, store))
        return False

    return path if search(0, start) else None
