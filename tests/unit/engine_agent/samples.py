"""Orders, leases and a store for the tests of the engine agent."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from itertools import count

from dynbranch.clients.ports import Unreachable
from dynbranch.domain.engine import GenerationOrder, ModelDescription, WireProtocol, WorkClass
from dynbranch.domain.ids import Digest, GenerationId, LeaseId, Name, RecordId, Version
from dynbranch.domain.reuse import (
    PURE,
    Commit,
    CommitOutcome,
    Committed,
    Demand,
    DemandOutcome,
    GenerationRef,
    Identity,
    Incarnation,
    Inspection,
    Lease,
    ReadScope,
    Refused,
    StoreStats,
    WriteResult,
)
from dynbranch.engine_agent.fake import FAKE_MODEL
from dynbranch.naming.fingerprint import fingerprint_digest
from dynbranch.runtime.clock import Clock

_numbers = count(1)


def some_id() -> bytes:
    return next(_numbers).to_bytes(16, "big")


def lease(
    generation: GenerationId | None = None, *, ttl_ms: int = 9_000, scope: ReadScope = PURE, name: bytes = b""
) -> Lease:
    generation = generation or GenerationId(some_id())
    return Lease(
        lease_id=LeaseId(some_id()),
        name=Name(name or some_id() * 2),
        generation=GenerationRef(generation, "127.0.0.1:1"),
        read_token=Version(1, 0),
        scope=scope,
        ttl_ms=ttl_ms,
    )


def chat_order(
    text: str = "hello",
    *,
    leased: bool = False,
    model: ModelDescription = FAKE_MODEL,
    target: str = "",
    grace_ms: int = 0,
    digest: Digest | None = None,
    body: bytes | None = None,
    **fields: object,
) -> GenerationOrder:
    generation = GenerationId(some_id())
    message = {"role": "user", "content": text}
    request = {"model": target or model.id, "messages": [message], "temperature": 0, **fields}
    return GenerationOrder(
        generation_id=generation,
        protocol=WireProtocol.CHAT_COMPLETIONS,
        target=target or model.id,
        body=json.dumps(request).encode() if body is None else body,
        fingerprint_digest=digest or fingerprint_digest(model.fingerprint),
        identity=Identity(),
        lease=lease(generation) if leased else None,
        detach_grace_ms=grace_ms,
    )


def fill_order(
    text: str = "hello",
    *,
    tokens: int = 0,
    leased: bool = False,
    work: WorkClass = WorkClass.FILL,
    model: ModelDescription = FAKE_MODEL,
    grace_ms: int = 0,
    quiet: bool = False,
    **fields: object,
) -> GenerationOrder:
    order = chat_order(text, leased=leased, model=model, grace_ms=grace_ms, **fields)
    return replace(order, work=work, reserve_tokens=tokens, quiet=quiet)


class StubCsl:
    """A store that records what it is told, and answers as it is told to."""

    def __init__(self, clock: Clock | None = None) -> None:
        self.commits: list[Commit] = []
        self.released: list[LeaseId] = []
        self.renewed: list[tuple[LeaseId, ...]] = []
        self.unknown: frozenset[LeaseId] = frozenset()
        self.answer: CommitOutcome | Exception | None = None
        self.commit_s = 0.0
        self.reachable = True
        self._clock = clock

    async def commit(self, commit: Commit, *, timeout_s: float) -> CommitOutcome:
        if self.commit_s and self._clock is not None:
            await self._clock.sleep(self.commit_s)
        self._check()
        if isinstance(self.answer, Exception):
            raise self.answer
        if isinstance(self.answer, Refused):
            return self.answer
        self.commits.append(commit)
        return self.answer or Committed(Incarnation(commit.lease.name, 1))

    async def renew_leases(
        self, leases: Sequence[LeaseId], *, ttl_ms: int, timeout_s: float
    ) -> frozenset[LeaseId]:
        self._check()
        self.renewed.append(tuple(leases))
        return self.unknown & frozenset(leases)

    async def release_leases(self, leases: Sequence[LeaseId], *, timeout_s: float) -> None:
        self._check()
        self.released += leases

    async def demand(self, demand: Demand, *, timeout_s: float) -> DemandOutcome:
        raise NotImplementedError

    async def write(self, records: Sequence[RecordId], *, reporter: str, timeout_s: float) -> WriteResult:
        raise NotImplementedError

    async def inspect(self, name: Name, *, timeout_s: float) -> Inspection:
        raise NotImplementedError

    async def stats(self, *, timeout_s: float) -> StoreStats:
        raise NotImplementedError

    async def close(self) -> None:
        """Nothing is held."""

    def _check(self) -> None:
        if not self.reachable:
            raise Unreachable("the store is gone")
