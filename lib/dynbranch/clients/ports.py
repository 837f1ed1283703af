"""A Protocol per service: what a caller needs of it, in domain values.

The gRPC implementations stand beside this file; each service ships an in-memory twin that passes the same
contract tests. Every method raises ``dynbranch.domain.errors`` for expected failures and ``Unreachable`` when
no answer came. ``timeout_s`` bounds the whole call, ``idle_s`` the silence between two messages of a stream.
Streams start at their first ``anext`` and end at ``aclose``: leave one early by ``contextlib.aclosing``.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Sequence
from typing import Protocol

from dynbranch.domain.branches import BranchSummary, TemplateSet
from dynbranch.domain.engine import (
    AbortResult,
    AgentDescription,
    GenerationEvents,
    GenerationOrder,
    Occupancy,
)
from dynbranch.domain.events import ControllerSummary, EventBatch
from dynbranch.domain.fills import BeginFill, DiscardFills, DiscardResult, FillOutcome, Settlement
from dynbranch.domain.ids import BranchId, GenerationId, LeaseId, Name, RecordId
from dynbranch.domain.reuse import (
    Commit,
    CommitOutcome,
    Demand,
    DemandOutcome,
    Inspection,
    StoreStats,
    WriteResult,
)


class Unreachable(Exception):
    """No answer: connection refused, lost, or the deadline passed. What happened there is not known."""


class Csl(Protocol):
    async def demand(self, demand: Demand, *, timeout_s: float) -> DemandOutcome: ...

    async def commit(self, commit: Commit, *, timeout_s: float) -> CommitOutcome: ...

    async def renew_leases(
        self, leases: Sequence[LeaseId], *, ttl_ms: int, timeout_s: float
    ) -> frozenset[LeaseId]:
        """Returns the leases that the store does not know, and those of fills that it has closed."""

    async def release_leases(self, leases: Sequence[LeaseId], *, timeout_s: float) -> None: ...

    async def write(self, records: Sequence[RecordId], *, reporter: str, timeout_s: float) -> WriteResult: ...

    async def inspect(self, name: Name, *, timeout_s: float) -> Inspection: ...

    async def stats(self, *, timeout_s: float) -> StoreStats: ...

    async def close(self) -> None: ...


class Fills(Protocol):
    """What a controller needs of the store. None of it is a demand."""

    async def begin_fill(self, fill: BeginFill, *, timeout_s: float) -> FillOutcome: ...

    async def discard_fills(self, discard: DiscardFills, *, timeout_s: float) -> DiscardResult: ...

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
        """In order, each at least once. Waits up to ``wait_ms`` when there is none.

        A store has one reader. Of two that tell an epoch the higher one has it; the other gets a Conflict,
        ``superseded``, here and from ``begin_fill``.
        """


Take = Callable[[tuple[bytes, ...]], bool]
"""Offered items of a generation the moment that they come, while its follower waits for a message. Returns
whether it took them: then no message brings them. It does not wait, and does not raise."""


def take_nothing(items: tuple[bytes, ...]) -> bool:
    return False


class EngineAgent(Protocol):
    async def describe(self, *, timeout_s: float) -> AgentDescription: ...

    def generate(
        self, order: GenerationOrder, *, idle_s: float, take: Take = take_nothing
    ) -> AsyncGenerator[GenerationEvents]:
        """Starts the generation and follows it. Closing detaches; the last one to leave aborts.

        ``take`` may be offered items, or never. A fill or draft beyond the agent's own limits is refused at
        once: NotReady, ``fill_limit``. Of a quiet order nothing comes before the end: ``idle_s`` bounds all.
        """

    def attach(
        self,
        generation: GenerationId,
        *,
        from_item: int,
        wait_ms: int,
        idle_s: float,
        take: Take = take_nothing,
        adopts: bool = False,
        quiet: bool = False,
    ) -> AsyncGenerator[GenerationEvents]:
        """Raises NotFound (before the first message) when the generation is unknown after ``wait_ms``.

        ``adopts``: a demand takes the fill over, which is canonical work from now on.
        """

    async def abort(
        self, generation: GenerationId, *, reason: str, timeout_s: float, only_speculative: bool = False
    ) -> AbortResult:
        """Returns when the engine has let go. ``only_speculative`` leaves canonical work alone, and with it
        a fill that a demand has taken over."""

    async def drain(self, *, deadline_s: float) -> int: ...

    def watch_occupancy(self, *, interval_ms: int) -> AsyncGenerator[Occupancy]: ...

    async def close(self) -> None: ...


class Controller(Protocol):
    async def report_events(self, batch: EventBatch, *, timeout_s: float) -> int: ...

    async def summary(self, *, timeout_s: float) -> ControllerSummary: ...

    async def close(self) -> None: ...


class Branches(Protocol):
    """What gateways and people ask of a controller about templates and branches."""

    def watch_templates(self) -> AsyncGenerator[TemplateSet]:
        """The templates in force: at once, whenever they change, and from time to time as a sign of life."""

    async def inspect_branch(self, branch: BranchId, *, timeout_s: float) -> str:
        """One branch from opening to settlement as a JSON object. Raises NotFound."""

    async def list_branches(
        self, *, workflow_id: str, at_most: int, timeout_s: float
    ) -> tuple[BranchSummary, ...]:
        """Newest first; of one workflow, or of all when it is empty."""
