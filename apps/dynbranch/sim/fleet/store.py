"""The store of a simulated fleet: the production library on rows in memory, on virtual time.

A call returns when its batch is applied. That calls are lost or late is not simulated here (``sim.races`` and
``sim.histories`` do that).
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Final, cast

from dynbranch.csl.core import fill_rows, founding, rows
from dynbranch.csl.core.events import (
    AcknowledgeSettlements,
    Cascaded,
    DeleteSlice,
    Event,
    Moment,
    ReleaseLeases,
    SweepShadows,
    Write,
)
from dynbranch.csl.core.library import Library
from dynbranch.csl.core.limits import Limits
from dynbranch.csl.core.store import Batch
from dynbranch.csl.key_value import MemoryKeyValue
from dynbranch.domain.fills import (
    BeginFill,
    DiscardFills,
    DiscardReason,
    DiscardResult,
    FillOutcome,
    Settlement,
)
from dynbranch.domain.ids import Digest, FillId, GenerationId, Name, RecordId, UnixMs, source_of
from dynbranch.domain.reuse import (
    PURE,
    Commit,
    Committed,
    DeclaredRead,
    Demand,
    DemandOutcome,
    GenerationRef,
    Lease,
    Level,
    ReadScope,
)
from dynbranch.domain.template import ReadsKind, Stage
from dynbranch.sim.fleet.playing import Play
from dynbranch.sim.fleet.workflows import Call
from dynbranch.sim.heap import EventHeap

LEASE_MS: Final = 3_600_000
"""Agents renew leases for as long as a generation runs; here nobody dies."""
LIMITS: Final = Limits(lease_ttl_ms=LEASE_MS, max_lease_ttl_ms=LEASE_MS, max_leases=1 << 20)
NOWHERE: Final = GenerationRef(GenerationId(b""), "")
BEGAN_MS: Final = 1_000_000
AT_ONCE: Final = 256
"""Settlements acknowledged together."""


class Store:
    """``settled``: settlements in their order; who controls fills takes them away."""

    def __init__(self, heap: EventHeap, limits: Limits = LIMITS) -> None:
        self._heap = heap
        self.settled: list[Settlement] = []
        self._made = 0
        self._acknowledged = 0
        self._rows = MemoryKeyValue()
        self._rows.apply(founding.found(1))
        self.library = Library(limits=limits, new_id=self.new_id, view=self._rows)

    def new_id(self) -> bytes:
        self._made += 1
        return self._made.to_bytes(16, "big")

    @property
    def unix_ms(self) -> UnixMs:
        return UnixMs(BEGAN_MS + round(self._heap.now * 1000))

    def demand(self, demand: Demand) -> DemandOutcome:
        return cast(DemandOutcome, self._ask(demand))

    def commit(self, lease: Lease, value: str, execution_ms: float, reads: tuple[RecordId, ...]) -> bool:
        """Whether the result was stored."""
        payload = value.encode()
        digest = Digest(hashlib.sha256(payload).digest())
        told = reads if lease.scope.sources else None
        commit = Commit(lease, payload, digest, Level.GREEDY, execution_ms, reads=told)
        return isinstance(self._ask(commit), Committed)

    def begin_fill(self, begin: BeginFill) -> FillOutcome:
        return cast(FillOutcome, self._ask(begin))

    def discard(self, fills: tuple[FillId, ...], reason: DiscardReason) -> DiscardResult:
        return cast(DiscardResult, self._ask(DiscardFills(fills, reason)))

    def release(self, lease: Lease) -> None:
        """Nothing comes of it any more."""
        self._ask(ReleaseLeases((lease.lease_id,)))

    def write(self, records: tuple[RecordId, ...]) -> None:
        """Returns when the write may be acknowledged; what it condemned is deleted, too."""
        decision = self.library.handle(Write(records, "backend"), self._rows, self._moment())
        self._apply(decision.batch)
        for effect in decision.effects:
            for number in effect.slices if isinstance(effect, Cascaded) else ():
                self._ask(DeleteSlice(number))
                self.library.slice_deleted(number)

    def sweep(self) -> None:
        """Take away what waits for it."""
        while len(self.library.memory.shadows) and self._ask(SweepShadows()):
            pass

    @property
    def leases(self) -> int:
        return len(self.library.memory.leases)

    def validate_state(self) -> None:
        """Raises AssertionError."""
        assert not (wrong := list(self.library.violations(self._rows))), wrong

    def _ask(self, event: Event) -> object:
        decision = self.library.handle(event, self._rows, self._moment())
        if decision.batch.changes:
            self._apply(decision.batch)
        return decision.reply

    def _apply(self, batch: Batch) -> None:
        """Rows of the outbox are read as they come."""
        self._rows.apply(batch)
        for key, row in batch.changes.items():
            if row is not None and key[:1] == rows.SETTLEMENTS:
                number = fill_rows.number_of_settlement(key)
                self.settled.append(fill_rows.unpack_settlement(number, row))
                if number - self._acknowledged >= AT_ONCE:
                    self._acknowledge(number)

    def _acknowledge(self, through: int) -> None:
        self._acknowledged = through
        while True:
            gone = self.library.acknowledge(AcknowledgeSettlements(through), self._rows)
            if not gone.reply:
                return
            self._rows.apply(gone.batch)

    def _moment(self) -> Moment:
        return Moment(self._heap.now, self.unix_ms)


@dataclass(frozen=True, slots=True)
class Names:
    """A name is of the sharing group and of what is asked. ``shared``: the group is the tenant; without it,
    each workflow is a group of its own, and no other can use its results."""

    shared: bool = True

    def of(self, play: Play, call: Call) -> Name:
        group = f"t {play.workflow.tenant}" if self.shared else f"w {play.workflow.number}"
        return Name(hashlib.sha256(f"{group}\0{call.content}".encode()).digest())


def scope_of(stage: Stage | None, reads: tuple[str, ...]) -> ReadScope:
    """As a gateway tells it: what a request declares that it holds, or the sources that a tool may read."""
    if not reads:
        return PURE
    if stage is not None and stage.reads.kind is ReadsKind.DECLARED:
        return ReadScope(declared=tuple(DeclaredRead(RecordId(read)) for read in reads))
    return ReadScope(sources=tuple(sorted({source_of(RecordId(read)) for read in reads})))
