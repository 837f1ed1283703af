"""What a commit must show before its result is stored."""

from __future__ import annotations

from dynbranch.csl.core import rows, versions
from dynbranch.csl.core.limits import Limits
from dynbranch.csl.core.rows import DerivationRow, EntryRow, Meta, Node
from dynbranch.csl.core.store import View
from dynbranch.domain.ids import RecordId, Version, source_of, whole
from dynbranch.domain.reuse import Commit, Lease, Read, ReadScope, Refusal, Refused


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
