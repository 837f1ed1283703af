"""One canonical demand: a hit, a live generation to follow, or leave to execute."""

from __future__ import annotations

from dataclasses import replace

from dynbranch.csl.core import rows, versions
from dynbranch.csl.core.leases import sources_of
from dynbranch.csl.core.limits import Limits
from dynbranch.csl.core.rows import EntryRow, Meta, Node
from dynbranch.csl.core.store import Inconsistent, Transaction, View
from dynbranch.domain.ids import Name, Version, source_of, whole
from dynbranch.domain.reuse import DeclaredRead, Demand, Hit, Identity, Incarnation, ReadScope

MAX_READS = Limits().max_reads


def register_arrival(
    transaction: Transaction, meta: Meta, identity: Identity, *, max_workflows: int
) -> tuple[Meta, Version | None]:
    """Where the store stood when the workflow first arrived. None when that is not known.

    The row need not be durable before the demand is answered: the log keeps its order, so a power loss that
    takes the row takes every later write too.
    """
    if not identity.workflow_id:
        return meta, None
    key = rows.arrival_key(identity.tenant, identity.workflow_id)
    known = transaction.get(key)
    if known is not None:
        first = rows.unpack_version(known)
        return meta, first if first.epoch == meta.epoch else None
    if meta.workflows >= max_workflows:
        return meta, None
    transaction.put(key, rows.pack_version(meta.version))
    return replace(meta, workflows=meta.workflows + 1), meta.version


def resolve_scope(
    scope: ReadScope, meta: Meta, first_arrival: Version | None, *, max_reads: int = MAX_READS
) -> ReadScope:
    """Give declared reads the version that they count from. One that stays None can not be stored.

    More than ``max_reads`` become whole sources, as at a commit, so that no lease is large.
    """
    if not scope.declared:
        return scope
    declared = [
        DeclaredRead(read.record, first_arrival if read.as_of is None else min(read.as_of, meta.version))
        for read in scope.declared
    ]
    if len(declared) > max_reads:
        known = [read.as_of for read in declared if read.as_of is not None]
        oldest = min(known) if len(known) == len(declared) else None
        sources = sorted({source_of(read.record) for read in declared})
        declared = [DeclaredRead(whole(source), oldest) for source in sources]
    return replace(scope, declared=tuple(declared))


def is_fresh(view: View, name: Name, entry: EntryRow) -> bool:
    """Whether at least one derivation is current. Writes cascade, so this should never be false; it is
    cheap.
    """
    return any(
        versions.is_current(view, rows.read_derivation(view, Node(name, number)).reads)
        for number in entry.derivations
    )


def hit(view: View, name: Name, entry: EntryRow) -> Hit:
    payload = view.get(rows.payload_key(name))
    if payload is None or len(payload) != entry.payload_bytes:
        raise Inconsistent(f"the payload of {name.hex()} is missing or has a wrong size")
    return Hit(
        incarnation=Incarnation(name, entry.number),
        payload=payload,
        level=entry.level,
        execution_ms=entry.execution_ms,
        created=entry.created,
    )


def allowed_kinds(demand: Demand, *, max_reads: int = MAX_READS) -> tuple[bool, bool]:
    """(may follow a live generation, may be given a lease).

    An execution that may read more than ``max_reads`` sources could not be stored: it gets no lease.
    """
    scope = demand.scope
    fits = len(scope.declared) + len(scope.sources) <= max_reads or len(sources_of(scope)) <= max_reads
    return demand.may_execute and demand.may_hit, demand.may_execute and fits
