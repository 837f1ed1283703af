"""What a gateway remembers of first arrivals, and what it tells the store of them."""

from __future__ import annotations

import asyncio
from itertools import count

import pytest
from dynbranch.clients.ports import Unreachable
from dynbranch.csl.fake import FakeCsl, name_of
from dynbranch.domain.ids import DemandId, GenerationId, RecordId
from dynbranch.domain.reuse import (
    PURE,
    DeclaredRead,
    Demand,
    DemandOutcome,
    GenerationRef,
    Identity,
    Lease,
    Miss,
    ReadScope,
)
from dynbranch.gateway.core.breaker import BreakerPolicy
from dynbranch.gateway.core.first_arrivals import Arrived, FirstArrivals
from dynbranch.gateway.core.life import Answered, Unanswered
from dynbranch.gateway.csl_gate import CslGate
from dynbranch.gateway.registrar import Registrar
from dynbranch.runtime.clock import ManualClock

ONE = Identity(workflow_id="w1")
SINCE_ARRIVAL = ReadScope((DeclaredRead(RecordId("s/1")),))


class Store(FakeCsl):
    def __init__(self, clock: ManualClock) -> None:
        self.ids = map(lambda number: number.to_bytes(16, "big"), count(1))
        super().__init__(clock=clock, new_id=lambda: next(self.ids))
        self.demands: list[Demand] = []
        self.down = False
        self.gate: asyncio.Event | None = None

    async def demand(self, demand: Demand, *, timeout_s: float) -> DemandOutcome:
        self.demands.append(demand)
        if self.gate is not None:
            await self.gate.wait()
        if self.down:
            raise Unreachable("down")
        return await super().demand(demand, timeout_s=timeout_s)


class Bench:
    def __init__(self) -> None:
        clock = ManualClock()
        self.store = Store(clock)
        policy = BreakerPolicy(bad_calls_to_open=100)
        self.registrar = Registrar(
            CslGate(self.store, budget_s=5, policy=policy, clock=clock), new_id=lambda: next(self.store.ids)
        )

    def demand_of(self, what: str, *, identity: Identity = ONE, scope: ReadScope = PURE) -> Demand:
        intended = GenerationRef(GenerationId(next(self.store.ids)), "a:1")
        return Demand(DemandId(next(self.store.ids)), name_of(what), identity, scope, intended)

    async def lease(self, what: str, scope: ReadScope = SINCE_ARRIVAL) -> Lease | None:
        answer = await self.registrar.demand(self.demand_of(what, scope=scope))
        assert isinstance(answer, Answered) and isinstance(answer.outcome, Miss)
        return answer.outcome.lease


@pytest.fixture
def bench() -> Bench:
    return Bench()


@pytest.mark.promise("I3")
async def test_an_arrival_that_demands_nothing_is_registered_once(bench: Bench) -> None:
    first = (await bench.store.stats(timeout_s=1)).version
    await bench.registrar.register(ONE)
    await bench.registrar.register(ONE)
    await bench.registrar.register(Identity())
    assert [(d.may_execute, d.may_hit) for d in bench.store.demands] == [(False, False)]
    await bench.store.write([RecordId("s/1")], reporter="", timeout_s=1)
    lease = await bench.lease("x")
    assert lease is not None and lease.scope.declared[0].as_of == first
    assert (await bench.store.stats(timeout_s=1)).leases == 1


async def test_a_demand_registers_by_itself(bench: Bench) -> None:
    assert await bench.lease("x", PURE) is not None
    await bench.registrar.register(ONE)
    assert len(bench.store.demands) == 1


@pytest.mark.promise("I3")
@pytest.mark.parametrize("demands", [False, True])
async def test_a_first_arrival_in_an_outage_stays_unknown(bench: Bench, demands: bool) -> None:
    bench.store.down = True
    if demands:
        assert isinstance(await bench.registrar.demand(bench.demand_of("x")), Unanswered)
    else:
        await bench.registrar.register(ONE)
    bench.store.down = False
    assert await bench.lease("x") is None
    assert await bench.lease("y", PURE) is not None
    assert await bench.lease("x") is None


async def test_a_later_outage_makes_nothing_unknown(bench: Bench) -> None:
    await bench.registrar.register(ONE)
    bench.store.down = True
    assert isinstance(await bench.registrar.demand(bench.demand_of("x")), Unanswered)
    bench.store.down = False
    assert await bench.lease("x") is not None


@pytest.mark.promise("I3")
@pytest.mark.parametrize("down", [False, True])
async def test_who_comes_while_the_first_is_told_waits_for_it(bench: Bench, down: bool) -> None:
    bench.store.gate, bench.store.down = asyncio.Event(), down
    first = asyncio.create_task(bench.registrar.register(ONE))
    await asyncio.sleep(0)
    second = asyncio.create_task(bench.registrar.register(ONE))
    reader = asyncio.create_task(bench.registrar.demand(bench.demand_of("x", scope=SINCE_ARRIVAL)))
    await asyncio.sleep(0)
    assert len(bench.store.demands) == 1
    bench.store.gate.set()
    await asyncio.gather(first, second)
    answer = await reader
    assert isinstance(answer, Unanswered) if down else isinstance(answer, Answered)
    assert len(bench.store.demands) == (1 if down else 2)


async def test_a_first_that_is_cancelled_leaves_nobody_waiting(bench: Bench) -> None:
    bench.store.gate = asyncio.Event()
    first = asyncio.create_task(bench.registrar.register(ONE))
    await asyncio.sleep(0)
    second = asyncio.create_task(bench.registrar.register(ONE))
    await asyncio.sleep(0)
    first.cancel()
    await second
    bench.store.gate.set()
    assert await bench.lease("x") is None


def test_the_memory_is_bounded_and_outages_are_kept_apart() -> None:
    known = FirstArrivals(limit=3)
    known.remember(("t", "unknown"), Arrived.UNKNOWN)
    for number in range(10):
        known.remember(("t", str(number)), Arrived.REGISTERED)
        known.of(("t", "0"))
    assert known.of(("t", "unknown")) is Arrived.UNKNOWN
    assert known.of(("t", "0")) is Arrived.REGISTERED
    assert known.of(("t", "5")) is None and known.of(("u", "0")) is None
