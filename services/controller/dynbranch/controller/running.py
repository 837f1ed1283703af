"""Fills at work: the leave of the store, the run at an engine, and their end when they are lost."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Protocol, assert_never

from dynbranch.clients.ports import Fills, Unreachable
from dynbranch.controller.agents import Agents
from dynbranch.controller.core.branches.messages import (
    DiscardRuns,
    Ending,
    FillsDiscarded,
    Prepared,
    RunStage,
    StageBegan,
    StageEnded,
)
from dynbranch.domain.engine import (
    Aborted,
    Completed,
    Failed,
    GenerationEnd,
    GenerationEvents,
    GenerationOrder,
    WireProtocol,
    WorkClass,
)
from dynbranch.domain.errors import DomainError
from dynbranch.domain.fills import (
    BeginFill,
    DiscardFills,
    FillGranted,
    FillKnown,
    FillLive,
    FillOutcome,
    FillRefusal,
    FillRefused,
)
from dynbranch.domain.ids import GenerationId, LeaseId
from dynbranch.domain.reuse import GenerationRef, Lease
from dynbranch.domain.template import Output
from dynbranch.naming.chunks import MalformedLog, decode_payload
from dynbranch.rendering.outputs import output_of, tool_output
from dynbranch.runtime.clock import Clock

_log = logging.getLogger(__name__)

STORED = frozenset({"committed", "pending"})
"""Words of an agent. Of a commit that was on its way when a demand could wait no longer the store tells."""

ATTACH_WAIT_MS = 50
MAX_OUTPUT_BYTES = 16 * 2**20
"""Of a stage whose output the next one is written from."""


class Store(Fills, Protocol):
    """What a controller needs of the store."""

    async def release_leases(self, leases: Sequence[LeaseId], *, timeout_s: float) -> None: ...


@dataclass(frozen=True, slots=True)
class Timings:
    """``stage_s`` bounds one stage from the leave to its end; of a quiet follower nothing is heard before.
    ``detach_grace_ms``: how long a fill outlives this controller."""

    store_s: float = 2.0
    stage_s: float = 120.0
    abort_s: float = 10.0
    detach_grace_ms: int = 2000
    discard_retries_s: tuple[float, ...] = (0.1, 0.5, 2.0)
    commit_waits_s: tuple[float, ...] = (0.03, 0.1, 0.3)


class TooLarge(Exception):
    """An output that no next stage can be written from."""


class Runner:
    """``new_id`` is the source of chance. ``epoch`` tells this controller from others of the same store: the
    highest has it; 0 is told to nobody."""

    def __init__(
        self,
        store: Store,
        agents: Agents,
        clock: Clock,
        *,
        new_id: Callable[[], bytes],
        timings: Timings | None = None,
        epoch: int = 0,
    ) -> None:
        self.epoch = epoch
        self._store = store
        self._agents = agents
        self._clock = clock
        self._new_id = new_id
        self._timings = timings or Timings()

    async def run(self, ask: RunStage, began: Callable[[StageBegan], None]) -> StageEnded:
        """Cancel it to let the stage go: an engine aborts what nobody follows."""
        try:
            outcome = await self._leave(ask)
            for pause_s in self._timings.commit_waits_s if ask.producers else ():
                if not (isinstance(outcome, FillRefused) and outcome.reason is FillRefusal.LOST):
                    break
                # Whoever ran the stage before may have been heard to end before the store had its result.
                await self._clock.sleep(pause_s)
                outcome = await self._leave(ask)
        except (Unreachable, DomainError) as failure:
            return StageEnded(ask.key, Ending.REFUSED, detail=f"the store: {failure}")
        match outcome:
            case FillGranted(lease):
                began(StageBegan(ask.key, lease.generation))
                return await self._execute(ask, lease)
            case FillKnown():
                return self._known(ask, outcome)
            case FillLive(generation):
                return await self._join(ask, generation)
            case FillRefused(reason, detail):
                return StageEnded(ask.key, Ending.REFUSED, detail=f"{reason.value}: {detail}")
            case _:
                assert_never(outcome)

    async def _leave(self, ask: RunStage) -> FillOutcome:
        fill = BeginFill(
            origin=ask.origin,
            name=ask.prepared.name,
            identity=ask.identity,
            scope=ask.prepared.scope,
            intended=GenerationRef(GenerationId(self._new_id()), ask.engine),
            input_digests=ask.prepared.input_digests,
            producers=ask.producers,
            once=ask.prepared.once,
            shadow_ttl_ms=ask.shadow_ttl_ms,
            reader_epoch=self.epoch,
        )
        try:
            return await self._store.begin_fill(fill, timeout_s=self._timings.store_s)
        except Unreachable:
            # Its answer may have been lost. Asked again, the store gives the same leave.
            return await self._store.begin_fill(fill, timeout_s=self._timings.store_s)

    async def _execute(self, ask: RunStage, lease: Lease) -> StageEnded:
        prepared = ask.prepared
        order = GenerationOrder(
            generation_id=lease.generation.generation_id,
            protocol=prepared.protocol,
            target=prepared.target,
            body=prepared.body,
            fingerprint_digest=prepared.fingerprint,
            identity=ask.identity,
            lease=lease,
            detach_grace_ms=self._timings.detach_grace_ms,
            forward_headers=ask.passport.forward_headers,
            work=WorkClass.FILL,
            cache_scope=ask.passport.cache_scope,
            quiet=True,
            reserve_tokens=prepared.tokens,
        )
        agent = await self._agents.client(lease.generation.agent_address)
        try:
            events = agent.generate(order, idle_s=self._timings.stage_s)
            items, end = await self._followed(events, keeps=ask.continues)
        except DomainError as refusal:
            # The agent took nothing on, so nobody else gives the lease back.
            await self._release(lease)
            return StageEnded(ask.key, Ending.REFUSED, detail=f"the agent: {refusal}")
        except (Unreachable, TimeoutError) as failure:
            return StageEnded(ask.key, Ending.FAILED, detail=f"the agent: {failure or 'no end in time'}")
        except TooLarge:
            return StageEnded(ask.key, Ending.ABORTED, detail="its output is too large to go on from")
        return self._ended(ask, items, end)

    async def _release(self, lease: Lease) -> None:
        try:
            await self._store.release_leases([lease.lease_id], timeout_s=self._timings.store_s)
        except (Unreachable, DomainError) as failure:
            _log.info("a lease runs out by itself: %s", failure)

    def _ended(self, ask: RunStage, items: list[bytes], end: GenerationEnd) -> StageEnded:
        match end:
            case Completed(commit, execution_ms):
                if commit not in STORED:
                    return StageEnded(ask.key, Ending.NOT_STORED, execution_ms, detail=commit)
                output = _read(ask.prepared, items) if ask.continues else None
                return StageEnded(ask.key, Ending.STORED, execution_ms, output)
            case Failed():
                detail = f"the engine: status {end.http_status}"
                return StageEnded(ask.key, Ending.FAILED, end.execution_ms, detail=detail)
            case Aborted(reason, execution_ms):
                return StageEnded(ask.key, Ending.ABORTED, execution_ms, detail=reason)
            case _:
                assert_never(end)

    def _known(self, ask: RunStage, known: FillKnown) -> StageEnded:
        output = None
        if ask.continues:
            try:
                output = _read(ask.prepared, list(decode_payload(known.payload)))
            except MalformedLog:
                output = None
        detail = "stood as a shadow" if known.shadow else "stood already"
        return StageEnded(ask.key, Ending.KNOWN, known.execution_ms, output, detail)

    async def _join(self, ask: RunStage, generation: GenerationRef) -> StageEnded:
        if not ask.continues:
            return StageEnded(ask.key, Ending.JOINED, detail="runs already")
        agent = await self._agents.client(generation.agent_address)
        try:
            events = agent.attach(
                generation.generation_id,
                from_item=0,
                wait_ms=ATTACH_WAIT_MS,
                idle_s=self._timings.stage_s,
                quiet=True,
            )
            items, end = await self._followed(events, keeps=True)
        except (Unreachable, DomainError, TimeoutError, TooLarge) as failure:
            return StageEnded(
                ask.key, Ending.JOINED, detail=f"ran already, and could not be followed: {failure}"
            )
        output = _read(ask.prepared, items) if isinstance(end, Completed) else None
        return StageEnded(ask.key, Ending.JOINED, output=output, detail="ran already")

    async def _followed(
        self, events: AsyncGenerator[GenerationEvents], *, keeps: bool
    ) -> tuple[list[bytes], GenerationEnd]:
        """All items, where they are wanted, and the end. Raises what the port raises, TimeoutError and
        TooLarge."""
        items: list[bytes] = []
        size = 0
        async with asyncio.timeout(self._timings.stage_s), aclosing(events):
            async for message in events:
                if keeps:
                    size += sum(map(len, message.items))
                    if size > MAX_OUTPUT_BYTES:
                        raise TooLarge
                    items.extend(message.items)
                if message.end is not None:
                    return items, message.end
        raise Unreachable("its stream ended without an end")

    # -- loss ----------------------------------------------------------------------------------------------

    async def discard(self, ask: DiscardRuns) -> FillsDiscarded:
        """The store decides what is lost, the engines confirm that it has ended."""
        asked = self._clock.now()
        discard = DiscardFills(ask.fills, ask.reason)
        for pause_s in (*self._timings.discard_retries_s, None):
            try:
                result = await self._store.discard_fills(discard, timeout_s=self._timings.store_s)
            except (Unreachable, DomainError) as failure:
                if pause_s is None:
                    _log.warning("%d fills could not be discarded: %s", len(ask.fills), failure)
                    return FillsDiscarded(ask.branch_id, ask.fills, confirmed=False)
                await self._clock.sleep(pause_s)
                continue
            confirmed = await asyncio.gather(*(self.abort(one, ask.reason.value) for one in result.abort))
            spent_ms = (self._clock.now() - asked) * 1000
            abort_ms = tuple(spent_ms for ok in confirmed if ok)
            return FillsDiscarded(ask.branch_id, ask.fills, result.immune, True, abort_ms)
        raise AssertionError("the last attempt returns")

    async def abort(self, generation: GenerationRef, reason: str) -> bool:
        """Whether the engine had it, and has let it go. What a demand took over is left alone."""
        try:
            agent = await self._agents.client(generation.agent_address)
            result = await agent.abort(
                generation.generation_id,
                reason=f"a fill was {reason}",
                timeout_s=self._timings.abort_s,
                only_speculative=True,
            )
        except (Unreachable, DomainError) as failure:
            _log.info("a fill ends by itself: %s", failure)
            return False
        return result.aborted


def _read(prepared: Prepared, items: list[bytes]) -> Output | None:
    if prepared.protocol is WireProtocol.TOOL:
        return tool_output(items[0]) if len(items) == 1 else None
    try:
        return output_of(items)
    except MalformedLog:
        return None
