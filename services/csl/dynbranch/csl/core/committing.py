"""One completed execution on its way into the store: a confirmed entry, or the shadow of a fill."""

from __future__ import annotations

from dataclasses import replace

from dynbranch.csl.core import commit as judging
from dynbranch.csl.core import eviction, filling, graph, rows
from dynbranch.csl.core.events import Decision, Effect, Moment, OutputsDiffer
from dynbranch.csl.core.fill_rows import ShadowRow, pack_shadow, shadow_key
from dynbranch.csl.core.leases import LeaseRow
from dynbranch.csl.core.memory import Memory, check_name
from dynbranch.csl.core.rows import DerivationRow, EntryRow, Node, Standing
from dynbranch.csl.core.store import Batch, Transaction, View
from dynbranch.domain.errors import InvalidRequest
from dynbranch.domain.fills import SettlementKind
from dynbranch.domain.ids import UnixMs
from dynbranch.domain.reuse import (
    Commit,
    CommitOutcome,
    Committed,
    FillOrigin,
    Incarnation,
    Lease,
    Level,
    Refusal,
    Refused,
)


def commit(memory: Memory, event: Commit, view: View, now: Moment) -> Decision[CommitOutcome]:
    """Store one execution, if everything that it read is still as it was. Ends its lease either way."""
    check_name(event.lease.name)
    row = memory.leases.drop(event.lease.lease_id)
    if row is not None and row.lease.name != event.lease.name:
        raise InvalidRequest("wrong_lease", "the lease was given for another name")
    lease = event.lease if row is None else row.lease
    if event.level is Level.SAMPLED and not lease.once:
        raise InvalidRequest("sampled_result", "a sampled result can not be stored")
    judged = _no_second_use(row, lease) or _judge(memory, event, row, view)
    decided = _Commit(memory, event, row, lease, view, now)
    return decided.refuse(judged) if isinstance(judged, Refused) else decided.decide(judged)


def _judge(memory: Memory, event: Commit, row: LeaseRow | None, view: View) -> DerivationRow | Refused:
    lease = event.lease if row is None else row.lease
    if lease.fill is not None and lease.fill.fill_id in memory.tombstones and (row is None or row.is_fill):
        return Refused(Refusal.LEASE_CLOSED, "the fill was discarded")
    return memory.judge(event, row, view, rows.read_meta(view))


def _no_second_use(row: LeaseRow | None, lease: Lease) -> Refused | None:
    """A sampled result that somebody was served, or may have been, is never stored."""
    if not lease.once:
        return None
    if row is None:
        return Refused(Refusal.LEASE_CLOSED, "whether it was consumed is not known any more")
    if row.adopted_by is not None:
        return Refused(Refusal.LEASE_CLOSED, "it was consumed while it ran")
    return None


class _Commit:
    """One commit."""

    def __init__(
        self, memory: Memory, event: Commit, row: LeaseRow | None, lease: Lease, view: View, now: Moment
    ) -> None:
        self._memory = memory
        self._event = event
        self._row = row
        self._lease = lease
        self._now = now
        self._name = event.lease.name
        self._fill = lease.fill if row is None or row.is_fill else None
        self._adopted = lease.fill if row is not None and row.adopted_by is not None else None
        self._view = view
        self._transaction = Transaction(view)
        self._meta = graph.guarded_meta(self._transaction)

    def refuse(
        self, refused: Refused, *effects: Effect, transaction: Transaction | None = None
    ) -> Decision[CommitOutcome]:
        """``transaction`` holds what happens all the same."""
        self._memory.counters.refused_commits += 1
        if self._adopted is None:
            batch = Batch() if transaction is None else transaction.batch()
            return Decision(refused, batch, effects=effects)
        if transaction is None:
            self._transaction = Transaction(self._view)
            self._meta = graph.guarded_meta(self._transaction)
        self._append(SettlementKind.SERVED, self._adopted, self._event.execution_ms, refused.reason.value)
        self._put_meta()
        return Decision(refused, self._transaction.batch(), effects=effects)

    def decide(self, derivation: DerivationRow) -> Decision[CommitOutcome]:
        memory, transaction = self._memory, self._transaction
        node = memory.node(self._view, self._name)
        if node is not None and not self._may_share(node):
            memory.counters.differing_commits += 1
            refused = Refused(Refusal.DIFFERS, "another result stands under this name")
            return self.refuse(refused, OutputsDiffer(self._name, self._event.level))
        if node is not None and node.is_shadow and self._fill is None:
            left = self._confirm_or_clear(node)
            if isinstance(left, Refused):
                return self.refuse(left)
            node = left
        made = self._store(derivation) if node is None else self._support(node, derivation)
        if isinstance(made, Refused):
            return self.refuse(made, transaction=transaction)
        self._settle(node)
        incarnation = Incarnation(self._name, made.number)
        if not made.is_shadow:
            for workflow in self._row.workflows if self._row is not None else ():
                memory.provenance.served(workflow, made.output_digests, incarnation)
        memory.counters.commits += 1
        return Decision(Committed(incarnation), transaction.batch())

    def _may_share(self, node: EntryRow) -> bool:
        """Whether the result may go under a name where something stands already."""
        if node.payload_digest == self._event.payload_digest:
            return not (self._lease.once or node.standing is Standing.ONCE)
        return node.standing is Standing.SHADOW and self._fill is None

    def _confirm_or_clear(self, node: EntryRow) -> EntryRow | Refused | None:
        """A canonical execution meets a shadow: it confirms an equal one and takes the place of another."""
        memory, transaction = self._memory, self._transaction
        if node.payload_digest == self._event.payload_digest:
            self._meta, confirmed = filling.uncover(memory, transaction, self._meta, self._name, node)
            self._discard(node, "confirmed_by_execution")
            self._put_meta()
            return confirmed
        if not memory.may_take_away:
            return Refused(Refusal.UNAVAILABLE, "a shadow is in the way while a write goes on")
        gone = eviction.evict(transaction, self._meta, self._name, node, memory.limits)
        if gone is None:
            return Refused(Refusal.UNAVAILABLE, "too much hangs on the shadow that is in the way")
        self._meta = gone
        self._discard(node, "differs")
        return None

    def _discard(self, node: EntryRow, reason: str) -> None:
        row = self._memory.shadows.drop(self._name)
        if row is not None and not row.lost:
            self._append(SettlementKind.DISCARDED, row.origin, node.execution_ms, reason)
            self._memory.counters.discarded_shadows += 1

    def _store(self, derivation: DerivationRow) -> EntryRow | Refused:
        memory, transaction, event = self._memory, self._transaction, self._event
        old = rows.read_entry(transaction, self._name)
        if old is not None:
            assert memory.condemned.get(self._name) == old.number
            graph.remove_entry(transaction, self._name, old)
            self._meta = graph.without(self._meta, old)
        size = len(event.payload)
        if not eviction.fits(self._meta, size, memory.limits) and memory.may_take_away:
            self._make_room(derivation)
        if not eviction.fits(self._meta, size, memory.limits):
            self._put_meta()
            return Refused(Refusal.UNAVAILABLE, "the store is full and still making room")
        entry = judging.entry_of(event, self._meta.next_number, self._now.unix_ms, memory.limits)
        if self._fill is not None:
            entry = replace(entry, standing=Standing.ONCE if self._lease.once else Standing.SHADOW)
            self._put_shadow(self._fill)
        self._meta = graph.put_entry(transaction, self._meta, self._name, entry, event.payload)
        memory.put_derivation(transaction, Node(self._name, 0), derivation)
        self._meta = replace(self._meta, next_number=self._meta.next_number + 1)
        self._put_meta()
        if not entry.is_shadow:
            memory.heat.touch(self._name, self._now.instant)
        return entry

    def _make_room(self, derivation: DerivationRow) -> None:
        memory = self._memory
        before = self._meta.entries
        self._meta = eviction.make_room(
            self._transaction,
            self._meta,
            incoming_bytes=len(self._event.payload),
            keep=frozenset(producer.name for producer in derivation.producers),
            limits=memory.limits,
            heat=memory.heat,
            now=self._now.instant,
            new_id=memory.new_id,
        )
        memory.counters.evicted_entries += before - self._meta.entries

    def _put_shadow(self, fill: FillOrigin) -> None:
        ttl_ms = min(self._lease.shadow_ttl_ms, self._memory.limits.max_shadow_ttl_ms)
        row = ShadowRow(fill, UnixMs(self._now.unix_ms + ttl_ms))
        self._transaction.put(shadow_key(self._name), pack_shadow(row))
        self._memory.shadows.put(self._name, row)

    def _support(self, entry: EntryRow, derivation: DerivationRow) -> EntryRow:
        """One more execution supports an entry that stands already."""
        memory, transaction = self._memory, self._transaction
        if memory.is_falling(self._name) or not judging.may_support(entry, derivation, memory.limits):
            return entry
        if judging.same_support(transaction, self._event, entry, derivation):
            return entry
        memory.put_derivation(transaction, Node(self._name, entry.next_derivation), derivation)
        updated = replace(
            entry,
            next_derivation=entry.next_derivation + 1,
            derivations=(*entry.derivations, entry.next_derivation),
        )
        transaction.put(rows.entry_key(self._name), rows.pack_entry(updated))
        return updated

    def _settle(self, found: EntryRow | None) -> None:
        """What the commit means for the fill that it is of, if it is of one."""
        executed = self._event.execution_ms
        if self._adopted is not None:
            self._append(SettlementKind.CONFIRMED, self._adopted, executed, "")
        elif self._fill is None:
            return
        elif found is None:
            self._append(SettlementKind.SHADOWED, self._fill, executed, "")
        elif not self._is_its_own(found):
            self._append(SettlementKind.DISCARDED, self._fill, executed, "already_there")
        else:
            return
        self._put_meta()

    def _is_its_own(self, found: EntryRow) -> bool:
        """Whether the shadow that stands is this very stage's: the commit came twice."""
        shadow = self._memory.shadows.get(self._name) if found.is_shadow else None
        return shadow is not None and shadow.origin == self._fill

    def _append(self, kind: SettlementKind, origin: FillOrigin, execution_ms: float, reason: str) -> None:
        self._meta = filling.settle(
            self._memory,
            self._transaction,
            self._meta,
            filling.settlement(kind, origin, self._name, self._now, execution_ms=execution_ms, reason=reason),
        )

    def _put_meta(self) -> None:
        self._transaction.put(rows.META, rows.pack_meta(self._meta))
