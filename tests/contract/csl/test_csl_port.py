"""One suite for everything that stands behind ``ports.Csl``: the in-memory twin and the real service over
gRPC.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from dynbranch.clients.csl import GrpcCsl
from dynbranch.clients.ports import Csl
from dynbranch.csl.core.limits import Limits
from dynbranch.csl.fake import FakeCsl, digest, name_of
from dynbranch.csl.rocks import DataDirectory, Sizes
from dynbranch.csl.server import SERVICE, CslServicer
from dynbranch.csl.service import opened_shell
from dynbranch.domain.errors import InvalidRequest
from dynbranch.domain.ids import DemandId, GenerationId, LeaseId, RecordId, Version
from dynbranch.domain.reuse import (
    PURE,
    Commit,
    Committed,
    DeclaredRead,
    Demand,
    GenerationRef,
    Hit,
    Identity,
    Lease,
    Level,
    Live,
    Miss,
    ReadScope,
    Refusal,
    Refused,
)
from dynbranch.runtime.chance import new_id
from dynbranch.runtime.clock import SystemClock
from dynbranch.runtime.server import GrpcServer
from dynbranch.v1.csl_pb2_grpc import add_CslServiceServicer_to_server

SIZES = Sizes(block_cache=1 << 20, write_buffer=1 << 20)
LIMITS = Limits(max_payload_bytes=1 << 20, slice_nodes=2)
DOCS = ReadScope(sources=("docs",))
CALL = {"timeout_s": 20.0}


@pytest.fixture(params=["fake", "grpc"])
async def csl(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Csl]:
    if request.param == "fake":
        fake = FakeCsl(limits=LIMITS)
        yield fake
        assert not fake.violations()
        await fake.close()
        return
    async with opened_shell(
        DataDirectory(tmp_path / "data"), limits=LIMITS, sizes=SIZES, clock=SystemClock(), new_id=new_id
    ) as (shell, _):
        server = GrpcServer(
            "127.0.0.1:0", [(add_CslServiceServicer_to_server, CslServicer(shell), SERVICE)], SystemClock()
        )
        client = GrpcCsl(await server.start())
        yield client
        await client.close()
        await server.stop(0)


def demand_for(
    what: str,
    *,
    workflow: str = "",
    scope: ReadScope = PURE,
    inputs: tuple[str, ...] = (),
    exclude: frozenset[GenerationId] = frozenset(),
    may_hit: bool = True,
) -> Demand:
    return Demand(
        demand_id=DemandId(new_id()),
        name=name_of(what),
        identity=Identity(tenant="t", workflow_type_id="type", workflow_id=workflow, agent_id="a", stage="s"),
        scope=scope,
        intended=GenerationRef(GenerationId(new_id()), "127.0.0.1:7"),
        input_digests=tuple(map(digest, inputs)),
        exclude_generations=exclude,
        may_hit=may_hit,
    )


async def lease_for(csl: Csl, demand: Demand) -> Lease:
    outcome = await csl.demand(demand, **CALL)
    assert isinstance(outcome, Miss) and outcome.lease is not None, outcome
    return outcome.lease


def commit_of(lease: Lease, output: str, reads: tuple[str, ...] | None = None) -> Commit:
    return Commit(
        lease=lease,
        payload=output.encode(),
        payload_digest=digest(output),
        level=Level.GREEDY,
        execution_ms=41.5,
        label="chat test",
        reads=None if reads is None else tuple(map(RecordId, reads)),
        output_digests=(digest(output),),
    )


async def store(csl: Csl, demand: Demand, output: str, reads: tuple[str, ...] | None = None) -> Committed:
    outcome = await csl.commit(commit_of(await lease_for(csl, demand), output, reads), **CALL)
    assert isinstance(outcome, Committed), outcome
    return outcome


async def write(csl: Csl, *records: str) -> int:
    result = await csl.write([RecordId(record) for record in records], reporter="test", **CALL)
    return result.invalidated_entries


@pytest.mark.promise("I1")
async def test_miss_commit_hit(csl: Csl) -> None:
    committed = await store(csl, demand_for("a"), "answer")
    hit = await csl.demand(demand_for("a"), **CALL)
    assert isinstance(hit, Hit)
    assert (hit.payload, hit.level, hit.execution_ms, hit.incarnation) == (
        b"answer",
        Level.GREEDY,
        41.5,
        committed.incarnation,
    )


async def test_a_large_result_comes_whole(csl: Csl) -> None:
    await store(csl, demand_for("a"), "answer " * 100_000)
    hits = await asyncio.gather(*(csl.demand(demand_for("a"), **CALL) for _ in range(4)))
    assert all(isinstance(hit, Hit) and hit.payload == b"answer " * 100_000 for hit in hits)


@pytest.mark.promise("C1.single_flight")
async def test_identical_demands_execute_once(csl: Csl) -> None:
    outcomes = await asyncio.gather(*(csl.demand(demand_for("a"), **CALL) for _ in range(8)))
    (miss,) = [outcome for outcome in outcomes if isinstance(outcome, Miss)]
    assert miss.lease is not None
    assert [outcome for outcome in outcomes if isinstance(outcome, Live)] == [Live(miss.lease.generation)] * 7


async def test_a_demand_may_exclude_a_generation(csl: Csl) -> None:
    lease = await lease_for(csl, demand_for("a"))
    excluded = frozenset({lease.generation.generation_id})
    await lease_for(csl, demand_for("a", exclude=excluded))


@pytest.mark.promise("I3")
async def test_a_write_reaches_descendants_before_it_returns(csl: Csl) -> None:
    await store(csl, demand_for("get", workflow="w", scope=DOCS), "passage", ("docs/1",))
    await store(csl, demand_for("read", workflow="w", inputs=("passage",)), "text")
    await store(csl, demand_for("other", workflow="w", scope=DOCS), "x", ("docs/2",))
    result = await csl.write([RecordId("docs/1")], reporter="store", **CALL)
    assert result.invalidated_entries == 2
    assert set(result.invalidated_names) == {name_of("get"), name_of("read")}
    assert isinstance(await csl.demand(demand_for("read"), **CALL), Miss)
    assert isinstance(await csl.demand(demand_for("other"), **CALL), Hit)


@pytest.mark.promise("I3")
async def test_a_large_cascade_in_slices_is_gone_at_once(csl: Csl) -> None:
    for number in range(9):
        await store(csl, demand_for(f"n{number}", scope=DOCS), "x", ("docs/1",))
    assert await write(csl, "docs/1") == 9
    outcomes = [await csl.demand(demand_for(f"n{number}", scope=DOCS), **CALL) for number in range(9)]
    assert all(isinstance(outcome, Miss) for outcome in outcomes)
    lease = outcomes[3].lease  # type: ignore[union-attr]
    assert lease is not None
    assert isinstance(await csl.commit(commit_of(lease, "y", ("docs/1",)), **CALL), Committed)
    assert await write(csl, "docs/1") == 1
    assert (await csl.stats(**CALL)).entries == 0


@pytest.mark.promise("I3")
async def test_a_write_refuses_what_was_read_before_it(csl: Csl) -> None:
    lease = await lease_for(csl, demand_for("a", scope=DOCS))
    await write(csl, "docs/1")
    outcome = await csl.commit(commit_of(lease, "old", ("docs/1",)), **CALL)
    assert isinstance(outcome, Refused) and outcome.reason in (Refusal.LEASE_CLOSED, Refusal.STALE_READ)


async def test_reads_untold_and_none_read_are_different(csl: Csl) -> None:
    await store(csl, demand_for("untold", scope=DOCS), "x", None)
    await store(csl, demand_for("none", scope=DOCS), "x", ())
    assert await write(csl, "docs/1") == 1
    assert isinstance(await csl.demand(demand_for("none"), **CALL), Hit)


async def test_declared_reads_keep_their_versions(csl: Csl) -> None:
    first = await csl.write([RecordId("docs/1")], reporter="test", **CALL)
    old = Version(first.version.epoch, first.version.sequence - 1)
    for as_of, stored in ((first.version, True), (old, False)):
        scope = ReadScope(declared=(DeclaredRead(RecordId("docs/1"), as_of),))
        lease = await lease_for(csl, demand_for(f"a{stored}", scope=scope))
        outcome = await csl.commit(commit_of(lease, "x"), **CALL)
        assert isinstance(outcome, Committed) is stored


async def test_leases_are_renewed_and_released(csl: Csl) -> None:
    lease = await lease_for(csl, demand_for("a"))
    unknown = LeaseId(new_id())
    answer = await csl.renew_leases([lease.lease_id, unknown], ttl_ms=5_000, **CALL)
    assert answer == {unknown}
    await csl.release_leases([lease.lease_id], **CALL)
    assert await csl.renew_leases([lease.lease_id], ttl_ms=5_000, **CALL) == {lease.lease_id}
    await lease_for(csl, demand_for("a"))


async def test_inspect_shows_the_entry_then_why_it_went(csl: Csl) -> None:
    committed = await store(csl, demand_for("a", scope=DOCS), "text", ("docs/1",))
    entry = (await csl.inspect(name_of("a"), **CALL)).entry
    assert entry is not None
    assert (entry.label, entry.payload_bytes, entry.payload_digest) == ("chat test", 4, digest("text"))
    assert [read.record for read in entry.derivations[0].reads] == ["docs/1"]
    await write(csl, "docs/1")
    lease = await lease_for(csl, demand_for("a", scope=DOCS))
    gone = await csl.inspect(name_of("a"), **CALL)
    assert gone.entry is None and gone.live == (lease.generation,)
    assert gone.history[0].record == "docs/1" and gone.history[0].reporter == "test"
    assert gone.history[0].incarnation_number == committed.incarnation.number


async def test_differing_and_oversized_results_are_refused(csl: Csl) -> None:
    await store(csl, demand_for("a"), "one")
    other = await csl.commit(commit_of(await lease_for(csl, demand_for("a", may_hit=False)), "two"), **CALL)
    assert isinstance(other, Refused) and other.reason is Refusal.DIFFERS
    lease = await lease_for(csl, demand_for("big"))
    big = await csl.commit(commit_of(lease, "x" * ((1 << 20) + 1)), **CALL)
    assert isinstance(big, Refused) and big.reason is Refusal.TOO_LARGE


async def test_a_write_of_nothing_is_an_error_of_the_caller(csl: Csl) -> None:
    with pytest.raises(InvalidRequest):
        await csl.write([], reporter="test", **CALL)


async def test_stats_count_what_happened(csl: Csl) -> None:
    await store(csl, demand_for("a", scope=DOCS), "four", ("docs/1",))
    await csl.demand(demand_for("a"), **CALL)
    stats = await csl.stats(**CALL)
    assert (stats.entries, stats.payload_bytes, stats.leases) == (1, 4, 0)
    assert (stats.hits, stats.joins, stats.misses, stats.commits) == (1, 0, 1, 1)
    await write(csl, "docs/1")
    after = await csl.stats(**CALL)
    assert (after.entries, after.payload_bytes, after.writes, after.invalidated_entries) == (0, 0, 1, 1)
    assert after.version.sequence == stats.version.sequence + 1
