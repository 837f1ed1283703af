"""Shipped twins for tests and the simulator: the same core on a store in memory.

``FakeCsl`` stands behind the port that callers use. ``SteppedLibrary`` drives the core without an event
loop and checks the whole store after every step.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from itertools import count
from typing import Any

from dynbranch.csl.core import consistency, founding
from dynbranch.csl.core.events import BeginEpoch, DeleteSlice, Effect, Event, Moment, Write
from dynbranch.csl.core.library import Library
from dynbranch.csl.core.limits import Limits
from dynbranch.csl.core.store import View
from dynbranch.csl.key_value import KeyValue, MemoryKeyValue
from dynbranch.csl.shell import Shell
from dynbranch.domain.fills import (
    BeginFill,
    DiscardFills,
    DiscardReason,
    DiscardResult,
    FillGranted,
    FillOutcome,
    Settlement,
)
from dynbranch.domain.ids import (
    BranchId,
    DemandId,
    Digest,
    FillId,
    GenerationId,
    LeaseId,
    Name,
    RecordId,
    TrialId,
)
from dynbranch.domain.reuse import (
    PURE,
    Commit,
    CommitOutcome,
    Committed,
    Demand,
    DemandOutcome,
    FillOrigin,
    GenerationRef,
    Identity,
    Incarnation,
    Inspection,
    Lease,
    Level,
    Miss,
    ReadScope,
    StoreStats,
    WriteResult,
)
from dynbranch.runtime.clock import Clock, ManualClock


def counting_ids(first: int = 1) -> Callable[[], bytes]:
    """Ids that replay: 16 bytes each, in order."""
    numbers = count(first)
    return lambda: next(numbers).to_bytes(16, "big")


class FakeCsl:
    """Implements ``ports.Csl`` and ``ports.Fills``. Every answer comes at once, within any ``timeout_s``."""

    def __init__(
        self,
        *,
        clock: Clock | None = None,
        limits: Limits | None = None,
        new_id: Callable[[], bytes] | None = None,
        epoch: int = 1,
        rows: MemoryKeyValue | None = None,
    ) -> None:
        self.store = rows or MemoryKeyValue()
        self.store.apply(founding.found(epoch))
        core = Library(limits=limits or Limits(), new_id=new_id or counting_ids(), view=self.store)
        self.shell = Shell(self.store, core, clock or ManualClock())

    async def demand(self, demand: Demand, *, timeout_s: float) -> DemandOutcome:
        return await self.shell.demand(demand)

    async def commit(self, commit: Commit, *, timeout_s: float) -> CommitOutcome:
        return await self.shell.commit(commit)

    async def renew_leases(
        self, leases: Sequence[LeaseId], *, ttl_ms: int, timeout_s: float
    ) -> frozenset[LeaseId]:
        return await self.shell.renew_leases(leases, ttl_ms=ttl_ms)

    async def release_leases(self, leases: Sequence[LeaseId], *, timeout_s: float) -> None:
        await self.shell.release_leases(leases)

    async def write(self, records: Sequence[RecordId], *, reporter: str, timeout_s: float) -> WriteResult:
        return await self.shell.write(records, reporter=reporter)

    async def inspect(self, name: Name, *, timeout_s: float) -> Inspection:
        return await self.shell.inspect(name)

    async def stats(self, *, timeout_s: float) -> StoreStats:
        return await self.shell.stats()

    async def begin_fill(self, fill: BeginFill, *, timeout_s: float) -> FillOutcome:
        return await self.shell.begin_fill(fill)

    async def discard_fills(self, discard: DiscardFills, *, timeout_s: float) -> DiscardResult:
        return await self.shell.discard_fills(discard)

    async def read_settlements(
        self,
        *,
        acknowledged_through: int,
        after: int,
        at_most: int,
        wait_ms: int,
        timeout_s: float,
        reader_epoch: int = 0,
    ) -> tuple[Settlement, ...]:
        return await self.shell.read_settlements(
            acknowledged_through=acknowledged_through,
            after=after,
            at_most=at_most,
            wait_ms=wait_ms,
            reader_epoch=reader_epoch,
        )

    async def close(self) -> None:
        self.store.close()

    def violations(self) -> list[str]:
        """What is wrong with the whole store, rows and memory; empty if it is whole."""
        return [*consistency.violations(self.store), *self.shell.library.violations(self.store)]


def digest(text: str) -> Digest:
    return Digest(hashlib.sha256(text.encode()).digest())


def name_of(text: str) -> Name:
    return Name(hashlib.sha256(b"name of " + text.encode()).digest())


class SteppedLibrary:
    """One event at a time on any store; every step must leave the whole store consistent.

    ``hold_slices`` leaves condemned slices to ``delete_slices``, as between a write and its clean-up.
    """

    def __init__(
        self,
        *,
        limits: Limits | None = None,
        store: KeyValue | None = None,
        hold_slices: bool = False,
        checked: bool = True,
    ) -> None:
        self.clock = ManualClock()
        self.effects: list[Effect] = []
        self._ids = counting_ids()
        self._limits = limits or Limits()
        self._hold_slices = hold_slices
        self._checked = checked
        self._index: View | None = None
        self._plan_ends = ExitStack()
        if store is None:
            store = MemoryKeyValue()
            store.apply(founding.found(1))
        self.store = store
        self.library = Library(limits=self._limits, new_id=self._ids, view=store)

    def restart(self) -> None:
        """What is in memory is lost, the rows stay."""
        self._end_plan()
        self.store.apply(founding.open_store(self.store))
        self.library = Library(limits=self._limits, new_id=self._ids, view=self.store)
        if not self._hold_slices:
            self.delete_slices()

    def handle(self, event: Event) -> object:
        if isinstance(event, Write | BeginEpoch):
            self.delete_slices()
        decision = self.library.handle(event, self.store, Moment(self.clock.now(), self.clock.unix_ms()))
        self.store.apply(decision.batch)
        self.effects.extend(decision.effects)
        self._check()
        if not self._hold_slices:
            self.delete_slices()
        return decision.reply

    # A write in steps, with anything in between

    def begin_write(self, *records: str) -> None:
        self.delete_slices()
        event = Write(tuple(map(RecordId, records)), "test")
        self.library.begin_write(event, self.store, Moment(self.clock.now(), self.clock.unix_ms()))
        self._index = self._plan_ends.enter_context(self.store.frozen())

    def step_write(self, nodes: int = 1) -> bool:
        """True when nothing is left to look at."""
        assert self._index is not None
        return self.library.step_plan(self.store, self._index, nodes)

    def finish_write(self) -> WriteResult:
        assert self._index is not None
        decision = self.library.finish_plan(self.store, self._index)
        self._end_plan()
        self.store.apply(decision.batch)
        self.effects.extend(decision.effects)
        self._check()
        if not self._hold_slices:
            self.delete_slices()
        return decision.reply

    @property
    def is_writing(self) -> bool:
        return self._index is not None

    def _end_plan(self) -> None:
        self.library.drop_plan()
        self._index = None
        self._plan_ends.close()

    def delete_slices(self, at_most: int = 1 << 30) -> None:
        for number in self.library.slices[:at_most]:
            decision = self.library.delete_slice(DeleteSlice(number), self.store)
            self.store.apply(decision.batch)
            self.library.slice_deleted(number)
            self._check()

    def violations(self) -> list[str]:
        return [*consistency.violations(self.store), *self.library.violations(self.store)]

    def _check(self) -> None:
        if self._checked:
            found = self.violations()
            assert not found, found

    # Short forms

    def demand(
        self,
        what: str,
        *,
        workflow: str = "",
        scope: ReadScope = PURE,
        inputs: Iterable[str] = (),
        generation: bytes | None = None,
        demand_id: bytes | None = None,
        exclude: Iterable[bytes] = (),
        may_execute: bool = True,
        may_hit: bool = True,
        once: bool = False,
    ) -> DemandOutcome:
        """``inputs`` are texts of earlier outputs that the request holds."""
        event = Demand(
            demand_id=DemandId(demand_id or self._ids()),
            name=name_of(what),
            identity=Identity(workflow_id=workflow),
            scope=scope,
            intended=GenerationRef(GenerationId(generation or self._ids()), "agent:1"),
            input_digests=tuple(map(digest, inputs)),
            exclude_generations=frozenset(map(GenerationId, exclude)),
            may_execute=may_execute,
            may_hit=may_hit,
            once=once,
        )
        reply = self.handle(event)
        assert not isinstance(reply, Committed)
        return reply  # type: ignore[return-value]

    def lease(
        self,
        what: str,
        *,
        workflow: str = "",
        scope: ReadScope = PURE,
        inputs: Iterable[str] = (),
        may_hit: bool = True,
    ) -> Lease:
        """A demand that must miss."""
        outcome = self.demand(what, workflow=workflow, scope=scope, inputs=inputs, may_hit=may_hit)
        assert isinstance(outcome, Miss) and outcome.lease is not None, outcome
        return outcome.lease

    def commit(
        self,
        lease: Lease,
        output: str = "out",
        *,
        reads: Iterable[str] | None = None,
        level: Level = Level.GREEDY,
        execution_ms: float = 100.0,
    ) -> CommitOutcome:
        event = Commit(
            lease=lease,
            payload=output.encode(),
            payload_digest=digest(output),
            level=level,
            execution_ms=execution_ms,
            label=output[:20],
            reads=None if reads is None else tuple(map(RecordId, reads)),
            output_digests=(digest(output),),
        )
        return self.handle(event)  # type: ignore[return-value]

    def write(self, *records: str) -> WriteResult:
        reply = self.handle(Write(tuple(map(RecordId, records)), "test"))
        assert isinstance(reply, WriteResult)
        return reply

    # Fills

    def begin_fill(
        self,
        what: str,
        fill: str,
        *,
        stage: int = 0,
        workflow: str = "",
        scope: ReadScope = PURE,
        inputs: Iterable[str] = (),
        after: str = "",
        once: bool = False,
        ttl_ms: int = 60_000,
        traceparent: str = "",
    ) -> FillOutcome:
        """``after`` is what an earlier stage of the same fill was asked."""
        event = BeginFill(
            origin=replace(origin_of(fill, stage), traceparent=traceparent),
            name=name_of(what),
            identity=Identity(workflow_id=workflow),
            scope=scope,
            intended=GenerationRef(GenerationId(self._ids()), "agent:1"),
            input_digests=tuple(map(digest, inputs)),
            producers=(Incarnation(name_of(after), 0),) if after else (),
            once=once,
            shadow_ttl_ms=ttl_ms,
        )
        return self.handle(event)  # type: ignore[return-value]

    def fill(self, what: str, fill: str, output: str = "out", **options: Any) -> CommitOutcome:
        """Begin, execute and commit."""
        begun = self.begin_fill(what, fill, **options)
        assert isinstance(begun, FillGranted), begun
        level = Level.SAMPLED if begun.lease.once else Level.GREEDY
        return self.commit(begun.lease, output, level=level)

    def discard(self, *fills: str, reason: DiscardReason = DiscardReason.LOST) -> DiscardResult:
        reply = self.handle(DiscardFills(tuple(FillId(fill.encode()) for fill in fills), reason))
        assert isinstance(reply, DiscardResult)
        return reply

    def settlements(self) -> tuple[Settlement, ...]:
        """All that wait, oldest first."""
        return self.library.settlements(self.store, after=0, at_most=1_000_000)


def origin_of(fill: str, stage: int = 0) -> FillOrigin:
    return FillOrigin(BranchId(b"branch"), TrialId(b"trial"), FillId(fill.encode()), stage)
