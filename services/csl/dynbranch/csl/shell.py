"""The single serial owner of a store: events in, decisions applied, replies out.

Deciding and applying happen on the event loop without an await between them, so every decision sees the one
before. A commit is visible before it is durable; a write is acknowledged only after.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import TypeVar

from dynbranch.csl.core.events import (
    AcknowledgeSettlements,
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
from dynbranch.csl.core.rows import SETTLEMENTS
from dynbranch.csl.core.store import Batch
from dynbranch.csl.durability import GroupCommit, RunBlocking, run_inline
from dynbranch.csl.key_value import KeyValue, StoreFull
from dynbranch.domain.errors import StoreFailed
from dynbranch.domain.fills import BeginFill, DiscardFills, DiscardResult, FillOutcome, Settlement
from dynbranch.domain.ids import Instant, LeaseId, Name, RecordId
from dynbranch.domain.reuse import (
    Commit,
    CommitOutcome,
    Demand,
    DemandOutcome,
    Inspection,
    Miss,
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

MAX_SETTLEMENTS_READ = 1000
MAX_SETTLEMENTS_WAIT_MS = 10_000

TURNS = 8
"""Of the loop, between two steps of a cascade. While nobody asks they cost nothing that could be measured."""

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
        self._unkept = False
        self._arriving: set[tuple[str, str]] = set()
        self._full_since: Instant | None = None
        self._failure: StoreFailed | None = None
        self._failed = asyncio.Event()
        self._settled = asyncio.Event()

    # What callers ask

    async def demand(self, demand: Demand) -> DemandOutcome:
        """All that a demand may have to write is its workflow's first arrival: durable before any demand of
        the workflow is answered, but on a full disk it waits for room.
        """
        self._check()
        workflow = (demand.identity.tenant, demand.identity.workflow_id)
        with self._guarded():
            decision = self.library.demand(demand, self._store, self._moment())
            reply, durable = decision.reply, decision.durable
            if not decision.batch.empty:
                try:
                    self._apply(decision.batch)
                    if durable:
                        self._arriving.add(workflow)
                except StoreFull as error:
                    self._say_full(error)
                    reply = self.library.without_room(demand, decision, self._store)
                    durable = False
        for effect in decision.effects:
            self._report(effect)
        if demand.once and durable and not isinstance(reply, Miss):
            # What is consumed must not come back after a power loss.
            await self._durable()
        elif workflow in self._arriving:
            with suppress(StoreFull):
                await self._durable()
        return reply

    async def commit(self, commit: Commit) -> CommitOutcome:
        return self._do(lambda: self.library.commit(commit, self._store, self._moment()))

    async def renew_leases(self, leases: Sequence[LeaseId], *, ttl_ms: int) -> frozenset[LeaseId]:
        event = RenewLeases(tuple(leases), ttl_ms)
        return self._do(lambda: self.library.renew_leases(event, self._moment()))

    async def release_leases(self, leases: Sequence[LeaseId]) -> None:
        event = ReleaseLeases(tuple(leases))
        self._do(lambda: self.library.release_leases(event, self._store, self._moment()))

    async def begin_fill(self, fill: BeginFill) -> FillOutcome:
        self._check()
        with self._guarded():
            decision = self.library.begin_fill(fill, self._store, self._moment())
            try:
                if not decision.batch.empty:
                    self._apply(decision.batch)
            except StoreFull:
                self.library.without_leave(decision.reply)
                raise
        return decision.reply

    async def discard_fills(self, discard: DiscardFills) -> DiscardResult:
        """Serialised with demands: what it discards is promoted by none that comes later."""
        return self._do(lambda: self.library.discard_fills(discard, self._store, self._moment()))

    async def read_settlements(
        self, *, acknowledged_through: int, after: int, at_most: int, wait_ms: int, reader_epoch: int = 0
    ) -> tuple[Settlement, ...]:
        """Waits for news when there are none. Raises Conflict when a newer reader has come, also then."""
        if self.library.meet_reader(reader_epoch):
            # The one before may be waiting.
            self._settled.set()
        acknowledged = AcknowledgeSettlements(acknowledged_through)
        while self._do(lambda: self.library.acknowledge(acknowledged, self._store)):
            await asyncio.sleep(0)
        at_most = max(1, min(at_most, MAX_SETTLEMENTS_READ))
        found = self.library.settlements(self._store, after=after, at_most=at_most)
        if found or not wait_ms:
            return found
        self._settled.clear()
        with suppress(TimeoutError):
            async with asyncio.timeout(min(wait_ms, MAX_SETTLEMENTS_WAIT_MS) / 1000):
                await self._settled.wait()
        self._check()
        self.library.meet_reader(reader_epoch)
        return self.library.settlements(self._store, after=after, at_most=at_most)

    async def inspect(self, name: Name) -> Inspection:
        return self._do(lambda: Decision(self.library.inspect(name, self._store)))

    async def stats(self) -> StoreStats:
        return self._do(lambda: Decision(self.library.stats(self._store)))

    async def write(self, records: Sequence[RecordId], *, reporter: str) -> WriteResult:
        """Returns when nothing that read an older version can be served, whatever happens next.

        A write that has begun happens, also when its caller leaves.
        """
        event = Write(tuple(records), reporter)
        return await self._fell(lambda: self.library.begin_write(event, self._store, self._moment()))

    async def begin_epoch(self, epoch: int) -> WriteResult:
        """After a restore. To be called before serving."""
        event = BeginEpoch(epoch)
        return await self._fell(lambda: self.library.begin_plan_of_epoch(event, self._store, self._moment()))

    async def _fell(self, begin: Callable[[], None]) -> WriteResult:
        async with self._writing:
            await self._delete_slices()
            with self._tracer.start_as_current_span(telemetry.SPAN_CASCADE) as span:
                decision = await self._planned(begin)
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

    async def _planned(self, begin: Callable[[], None]) -> Decision[WriteResult]:
        """Plan in steps, giving way to other events between them; decide and apply in one."""
        self._check()
        begin()
        left: asyncio.CancelledError | None = None
        try:
            with self._guarded(), self._store.frozen() as index:
                while not self.library.step_plan(self._store, index, self.library.limits.plan_nodes):
                    try:
                        await _give_way()
                    except asyncio.CancelledError as error:
                        left = error
                    self._check()
                decision = self._decide(lambda: self.library.finish_plan(self._store, index))
        finally:
            self.library.drop_plan()
        if left is not None:
            self._slices_wait.set()
            raise left
        return decision

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
        self._check()
        with self._guarded():
            decision = decide()
            if not decision.batch.empty:
                self._apply(decision.batch)
        for effect in decision.effects:
            self._report(effect)
        return decision

    def _apply(self, batch: Batch) -> None:
        self._store.apply(batch)
        self._dirty = self._unkept = True
        if any(key.startswith(SETTLEMENTS) for key in batch.changes):
            self._settled.set()

    def _check(self) -> None:
        if self._failure is not None:
            raise self._failure

    @contextmanager
    def _guarded(self) -> Iterator[None]:
        """A store that fails in any way but being full can not go on."""
        try:
            yield
        except StoreFull as error:
            self._say_full(error)
            # What the decision did in memory has not happened: what a write would have felled is served on.
            self.library.reread_condemned(self._store)
            raise
        except StoreFailed as error:
            self._fail(error)
            raise

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
        arriving = set(self._arriving)
        try:
            with self._guarded():
                await self._commit_group.durable()
        except StoreFull:
            self._dirty = True
            raise
        self._arriving -= arriving

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
            await _give_way()

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
            try:
                await self._keep_house()
            except StoreFull as error:
                self._say_full(error)

    async def _keep_house(self) -> None:
        async with self._writing:
            if self._full_since is not None:
                self._store.reclaim()
                # The batch that did not fit may have reached the log all the same.
                self.library.reread_condemned(self._store)
                self._full_since = None
                _log.warning("there is room again; the store takes writes")
        await self._while_any(lambda: self.library.sweep_shadows(self._store, self._moment()))
        await self._while_any(lambda: self.library.expire_entries(self._store, self._moment()))
        await self._while_any(lambda: self.library.forget_versions(self._store))
        if self._dirty:
            await self._durable()
        if self._unkept and self._keep is not None:
            # Also when writes made everything durable themselves: the floor must follow them.
            self._unkept = False
            try:
                await self._run_blocking(self._keep)
            except BaseException:
                self._unkept = True
                raise

    async def _while_any(self, decide: Callable[[], Decision[int]]) -> None:
        """Repeat until nothing is left to do. Writes may come in between."""
        while True:
            async with self._writing:
                done = self._do(decide)
            if not done:
                return
            await asyncio.sleep(0)

    def _say_full(self, error: StoreFull) -> None:
        if self._full_since is None:
            self._full_since = self._clock.now()
            _log.error("the disk is full; hits are served, nothing is stored: %s", error)


async def _give_way() -> None:
    """To whoever asks: a demand takes several turns of the loop, from its message to its answer's."""
    for _ in range(TURNS):
        await asyncio.sleep(0)
