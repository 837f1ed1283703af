"""One canonical demand: a hit, a live generation to follow, or leave to execute."""

from __future__ import annotations

from dataclasses import replace

from dynbranch.csl.core import rows, versions
from dynbranch.csl.core.rows import EntryRow, Meta, Node
from dynbranch.csl.core.store import Inconsistent, Transaction, View
from dynbranch.domain.ids import Name, Version
from dynbranch.domain.reuse import DeclaredRead, Demand, Hit, Identity, Incarnation, ReadScope


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


def resolve_scope(scope: ReadScope, meta: Meta, first_arrival: Version | None) -> ReadScope:
    """Give declared reads the version that they count from. One that stays None can not be stored."""
    return replace(
        scope,
        declared=tuple(
            DeclaredRead(
                read.record,
                first_arrival if read.as_of is None else min(read.as_of, meta.version),
            )
            for read in scope.declared
        ),
    )


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


def allowed_kinds(demand: Demand) -> tuple[bool, bool]:
    """(may follow a live generation, may be given a lease)."""
    return demand.may_execute and demand.may_hit, demand.may_execute
