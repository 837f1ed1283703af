"""Histories of concurrent calls on one real store, over real gRPC, from several processes.

One CSL runs on RocksDB. Clients demand, follow, commit, write, renew, release and let leases lapse; each call
is recorded with the moments when it began and ended. ``dynbranch.sim.histories`` judges the long history,
``dynbranch.sim.linearise`` searches an order for many short ones.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import pickle
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any

from dynbranch.bench.result import Tell
from dynbranch.clients.csl import GrpcCsl
from dynbranch.demo.measures import Figure, exact
from dynbranch.demo.processes import Processes, ProcessSpec
from dynbranch.domain.ids import DemandId, Digest, GenerationId, Name, RecordId, whole
from dynbranch.domain.reuse import (
    PURE,
    Commit,
    Committed,
    Demand,
    GenerationRef,
    Hit,
    Identity,
    Lease,
    Level,
    Live,
    Miss,
    ReadScope,
    Refused,
)
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

PROCESSES = 2
TASKS = 10
"""Clients in each process."""

LEASE_TTL_MS = 250
SHORT_CALLS = 6
SHORT_CLIENTS = 3
SHORT_HISTORIES = 400
CALL_S = 20.0
SOURCES = ("alpha", "beta", "gamma")
KEYS = ("1", "2", "3", "4")


@dataclass(frozen=True, slots=True)
class Subject:
    """One name: what it reads, and what its executions give."""

    key: str
    scope: ReadScope = PURE
    reads: tuple[RecordId, ...] = ()
    inputs: tuple[Digest, ...] = ()

    @property
    def name(self) -> Name:
        return Name(hashlib.sha256(b"name of " + self.key.encode()).digest())

    @property
    def payload(self) -> bytes:
        return f"what {self.key} gives".encode()

    @property
    def digest(self) -> Digest:
        return Digest(hashlib.sha256(self.payload).digest())


def subjects(prefix: str = "") -> list[Subject]:
    """Calls of models, reads of one record, queries of sources, and requests built from their outputs."""
    made = [Subject(f"{prefix}model{number}") for number in range(20)]
    for source in SOURCES:
        scope = ReadScope(sources=(source,))
        records = [RecordId(f"{source}/{key}") for key in KEYS]
        gets = [
            Subject(f"{prefix}get {record} {n}", scope, (record,)) for record in records for n in range(4)
        ]
        queries = [Subject(f"{prefix}query {source} {n}", scope, (whole(source),)) for n in range(4)]
        made += [*gets, *queries]
        made += [
            Subject(f"{prefix}from {one.key}", inputs=(one.digest,)) for one in (*gets[::4], *queries[::2])
        ]
    return made


class Client:
    """One caller: it has one call open at a time."""

    def __init__(self, csl: GrpcCsl, rng: Random, world: Sequence[Subject], label: str) -> None:
        self._csl = csl
        self._rng = rng
        self._world = world
        self._label = label
        self._workflow = 0
        self._committed: Name | None = None
        self.history: list[Call] = []

    def _new_id(self) -> bytes:
        return self._rng.getrandbits(128).to_bytes(16, "big")

    async def act(self) -> None:
        """One write, or one demand and what follows from it."""
        rng = self._rng
        if rng.random() < 0.1:
            await self.write(self._records())
            return
        if rng.random() < 0.05:
            self._workflow += 1
        subject = rng.choice(self._world)
        outcome = await self._demand_and_follow(subject)
        known = isinstance(outcome, Hit) or self._committed == subject.name
        built = [one for one in self._world if subject.digest in one.inputs]
        if known and built and rng.random() < 0.5:
            await self._demand_and_follow(built[0])

    async def _demand_and_follow(self, subject: Subject) -> Hit | Live | Miss:
        rng = self._rng
        outcome = await self.demand(subject, may_hit=rng.random() >= 0.03)
        if isinstance(outcome, Live) and rng.random() < 0.3:
            # Its generation could not be followed.
            outcome = await self.demand(subject, excluded=frozenset({outcome.generation.generation_id}))
        if isinstance(outcome, Miss) and outcome.lease is not None:
            await self._execute(subject, outcome.lease)
        return outcome

    def _records(self) -> tuple[RecordId, ...]:
        rng = self._rng
        if rng.random() < 0.1:
            return (whole(rng.choice(SOURCES)),)
        return tuple(
            {RecordId(f"{rng.choice(SOURCES)}/{rng.choice(KEYS)}") for _ in range(rng.choice((1, 1, 2)))}
        )

    async def _execute(self, subject: Subject, lease: Lease) -> None:
        rng = self._rng
        await asyncio.sleep(rng.choice((0.0, 0.001, 0.01)))
        drawn = rng.random()
        if drawn < 0.05:
            return  # the lease lapses
        if drawn < 0.1:
            await asyncio.sleep(LEASE_TTL_MS / 1000 * 1.2)  # it lapses, and the commit comes all the same
        elif drawn < 0.25:
            await self.renew(lease)
        elif drawn < 0.35:
            await self.release(lease)
            return
        await self.commit(subject, lease)

    async def demand(
        self, subject: Subject, *, may_hit: bool = True, excluded: frozenset[GenerationId] = frozenset()
    ) -> Hit | Live | Miss:
        demand = Demand(
            demand_id=DemandId(self._new_id()),
            name=subject.name,
            identity=Identity(workflow_id=f"{self._label}.{self._workflow}"),
            scope=subject.scope,
            intended=GenerationRef(GenerationId(self._new_id()), "agent:1"),
            input_digests=subject.inputs,
            exclude_generations=excluded,
            may_hit=may_hit,
        )
        began = time.monotonic()
        outcome = await self._csl.demand(demand, timeout_s=CALL_S)
        span = Span(began, time.monotonic())
        self.history.append(Demanded(span, subject.name, subject.payload, may_hit, excluded, outcome))
        return outcome

    async def commit(self, subject: Subject, lease: Lease) -> None:
        commit = Commit(
            lease=lease,
            payload=subject.payload,
            payload_digest=subject.digest,
            level=Level.SOURCED if subject.scope.sources else Level.GREEDY,
            execution_ms=1.0,
            reads=subject.reads if subject.scope.sources else None,
            output_digests=(subject.digest,),
        )
        began = time.monotonic()
        outcome = await self._csl.commit(commit, timeout_s=CALL_S)
        self.history.append(CommitEnded(Span(began, time.monotonic()), lease, subject.reads, outcome))
        self._committed = subject.name if isinstance(outcome, Committed) else None

    async def write(self, records: tuple[RecordId, ...]) -> None:
        began = time.monotonic()
        result = await self._csl.write(records, reporter=self._label, timeout_s=CALL_S)
        self.history.append(WriteEnded(Span(began, time.monotonic()), records, result.version))

    async def renew(self, lease: Lease) -> None:
        began = time.monotonic()
        unknown = await self._csl.renew_leases([lease.lease_id], ttl_ms=lease.ttl_ms, timeout_s=CALL_S)
        span = Span(began, time.monotonic())
        known = lease.lease_id not in unknown
        self.history.append(Renewed(span, lease.lease_id, lease.ttl_ms / 1000, known))

    async def release(self, lease: Lease) -> None:
        began = time.monotonic()
        await self._csl.release_leases([lease.lease_id], timeout_s=CALL_S)
        self.history.append(Released(Span(began, time.monotonic()), lease.lease_id))


# The long history


async def _call_until(target: str, seed: int, calls: int) -> list[Call]:
    """What the clients of one process saw."""
    csl = GrpcCsl(target)
    world = subjects()
    clients = [Client(csl, Random(f"{seed}.{number}"), world, f"{seed}.{number}") for number in range(TASKS)]

    async def run(client: Client) -> None:
        while sum(len(one.history) for one in clients) < calls:
            await client.act()
            if client is clients[0]:
                print(sum(len(one.history) for one in clients), flush=True)

    try:
        async with asyncio.TaskGroup() as group:
            for client in clients:
                group.create_task(run(client))
    finally:
        await csl.close()
    return [call for client in clients for call in client.history]


def long_history(target: str, seed: int, calls: int, tell: Tell) -> list[Call]:
    """At least so many calls from several processes."""
    with TemporaryDirectory(prefix="dynbranch-histories-") as folder:
        files = [Path(folder) / f"{number}.pickle" for number in range(PROCESSES)]
        share = -(-calls // PROCESSES)
        running = [
            subprocess.Popen(
                [
                    sys.executable,
                    "-m",
                    __spec__.name,
                    target,
                    str(seed * 1000 + number),
                    str(share),
                    str(file),
                ],
                stdout=subprocess.PIPE,
                text=True,
            )
            for number, file in enumerate(files)
        ]
        try:
            first = running[0].stdout
            assert first is not None
            for line in first:
                tell("calls on one store", min(int(line) * PROCESSES, calls), calls)
            for process in running:
                process.communicate(timeout=600)
                if process.returncode:
                    raise RuntimeError(f"a client of the store ended with {process.returncode}")
        finally:
            for process in running:
                process.kill()
                process.wait()
        # Written by our own children a moment ago.
        return [call for file in files for call in pickle.loads(file.read_bytes())]


# Many short histories


@dataclass(slots=True)
class Short:
    """``unexplained`` are histories that no order of single steps explains."""

    calls: int = 0
    histories: int = 0
    unexplained: list[list[Call]] = field(default_factory=list)


async def short_histories(target: str, seed: int, histories: int, tell: Tell) -> Short:
    """Each on two names and two records, so that everything meets everything."""
    found = Short()
    rng = Random(seed)
    connections = [GrpcCsl(target) for _ in range(SHORT_CLIENTS)]
    try:
        for number in range(histories):
            scope = ReadScope(sources=("alpha",))
            one, other = RecordId("alpha/1"), RecordId("alpha/2")
            pair = [
                Subject(f"{seed}.{number}.get", scope, (one,)),
                Subject(f"{seed}.{number}.query", scope, (whole("alpha"),)),
            ]
            start = (await connections[0].stats(timeout_s=CALL_S)).version
            clients = [Client(csl, Random(rng.random()), pair, "short") for csl in connections]
            await asyncio.gather(*(_few_calls(client, pair, (one, other), rng) for client in clients))
            history = [call for client in clients for call in client.history]
            found.histories += 1
            found.calls += len(history)
            if order(history, SequentialStore(start)) is None:
                found.unexplained.append(history)
            await _release_all(clients, history)
            tell("short histories", number + 1, histories)
    finally:
        for csl in connections:
            await csl.close()
    return found


async def _few_calls(
    client: Client, pair: Sequence[Subject], records: tuple[RecordId, RecordId], rng: Random
) -> None:
    held: tuple[Subject, Lease] | None = None
    for _ in range(SHORT_CALLS):
        drawn = rng.random()
        if held is not None and drawn < 0.7:
            subject, lease = held
            held = None
            if drawn < 0.1:
                await client.release(lease)
            else:
                await client.commit(subject, lease)
        elif drawn < 0.25:
            await client.write((rng.choice(records),))
        else:
            subject = rng.choice(pair)
            outcome = await client.demand(subject, may_hit=rng.random() < 0.9)
            if isinstance(outcome, Miss) and outcome.lease is not None:
                held = subject, outcome.lease


async def _release_all(clients: Sequence[Client], history: Sequence[Call]) -> None:
    """So that the next history finds no lease of this one. Names are its own anyway."""
    for call in history:
        if isinstance(call, Demanded) and isinstance(call.outcome, Miss) and call.outcome.lease is not None:
            await clients[0].release(call.outcome.lease)


# The benchmark


@contextmanager
def running_store(*, lease_ttl_ms: int) -> Iterator[str]:
    """One CSL as a process of its own, on an empty directory; its address."""
    with TemporaryDirectory(prefix="dynbranch-store-") as name:
        folder = Path(name)
        with Processes([_store(folder, lease_ttl_ms)], folder / "logs") as processes:
            processes.wait_for_lines(timeout_s=60)
            yield processes.addresses()["csl"]


def _store(folder: Path, lease_ttl_ms: int) -> ProcessSpec:
    environ = {
        **os.environ,
        "DYNBRANCH_CSL_LISTEN": "127.0.0.1:0",
        "DYNBRANCH_CSL_DATA_DIR": str(folder / "data"),
        "DYNBRANCH_CSL_LEASE_TTL_MS": str(lease_ttl_ms),
    }
    return ProcessSpec("csl", (sys.executable, "-m", "dynbranch.csl"), environ)


def run_histories(
    tell: Tell, seed: int, calls: int, *, histories: int = SHORT_HISTORIES
) -> tuple[dict[str, Figure], dict[str, Any]]:
    """Figure ``linearisability_violations`` over at least so many calls of one long history, and short ones
    beside.
    """
    began = time.monotonic()
    with running_store(lease_ttl_ms=LEASE_TTL_MS) as target:
        history = long_history(target, seed, calls, tell)
    took_s = time.monotonic() - began
    # Leases that do not lapse: the exact search has no clock.
    with running_store(lease_ttl_ms=60_000) as target:
        short = asyncio.run(short_histories(target, seed, histories, tell))
    found = violations(history)
    answers = Counter(map(answer_of, history))
    raw = {
        "seed": seed,
        "calls": len(history),
        "clients": PROCESSES * TASKS,
        "processes": PROCESSES,
        "seconds": round(took_s, 1),
        "answers": dict(sorted(answers.items())),
        "too_little": too_little(answers),
        "violations": found[:20],
        "short_histories": short.histories,
        "short_calls": short.calls,
        "short_unexplained": [list(map(repr, history)) for history in short.unexplained[:3]],
    }
    count = len(found) + len(short.unexplained)
    return {"linearisability_violations": exact(count, len(history) + short.calls)}, raw


NEEDED = ("commit: committed", "commit: lease_closed", "demand: hit", "writeended")
"""Without one of these a history shows nothing of what matters."""


def too_little(answers: Mapping[str, int]) -> list[str]:
    """Why the history shows nothing, if it does not."""
    return [f"histories: no call was answered {what!r}" for what in NEEDED if not answers.get(what)]


def answer_of(call: Call) -> str:
    match call:
        case Demanded(outcome=outcome):
            return f"demand: {type(outcome).__name__.lower()}"
        case CommitEnded(outcome=Committed()):
            return "commit: committed"
        case CommitEnded(outcome=None):
            return "commit: unknown"
        case CommitEnded(outcome=Refused() as refused):
            return f"commit: {refused.reason.value}"
        case _:
            return type(call).__name__.lower()


def main() -> None:
    """A client process: target, seed, calls, and where to put what it saw."""
    target, seed, calls, file = sys.argv[1:]
    history = asyncio.run(_call_until(target, int(seed), int(calls)))
    Path(file).write_bytes(pickle.dumps(history))


if __name__ == "__main__":
    main()
