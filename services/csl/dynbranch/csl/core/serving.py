"""What one canonical demand is answered: a hit, a live generation to follow, or leave to execute."""

from __future__ import annotations

from dataclasses import dataclass
from typing import assert_never

from dynbranch.csl.core import commit as judging
from dynbranch.csl.core import demand, filling, graph
from dynbranch.csl.core.events import Decision, Effect, GuardMissed, Moment
from dynbranch.csl.core.leases import LeaseRow, WorkflowKey
from dynbranch.csl.core.memory import Memory, after, check_name
from dynbranch.csl.core.rows import Meta, Standing
from dynbranch.csl.core.store import Transaction, View
from dynbranch.domain.ids import LeaseId, Version
from dynbranch.domain.reuse import (
    Demand,
    DemandOutcome,
    Hit,
    Incarnation,
    Lease,
    Live,
    Miss,
)


def answer(memory: Memory, event: Demand, view: View, now: Moment) -> Decision[DemandOutcome]:
    check_name(event.name)
    memory.counters.expired_leases += memory.leases.expire(now.instant)
    transaction = Transaction(view)
    meta = graph.guarded_meta(transaction)
    first_arrival = memory.arrivals.of(transaction, view, meta, event.identity)
    # A first arrival that a power loss could take back would come again later, after writes that the
    # workflow had not seen. A sampled result that was consumed could be consumed again.
    arrived = transaction.changed
    asked = _Asked(event, view, now, transaction, meta, first_arrival)
    outcome, effects = _once(memory, asked) if event.once else _outcome(memory, asked)
    _count(memory, outcome)
    consumed = event.once and not isinstance(outcome, Miss)
    return Decision(outcome, transaction.batch(), durable=arrived or consumed, effects=effects)


@dataclass(frozen=True, slots=True)
class _Asked:
    event: Demand
    view: View
    now: Moment
    transaction: Transaction
    meta: Meta
    first_arrival: Version | None

    @property
    def workflow(self) -> WorkflowKey:
        return (self.event.identity.tenant, self.event.identity.workflow_id)


def _outcome(memory: Memory, asked: _Asked) -> tuple[DemandOutcome, tuple[Effect, ...]]:
    event = asked.event
    retried = memory.leases.of_demand(event.demand_id)
    if retried is not None and _same_attempt(retried, event):
        return Miss(retried.lease), ()
    hit, effects = _stored(memory, asked) if event.may_hit else (None, ())
    if hit is not None:
        return hit, effects
    may_follow, may_lease = demand.allowed_kinds(event, max_reads=memory.limits.max_reads)
    live = memory.leases.joinable(event.name, event.exclude_generations)
    if live is not None and may_follow:
        followed = _followed(memory, asked, live)
        if followed is not None:
            memory.leases.join(live, asked.workflow)
            return followed, effects
    if not may_lease or memory.leases.full:
        return Miss(None), effects
    return Miss(_grant(memory, asked)), effects


def _stored(memory: Memory, asked: _Asked) -> tuple[Hit | None, tuple[Effect, ...]]:
    """A confirmed entry, or the shadow that this demand promotes."""
    event, view = asked.event, asked.view
    node = memory.node(view, event.name)
    if node is None:
        return None, ()
    if not demand.is_fresh(view, event.name, node):
        memory.counters.guard_misses += 1
        return None, (GuardMissed(event.name),)
    if node.is_shadow:
        hit = filling.promote(memory, event, node, asked.transaction, view, asked.now)
    else:
        hit = demand.hit(view, event.name, node)
        memory.heat.touch(event.name, asked.now.instant)
    if hit is not None:
        memory.provenance.served(asked.workflow, node.output_digests, Incarnation(event.name, node.number))
    return hit, ()


def _followed(memory: Memory, asked: _Asked, live: LeaseRow) -> Live | None:
    stands = memory.is_live if live.lease.fill is None else memory.stands
    if live.lease.once or not all(stands(asked.view, one) for one in live.lease.producers):
        return None
    if live.lease.fill is None:
        return Live(live.lease.generation)
    if live.is_fill and not filling.may_adopt(asked.event, live):
        return None
    return filling.adopt(memory, asked.event, live, asked.transaction, asked.now)


def _once(memory: Memory, asked: _Asked) -> tuple[DemandOutcome, tuple[Effect, ...]]:
    """A sampled request: it may consume a fill that was made for one, and else it is nobody's business."""
    event = asked.event
    repeated = memory.consumed.answer_to(event)
    if repeated is not None and not _is_excluded(repeated, event):
        return repeated, ()
    if event.may_hit:
        node = memory.node(asked.view, event.name)
        if node is not None and node.standing is Standing.ONCE:
            hit = filling.consume(memory, event, node, asked.transaction, asked.view, asked.now)
            return (Miss(None) if hit is None else hit), ()
        live = memory.leases.joinable(event.name, event.exclude_generations)
        if live is not None and live.lease.once and event.may_execute and filling.may_adopt(event, live):
            taken = filling.adopt(memory, event, live, asked.transaction, asked.now)
            return (Miss(None) if taken is None else taken), ()
    return Miss(None), ()


def _is_excluded(outcome: DemandOutcome, event: Demand) -> bool:
    return isinstance(outcome, Live) and outcome.generation.generation_id in event.exclude_generations


def _grant(memory: Memory, asked: _Asked) -> Lease:
    event, view, limits = asked.event, asked.view, memory.limits
    scope = demand.resolve_scope(event.scope, asked.meta, asked.first_arrival, max_reads=limits.max_reads)
    lease = Lease(
        lease_id=LeaseId(memory.new_id()),
        name=event.name,
        generation=memory.new_generation(event.intended),
        read_token=asked.meta.version,
        scope=scope,
        producers=_live_producers(memory, asked),
        ttl_ms=limits.lease_ttl_ms,
    )
    memory.leases.grant(
        lease,
        deadline=after(asked.now.instant, lease.ttl_ms),
        demand_id=event.demand_id,
        workflow=asked.workflow,
        joinable=(event.may_hit or not memory.leases.is_executing(event.name))
        and judging.declared_current(view, asked.meta, scope),
    )
    return lease


def _live_producers(memory: Memory, asked: _Asked) -> tuple[Incarnation, ...]:
    """Entries that the request was built from. A lost one gives no edge: its text is in the name."""
    known = memory.provenance.producers(asked.workflow, asked.event.input_digests)
    live = tuple(one for one in known if memory.is_live(asked.view, one))
    return live[: memory.limits.max_producers]


def _count(memory: Memory, outcome: DemandOutcome) -> None:
    match outcome:
        case Hit():
            memory.counters.hits += 1
        case Live():
            memory.counters.joins += 1
        case Miss():
            memory.counters.misses += 1
        case _:
            assert_never(outcome)


def _same_attempt(row: LeaseRow, event: Demand) -> bool:
    """Whether a demand repeats the one that the lease was given to."""
    generation = row.lease.generation
    return (
        row.lease.name == event.name
        and generation.agent_address == event.intended.agent_address
        and generation.generation_id not in event.exclude_generations
    )
