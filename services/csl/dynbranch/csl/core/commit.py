"""What a commit must show before its result is stored."""

from __future__ import annotations

from collections.abc import Callable

from dynbranch.csl.core import rows, versions
from dynbranch.csl.core.leases import LeaseRow
from dynbranch.csl.core.limits import Limits
from dynbranch.csl.core.rows import DerivationRow, EntryRow, Meta, Node
from dynbranch.csl.core.store import View
from dynbranch.domain.ids import RecordId, UnixMs, Version, source_of, whole
from dynbranch.domain.reuse import Commit, Incarnation, Lease, Read, ReadScope, Refusal, Refused


def judge_token(meta: Meta, lease: Lease) -> Refused | None:
    token = lease.read_token
    if token.epoch != meta.epoch:
        return Refused(Refusal.STALE_READ, f"the read token {token} is of another epoch than {meta.epoch}")
    if token.sequence > meta.sequence:
        return Refused(Refusal.STALE_READ, f"the read token {token} is newer than the store, {meta.version}")
    return None


def reads_of(commit: Commit, lease: Lease, limits: Limits) -> tuple[Read, ...] | Refused:
    """Every read of the execution, in record order, each with the version that it may have seen."""
    reads: dict[RecordId, Version] = {}

    def add(record: RecordId, as_of: Version) -> None:
        reads[record] = min(as_of, reads.get(record, as_of))

    for declared in lease.scope.declared:
        if declared.as_of is None:
            detail = f"{declared.record} has no version and the workflow's first arrival is unknown"
            return Refused(Refusal.UNKNOWN_FIRST_ARRIVAL, detail)
        add(declared.record, min(declared.as_of, lease.read_token))
    if lease.scope.sources:
        told = commit.reads
        records = [whole(source) for source in lease.scope.sources] if told is None else told
        strange = next((one for one in records if source_of(one) not in lease.scope.sources), None)
        if strange is not None:
            # No write to that source would have closed the lease.
            return Refused(Refusal.OUTSIDE_SCOPE, f"{strange} is outside what the lease was granted for")
        for record in records:
            add(record, lease.read_token)
    if len(reads) > limits.max_reads:
        oldest = min(reads.values())
        reads = {whole(source_of(record)): oldest for record in reads}
    if len(reads) > limits.max_reads:
        return Refused(Refusal.TOO_LARGE, f"the execution read {len(reads)} sources")
    return tuple(Read(record, as_of) for record, as_of in sorted(reads.items()))


def judge_reads(view: View, meta: Meta, reads: tuple[Read, ...]) -> Refused | None:
    stale = versions.stale_read(view, meta, reads)
    if stale is None:
        return None
    return Refused(Refusal.STALE_READ, f"{stale.record} may have been written after {stale.as_of}")


def declared_current(view: View, meta: Meta, scope: ReadScope) -> bool:
    """Whether everything that a harness says it has read is still as it was.

    If not, the execution serves that harness, which knows what it read, and nobody else.
    """
    reads = [Read(read.record, read.as_of) for read in scope.declared if read.as_of is not None]
    return len(reads) == len(scope.declared) and versions.stale_read(view, meta, reads) is None


def same_support(view: View, commit: Commit, entry: EntryRow, derivation: DerivationRow) -> bool:
    """Whether the entry is supported by the same reads and producers already."""
    records = [read.record for read in derivation.reads]
    for number in entry.derivations:
        known = rows.read_derivation(view, Node(commit.lease.name, number))
        if known.producers == derivation.producers and [read.record for read in known.reads] == records:
            return True
    return False


def may_support(entry: EntryRow, derivation: DerivationRow, limits: Limits) -> bool:
    """Whether one more derivation may be added.

    Producers must be older than the entry: then no chain of derivations ever leads back to where it began,
    and nothing can hold itself up after the records that it came from have changed.
    """
    return (
        len(entry.derivations) < limits.max_derivations
        and entry.next_derivation < rows.MAX_DERIVATION
        and all(producer.number < entry.number for producer in derivation.producers)
    )


def judge(
    event: Commit,
    row: LeaseRow | None,
    view: View,
    meta: Meta,
    limits: Limits,
    is_live: Callable[[Incarnation], bool],
) -> DerivationRow | Refused:
    """The derivation that the commit would store, or why it may not. ``row`` is its lease, if still known."""
    lease = event.lease if row is None else row.lease
    most = min(limits.max_payload_bytes, limits.max_stored_bytes)
    if len(event.payload) > most:
        return Refused(Refusal.TOO_LARGE, f"{len(event.payload)} > {most} bytes")
    refused = judge_token(meta, lease)
    if refused is not None:
        return refused
    if row is not None and row.closed_by:
        return Refused(Refusal.LEASE_CLOSED, row.closed_by)
    reads = reads_of(event, lease, limits)
    if isinstance(reads, Refused):
        return reads
    refused = judge_reads(view, meta, reads)
    if refused is not None:
        return refused
    for producer in lease.producers:
        if not is_live(producer):
            return Refused(Refusal.LOST_PRODUCER, f"{producer.name.hex()} #{producer.number}")
    return DerivationRow(lease.read_token, reads, tuple(sorted(set(lease.producers))))


def entry_of(event: Commit, number: int, created: UnixMs, limits: Limits) -> EntryRow:
    """The entry that the commit makes, with its first derivation."""
    return EntryRow(
        number=number,
        level=event.level,
        payload_bytes=len(event.payload),
        execution_ms=event.execution_ms,
        created=created,
        next_derivation=1,
        derivations=(0,),
        payload_digest=event.payload_digest,
        label=event.label[: limits.max_label_chars],
        output_digests=event.output_digests[: limits.max_outputs],
    )
