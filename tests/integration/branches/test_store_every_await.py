"""A fault at every await of the store's own shell on RocksDB, while fills begin, end, are promoted, consumed,
taken over and lost.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from dynbranch.csl.core import consistency
from dynbranch.csl.core.library import Library
from dynbranch.csl.core.limits import Limits
from dynbranch.csl.fake import counting_ids, digest, name_of, origin_of
from dynbranch.csl.opening import open_directory
from dynbranch.csl.rocks import DataDirectory, Sizes
from dynbranch.csl.shell import Shell
from dynbranch.domain.fills import BeginFill, DiscardFills, DiscardReason, FillGranted, SettlementKind
from dynbranch.domain.ids import DemandId, FillId, GenerationId, RecordId
from dynbranch.domain.reuse import (
    PURE,
    Commit,
    Demand,
    DemandOutcome,
    GenerationRef,
    Hit,
    Identity,
    Lease,
    Level,
    Live,
    Miss,
    ReadScope,
)
from integration.branches.every_await import Awaits, Fault, LeapingClock, Stepped, at_every_await

pytestmark = pytest.mark.timeout(900)
"""Hundreds of short lives in one test: a busy machine stretches them."""

LIMITS = Limits(lease_ttl_ms=2000, max_lease_ttl_ms=2000)
SIZES = Sizes(block_cache=1 << 20, write_buffer=1 << 20)
RUNS = ReadScope(sources=("s",))
TTL_MS = 20_000


class Store:
    """A shell on a directory. What is asked of it is a call of its own, which may be cut short: then it is
    asked again, as clients do."""

    def __init__(self, folder: Path, awaits: Awaits) -> None:
        self._directory = DataDirectory(folder)
        self._clock = LeapingClock()
        self._awaits = awaits
        self._new_id = counting_ids()
        self._demands = count(1)
        self.drawn: list[bytes] = []
        """What once-only fills gave to those who asked."""
        self.open()

    def open(self) -> None:
        self._opened = open_directory(self._directory, sizes=SIZES, now=self._clock.unix_ms())
        library = Library(limits=LIMITS, new_id=self._new_id, view=self._opened.store)
        self.shell = Shell(self._opened.store, library, self._clock, run_blocking=self._aside)

    async def _aside(self, call: Callable[[], None]) -> None:
        await asyncio.sleep(0)
        call()
        await asyncio.sleep(0)

    def close(self) -> None:
        self._opened.store.close()

    def restart(self) -> None:
        """What it had in memory is lost; who waits for it waits for nothing."""
        self.close()
        self.open()

    async def ask(self, call: Callable[[Shell], Coroutine[Any, Any, Any]]) -> Any:
        for _ in range(3):
            asked = self.shell
            work = Stepped(_handled(call, asked), "store", self._awaits)
            task = asyncio.get_running_loop().create_task(_awaited(work))
            await asyncio.wait((task,))
            if task.cancelled() or self.shell is not asked:
                # Its answer is lost, whatever it was.
                task.cancelled() or task.exception()
                continue
            return task.result()
        raise AssertionError("only one fault was asked for")

    # -- what controllers, agents and gateways ask -----------------------------------------------------------

    async def begun(self, what: str, *, once: bool = False, scope: ReadScope = PURE) -> Lease:
        fill = BeginFill(
            origin=origin_of(what),
            name=name_of(what),
            identity=Identity(workflow_id="w1"),
            scope=scope,
            intended=GenerationRef(GenerationId(b"g" + what.encode()), "e1"),
            once=once,
            shadow_ttl_ms=TTL_MS,
        )
        outcome = await self.ask(lambda shell: shell.begin_fill(fill))
        assert isinstance(outcome, FillGranted), outcome
        return outcome.lease

    async def committed(self, lease: Lease, output: str, reads: tuple[RecordId, ...] | None = None) -> None:
        commit = Commit(
            lease, output.encode(), digest(output), Level.SAMPLED if lease.once else Level.GREEDY, 10.0,
            reads=reads, output_digests=(digest(output),),
        )  # fmt: skip
        await self.ask(lambda shell: shell.commit(commit))

    async def demanded(self, what: str, *, once: bool = False, workflow: str = "") -> DemandOutcome:
        demand = Demand(
            DemandId(b"d%d" % next(self._demands)),
            name_of(what),
            Identity(workflow_id=workflow),
            scope=PURE,
            intended=GenerationRef(GenerationId(self._new_id()), "e1"),
            once=once,
        )
        outcome: DemandOutcome = await self.ask(lambda shell: shell.demand(demand))
        if once and isinstance(outcome, Hit):
            self.drawn.append(outcome.payload)
        return outcome

    async def discarded(self, what: str) -> None:
        discard = DiscardFills((FillId(what.encode()),), DiscardReason.LOST)
        await self.ask(lambda shell: shell.discard_fills(discard))

    async def written(self) -> None:
        await self.ask(lambda shell: shell.write((RecordId("s/1"),), reporter="test"))

    # -- when all is over ----------------------------------------------------------------------------------

    def is_whole(self) -> None:
        rows = self._opened.store
        found = [*consistency.violations(rows), *self.shell.library.violations(rows)]
        assert not found, found

    async def comes_to_rest(self) -> None:
        await asyncio.sleep(TTL_MS / 1000)
        await self.ask(lambda shell: shell.renew_leases((), ttl_ms=1))
        await self.shell._keep_house()
        stats = await self.shell.stats()
        assert (stats.leases, stats.fills, stats.shadows) == (0, 0, 0), stats
        self.is_whole()
        rows = await self.shell.read_settlements(acknowledged_through=0, after=0, at_most=100, wait_ms=0)
        for fill in {row.origin for row in rows}:
            kinds = [row.kind for row in rows if row.origin == fill]
            assert len(set(kinds)) == len(kinds), (fill, kinds)
            if SettlementKind.SHADOWED in kinds:
                ends = {SettlementKind.PROMOTED, SettlementKind.CONSUMED, SettlementKind.DISCARDED}
                ends.add(SettlementKind.STALE)
                assert len(ends.intersection(kinds)) == 1, (fill, kinds)


async def _handled(call: Callable[[Shell], Coroutine[Any, Any, Any]], shell: Shell) -> Any:
    """As a server does: a call may end before the shell hears of it, and after it has answered."""
    await asyncio.sleep(0)
    answer = await call(shell)
    await asyncio.sleep(0)
    return answer


async def _awaited(work: Stepped) -> Any:
    return await work


@asynccontextmanager
async def opened(folder: Path, awaits: Awaits) -> AsyncIterator[Store]:
    store = Store(folder, awaits)
    awaits.act = store.restart
    awaits.armed = True
    try:
        yield store
    finally:
        store.close()


async def life(folder: Path, awaits: Awaits) -> None:
    """One fill of every kind. What a restart loses is as good as never begun."""
    async with opened(folder, awaits) as store:
        promoted, once = await store.begun("promoted"), await store.begun("once", once=True)
        await store.committed(promoted, "of promoted")
        await store.committed(once, "drawn")
        lost, stale = await store.begun("lost"), await store.begun("stale", scope=RUNS)
        await store.committed(lost, "of lost")
        await store.committed(stale, "of stale", (RecordId("s/1"),))
        first = await store.demanded("promoted", workflow="w1")
        again = await store.demanded("promoted", workflow="w2")
        await store.demanded("once", once=True, workflow="w1")
        await store.demanded("once", once=True, workflow="w3")
        await store.discarded("lost")
        await store.written()
        running = await store.begun("taken over")
        taken = await store.demanded("taken over", workflow="w4")
        await store.committed(running, "of taken over")
        awaits.armed = False
        assert isinstance(first, Hit) and isinstance(again, Hit) and again.promoted is None
        assert first.payload == again.payload == b"of promoted"
        assert len(store.drawn) == len(set(store.drawn)) <= 1
        assert isinstance(taken, (Live, Miss))
        for gone in ("lost", "stale"):
            outcome = await store.demanded(gone)
            assert isinstance(outcome, Miss) and outcome.lease is not None, (gone, outcome)
            assert (await store.shell.inspect(name_of(gone))).entry is None
        assert isinstance(await store.demanded("once", once=True), Miss)
        await store.comes_to_rest()
        assert isinstance(await store.demanded("promoted"), Hit)
        store.restart()
        store.is_whole()
        assert isinstance(await store.demanded("once", once=True), Miss)


@pytest.mark.promise("I2", "I3", "I4", "C2.once", "C2.promotion_atomic_once", "C2.lost_never_promoted")
@pytest.mark.parametrize("fault", [Fault.CANCEL, Fault.CANCEL_LATE, Fault.MEANWHILE])
def test_a_fault_at_every_await_of_the_store(tmp_path: Path, fault: Fault) -> None:
    folders = (tmp_path / str(number) for number in count())
    struck = at_every_await(lambda awaits: life(next(folders), awaits), "store", fault)
    assert struck.total() >= 40, struck
