"""The single serial owner of a store: events in, decisions applied, replies out.

Deciding and applying happen on the event loop without an await between them, so every decision sees the one
before. A commit is visible before it is durable; a write is acknowledged only after.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import TypeVar

from dynbranch.csl.core.events import (
    BeginEpoch,
    Cascaded,
    Decision,
    DeleteSlice,
    Effect,
    GuardMissed,
    Moment,
    OutputsDiffer,
    ReleaseLeases,
    RenewLeases,
    Write,
)
from dynbranch.csl.core.library import Library
from dynbranch.csl.durability import GroupCommit, RunBlocking, run_inline
from dynbranch.csl.key_value import KeyValue, StoreFull
from dynbranch.domain.errors import StoreFailed
from dynbranch.domain.ids import LeaseId, Name, RecordId
from dynbranch.domain.reuse import (
    Commit,
    CommitOutcome,
    Demand,
    DemandOutcome,
    Inspection,
    StoreStats,
    WriteResult,
)
from dynbranch.runtime import telemetry
from dynbranch.runtime.clock import Clock
from dynbranch.runtime.tasks import Tasks

_log = logging.getLogger(__name__)

T = TypeVar("T")

HOUSEKEEPING_S = 0.5
"""How often applied commits are made durable when no write asks for it."""


RETRY_S = 5.0
"""How long the clean-up waits when the disk is full."""


class Shell:
    """``keep`` runs beside the loop after every flush of the housekeeping, to move the floor of the store."""

    def __init__(
        self,
        store: KeyValue,
        library: Library,
        clock: Clock,
        *,
        run_blocking: RunBlocking = run_inline,
        keep: Callable[[], None] | None = None,
    ) -> None:
        self.library = library
        self._store = store
        self._clock = clock
        self._commit_group = GroupCommit(store.sync, run_blocking)
        self._run_blocking = run_blocking
        self._keep = keep
        self._tracer = telemetry.tracer("dynbranch.csl")
        self._writing = asyncio.Lock()
        self._slices_wait = asyncio.Event()
        self._dirty = False
        self._failure: StoreFailed | None = None
        self._failed = asyncio.Event()

    # What callers ask

    async def demand(self, demand: Demand) -> DemandOutcome:
        return self._do(lambda: self.library.demand(demand, self._store, self._moment()))

    async def commit(self, commit: Commit) -> CommitOutcome:
        return self._do(lambda: self.library.commit(commit, self._store, self._moment()))

    async def renew_leases(self, leases: Sequence[LeaseId], *, ttl_ms: int) -> frozenset[LeaseId]:
        event = RenewLeases(tuple(leases), ttl_ms)
        return self._do(lambda: self.library.renew_leases(event, self._moment()))

    async def release_leases(self, leases: Sequence[LeaseId]) -> None:
        self._do(lambda: self.library.release_leases(ReleaseLeases(tuple(leases))))

    async def inspect(self, name: Name) -> Inspection:
        return self._do(lambda: Decision(self.library.inspect(name, self._store)))

    async def stats(self) -> StoreStats:
        return self._do(lambda: Decision(self.library.stats(self._store)))

    async def write(self, records: Sequence[RecordId], *, reporter: str) -> WriteResult:
        """Returns when nothing that read an older version can be served, whatever happens next."""
        event = Write(tuple(records), reporter)
        return await self._fell(lambda: self.library.write(event, self._store, self._moment()))

    async def begin_epoch(self, epoch: int) -> WriteResult:
        """After a restore. To be called before serving."""
        event = BeginEpoch(epoch)
        return await self._fell(lambda: self.library.begin_epoch(event, self._store, self._moment()))

    async def _fell(self, decide: Callable[[], Decision[WriteResult]]) -> WriteResult:
        async with self._writing:
            await self._delete_slices()
            with self._tracer.start_as_current_span(telemetry.SPAN_CASCADE) as span:
                decision = self._decide(decide)
                for effect in decision.effects:
                    if isinstance(effect, Cascaded):
                        span.set_attribute("dynbranch.cascade.direct", effect.direct)
                        span.set_attribute("dynbranch.cascade.entries", effect.entries)
                        span.set_attribute("dynbranch.cascade.derivations", effect.derivations)
                        span.set_attribute("dynbranch.cascade.closed_leases", effect.closed_leases)
            if self.library.slices:
                self._slices_wait.set()
        # Outside the lock, so that writes share a flush.
        await self._durable()
        return decision.reply

    # The life of the store

    @property
    def failure(self) -> StoreFailed | None:
        """Why the store can not go on; every call raises it from then on."""
        return self._failure

    def flushes(self) -> int:
        return self._commit_group.flushes

    def stats_now(self) -> StoreStats:
        return self.library.stats(self._store)

    def start(self, tasks: Tasks) -> None:
        """Spawn what runs beside the requests. A crash of any of it must stop the service."""
        tasks.spawn(self._watch(), name="csl.failure")
        tasks.spawn(self._housekeeping(), name="csl.housekeeping")
        tasks.spawn(self._slices(), name="csl.slices")

    async def recover(self) -> None:
        """Finish what a write began before the last stop. To be called before serving."""
        async with self._writing:
            if self.library.slices:
                _log.warning("finishing a cascade of %d slices", len(self.library.slices))
            await self._delete_slices()

    async def flush(self) -> None:
        """Make everything applied so far durable."""
        await self._durable()

    # Inside

    def _moment(self) -> Moment:
        return Moment(self._clock.now(), self._clock.unix_ms())

    def _do(self, decide: Callable[[], Decision[T]]) -> T:
        decision = self._decide(decide)
        assert not decision.durable, "a durable decision must wait for the flush"
        return decision.reply

    def _decide(self, decide: Callable[[], Decision[T]]) -> Decision[T]:
        """Decide and apply. No await: the next event sees what this one did."""
        if self._failure is not None:
            raise self._failure
        try:
            decision = decide()
            if not decision.batch.empty:
                self._store.apply(decision.batch)
                self._dirty = True
        except StoreFull:
            raise
        except StoreFailed as error:
            self._fail(error)
            raise
        for effect in decision.effects:
            self._report(effect)
        return decision

    def _report(self, effect: Effect) -> None:
        match effect:
            case OutputsDiffer(name, level):
                _log.warning("two executions of %s differ, level %s", name.hex(), level.value)
            case GuardMissed(name):
                _log.error("entry %s was not current and was not served", name.hex())
            case Cascaded():
                pass

    async def _durable(self) -> None:
        self._dirty = False
        try:
            await self._commit_group.durable()
        except StoreFailed as error:
            self._fail(error)
            raise

    def _fail(self, error: StoreFailed) -> None:
        if self._failure is None:
            _log.critical("the store failed, the service stops: %s", error)
            self._failure = error
            self._failed.set()

    async def _watch(self) -> None:
        await self._failed.wait()
        assert self._failure is not None
        raise self._failure

    async def _delete_slices(self) -> None:
        for number in self.library.slices:
            self._do_slice(number)
            await asyncio.sleep(0)

    def _do_slice(self, number: int) -> None:
        self._do(lambda: self.library.delete_slice(DeleteSlice(number), self._store))
        self.library.slice_deleted(number)

    async def _slices(self) -> None:
        while True:
            await self._slices_wait.wait()
            self._slices_wait.clear()
            try:
                async with self._writing:
                    await self._delete_slices()
            except StoreFull:
                # The nodes stay condemned, which is all that correctness needs.
                await self._clock.sleep(RETRY_S)
                self._slices_wait.set()

    async def _housekeeping(self) -> None:
        while True:
            await self._clock.sleep(HOUSEKEEPING_S)
            if not self._dirty:
                continue
            async with self._writing:
                self._do(lambda: self.library.forget_versions(self._store))
            await self._durable()
            if self._keep is not None:
                await self._run_blocking(self._keep)
