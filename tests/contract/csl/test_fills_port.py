"""One suite for everything that stands behind ``ports.Fills``: the in-memory twin and the real service over
gRPC, on RocksDB."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest
from dynbranch.clients.csl import GrpcCsl
from dynbranch.csl.core.limits import Limits
from dynbranch.csl.fake import FakeCsl, digest, name_of, origin_of
from dynbranch.csl.fill_server import FILL_SERVICE, FillServicer
from dynbranch.csl.rocks import DataDirectory, Sizes
from dynbranch.csl.server import SERVICE, CslServicer
from dynbranch.csl.service import opened_shell
from dynbranch.domain.errors import Conflict
from dynbranch.domain.fills import (
    SUPERSEDED,
    BeginFill,
    DiscardFills,
    DiscardReason,
    FillGranted,
    FillKnown,
    FillRefusal,
    FillRefused,
    Settlement,
    SettlementKind,
)
from dynbranch.domain.ids import DemandId, FillId, GenerationId
from dynbranch.domain.reuse import (
    PURE,
    Commit,
    Committed,
    Demand,
    DemandOutcome,
    GenerationRef,
    Hit,
    Identity,
    Lease,
    Level,
    Live,
    Miss,
    Refused,
)
from dynbranch.runtime.chance import new_id
from dynbranch.runtime.clock import SystemClock
from dynbranch.runtime.server import GrpcServer
from dynbranch.v1.csl_pb2_grpc import (
    add_CslServiceServicer_to_server,
    add_FillServiceServicer_to_server,
)

CALL = {"timeout_s": 20.0}

Store = FakeCsl | GrpcCsl


@pytest.fixture(params=["fake", "grpc"])
async def csl(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Store]:
    if request.param == "fake":
        fake = FakeCsl()
        yield fake
        assert not fake.violations()
        await fake.close()
        return
    sizes = Sizes(block_cache=1 << 20, write_buffer=1 << 20)
    async with opened_shell(
        DataDirectory(tmp_path / "data"), limits=Limits(), sizes=sizes, clock=SystemClock(), new_id=new_id
    ) as (shell, _):
        server = GrpcServer(
            "127.0.0.1:0",
            [
                (add_CslServiceServicer_to_server, CslServicer(shell), SERVICE),
                (add_FillServiceServicer_to_server, FillServicer(shell), FILL_SERVICE),
            ],
            SystemClock(),
        )
        client = GrpcCsl(await server.start())
        yield client
        await client.close()
        await server.stop(0)


def filling(what: str, fill: str, *, once: bool = False) -> BeginFill:
    return BeginFill(
        origin=origin_of(fill),
        name=name_of(what),
        identity=Identity(workflow_id="w"),
        scope=PURE,
        intended=GenerationRef(GenerationId(new_id()), "127.0.0.1:7"),
        once=once,
    )


async def begun(csl: Store, what: str, fill: str, *, once: bool = False) -> Lease:
    outcome = await csl.begin_fill(filling(what, fill, once=once), **CALL)
    assert isinstance(outcome, FillGranted), outcome
    return outcome.lease


async def ended(csl: Store, lease: Lease, output: str) -> object:
    commit = Commit(
        lease=lease,
        payload=output.encode(),
        payload_digest=digest(output),
        level=Level.SAMPLED if lease.once else Level.GREEDY,
        execution_ms=12.5,
        label="chat test",
        output_digests=(digest(output),),
    )
    return await csl.commit(commit, **CALL)


async def demanded(csl: Store, what: str, *, once: bool = False) -> DemandOutcome:
    demand = Demand(
        demand_id=DemandId(new_id()),
        name=name_of(what),
        identity=Identity(workflow_id="w"),
        scope=PURE,
        intended=GenerationRef(GenerationId(new_id()), "127.0.0.1:7"),
        once=once,
    )
    return await csl.demand(demand, **CALL)


async def settled(csl: Store, *, after: int = 0, wait_ms: int = 0) -> tuple[Settlement, ...]:
    return await csl.read_settlements(
        acknowledged_through=after, after=after, at_most=100, wait_ms=wait_ms, **CALL
    )


@pytest.mark.promise("C2.promotion_atomic_once")
async def test_a_fill_becomes_a_shadow_and_a_demand_promotes_it(csl: Store) -> None:
    lease = await begun(csl, "a", "f")
    assert lease.fill == origin_of("f") and lease.shadow_ttl_ms == 60_000
    assert isinstance(await ended(csl, lease, "x"), Committed)
    assert (await csl.stats(**CALL)).shadows == 1
    hit = await demanded(csl, "a")
    assert isinstance(hit, Hit) and hit.promoted == origin_of("f") and hit.payload == b"x"
    shadowed, promoted = await settled(csl)
    assert (shadowed.kind, promoted.kind) == (SettlementKind.SHADOWED, SettlementKind.PROMOTED)
    assert shadowed.execution_ms == 12.5
    assert promoted.demanded_by is not None and promoted.demanded_by.workflow_id == "w"
    assert await settled(csl, after=promoted.number) == ()
    assert await settled(csl) == ()


@pytest.mark.promise("C2.adoption")
async def test_a_running_fill_is_adopted(csl: Store) -> None:
    lease = await begun(csl, "a", "f")
    assert await demanded(csl, "a") == Live(lease.generation, origin_of("f"))
    assert await demanded(csl, "a") == Live(lease.generation)
    assert await csl.renew_leases([lease.lease_id], ttl_ms=5_000, **CALL) == frozenset()
    assert isinstance(await ended(csl, lease, "x"), Committed)
    assert [one.kind for one in await settled(csl)] == [SettlementKind.ADOPTED, SettlementKind.CONFIRMED]


async def test_what_is_known_is_not_filled_again(csl: Store) -> None:
    await ended(csl, await begun(csl, "a", "f"), "x")
    asked = BeginFill(
        origin_of("g"), name_of("a"), Identity(), PURE, GenerationRef(GenerationId(b"1"), "127.0.0.1:7")
    )
    known = await csl.begin_fill(asked, **CALL)
    assert isinstance(known, FillKnown) and known.shadow and known.payload == b"x"


@pytest.mark.promise("C2.lost_never_promoted")
async def test_discarded_fills_are_gone_and_named(csl: Store) -> None:
    running = await begun(csl, "a", "f")
    await ended(csl, await begun(csl, "b", "g"), "x")
    fills = tuple(FillId(fill.encode()) for fill in ("f", "g", "h"))
    result = await csl.discard_fills(DiscardFills(fills, DiscardReason.LOST), **CALL)
    assert result.abort == (running.generation,) and result.discarded_shadows == 1 and not result.immune
    assert await csl.renew_leases([running.lease_id], ttl_ms=5_000, **CALL) == {running.lease_id}
    assert isinstance(await ended(csl, running, "x"), Refused)
    assert isinstance(await demanded(csl, "b"), Miss)
    late = BeginFill(
        origin_of("h"), name_of("c"), Identity(), PURE, GenerationRef(GenerationId(b"1"), "127.0.0.1:7")
    )
    refused = await csl.begin_fill(late, **CALL)
    assert isinstance(refused, FillRefused) and refused.reason is FillRefusal.LOST


@pytest.mark.promise("C2.once")
async def test_a_sampled_fill_serves_one_demand(csl: Store) -> None:
    await ended(csl, await begun(csl, "a", "f", once=True), "draw")
    hit = await demanded(csl, "a", once=True)
    assert isinstance(hit, Hit) and hit.payload == b"draw"
    assert await demanded(csl, "a", once=True) == Miss(None)


@pytest.mark.promise("C2.settlement_outbox")
async def test_whoever_waits_for_settlements_is_told_at_once(csl: Store) -> None:
    async with asyncio.TaskGroup() as tasks:
        waiting = tasks.create_task(settled(csl, wait_ms=10_000))
        await ended(csl, await begun(csl, "a", "f"), "x")
    assert [one.kind for one in waiting.result()] == [SettlementKind.SHADOWED]


@pytest.mark.promise("C2.one_reader")
async def test_a_store_has_one_reader_and_the_newest_is_it(csl: Store) -> None:
    async def read(epoch: int, *, wait_ms: int = 0) -> tuple[Settlement, ...]:
        return await csl.read_settlements(
            acknowledged_through=0, after=0, at_most=10, wait_ms=wait_ms, reader_epoch=epoch, **CALL
        )

    waiting = asyncio.create_task(read(7, wait_ms=10_000))
    await asyncio.sleep(0.05)
    assert await read(8) == ()
    with pytest.raises(Conflict) as superseded:
        await waiting
    assert superseded.value.reason == SUPERSEDED and superseded.value.advice
    late = replace(filling("a", "f"), reader_epoch=7)
    with pytest.raises(Conflict):
        await csl.begin_fill(late, **CALL)
    assert isinstance(await csl.begin_fill(replace(late, reader_epoch=8), **CALL), FillGranted)
    # Whoever tells no epoch is not refused.
    assert await read(0) == ()
    with pytest.raises(Conflict):
        await read(7)
