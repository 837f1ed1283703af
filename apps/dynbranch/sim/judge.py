"""Who watches. Each check states a promise over what callers see, or over the rows of the store; none repeats
how the promise is kept.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from dynbranch.csl.core import rows, versions
from dynbranch.csl.core.rows import Node
from dynbranch.csl.core.store import View
from dynbranch.domain.ids import GenerationId, Instant, LeaseId, Name, RecordId, is_whole, source_of
from dynbranch.domain.reuse import Demand, DemandOutcome, Hit, Incarnation, Lease, Live, Miss, ReadScope
from dynbranch.sim.stages import RECORDS, Output, Wanted

Floor = Mapping[RecordId, int]
"""The newest version of each record whose write is acknowledged."""


class Violation(AssertionError):
    """A promise is broken. ``promise`` is its id."""

    def __init__(self, promise: str, what: str) -> None:
        super().__init__(f"{promise}: {what}")
        self.promise = promise


@dataclass(slots=True)
class Truth:
    """The records as they are, and what was promised of them."""

    current: dict[RecordId, int] = field(default_factory=lambda: dict.fromkeys(RECORDS, 0))
    acknowledged: dict[RecordId, int] = field(default_factory=lambda: dict.fromkeys(RECORDS, 0))

    def acknowledge(self, version_of: Floor) -> None:
        for record, version in version_of.items():
            self.acknowledged[record] = max(self.acknowledged[record], version)

    def floor(self) -> Floor:
        return dict(self.acknowledged)


def check_answer(wanted: Wanted, output: Output | None, floor: Floor, truth: Truth, how: str) -> None:
    """I1 and I3 of one served answer. ``floor`` is from when the demand started."""
    if output is None:
        raise Violation("I1", f"{how} of {wanted.stage.key} is nothing that an engine ever gave")
    if output.stage != wanted.stage or output.text != wanted.text:
        raise Violation("I1", f"{how} of {wanted.stage.key} is the output of {output.stage.key}")
    for record, version in output.seen:
        if version > truth.current[record]:
            raise Violation("I1", f"{how} of {wanted.stage.key} saw {record} at {version}, which is not yet")
        if how != "miss" and version < floor[record]:
            raise Violation(
                "I3",
                f"{how} of {wanted.stage.key} saw {record} at {version}; {floor[record]} was acknowledged",
            )


def check_fresh_execution(wanted: Wanted, output: Output, floor: Floor) -> None:
    """What an own execution read itself is never older than what was acknowledged before it started."""
    if wanted.declared:
        return  # the harness read it, when it did
    for record, version in output.seen:
        if version < floor[record]:
            raise Violation("I3", f"own execution of {wanted.stage.key} saw {record} at {version}")


@dataclass(slots=True)
class OpenLease:
    lease: Lease
    deadline: Instant
    joinable: bool

    @property
    def generation(self) -> GenerationId:
        return self.lease.generation.generation_id


class LeaseBook:
    """Single flight as the specification has it, from the answers alone: one open lease per name, and no
    follower for a lease that may have read an older version.
    """

    def __init__(self) -> None:
        self._open: dict[LeaseId, OpenLease] = {}
        self._by_name: dict[Name, LeaseId] = {}
        self._by_generation: dict[GenerationId, LeaseId] = {}

    def answered(self, demand: Demand, outcome: DemandOutcome, view: View, now: Instant) -> None:
        match outcome:
            case Miss(lease=Lease() as lease):
                self._granted(demand, lease, view, now)
            case Live(generation):
                self._followed(demand, generation.generation_id, view, now)
            case Hit():
                if not is_supported(view, outcome.incarnation):
                    raise Violation("I3", f"a hit of {demand.name.hex()[:8]} has no whole derivation")
            case Miss():
                pass

    def _granted(self, demand: Demand, lease: Lease, view: View, now: Instant) -> None:
        if lease.lease_id in self._open:
            return  # the same demand again
        known = self._live(demand.name, view, now)
        if known is not None and demand.may_hit and known.generation not in demand.exclude_generations:
            raise Violation("C1.single_flight", f"two open leases of {demand.name.hex()[:8]}")
        joinable = (demand.may_hit or known is None) and not stale_declared(view, lease)
        self._open[lease.lease_id] = OpenLease(lease, Instant(now + lease.ttl_ms / 1000), joinable)
        self._by_generation[lease.generation.generation_id] = lease.lease_id
        if joinable:
            self._by_name[demand.name] = lease.lease_id

    def _live(self, name: Name, view: View, now: Instant) -> OpenLease | None:
        lease_id = self._by_name.get(name)
        known = None if lease_id is None else self._open.get(lease_id)
        if known is None or not known.joinable or known.deadline <= now:
            return None
        return known if all(is_supported(view, one) for one in known.lease.producers) else None

    def _followed(self, demand: Demand, generation: GenerationId, view: View, now: Instant) -> None:
        lease_id = self._by_generation.get(generation)
        known = None if lease_id is None else self._open.get(lease_id)
        if known is None or known.deadline <= now:
            raise Violation("C1.single_flight", "a demand was sent to a generation without an open lease")
        if known.lease.name != demand.name:
            raise Violation("I1", "a demand was sent to a generation of another name")
        if generation in demand.exclude_generations:
            raise Violation("C1.single_flight", "a demand was sent to a generation that it excludes")
        if not known.joinable:
            raise Violation("I3", "a demand was sent to a generation that may have read an older version")
        for producer in known.lease.producers:
            if not is_supported(view, producer):
                raise Violation("I3", "a demand was sent to a generation whose producer fell")

    def renewed(self, leases: Iterable[LeaseId], deadline: Instant) -> None:
        for lease_id in leases:
            if lease_id in self._open:
                known = self._open[lease_id]
                known.deadline = max(known.deadline, deadline)

    def ended(self, leases: Iterable[LeaseId]) -> None:
        for lease_id in leases:
            known = self._open.pop(lease_id, None)
            if known is not None:
                self._by_generation.pop(known.lease.generation.generation_id, None)

    def written(self, records: Iterable[RecordId], view: View) -> None:
        written = tuple(records)
        for known in self._open.values():
            fell = any(not is_supported(view, producer) for producer in known.lease.producers)
            if fell or may_have_read(known.lease.scope, written):
                known.joinable = False

    def forget(self, now: Instant) -> None:
        """Drop what has expired."""
        self.ended([lease_id for lease_id, known in self._open.items() if known.deadline <= now])


def may_have_read(scope: ReadScope, written: tuple[RecordId, ...]) -> bool:
    declared = [read.record for read in scope.declared]
    return any(
        source_of(record) in scope.sources or any(_overlap(record, read) for read in declared)
        for record in written
    )


def _overlap(one: RecordId, other: RecordId) -> bool:
    return one == other or (source_of(one) == source_of(other) and (is_whole(one) or is_whole(other)))


def stale_declared(view: View, lease: Lease) -> RecordId | None:
    """A record that the lease's harness read and that may have changed since."""
    meta = rows.read_meta(view)
    for read in lease.scope.declared:
        if read.as_of is None or read.as_of.epoch != meta.epoch:
            return read.record
        if max(meta.floor, versions.last_write(view, read.record)) > read.as_of:
            return read.record
    return None


def is_supported(view: View, incarnation: Incarnation) -> bool:
    """Whether an entry stands on a derivation all of whose reads and producers are current."""
    entry = rows.read_entry(view, incarnation.name)
    if entry is None or entry.number != incarnation.number:
        return False
    derivations = (rows.read_derivation(view, Node(incarnation.name, n)) for n in entry.derivations)
    return any(
        all(versions.last_write(view, read.record) <= read.as_of for read in derivation.reads)
        and all(is_supported(view, producer) for producer in derivation.producers)
        for derivation in derivations
    )
