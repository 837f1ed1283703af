"""The Completed-Subgraph Library as one pure state machine: an event and a view in, one decision out.

What must survive is in the store's rows (core/rows.py). What may be lost is here: leases, served outputs,
heat, and the counters. Losing them costs duplicates and edges, never a stale or a wrong result.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import islice
from typing import assert_never

from dynbranch.csl.core import cascade, demand, eviction, graph, history, rows, versions
from dynbranch.csl.core import commit as judging
from dynbranch.csl.core.arrivals import FirstArrivals
from dynbranch.csl.core.cascade import Condemned
from dynbranch.csl.core.counters import Counters
from dynbranch.csl.core.events import (
    BeginEpoch,
    Cascaded,
    Decision,
    DeleteSlice,
    Effect,
    Event,
    ExpireEntries,
    ForgetVersions,
    GuardMissed,
    Inspect,
    Moment,
    OutputsDiffer,
    ReleaseLeases,
    RenewLeases,
    Stats,
    Write,
)
from dynbranch.csl.core.heat import Heat
from dynbranch.csl.core.leases import LeaseRow, LeaseTable, WorkflowKey
from dynbranch.csl.core.limits import Limits
from dynbranch.csl.core.planning import Planning, Writing
from dynbranch.csl.core.provenance import Provenance
from dynbranch.csl.core.rows import DerivationRow, EntryRow, Meta, Node
from dynbranch.csl.core.store import Batch, Transaction, View
from dynbranch.domain.errors import InvalidRequest
from dynbranch.domain.ids import GenerationId, Instant, LeaseId, Name, UnixMs, Version
from dynbranch.domain.reuse import (
    Commit,
    CommitOutcome,
    Committed,
    Demand,
    DemandOutcome,
    GenerationRef,
    Hit,
    Incarnation,
    Inspection,
    Lease,
    Level,
    Live,
    Miss,
    Refusal,
    Refused,
    StoreStats,
    WriteResult,
)


class Library:
    """``new_id`` makes lease ids and draws eviction samples."""

    def __init__(self, *, limits: Limits, new_id: Callable[[], bytes], view: View) -> None:
        self.limits = limits
        self.counters = Counters()
        self._new_id = new_id
        self._leases = LeaseTable(max_leases=limits.max_leases)
        self._provenance = Provenance(
            max_workflows=limits.max_provenance_workflows, max_outputs=limits.max_provenance_outputs
        )
        self._heat = Heat()
        self._condemned: dict[Name, int] = {}
        self._slices: dict[int, tuple[Condemned, ...]] = {}
        self._planning: Planning | None = None
        self._arrivals = FirstArrivals(
            max_workflows=limits.max_workflows, max_deferred=limits.max_deferred_arrivals
        )
        self._expiry_resumes = b""
        self.reread_condemned(view)

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
                return self.release_leases(event)
            case Write():
                return self.write(event, view, now)
            case BeginEpoch():
                return self.begin_epoch(event, view, now)
            case Inspect():
                return Decision(self.inspect(event.name, view))
            case Stats():
                return Decision(self.stats(view))
            case DeleteSlice():
                return self.delete_slice(event, view)
            case ForgetVersions():
                return self.forget_versions(view)
            case ExpireEntries():
                return self.expire_entries(view, now)
            case _:
                assert_never(event)

    # Demand

    def demand(self, event: Demand, view: View, now: Moment) -> Decision[DemandOutcome]:
        _check_name(event.name)
        self._expire(now.instant)
        transaction = Transaction(view)
        meta = graph.guarded_meta(transaction)
        workflow: WorkflowKey = (event.identity.tenant, event.identity.workflow_id)
        first_arrival = self._arrivals.of(transaction, view, meta, event.identity)
        outcome, effects = self._outcome(event, view, now, meta, first_arrival, workflow)
        self._count_demand(outcome)
        batch = transaction.batch()
        # A first arrival that a power loss could take back would come again later, after writes that the
        # workflow had not seen.
        return Decision(outcome, batch, durable=not batch.empty, effects=effects)

    def defer_arrivals(self, refused: Batch) -> None:
        """A demand's batch could not be written for want of room."""
        self._arrivals.defer(refused)

    def _outcome(
        self,
        event: Demand,
        view: View,
        now: Moment,
        meta: Meta,
        first_arrival: Version | None,
        workflow: WorkflowKey,
    ) -> tuple[DemandOutcome, tuple[Effect, ...]]:
        retried = self._leases.of_demand(event.demand_id)
        if retried is not None and _same_attempt(retried, event):
            return Miss(retried.lease), ()
        effects: tuple[Effect, ...] = ()
        if event.may_hit:
            entry = self._entry(view, event.name)
            if entry is not None and demand.is_fresh(view, event.name, entry):
                self._heat.touch(event.name, now.instant)
                incarnation = Incarnation(event.name, entry.number)
                self._provenance.served(workflow, entry.output_digests, incarnation)
                return demand.hit(view, event.name, entry), ()
            if entry is not None:
                self.counters.guard_misses += 1
                effects = (GuardMissed(event.name),)
        may_follow, may_lease = demand.allowed_kinds(event, max_reads=self.limits.max_reads)
        live = self._leases.joinable(event.name, event.exclude_generations)
        if live is not None and may_follow and all(self._is_live(view, one) for one in live.lease.producers):
            self._leases.join(live, workflow)
            return Live(live.lease.generation), effects
        if not may_lease or self._leases.full:
            return Miss(None), effects
        return Miss(self._grant(event, view, now, meta, first_arrival, workflow)), effects

    def _grant(
        self,
        event: Demand,
        view: View,
        now: Moment,
        meta: Meta,
        first_arrival: Version | None,
        workflow: WorkflowKey,
    ) -> Lease:
        lease = Lease(
            lease_id=LeaseId(self._new_id()),
            name=event.name,
            generation=self._new_generation(event.intended),
            read_token=meta.version,
            scope=demand.resolve_scope(event.scope, meta, first_arrival, max_reads=self.limits.max_reads),
            producers=self._live_producers(view, workflow, event),
            ttl_ms=self.limits.lease_ttl_ms,
        )
        self._leases.grant(
            lease,
            deadline=_after(now.instant, lease.ttl_ms),
            demand_id=event.demand_id,
            workflow=workflow,
            joinable=(event.may_hit or not self._leases.live(event.name))
            and judging.declared_current(view, meta, lease.scope),
        )
        return lease

    def _new_generation(self, intended: GenerationRef) -> GenerationRef:
        """Each lease names a generation of its own, at the place that the demand intends.

        A copy of a demand may come when its generation has long ended. If it were granted that very
        generation, followers would find the old log, and with it what was read before later writes.
        """
        return GenerationRef(GenerationId(self._new_id()), intended.agent_address)

    def _live_producers(self, view: View, workflow: WorkflowKey, event: Demand) -> tuple[Incarnation, ...]:
        """Entries that the request was built from. A lost one gives no edge: its text is in the name."""
        known = self._provenance.producers(workflow, event.input_digests)
        live = tuple(one for one in known if self._is_live(view, one))
        return live[: self.limits.max_producers]

    def _count_demand(self, outcome: DemandOutcome) -> None:
        match outcome:
            case Hit():
                self.counters.hits += 1
            case Live():
                self.counters.joins += 1
            case Miss():
                self.counters.misses += 1
            case _:
                assert_never(outcome)

    # Commit

    def commit(self, event: Commit, view: View, now: Moment) -> Decision[CommitOutcome]:
        """Store one execution, if everything that it read is still as it was. Ends its lease either way."""
        _check_name(event.lease.name)
        if event.level is Level.SAMPLED:
            raise InvalidRequest("sampled_result", "a sampled result can not be stored")
        row = self._leases.drop(event.lease.lease_id)
        if row is not None and row.lease.name != event.lease.name:
            raise InvalidRequest("wrong_lease", "the lease was given for another name")
        transaction = Transaction(view)
        meta = graph.guarded_meta(transaction)
        judged = self._judge(event, row, view, meta)
        if isinstance(judged, Refused):
            return self._refuse(judged)
        entry = self._entry(view, event.lease.name)
        if entry is not None and entry.payload_digest != event.payload_digest:
            self.counters.differing_commits += 1
            refused = Refused(Refusal.DIFFERS, "another result stands under this name")
            return self._refuse(refused, OutputsDiffer(event.lease.name, event.level))
        if entry is None:
            made = self._store(transaction, meta, event, judged, now)
            if isinstance(made, Refused):
                return self._refuse(made, batch=transaction.batch())
            entry = made
        else:
            self._support(transaction, event, entry, judged)
        incarnation = Incarnation(event.lease.name, entry.number)
        for workflow in row.workflows if row is not None else ():
            self._provenance.served(workflow, entry.output_digests, incarnation)
        self.counters.commits += 1
        return Decision(Committed(incarnation), transaction.batch())

    def _judge(self, event: Commit, row: LeaseRow | None, view: View, meta: Meta) -> DerivationRow | Refused:
        return judging.judge(event, row, view, meta, self.limits, lambda one: self._is_live(view, one))

    def _store(
        self, transaction: Transaction, meta: Meta, event: Commit, derivation: DerivationRow, now: Moment
    ) -> EntryRow | Refused:
        name = event.lease.name
        old = rows.read_entry(transaction, name)
        if old is not None:
            assert self._condemned.get(name) == old.number
            graph.remove_entry(transaction, name, old)
            meta = graph.without(meta, old)
        if not eviction.fits(meta, len(event.payload), self.limits) and self._may_take_away:
            before = meta.entries
            meta = eviction.make_room(
                transaction,
                meta,
                incoming_bytes=len(event.payload),
                keep=frozenset(producer.name for producer in derivation.producers),
                limits=self.limits,
                heat=self._heat,
                now=now.instant,
                new_id=self._new_id,
            )
            self.counters.evicted_entries += before - meta.entries
        if not eviction.fits(meta, len(event.payload), self.limits):
            transaction.put(rows.META, rows.pack_meta(meta))
            return Refused(Refusal.UNAVAILABLE, "the store is full and still making room")
        entry = judging.entry_of(event, meta.next_number, now.unix_ms, self.limits)
        meta = graph.put_entry(transaction, meta, name, entry, event.payload)
        self._put_derivation(transaction, Node(name, 0), derivation)
        transaction.put(rows.META, rows.pack_meta(replace(meta, next_number=meta.next_number + 1)))
        self._heat.touch(name, now.instant)
        return entry

    def _support(
        self, transaction: Transaction, event: Commit, entry: EntryRow, derivation: DerivationRow
    ) -> None:
        """One more execution supports an entry that stands already."""
        if self.is_falling(event.lease.name):
            return
        if not judging.may_support(entry, derivation, self.limits):
            return
        if judging.same_support(transaction, event, entry, derivation):
            return
        name = event.lease.name
        self._put_derivation(transaction, Node(name, entry.next_derivation), derivation)
        updated = replace(
            entry,
            next_derivation=entry.next_derivation + 1,
            derivations=(*entry.derivations, entry.next_derivation),
        )
        transaction.put(rows.entry_key(name), rows.pack_entry(updated))

    def _put_derivation(self, transaction: Transaction, node: Node, derivation: DerivationRow) -> None:
        graph.put_derivation(transaction, node, derivation)
        if self._planning is not None:
            self._planning.committed(node, derivation)

    @property
    def _may_take_away(self) -> bool:
        """Whether entries may go for want of room or for age: not while a write relies on what it found."""
        return not self._slices and self._planning is None

    def _refuse(
        self, refused: Refused, *effects: Effect, batch: Batch | None = None
    ) -> Decision[CommitOutcome]:
        self.counters.refused_commits += 1
        return Decision(refused, batch or Batch(), effects=effects)

    # Leases

    def renew_leases(self, event: RenewLeases, now: Moment) -> Decision[frozenset[LeaseId]]:
        """The reply names the leases that are not known."""
        self._expire(now.instant)
        ttl_ms = min(event.ttl_ms or self.limits.lease_ttl_ms, self.limits.max_lease_ttl_ms)
        deadline = _after(now.instant, ttl_ms)
        return Decision(frozenset(one for one in event.lease_ids if not self._leases.renew(one, deadline)))

    def release_leases(self, event: ReleaseLeases) -> Decision[None]:
        for lease_id in event.lease_ids:
            self._leases.drop(lease_id)
        return Decision(None)

    def _expire(self, now: Instant) -> None:
        self.counters.expired_leases += self._leases.expire(now)

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
            self._planning = None

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
        assert not self._slices, "a write must wait until the slices of the one before are deleted"
        assert self._planning is None, "writes are planned one after the other"
        self._planning = Planning(
            writing,
            Transaction(view),
            meta,
            max_history=self.limits.max_history,
            max_new_history=self.limits.max_history_per_write,
            part_nodes=self.limits.slice_nodes,
        )

    def step_plan(self, view: View, index: View, nodes: int) -> bool:
        """Look at about ``nodes`` more nodes; True when the plan may be finished.

        ``index`` is a frozen view of the moment when the plan began, or ``view`` itself.
        """
        assert self._planning is not None
        return self._planning.step(view, index, nodes)

    def is_falling(self, name: Name) -> bool:
        """Whether the write under way has found that the entry goes."""
        return self._planning is not None and self._planning.is_dead(name)

    def drop_plan(self) -> None:
        """The write does not happen."""
        self._planning = None

    def finish_plan(self, view: View, index: View) -> Decision[WriteResult]:
        """Look at what is left and decide: bump the versions and fell what was found, all in one batch."""
        plan = self._planning
        assert plan is not None
        while not plan.step(view, index, self.limits.slice_nodes):
            pass
        self._planning = None
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
            self._leases.close_all()
            if writing.records is None
            else self._leases.close_written(writing.records)
        )
        closed += self._leases.close_orphaned(plan.dead)
        meta = self._delete_or_condemn(transaction, meta, plan)
        self._arrivals.put_deferred(transaction, view, meta)
        self.counters.writes += writing.records is not None
        self.counters.invalidated_entries += len(plan.dead)
        reply = WriteResult(
            version=meta.version,
            invalidated_entries=len(plan.dead),
            closed_leases=closed,
            invalidated_names=tuple(islice(plan.dead, self.limits.reported_names)),
        )
        effect = Cascaded(
            direct=plan.direct,
            entries=len(plan.dead),
            derivations=plan.derivations,
            closed_leases=closed,
            slices=tuple(self._slices),
        )
        return Decision(reply, transaction.batch(), durable=True, effects=(effect,))

    def _delete_or_condemn(self, transaction: Transaction, meta: Meta, plan: Planning) -> Meta:
        parts = list(plan.parts())
        if len(parts) <= 1:
            return cascade.remove(transaction, meta, parts[0][0]) if parts else meta
        for number, (nodes, packed) in enumerate(parts):
            transaction.put(rows.condemned_key(number), packed)
            self._slices[number] = nodes
        self._condemned.update(plan.dead)
        return meta

    def reread_condemned(self, view: View) -> None:
        """What is condemned, as the rows say: at the start, and when the batch of a write was refused."""
        self._slices.clear()
        self._condemned.clear()
        for number, nodes in cascade.pending(view).items():
            self._condemn(number, nodes)

    def _condemn(self, number: int, nodes: tuple[Condemned, ...]) -> None:
        self._slices[number] = nodes
        self._condemned.update(
            (node.incarnation.name, node.incarnation.number) for node in nodes if node.whole
        )

    @property
    def slices(self) -> tuple[int, ...]:
        """Slices that are condemned and not deleted yet."""
        return tuple(self._slices)

    def delete_slice(self, event: DeleteSlice, view: View) -> Decision[None]:
        """``slice_deleted`` must follow when the batch is applied: until then the nodes stay condemned."""
        nodes = self._slices[event.number]
        transaction = Transaction(view)
        meta = graph.guarded_meta(transaction)
        meta = cascade.remove(transaction, meta, nodes)
        transaction.delete(rows.condemned_key(event.number))
        transaction.put(rows.META, rows.pack_meta(meta))
        return Decision(None, transaction.batch())

    def slice_deleted(self, number: int) -> None:
        for node in self._slices.pop(number):
            if self._condemned.get(node.incarnation.name) == node.incarnation.number:
                del self._condemned[node.incarnation.name]

    def expire_entries(self, view: View, now: Moment) -> Decision[int]:
        """Let go of some entries older than their time, as eviction does. Replies how many rows were looked
        at; zero: nothing is left to do.

        Storage is bounded by it, freshness is not: that is what writes are for.
        """
        if not self._may_take_away or not self.limits.entry_ttl_ms:
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
            gone = eviction.evict(transaction, meta, name, entry, self.limits, partly=True)
            if gone is not None:
                meta = gone
                self.counters.expired_entries += 1
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
        _check_name(name)
        entry = self._entry(view, name)
        shown = None if entry is None else graph.entry_view(view, name, entry)
        return Inspection(shown, history.of_name(view, name), self._leases.live(name))

    def stats(self, view: View) -> StoreStats:
        meta = rows.read_meta(view)
        return self.counters.with_gauges(
            version=meta.version,
            entries=meta.entries - len(self._condemned),
            payload_bytes=meta.payload_bytes,
            leases=len(self._leases),
        )

    def violations(self) -> Iterator[str]:
        """What is wrong with the state in memory; nothing, if the code is right."""
        yield from self._leases.violations()
        condemned = {
            (node.incarnation.name, node.incarnation.number)
            for nodes in self._slices.values()
            for node in nodes
            if node.whole
        }
        if not condemned.issuperset(self._condemned.items()):
            yield "a name is condemned by no slice"

    def _entry(self, view: View, name: Name) -> EntryRow | None:
        """The entry that may be served: not one whose rows are only waiting to be deleted."""
        entry = rows.read_entry(view, name)
        if entry is not None and self._condemned.get(name) == entry.number:
            return None
        return entry

    def _is_live(self, view: View, incarnation: Incarnation) -> bool:
        entry = self._entry(view, incarnation.name)
        return entry is not None and entry.number == incarnation.number


def _same_attempt(row: LeaseRow, event: Demand) -> bool:
    """Whether a demand repeats the one that the lease was given to."""
    generation = row.lease.generation
    return (
        row.lease.name == event.name
        and generation.agent_address == event.intended.agent_address
        and generation.generation_id not in event.exclude_generations
    )


def _after(now: Instant, ttl_ms: int) -> Instant:
    return Instant(now + ttl_ms / 1000.0)


def _check_name(name: Name) -> None:
    if len(name) != rows.NAME_BYTES:
        raise InvalidRequest("bad_name", f"a name has {rows.NAME_BYTES} bytes, this one {len(name)}")
