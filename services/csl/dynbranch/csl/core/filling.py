"""The store's side of fills (paper §3.3): the leave to run, shadows, promotion, adoption, loss.

A shadow is an entry that serving paths do not see. Only a canonical demand with its exact name makes it a
confirmed one, or consumes it; only the controller's word, its age or a write takes it away. Demand and loss
of a fill meet here and nowhere else, so one of them is first.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

from dynbranch.csl.core import commit as judging
from dynbranch.csl.core import demand as demanding
from dynbranch.csl.core import eviction, fill_rows, graph, outbox, rows, versions
from dynbranch.csl.core.events import AcknowledgeSettlements, Decision, Moment
from dynbranch.csl.core.fill_rows import ShadowRow
from dynbranch.csl.core.leases import LeaseRow, WorkflowKey
from dynbranch.csl.core.memory import Memory, after, check_name
from dynbranch.csl.core.rows import EntryRow, Meta, Node, Standing
from dynbranch.csl.core.store import Transaction, View
from dynbranch.domain.errors import InvalidRequest
from dynbranch.domain.fills import (
    BeginFill,
    DiscardFills,
    DiscardResult,
    FillGranted,
    FillKnown,
    FillLive,
    FillOutcome,
    FillRefusal,
    FillRefused,
    Settlement,
    SettlementKind,
)
from dynbranch.domain.ids import DemandId, LeaseId, Name, RecordId, UnixMs, Version, source_of, whole
from dynbranch.domain.reuse import (
    Demand,
    FillOrigin,
    GenerationRef,
    Hit,
    Identity,
    Incarnation,
    Lease,
    Live,
    ReadScope,
)

NOBODY: WorkflowKey = ("", "")
"""A fill's result is served to no workflow until a demand asks for it."""

ANY_NUMBER = 0
"""A producer of a fill that is named with this number is whatever stands under the name."""


# Settlements


def settlement(
    kind: SettlementKind,
    origin: FillOrigin,
    name: Name,
    now: Moment,
    *,
    demanded_by: Identity | None = None,
    execution_ms: float = 0.0,
    generation: GenerationRef | None = None,
    reason: str = "",
) -> Settlement:
    """Not numbered yet."""
    return Settlement(0, kind, origin, now.unix_ms, name, demanded_by, execution_ms, generation, reason)


def settle(memory: Memory, transaction: Transaction, meta: Meta, *settlements: Settlement) -> Meta:
    before = meta.settlements + len(settlements)
    meta = outbox.append(transaction, meta, *settlements, max_rows=memory.limits.max_settlements)
    memory.counters.dropped_settlements += before - meta.settlements
    return meta


def acknowledge(event: AcknowledgeSettlements, view: View) -> Decision[int]:
    """Replies how many rows went; zero: nothing is left to do."""
    transaction = Transaction(view)
    meta, gone = outbox.acknowledge(transaction, graph.guarded_meta(transaction), event.through)
    if gone:
        transaction.put(rows.META, rows.pack_meta(meta))
    return Decision(gone, transaction.batch())


# Beginning


def begin(memory: Memory, event: BeginFill, view: View, now: Moment) -> Decision[FillOutcome]:
    """The leave to run one stage of a fill, or what makes running it needless or useless."""
    check_name(event.name)
    memory.counters.expired_leases += memory.leases.expire(now.instant)
    transaction = Transaction(view)
    _clear_over(memory, event.name, transaction, now)
    return Decision(_begun(memory, event, transaction, now), transaction.batch())


def without_room(memory: Memory, refused: FillOutcome) -> None:
    """The batch of a leave could not be written: it was not given. ``Shadows.reread`` is the caller's."""
    if isinstance(refused, FillGranted):
        memory.leases.drop(refused.lease.lease_id)


def _is_over(shadow: ShadowRow, now: Moment) -> bool:
    """Whether it only waits to be taken away: no demand is served by it any more."""
    return shadow.lost or shadow.expires <= now.unix_ms


def _clear_over(memory: Memory, name: Name, transaction: Transaction, now: Moment) -> None:
    """A shadow that still waits for the sweeper stands in nobody's way."""
    shadow = memory.shadows.get(name)
    if shadow is None or not _is_over(shadow, now) or not memory.may_take_away:
        return
    meta = _taken_away(memory, transaction, graph.guarded_meta(transaction), name, now)
    if meta is not None:
        transaction.put(rows.META, rows.pack_meta(meta))


def _taken_away(
    memory: Memory, transaction: Transaction, meta: Meta, name: Name, now: Moment, *, partly: bool = False
) -> Meta | None:
    """The shadow is gone; None: too much hangs on it, and it stays. ``partly``: less hangs on it then."""
    node = graph.require_entry(transaction, name)
    gone = eviction.evict(transaction, meta, name, node, memory.limits, partly=partly)
    if gone is None:
        return None
    row = memory.shadows.drop(name)
    assert row is not None
    if row.lost:
        return gone
    memory.counters.discarded_shadows += 1
    expired = SettlementKind.DISCARDED, row.origin, name, now
    return settle(
        memory, transaction, gone, settlement(*expired, execution_ms=node.execution_ms, reason="expired")
    )


def _begun(memory: Memory, event: BeginFill, view: View, now: Moment) -> FillOutcome:
    if event.origin.fill_id in memory.tombstones:
        return FillRefused(FillRefusal.LOST, "it was discarded before it began")
    for row in memory.leases.of_fill(event.origin.fill_id):
        if row.lease.fill == event.origin and row.lease.name == event.name and not row.closed_by:
            return FillGranted(row.lease)
    known = _known(memory, event, view, now)
    if known is not None:
        return known
    live = memory.leases.joinable(event.name, frozenset())
    if live is not None:
        if event.once or live.lease.once:
            return FillRefused(FillRefusal.ONCE_TAKEN, "it is executing already")
        return FillLive(live.lease.generation)
    if memory.leases.full or len(memory.shadows) + memory.leases.fills >= memory.limits.max_shadows:
        return FillRefused(FillRefusal.FULL, "there are as many shadows and fills as may be")
    return _granted(memory, event, view, now)


def _known(memory: Memory, event: BeginFill, view: View, now: Moment) -> FillKnown | FillRefused | None:
    node = memory.node(view, event.name)
    if node is None:
        return None
    if event.once or node.standing is Standing.ONCE:
        return FillRefused(FillRefusal.ONCE_TAKEN, "a result stands under this name")
    shadow = memory.shadows.get(event.name)
    if shadow is not None and _is_over(shadow, now):
        return FillRefused(FillRefusal.NOT_STORABLE, "a shadow that is over is still to be taken away")
    if not demanding.is_fresh(view, event.name, node):
        return None
    known = demanding.hit(view, event.name, node)
    return FillKnown(known.incarnation, known.payload, node.is_shadow, node.level, node.execution_ms)


def _granted(memory: Memory, event: BeginFill, view: View, now: Moment) -> FillOutcome:
    limits = memory.limits
    meta = rows.read_meta(view)
    first_arrival = _first_arrival(view, meta, event.identity) if event.scope.declared else None
    scope = demanding.resolve_scope(event.scope, meta, first_arrival, max_reads=limits.max_reads)
    if not judging.declared_current(view, meta, scope):
        return FillRefused(FillRefusal.NOT_STORABLE, "what it reads was written, or its version is unknown")
    producers = _producers(memory, event, view)
    if producers is None:
        return FillRefused(FillRefusal.LOST, "a stage that it was built from is gone")
    lease = Lease(
        lease_id=LeaseId(memory.new_id()),
        name=event.name,
        generation=memory.new_generation(event.intended),
        read_token=meta.version,
        scope=scope,
        producers=producers,
        ttl_ms=limits.lease_ttl_ms,
        fill=event.origin,
        once=event.once,
        shadow_ttl_ms=event.shadow_ttl_ms,
    )
    memory.leases.grant(
        lease,
        deadline=after(now.instant, lease.ttl_ms),
        demand_id=DemandId(b"fill" + lease.lease_id),
        workflow=NOBODY,
        joinable=True,
    )
    return FillGranted(lease)


def _first_arrival(view: View, meta: Meta, identity: Identity) -> Version | None:
    """A fill is no arrival: it only looks."""
    known = view.get(rows.arrival_key(identity.tenant, identity.workflow_id))
    if not identity.workflow_id or known is None:
        return None
    first = rows.unpack_version(known)
    return first if first.epoch == meta.epoch else None


def _producers(memory: Memory, event: BeginFill, view: View) -> tuple[Incarnation, ...] | None:
    """Earlier stages of the fill, and confirmed outputs that the request holds. None: a stage fell."""
    found: set[Incarnation] = set()
    for producer in event.producers:
        node = memory.node(view, producer.name)
        if node is None or producer.number not in (ANY_NUMBER, node.number):
            return None
        found.add(Incarnation(producer.name, node.number))
    workflow = (event.identity.tenant, event.identity.workflow_id)
    known = memory.provenance.producers(workflow, event.input_digests)
    found.update(one for one in known if memory.is_live(view, one))
    return tuple(sorted(found))[: memory.limits.max_producers]


# A demand meets a fill


def uncover(
    memory: Memory, transaction: Transaction, meta: Meta, name: Name, node: EntryRow
) -> tuple[Meta, EntryRow]:
    """The shadow is a confirmed entry from now on. The index in memory is the caller's."""
    confirmed = replace(node, standing=Standing.CONFIRMED)
    transaction.put(rows.entry_key(name), rows.pack_entry(confirmed))
    transaction.delete(fill_rows.shadow_key(name))
    return replace(meta, shadows=meta.shadows - 1), confirmed


def promote(
    memory: Memory, event: Demand, node: EntryRow, transaction: Transaction, view: View, now: Moment
) -> Hit | None:
    """Make the shadow under the demanded name a confirmed entry and serve it. None: it may not be."""
    row = memory.shadows.get(event.name)
    assert row is not None, "a shadow without a row"
    if row.lost or row.expires <= now.unix_ms or node.standing is Standing.ONCE:
        return None
    if not _covered_by_some(view, event, node):
        return None
    hit = demanding.hit(view, event.name, node)
    meta, _ = uncover(memory, transaction, rows.read_meta(transaction), event.name, node)
    promoted = settlement(
        SettlementKind.PROMOTED,
        row.origin,
        event.name,
        now,
        demanded_by=event.identity,
        execution_ms=node.execution_ms,
    )
    meta = settle(memory, transaction, meta, promoted)
    transaction.put(rows.META, rows.pack_meta(meta))
    memory.shadows.drop(event.name)
    memory.note_served(row.origin.fill_id)
    memory.heat.touch(event.name, now.instant)
    memory.counters.promotions += 1
    return replace(hit, promoted=row.origin)


def _covered_by_some(view: View, event: Demand, node: EntryRow) -> bool:
    """Whether one execution behind the shadow is current and depends on all that the harness says it read."""
    for number in node.derivations:
        derivation = rows.read_derivation(view, Node(event.name, number))
        if not versions.is_current(view, derivation.reads):
            continue
        if _cover({read.record for read in derivation.reads}, event.scope):
            return True
    return False


def _cover(records: Collection[RecordId], demanded: ReadScope) -> bool:
    """Whether a write to anything that the demand declares would fell what read these records."""
    return all(
        read.record in records or whole(source_of(read.record)) in records for read in demanded.declared
    )


def adopt(
    memory: Memory, event: Demand, live: LeaseRow, transaction: Transaction, now: Moment
) -> Live | None:
    """The demand takes the running fill over. None: another demand of a ``once`` fill was first."""
    fill = live.lease.fill
    assert fill is not None
    if live.adopted_by == event.demand_id:
        return Live(live.lease.generation, fill)
    if live.lease.once and live.adopted_by is not None:
        return None
    if live.adopted_by is not None:
        return Live(live.lease.generation)
    live.adopted_by = event.demand_id
    adopted = settlement(
        SettlementKind.CONSUMED if live.lease.once else SettlementKind.ADOPTED,
        fill,
        event.name,
        now,
        demanded_by=event.identity,
        generation=live.lease.generation,
    )
    meta = settle(memory, transaction, rows.read_meta(transaction), adopted)
    transaction.put(rows.META, rows.pack_meta(meta))
    memory.note_served(fill.fill_id)
    memory.counters.adoptions += 1
    taken = Live(live.lease.generation, fill)
    if live.lease.once:
        memory.consumed.keep(event, taken)
    return taken


def may_adopt(event: Demand, live: LeaseRow) -> bool:
    """Whether the fill depends on everything that the demand says it has read."""
    scope = live.lease.scope
    records = {read.record for read in scope.declared}
    return scope.sources == event.scope.sources and _cover(records, event.scope)


def consume(
    memory: Memory, event: Demand, node: EntryRow, transaction: Transaction, view: View, now: Moment
) -> Hit | None:
    """Take the only use of a sampled stage. It must be durable before the result is served."""
    row = memory.shadows.get(event.name)
    assert row is not None, "a shadow without a row"
    if row.lost or row.expires <= now.unix_ms or not memory.may_take_away:
        return None
    if not _covered_by_some(view, event, node):
        return None
    hit = replace(demanding.hit(view, event.name, node), promoted=row.origin)
    meta = eviction.evict(transaction, rows.read_meta(transaction), event.name, node, memory.limits)
    if meta is None:
        return None
    consumed = settlement(
        SettlementKind.CONSUMED,
        row.origin,
        event.name,
        now,
        demanded_by=event.identity,
        execution_ms=node.execution_ms,
    )
    meta = settle(memory, transaction, meta, consumed)
    transaction.put(rows.META, rows.pack_meta(meta))
    memory.shadows.drop(event.name)
    memory.note_served(row.origin.fill_id)
    memory.counters.consumptions += 1
    memory.consumed.keep(event, hit)
    return hit


def undo(memory: Memory, event: Demand, view: View) -> None:
    """The batch of a promotion, an adoption or a consumption was refused: it has not happened."""
    memory.shadows.reread(view)
    memory.consumed.forget(event)
    live = memory.leases.joinable(event.name, frozenset())
    if live is not None and live.adopted_by == event.demand_id:
        live.adopted_by = None


# Loss


def discard(memory: Memory, event: DiscardFills, view: View, now: Moment) -> Decision[DiscardResult]:
    """From now on none of these fills is promoted, adopted or stored. Their rows go when there is time."""
    if len(event.fill_ids) > memory.limits.max_written_records:
        raise InvalidRequest("too_many_fills", "discard fewer fills at once")
    transaction = Transaction(view)
    meta = graph.guarded_meta(transaction)
    reason = event.reason.value
    abort: list[GenerationRef] = []
    settlements: list[Settlement] = []
    discarded = 0
    for fill in dict.fromkeys(event.fill_ids):
        memory.bury(fill)
        for live in memory.leases.of_fill(fill):
            origin = live.lease.fill
            assert origin is not None
            if not live.is_fill:
                continue
            # Also what was closed before: the answer to that may not have arrived.
            abort.append(live.lease.generation)
            if memory.leases.close(live, reason):
                closed = SettlementKind.DISCARDED, origin, live.lease.name, now
                settlements.append(settlement(*closed, generation=live.lease.generation, reason=reason))
        for name in memory.shadows.of_fill(fill):
            row = memory.shadows.get(name)
            assert row is not None
            if row.lost:
                continue
            lost = replace(row, lost=True)
            transaction.put(fill_rows.shadow_key(name), fill_rows.pack_shadow(lost))
            memory.shadows.put(name, lost)
            executed = graph.require_entry(view, name).execution_ms
            gone = SettlementKind.DISCARDED, row.origin, name, now
            settlements.append(settlement(*gone, execution_ms=executed, reason=reason))
            discarded += 1
    if settlements:
        meta = settle(memory, transaction, meta, *settlements)
        transaction.put(rows.META, rows.pack_meta(meta))
    memory.counters.discarded_shadows += discarded
    immune = frozenset(fill for fill in event.fill_ids if fill in memory.served_fills)
    return Decision(DiscardResult(tuple(abort), discarded, immune), transaction.batch())


def came_to_nothing(memory: Memory, released: Sequence[LeaseRow], view: View, now: Moment) -> Decision[None]:
    """Of these executions no result comes any more. A fill's own run tells its end, unless it was adopted."""
    failed = [
        settlement(SettlementKind.FAILED, row.lease.fill, row.lease.name, now)
        for row in released
        if row.lease.fill is not None and row.adopted_by is not None
    ]
    if not failed:
        return Decision(None)
    transaction = Transaction(view)
    meta = settle(memory, transaction, graph.guarded_meta(transaction), *failed)
    transaction.put(rows.META, rows.pack_meta(meta))
    return Decision(None, transaction.batch())


def sweep(memory: Memory, view: View, now: Moment) -> Decision[int]:
    """Take away some shadows that are lost or too old, as eviction does. Replies how many went, and how many
    adopted fills have come to nothing: whoever ran them is gone."""
    memory.counters.expired_leases += memory.leases.expire(now.instant)
    run_out = memory.leases.take_run_out()
    if run_out:
        return Decision(len(run_out), came_to_nothing(memory, run_out, view, now).batch)
    if not memory.may_take_away:
        return Decision(0)
    names = memory.shadows.to_sweep(now.unix_ms, memory.limits.swept_per_step)
    if not names:
        return Decision(0)
    transaction = Transaction(view)
    meta = graph.guarded_meta(transaction)
    swept = 0
    for name in names:
        gone = _taken_away(memory, transaction, meta, name, now, partly=True)
        if gone is not None:
            meta = gone
            swept += 1
    transaction.put(rows.META, rows.pack_meta(meta))
    return Decision(swept, transaction.batch())


def felled(memory: Memory, hidden: Sequence[Name], now_ms: UnixMs) -> list[Settlement]:
    """The settlements of the shadows and running fills that a write takes."""
    found: list[Settlement] = []
    for name in hidden:
        row = memory.shadows.drop(name)
        assert row is not None
        if not row.lost:
            found.append(Settlement(0, SettlementKind.STALE, row.origin, now_ms, name, reason="shadow"))
            memory.counters.discarded_shadows += 1
    for live in memory.leases.take_closed_fills():
        lease = live.lease
        assert lease.fill is not None
        found.append(
            Settlement(
                0,
                SettlementKind.STALE,
                lease.fill,
                now_ms,
                lease.name,
                generation=lease.generation,
                reason=live.closed_by,
            )
        )
    return found
