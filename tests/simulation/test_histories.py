"""The judges of histories: they accept what a store may do, and reject what it may not."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from itertools import permutations
from random import Random

import pytest
from dynbranch.bench.store_histories import (
    Client,
    Subject,
    long_history,
    running_store,
    short_histories,
    subjects,
)
from dynbranch.clients.csl import GrpcCsl
from dynbranch.csl.core.founding import found
from dynbranch.csl.core.library import Library
from dynbranch.csl.core.limits import Limits
from dynbranch.csl.key_value import MemoryKeyValue
from dynbranch.csl.server import SERVICE, CslServicer
from dynbranch.csl.shell import Shell
from dynbranch.domain.ids import GenerationId, LeaseId, RecordId, UnixMs, Version, whole
from dynbranch.domain.reuse import (
    Committed,
    GenerationRef,
    Hit,
    Incarnation,
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
from dynbranch.sim.histories import (
    Call,
    CommitEnded,
    Demanded,
    Released,
    Renewed,
    Span,
    WriteEnded,
    violations,
)
from dynbranch.sim.linearise import SequentialStore, order
from dynbranch.v1.csl_pb2_grpc import add_CslServiceServicer_to_server
from simulation.mutants import FollowersAfterTheWrite, NoReadTokenCheck, WritesLeaveLeasesOpen

A = RecordId("alpha/1")
GET = Subject("get", ReadScope(sources=("alpha",)), (A,))
START = SequentialStore(Version(1, 0))


def lease(number: int, token: int = 0, ttl_ms: int = 60_000) -> Lease:
    generation = GenerationRef(GenerationId(bytes([number]) * 16), "agent:1")
    return Lease(
        LeaseId(bytes([number]) * 16), GET.name, generation, Version(1, token), GET.scope, (), ttl_ms
    )


def demanded(
    began: float, outcome: Hit | Live | Miss, *, took: float = 1.0, may_hit: bool = True
) -> Demanded:
    return Demanded(Span(began, began + took), GET.name, GET.payload, may_hit, frozenset(), outcome)


def hit(number: int = 1) -> Hit:
    return Hit(Incarnation(GET.name, number), GET.payload, Level.SOURCED, 1.0, UnixMs(0))


def committed(began: float, of: Lease, number: int = 1, *, took: float = 1.0) -> CommitEnded:
    return CommitEnded(Span(began, began + took), of, GET.reads, Committed(Incarnation(GET.name, number)))


def refused(began: float, of: Lease, reason: Refusal) -> CommitEnded:
    return CommitEnded(Span(began, began + 1.0), of, GET.reads, Refused(reason))


def written(began: float, version: int, record: RecordId = A, *, took: float = 1.0) -> WriteEnded:
    return WriteEnded(Span(began, began + took), (record,), Version(1, version))


ONE, TWO = lease(1), lease(2)
AFTER_WRITE = lease(3, token=1)

RIGHT: dict[str, list[Call]] = {
    "executed, stored, hit": [demanded(0, Miss(ONE)), committed(2, ONE), demanded(4, hit())],
    "joined while it runs": [demanded(0, Miss(ONE)), demanded(2, Live(ONE.generation)), committed(4, ONE)],
    "a write fells it": [
        demanded(0, Miss(ONE)),
        committed(2, ONE),
        written(4, 1),
        demanded(6, Miss(AFTER_WRITE)),
        committed(8, AFTER_WRITE, 2),
        demanded(10, hit(2)),
    ],
    "a write beside the commit": [
        demanded(0, Miss(ONE)),
        committed(2, ONE, took=3.0),
        written(2, 1, took=3.0),
        demanded(8, Miss(AFTER_WRITE)),
    ],
    "a hit beside the write": [
        demanded(0, Miss(ONE)),
        committed(2, ONE),
        written(4, 1, took=5),
        demanded(6, hit()),
    ],
    "a write closes the lease": [
        demanded(0, Miss(ONE)),
        written(2, 1),
        refused(4, ONE, Refusal.LEASE_CLOSED),
    ],
    "released, and granted again": [
        demanded(0, Miss(ONE)),
        Released(Span(2, 3), ONE.lease_id),
        demanded(4, Miss(TWO)),
    ],
    "renewed": [demanded(0, Miss(ONE)), Renewed(Span(2, 3), ONE.lease_id, 60.0, known=True)],
    "two who do not want a hit": [
        demanded(0, Miss(ONE), may_hit=False),
        demanded(2, Miss(TWO), may_hit=False),
    ],
}

WRONG: dict[str, list[Call]] = {
    "a stale hit": [demanded(0, Miss(ONE)), committed(2, ONE), written(4, 1), demanded(6, hit())],
    "a stale hit after a write to the whole source": [
        demanded(0, Miss(ONE)),
        committed(2, ONE),
        written(4, 1, whole("alpha")),
        demanded(6, hit()),
    ],
    "a hit of what nobody stored": [demanded(0, hit())],
    "a hit of another name": [
        demanded(0, Miss(ONE)),
        committed(2, ONE),
        demanded(4, replace(hit(), payload=b"another's")),
    ],
    "a lost commit": [demanded(0, Miss(ONE)), committed(2, ONE), demanded(4, Miss(TWO))],
    "a stale commit": [demanded(0, Miss(ONE)), written(2, 1), committed(4, ONE)],
    "a commit refused for no reason": [demanded(0, Miss(ONE)), refused(2, ONE, Refusal.STALE_READ)],
    "two open leases": [demanded(0, Miss(ONE)), demanded(2, Miss(TWO)), committed(4, ONE)],
    "joined after the write": [demanded(0, Miss(ONE)), written(2, 1), demanded(4, Live(ONE.generation))],
    "joined after the release": [
        demanded(0, Miss(ONE)),
        Released(Span(2, 3), ONE.lease_id),
        demanded(4, Live(ONE.generation)),
    ],
    "joined to nothing": [demanded(0, Live(ONE.generation))],
    "versions that go back": [written(0, 2), written(2, 1)],
    "one version twice": [written(0, 1), written(0, 1)],
    "a token from before the write": [written(0, 1), demanded(2, Miss(ONE))],
    "a token from the future": [demanded(0, Miss(AFTER_WRITE)), written(2, 1)],
}


@pytest.mark.parametrize("what", RIGHT)
def test_what_a_store_may_do_is_accepted(what: str) -> None:
    assert violations(RIGHT[what]) == []
    assert order(RIGHT[what], START) is not None


@pytest.mark.parametrize("what", WRONG)
def test_what_it_may_not_do_is_rejected(what: str) -> None:
    assert violations(WRONG[what])
    assert order(WRONG[what], START) is None


def test_both_judges_know_that_a_lease_lapses_only_in_the_long_history() -> None:
    short = lease(1, ttl_ms=1000)
    history: list[Call] = [demanded(0, Miss(short)), demanded(9, Miss(TWO))]
    assert violations(history) == []
    late: list[Call] = [demanded(0, Miss(short)), demanded(9, Live(short.generation))]
    assert violations(late)


def test_the_order_found_explains_the_answers() -> None:
    """Calls that all overlap: only one of their orders gives these answers."""
    steps = RIGHT["a write fells it"]
    loose = [replace(call, span=Span(0.0, 1.0)) for call in steps]
    for shuffled in list(permutations(loose))[:200]:
        explained = order(shuffled, START)
        assert explained is not None
        store = START
        for call in explained:
            after = store.after(call, {one.lease_id: one for one in (ONE, AFTER_WRITE)})
            assert after is not None
            store = after


@pytest.mark.promise("I3")
@pytest.mark.promise("C1.single_flight")
def test_a_real_store_over_grpc() -> None:
    with running_store(lease_ttl_ms=250) as target:
        history = long_history(target, 3, 2_500, lambda what, done, total: None)
        assert len(history) >= 2_500
        assert violations(history) == []
        kinds = {type(call) for call in history}
        assert kinds == {Demanded, CommitEnded, WriteEnded, Renewed, Released}


@pytest.mark.promise("I3")
def test_short_histories_of_a_real_store_have_an_order() -> None:
    with running_store(lease_ttl_ms=60_000) as target:
        short = asyncio.run(short_histories(target, 4, 40, lambda what, done, total: None))
    assert short.histories == 40 and short.unexplained == []


async def seen_of(library: type[Library]) -> list[Call]:
    """What eight clients see of a served store with this core."""
    rows = MemoryKeyValue()
    rows.apply(found(1))
    core = library(limits=Limits(lease_ttl_ms=250), new_id=new_id, view=rows)
    servicer = CslServicer(Shell(rows, core, SystemClock()))
    server = GrpcServer("127.0.0.1:0", [(add_CslServiceServicer_to_server, servicer, SERVICE)], SystemClock())
    target = await server.start()
    csl = GrpcCsl(target)
    few = [subject for subject in subjects() if subject.scope.sources][:6]
    clients = [Client(csl, Random(number), few, str(number)) for number in range(8)]

    async def run(client: Client) -> None:
        for _ in range(120):
            await client.act()

    try:
        await asyncio.gather(*map(run, clients))
    finally:
        await csl.close()
        await server.stop(1.0)
    return [call for client in clients for call in client.history]


@pytest.mark.parametrize("broken", [WritesLeaveLeasesOpen, FollowersAfterTheWrite, NoReadTokenCheck])
async def test_a_broken_store_is_found_over_grpc(broken: type[Library]) -> None:
    assert violations(await seen_of(broken))


async def test_the_same_store_unbroken_is_accepted() -> None:
    assert violations(await seen_of(Library)) == []
