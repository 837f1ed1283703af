"""The Completed-Subgraph Library as one pure state machine: an event and a view in, one decision out.

What must survive is in the store's rows (core/rows.py). What may be lost is here: leases, served outputs,
heat, and the counters. Losing them costs duplicates and edges, never a stale or a wrong result.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import islice
from typing import assert_never

from dynbranch.csl.core import (
    cascade,
    committing,
    eviction,
    filling,
    graph,
    history,
    outbox,
    rows,
    serving,
    versions,
)
from dynbranch.csl.core.cascade import Condemned
from dynbranch.csl.core.counters import Counters
from dynbranch.csl.core.events import (
    AcknowledgeSettlements,
    BeginEpoch,
    Cascaded,
    Decision,
    DeleteSlice,
    Event,
    ExpireEntries,
    ForgetVersions,
    Inspect,
    Moment,
    ReleaseLeases,
    RenewLeases,
    Stats,
    SweepShadows,
    Write,
)
from dynbranch.csl.core.limits import Limits
from dynbranch.csl.core.memory import Memory, after, check_name
from dynbranch.csl.core.planning import Planning, Writing
from dynbranch.csl.core.rows import Meta
from dynbranch.csl.core.store import Batch, Transaction, View
from dynbranch.domain.errors import InvalidRequest
from dynbranch.domain.fills import BeginFill, DiscardFills, DiscardResult, FillOutcome, Settlement
from dynbranch.domain.ids import Instant, LeaseId, Name, UnixMs, Version
from dynbranch.domain.reuse import (
    Commit,
    CommitOutcome,
    Demand,
    DemandOutcome,
    Hit,
    Inspection,
    Live,
    Miss,
    StoreStats,
    WriteResult,
)


class Library:
    """``new_id`` makes lease ids and draws eviction samples."""

    memory_class = Memory

    def __init__(self, *, limits: Limits, new_id: Callable[[], bytes], view: View) -> None:
        self.limits = limits
        self.memory = self.memory_class(limits=limits, new_id=new_id)
        self._expiry_resumes = b""
        self.reread_condemned(view)

    @property
    def counters(self) -> Counters:
        return self.memory.counters

    # The one way in

    def handle(self, event: Event, view: View, now: Moment) -> Decision[object]:
        """Decide on one event. The batch must be applied before the next event is handled."""
        match event:
            case Demand():
                return self.demand(event, view, now)
            case Commit():
                return self.commit(event, view, now)
            case RenewLeases():
                return self.renew_leases(event, now)
            case ReleaseLeases():
                return self.release_leases(event, view, now)
            case Write():
                return self.write(event, view, now)
            case BeginEpoch():
                return self.begin_epoch(event, view, now)
            case BeginFill() | DiscardFills() | AcknowledgeSettlements():
                return self._handle_fills(event, view, now)
            case Inspect() | Stats():
                return Decision(self._look(event, view))
            case DeleteSlice():
                return self.delete_slice(event, view)
            case ForgetVersions() | ExpireEntries() | SweepShadows():
                return self._tidy(event, view, now)
            case _:
                assert_never(event)

    def _handle_fills(
        self, event: BeginFill | DiscardFills | AcknowledgeSettlements, view: View, now: Moment
    ) -> Decision[object]:
        match event:
            case BeginFill():
                return self.begin_fill(event, view, now)
            case DiscardFills():
                return self.discard_fills(event, view, now)
            case AcknowledgeSettlements():
                return self.acknowledge(event, view)
            case _:
                assert_never(event)

    def _look(self, event: Inspect | Stats, view: View) -> object:
        return self.inspect(event.name, view) if isinstance(event, Inspect) else self.stats(view)

    def _tidy(
        self, event: ForgetVersions | ExpireEntries | SweepShadows, view: View, now: Moment
    ) -> Decision[object]:
        match event:
            case ForgetVersions():
                return self.forget_versions(view)
            case ExpireEntries():
                return self.expire_entries(view, now)
            case SweepShadows():
                return self.sweep_shadows(view, now)
            case _:
                assert_never(event)

    # Demand

    def demand(self, event: Demand, view: View, now: Moment) -> Decision[DemandOutcome]:
        return serving.answer(self.memory, event, view, now)

    def defer_arrivals(self, refused: Batch) -> None:
        """A demand's batch could not be written for want of room."""
        self.memory.arrivals.defer(refused)

    def without_room(self, event: Demand, refused: Decision[DemandOutcome], view: View) -> DemandOutcome:
        """The batch of a demand could not be written. Its first arrival is kept for later; a promotion, an
        adoption or a consumption has not happened. Returns what the demand is answered then.
        """
        self.defer_arrivals(refused.batch)
        reply = refused.reply
        taken = isinstance(reply, Hit) and reply.promoted is not None
        if taken or (isinstance(reply, Live) and reply.adopted is not None):
            filling.undo(self.memory, event, view)
            return Miss(None)
        return reply

    # Commit

    def commit(self, event: Commit, view: View, now: Moment) -> Decision[CommitOutcome]:
        """Store one execution, if everything that it read is still as it was. Ends its lease either way."""
        return committing.commit(self.memory, event, view, now)

    # Fills

    def meet_reader(self, epoch: int) -> bool:
        """Whether a newer controller than before has the store from now on. Raises Conflict for an older."""
        return self.memory.meet_reader(epoch)

    def begin_fill(self, event: BeginFill, view: View, now: Moment) -> Decision[FillOutcome]:
        self.meet_reader(event.reader_epoch)
        return filling.begin(self.memory, event, view, now)

    def without_leave(self, refused: FillOutcome) -> None:
        """The batch of a fill's leave could not be written."""
        filling.without_room(self.memory, refused)

    def discard_fills(self, event: DiscardFills, view: View, now: Moment) -> Decision[DiscardResult]:
        return filling.discard(self.memory, event, view, now)

    def sweep_shadows(self, view: View, now: Moment) -> Decision[int]:
        return filling.sweep(self.memory, view, now)

    def acknowledge(self, event: AcknowledgeSettlements, view: View) -> Decision[int]:
        return filling.acknowledge(event, view)

    def settlements(self, view: View, *, after: int, at_most: int) -> tuple[Settlement, ...]:
        return outbox.read(view, after=after, at_most=at_most)

    # Leases

    def renew_leases(self, event: RenewLeases, now: Moment) -> Decision[frozenset[LeaseId]]:
        """The reply names the leases that are not known."""
        self._expire(now.instant)
        ttl_ms = min(event.ttl_ms or self.limits.lease_ttl_ms, self.limits.max_lease_ttl_ms)
        deadline = after(now.instant, ttl_ms)
        return Decision(
            frozenset(one for one in event.lease_ids if not self.memory.leases.renew(one, deadline))
        )

    def release_leases(self, event: ReleaseLeases, view: View, now: Moment) -> Decision[None]:
        dropped = [self.memory.leases.drop(lease_id) for lease_id in event.lease_ids]
        return filling.came_to_nothing(self.memory, [row for row in dropped if row is not None], view, now)

    def _expire(self, now: Instant) -> None:
        self.memory.counters.expired_leases += self.memory.leases.expire(now)

    # Write

    def write(self, event: Write, view: View, now: Moment) -> Decision[WriteResult]:
        """A whole write at once. The caller has deleted all slices."""
        self.begin_write(event, view, now)
        return self._plan_to_the_end(view)

    def begin_epoch(self, event: BeginEpoch, view: View, now: Moment) -> Decision[WriteResult]:
        self.begin_plan_of_epoch(event, view, now)
        return self._plan_to_the_end(view)

    def _plan_to_the_end(self, view: View) -> Decision[WriteResult]:
        try:
            return self.finish_plan(view, view)
        finally:
            self.memory.planning = None

    def begin_write(self, event: Write, view: View, now: Moment) -> None:
        """Begin to look for what a write fells. Other events may be handled between the steps."""
        if not event.records:
            raise InvalidRequest("no_records", "a write names at least one record")
        if len(event.records) > self.limits.max_written_records:
            most = self.limits.max_written_records
            advice = "split the write, or name the whole source as 'source/*'"
            raise InvalidRequest("too_many_records", f"a write names at most {most} records", advice=advice)
        self._expire(now.instant)
        meta = rows.read_meta(view)
        version = Version(meta.epoch, meta.sequence + 1)
        records = tuple(sorted(set(event.records)))
        self._begin_plan(view, meta, Writing(records, version, now.unix_ms, self._reporter(event.reporter)))

    def begin_plan_of_epoch(self, event: BeginEpoch, view: View, now: Moment) -> None:
        meta = rows.read_meta(view)
        if event.epoch <= meta.epoch:
            raise InvalidRequest("old_epoch", f"epoch {event.epoch} is not after {meta.epoch}")
        version = Version(event.epoch, meta.sequence)
        self._begin_plan(view, meta, Writing(None, version, now.unix_ms, "new epoch"))

    def _reporter(self, reporter: str) -> str:
        return reporter[: self.limits.max_label_chars]

    def _begin_plan(self, view: View, meta: Meta, writing: Writing) -> None:
        assert not self.memory.slices, "a write must wait until the slices of the one before are deleted"
        assert self.memory.planning is None, "writes are planned one after the other"
        self.memory.planning = Planning(
            writing,
            Transaction(view),
            meta,
            max_history=self.limits.max_history,
            max_new_history=self.limits.max_history_per_write,
            part_nodes=self.limits.slice_nodes,
            is_shadow=self.memory.shadows.__contains__,
        )

    def step_plan(self, view: View, index: View, nodes: int) -> bool:
        """Look at about ``nodes`` more nodes; True when the plan may be finished.

        ``index`` is a frozen view of the moment when the plan began, or ``view`` itself.
        """
        assert self.memory.planning is not None
        return self.memory.planning.step(view, index, nodes)

    def is_falling(self, name: Name) -> bool:
        """Whether the write under way has found that the entry goes."""
        return self.memory.is_falling(name)

    def drop_plan(self) -> None:
        """The write does not happen."""
        self.memory.planning = None

    def finish_plan(self, view: View, index: View) -> Decision[WriteResult]:
        """Look at what is left and decide: bump the versions and fell what was found, all in one batch."""
        plan = self.memory.planning
        assert plan is not None
        while not plan.step(view, index, self.limits.slice_nodes):
            pass
        self.memory.planning = None
        transaction, writing = plan.staged, plan.writing
        meta = graph.guarded_meta(transaction)
        first, following = plan.history
        meta = replace(
            meta,
            epoch=writing.version.epoch,
            sequence=writing.version.sequence,
            versions=meta.versions + plan.new_versions,
            history_first=first,
            history_next=following,
        )
        closed = (
            self.memory.leases.close_all()
            if writing.records is None
            else self.memory.leases.close_written(writing.records)
        )
        closed += self.memory.leases.close_orphaned(plan.dead)
        hidden = [name for name in plan.dead if name in self.memory.shadows]
        felled = filling.felled(self.memory, hidden, writing.at)
        meta = filling.settle(self.memory, transaction, meta, *felled)
        meta = self._delete_or_condemn(transaction, meta, plan)
        self.memory.arrivals.put_deferred(transaction, view, meta)
        self.memory.counters.writes += writing.records is not None
        self.memory.counters.invalidated_entries += len(plan.dead) - len(hidden)
        unseen = frozenset(hidden)
        shown = (name for name in plan.dead if name not in unseen)
        reply = WriteResult(
            version=meta.version,
            invalidated_entries=len(plan.dead) - len(hidden),
            closed_leases=closed - len([one for one in felled if one.generation is not None]),
            invalidated_names=tuple(islice(shown, self.limits.reported_names)),
        )
        effect = Cascaded(
            direct=plan.direct,
            entries=len(plan.dead),
            derivations=plan.derivations,
            closed_leases=closed,
            slices=tuple(self.memory.slices),
        )
        return Decision(reply, transaction.batch(), durable=True, effects=(effect,))

    def _delete_or_condemn(self, transaction: Transaction, meta: Meta, plan: Planning) -> Meta:
        parts = list(plan.parts())
        if len(parts) <= 1:
            return cascade.remove(transaction, meta, parts[0][0]) if parts else meta
        for number, (nodes, packed) in enumerate(parts):
            transaction.put(rows.condemned_key(number), packed)
            self.memory.slices[number] = nodes
        self.memory.condemned.update(plan.dead)
        return meta

    def reread_condemned(self, view: View) -> None:
        """What is condemned and which shadows there are, as the rows say: at the start, and when a batch was
        refused."""
        self.memory.shadows.reread(view)
        self.memory.slices.clear()
        self.memory.condemned.clear()
        for number, nodes in cascade.pending(view).items():
            self._condemn(number, nodes)

    def _condemn(self, number: int, nodes: tuple[Condemned, ...]) -> None:
        self.memory.slices[number] = nodes
        self.memory.condemned.update(
            (node.incarnation.name, node.incarnation.number) for node in nodes if node.whole
        )

    @property
    def slices(self) -> tuple[int, ...]:
        """Slices that are condemned and not deleted yet."""
        return tuple(self.memory.slices)

    def delete_slice(self, event: DeleteSlice, view: View) -> Decision[None]:
        """``slice_deleted`` must follow when the batch is applied: until then the nodes stay condemned."""
        nodes = self.memory.slices[event.number]
        transaction = Transaction(view)
        meta = graph.guarded_meta(transaction)
        meta = cascade.remove(transaction, meta, nodes)
        transaction.delete(rows.condemned_key(event.number))
        transaction.put(rows.META, rows.pack_meta(meta))
        return Decision(None, transaction.batch())

    def slice_deleted(self, number: int) -> None:
        for node in self.memory.slices.pop(number):
            if self.memory.condemned.get(node.incarnation.name) == node.incarnation.number:
                del self.memory.condemned[node.incarnation.name]

    def expire_entries(self, view: View, now: Moment) -> Decision[int]:
        """Let go of some entries older than their time, as eviction does. Replies how many rows were looked
        at; zero: nothing is left to do.

        Storage is bounded by it, freshness is not: that is what writes are for.
        """
        if not self.memory.may_take_away or not self.limits.entry_ttl_ms:
            return Decision(0)
        before = rows.age_key(UnixMs(max(0, now.unix_ms - self.limits.entry_ttl_ms)), b"")
        page = [
            key
            for key, _ in view.page(rows.AGES, self._expiry_resumes, self.limits.expired_per_step)
            if key < before
        ]
        if not page:
            self._expiry_resumes = b""
            return Decision(0)
        transaction = Transaction(view)
        meta = graph.guarded_meta(transaction)
        for key in page:
            name = rows.name_of_age(key)
            entry = graph.require_entry(transaction, name)
            if entry.is_shadow:
                continue
            gone = eviction.evict(transaction, meta, name, entry, self.limits, partly=True)
            if gone is not None:
                meta = gone
                self.memory.counters.expired_entries += 1
        # What too much hangs on is passed over until the next round.
        self._expiry_resumes = page[-1][1:] + b"\0"
        transaction.put(rows.META, rows.pack_meta(meta))
        return Decision(len(page), transaction.batch())

    def forget_versions(self, view: View) -> Decision[int]:
        """Above the bound, drop version rows. Replies how many went."""
        meta = rows.read_meta(view)
        if meta.versions <= self.limits.max_versions:
            return Decision(0)
        transaction = Transaction(view)
        transaction.get_guarded(rows.META)
        dropped = versions.forget(transaction, view, meta, most=self.limits.slice_nodes * 8)
        return Decision(dropped, transaction.batch())

    # Looking

    def inspect(self, name: Name, view: View) -> Inspection:
        check_name(name)
        entry = self.memory.entry(view, name)
        shown = None if entry is None else graph.entry_view(view, name, entry)
        return Inspection(shown, history.of_name(view, name), self.memory.leases.live(name))

    def stats(self, view: View) -> StoreStats:
        meta = rows.read_meta(view)
        return self.memory.counters.with_gauges(
            version=meta.version,
            entries=meta.entries - meta.shadows - len(self.memory.condemned),
            payload_bytes=meta.payload_bytes,
            leases=len(self.memory.leases),
            shadows=len(self.memory.shadows),
            fills=self.memory.leases.fills,
        )

    def violations(self, view: View) -> Iterator[str]:
        """What is wrong with the state in memory; nothing, if the code is right."""
        yield from self.memory.leases.violations()
        if not self.memory.slices:
            yield from self.memory.shadows.violations(view)
        condemned = {
            (node.incarnation.name, node.incarnation.number)
            for nodes in self.memory.slices.values()
            for node in nodes
            if node.whole
        }
        if not condemned.issuperset(self.memory.condemned.items()):
            yield "a name is condemned by no slice"
