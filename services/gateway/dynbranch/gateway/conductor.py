"""Drives one request through its life: performs the effects of ``core.life`` and reports what came of
them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any

from dynbranch.clients.ports import Csl, Take, Unreachable
from dynbranch.domain.engine import Completed, Failed, GenerationEvents, GenerationOrder
from dynbranch.domain.errors import DomainError, InvalidRequest, NotFound
from dynbranch.domain.ids import BranchId, DemandId, GenerationId, Name
from dynbranch.domain.reuse import Demand, FillOrigin, GenerationRef, Hit, Identity, Lease, Level, Live
from dynbranch.gateway.core import life as lives
from dynbranch.gateway.core.life import RequestLife
from dynbranch.gateway.core.outcome import Outcome, Report, saved_ms
from dynbranch.gateway.core.reuse_policy import AdoptPolicy
from dynbranch.gateway.directory import Directory, Heard
from dynbranch.gateway.edge.exchange import ClientGone, Exchange
from dynbranch.gateway.listening import Listener
from dynbranch.gateway.protocols.chunk_relay import MalformedItem
from dynbranch.gateway.protocols.errors import ErrorResponse, error_body
from dynbranch.gateway.recording import Recorded
from dynbranch.gateway.registrar import Registrar
from dynbranch.gateway.returning import Returning
from dynbranch.gateway.sinks import Sink, failure_response
from dynbranch.gateway.stage import Stage
from dynbranch.gateway.telling import Recognised
from dynbranch.naming.chunks import decode_payload, origin_of
from dynbranch.runtime import telemetry
from dynbranch.runtime.clock import Clock
from dynbranch.runtime.tasks import Tasks
from opentelemetry import trace
from opentelemetry.trace import Span, SpanKind

_log = logging.getLogger(__name__)

ATTACH_WAIT_MS = 50
_RELEASE_TIMEOUT_S = 2.0
_SILENT = "it said nothing for as long as this harness waits"


@dataclass(frozen=True, slots=True)
class Adoption:
    """``stall_s``: how long an adopted fill may give nothing before the request executes on its own."""

    policy: AdoptPolicy = AdoptPolicy.STREAM
    stall_s: float = 2.0


class Stalled(Exception):
    """An adopted fill gave nothing for too long."""


@dataclass(slots=True)
class Account:
    """What became of one request, for its headers, its span, the metrics and the controller."""

    request_id: str
    exchange: Exchange
    demand_id: DemandId
    level: Level | None = None
    name: Name | None = None
    outcome: Outcome = Outcome.REFUSED
    saved_ms: float = 0.0
    failed: bool = False
    arrived: bool = False
    """Whether it was told to the controller; what was not has no outcome there either."""
    aside: str = ""
    """Why the request is to be forwarded raw; empty when it is not."""
    branch: BranchId | None = None
    """The one whose fill serves this request."""
    recognised: Recognised | None = None
    listener: Listener | None = None
    """Who reads the answer along, if anybody does."""
    recorded: Recorded | None = None
    timings_ms: list[tuple[str, float]] = field(default_factory=list)
    tail: tuple[bytes, ...] = ()
    """The last items of the answer, which hold its usage."""

    def report(self) -> Report:
        return Report(
            outcome=self.outcome,
            request_id=self.request_id,
            level=self.level,
            name=self.name,
            saved_ms=self.saved_ms,
            branch=self.branch,
            timings_ms=(*self.timings_ms, ("total", self.exchange.elapsed_ms())),
        )


class Conductor:
    """``idle_s`` bounds the silence of a generation. ``new_id`` is the source of chance."""

    def __init__(
        self,
        *,
        registrar: Registrar | None,
        csl: Csl | None,
        directory: Directory,
        tasks: Tasks,
        clock: Clock,
        new_id: Callable[[], bytes],
        idle_s: float,
        returning: Returning,
        adoption: Adoption | None = None,
    ) -> None:
        self._registrar = registrar
        self._csl = csl
        self._directory = directory
        self._tasks = tasks
        self._clock = clock
        self._new_id = new_id
        self._idle_s = idle_s
        self.adoption = adoption or Adoption()
        self._returning = returning
        self._tracer = telemetry.tracer("dynbranch.gateway")

    async def serve(self, stage: Stage, sink: Sink, account: Account) -> None:
        """Serve the stage into the sink. ``account.aside`` is set when the caller must forward the request
        raw.

        Cancelling it detaches this client, and nothing more.
        """
        if not stage.plan.demands:
            await self.registered(stage.identity, account.exchange)
        life = RequestLife(
            stage.plan,
            lambda: GenerationId(self._new_id()),
            lambda pool, tried: self._directory.route(pool, stage.prefix, tried),
        )
        run = _Run(self, stage, sink, account, life)
        try:
            await run.to_its_end()
        except (asyncio.CancelledError, ClientGone):
            shown = life.state is lives.State.SHOWING
            self._returning.leave(life, stage)
            self.tidy(life.handle(lives.Left()))
            if not account.exchange.goes_on_to_tell():
                raise
            account.failed = True
            await (sink.break_off(None, _SILENT) if shown else sink.refuse(_silent()))

    async def registered(self, identity: Identity, exchange: Exchange) -> None:
        """Before an arrival that demands nothing runs, the store learns of its workflow, if it can. Raises
        ClientGone."""
        if self._registrar is None:
            return
        with exchange.held():
            await self._registrar.register(identity)
        if exchange.gone:
            raise ClientGone

    def tidy(self, effects: tuple[lives.Effect, ...]) -> None:
        """What is owed to others when the client has left. It must not make anyone wait."""
        for effect in effects:
            match effect:
                case lives.Release(lease):
                    self.release(lease)
                case lives.Settle(lease):
                    self._tasks.spawn(self._settle(lease), name="settle-lease")
                case _:
                    raise AssertionError(f"{type(effect).__name__} for a client that left")

    def release(self, lease: Lease) -> None:
        self._tasks.spawn(self._release(lease), name="release-lease")

    async def _release(self, lease: Lease) -> None:
        assert self._csl is not None
        try:
            await self._csl.release_leases([lease.lease_id], timeout_s=_RELEASE_TIMEOUT_S)
        except (Unreachable, DomainError) as failure:
            # It expires by itself; until then a demand may lose 50 ms to a generation that is not there.
            _log.info("a lease was not released: %s", failure)

    async def _settle(self, lease: Lease) -> None:
        """The order may never have reached the agent. If the agent has it, the lease is the agent's."""
        generation = lease.generation
        client = await self._directory.client(generation.agent_address)
        looks = client.attach(generation.generation_id, from_item=0, wait_ms=0, idle_s=_RELEASE_TIMEOUT_S)
        try:
            async with aclosing(looks):
                await anext(looks, None)
        except NotFound:
            await self._release(lease)
        except (Unreachable, DomainError) as failure:
            # Others may follow it: better that the lease lapses by itself than that their result is lost.
            _log.info("a lease is left to lapse: %s", failure)

    # -- performing effects that wait ----------------------------------------------------------------------

    async def ask(
        self, effect: lives.Ask, stage: Stage, account: Account
    ) -> lives.Answered | lives.Unanswered:
        assert stage.name is not None and self._registrar is not None
        demand = Demand(
            demand_id=account.demand_id if not effect.exclude else DemandId(self._new_id()),
            name=stage.name,
            identity=stage.identity,
            scope=stage.scope,
            intended=effect.intended,
            input_digests=stage.input_digests,
            exclude_generations=effect.exclude,
            may_execute=effect.may_execute,
            may_hit=stage.may_hit,
            once=stage.plan.once,
        )
        started = self._clock.now()
        with telemetry.span(self._tracer, telemetry.SPAN_CSL_DEMAND, kind=SpanKind.CLIENT) as span:
            answer = await self._registrar.demand(demand)
            if span.is_recording():
                _describe_answer(span, answer)
        account.timings_ms.append(("csl", (self._clock.now() - started) * 1000))
        return answer

    async def followed(
        self, generation: GenerationRef, take: Take, *, adopts: bool
    ) -> AsyncGenerator[GenerationEvents]:
        client = await self._directory.client(generation.agent_address)
        return client.attach(
            generation.generation_id,
            from_item=0,
            wait_ms=ATTACH_WAIT_MS,
            idle_s=self._idle_s,
            take=take,
            adopts=adopts,
            quiet=adopts and self.adoption.policy is AdoptPolicy.WAIT,
        )

    async def ordered(
        self, effect: lives.Execute, stage: Stage, take: Take
    ) -> AsyncGenerator[GenerationEvents]:
        order = GenerationOrder(
            generation_id=effect.generation.generation_id,
            protocol=stage.protocol,
            target=stage.target,
            body=stage.body,
            fingerprint_digest=stage.plan.pool.fingerprint,
            identity=stage.identity,
            lease=effect.lease,
            detach_grace_ms=self._returning.grace_ms(stage),
            forward_headers=stage.forward_headers,
            cache_scope=stage.cache_scope,
            prompt_hint=stage.prefix.hint,
        )
        client = await self._directory.client(effect.generation.agent_address)
        return client.generate(order, idle_s=self._idle_s, take=take)

    def lost(self, address: str, failure: Unreachable | DomainError) -> lives.Lost:
        if isinstance(failure, Unreachable):
            self._directory.suspect(address, f"unreachable: {failure}")
            return lives.Lost(f"{address} does not answer", ran=True, unreachable=True)
        return lives.Lost(f"{address}: {failure}", ran=False)

    @property
    def tracer(self) -> Any:
        return self._tracer

    @property
    def directory(self) -> Directory:
        return self._directory

    @property
    def clock(self) -> Clock:
        return self._clock


class _Run:
    """One request on its way."""

    def __init__(
        self, conductor: Conductor, stage: Stage, sink: Sink, account: Account, life: RequestLife
    ) -> None:
        self._conductor = conductor
        self._stage = stage
        self._sink = sink
        self._account = account
        self._life = life
        self._listener = account.listener
        self._recorded: tuple[bytes, ...] = ()
        self._said_first = False
        self._fill_span = ""
        self._flows_from = ""
        """The agent whose items may go straight to the sink: those before them have."""

    async def to_its_end(self) -> None:
        event: lives.Event | None = lives.Begin()
        while event is not None:
            effects, event = self._life.handle(event), None
            for effect in effects:
                event = await self._perform(effect)

    async def _perform(self, effect: lives.Effect) -> lives.Event | None:
        """Returns what came of it; None where nothing follows."""
        match effect:
            case lives.Ask():
                return await self._ask(effect)
            case lives.Attach(generation, adopts):
                self._account.outcome = Outcome.ADOPTED if adopts else Outcome.JOINED
                followed = self._conductor.followed(generation, self._take, adopts=adopts)
                return await self._follow("attach", generation, followed)
            case lives.Execute(generation):
                self._account.outcome, self._account.branch = Outcome.MISS, None
                ordered = self._conductor.ordered(effect, self._stage, self._take)
                with self._conductor.directory.executing(generation.agent_address, self._stage.prefix):
                    return await self._follow(telemetry.SPAN_GENERATE, generation, ordered)
            case lives.Release(lease) | lives.Settle(lease):
                self._conductor.release(lease)
            case _:
                await self._conclude(effect)
        return None

    async def _conclude(self, effect: lives.Effect) -> None:
        try:
            match effect:
                case lives.ServeRecorded(hit):
                    await self._serve_recorded(hit)
                case lives.Finish(completed):
                    self._completed(completed)
                    await self._sink.finish()
                case lives.StandAside(reason):
                    self._account.aside = reason
                case lives.Refuse(reason, failed):
                    self._account.failed = True
                    await self._sink.refuse(failure_response(failed, reason))
                case lives.BreakOff(reason, failed):
                    self._account.failed = True
                    await self._sink.break_off(failed, reason)
                case _:
                    raise AssertionError(f"{type(effect).__name__} is no end")
        except MalformedItem as problem:
            self._account.failed = True
            _log.warning("an engine's log can not be rendered: %s", problem)
            await self._sink.refuse(failure_response(_malformed(problem), "malformed"))

    # -- the store -----------------------------------------------------------------------------------------

    async def _ask(self, effect: lives.Ask) -> lives.Event:
        exchange = self._account.exchange
        # A demand is never cut short: its answer may be a lease, which somebody must then release. It takes
        # no longer than its budget.
        intended = effect.intended.agent_address
        with exchange.held(), self._conductor.directory.intending(intended):
            answer = await self._conductor.ask(effect, self._stage, self._account)
        if exchange.gone:
            self._conductor.tidy(self._life.handle(lives.Left()))
            self._conductor.tidy(self._life.handle(answer))
            raise ClientGone
        origin = _fill_behind(answer)
        self._account.branch = origin.branch_id if origin is not None else None
        self._fill_span = origin.traceparent if origin is not None else ""
        match answer:
            case lives.Answered(Hit(payload=payload)):
                return self._readable(answer, payload)
            case _:
                return answer

    def _readable(self, answer: lives.Answered, payload: bytes) -> lives.Event:
        """A record that can not be read is as good as none: the request executes."""
        try:
            self._recorded = decode_payload(payload)
            if self._account.branch is None:
                telemetry.add_link(trace.get_current_span(), origin_of(payload))
        except (ValueError, DomainError) as problem:
            _log.warning("a recorded payload can not be read: %s", problem)
            return lives.Unanswered("the record can not be read")
        return answer

    async def _serve_recorded(self, hit: Hit) -> None:
        account = self._account
        account.outcome = Outcome.HIT if hit.promoted is None else Outcome.PROMOTED
        account.tail, account.level = self._recorded, hit.level
        account.saved_ms = saved_ms(hit.execution_ms, account.exchange.elapsed_ms())
        if hit.promoted is None:
            await self._sink.recorded(self._recorded)
        else:
            with telemetry.span(self._conductor.tracer, telemetry.SPAN_PROMOTION) as span:
                if span.is_recording():
                    _describe_fill(span, hit.promoted)
                    # The fill ran for no request; whoever follows it from here sees where the result is from.
                    telemetry.add_link(span, hit.promoted.traceparent or origin_of(hit.payload))
                await self._sink.recorded(self._recorded)
        if self._listener is not None:
            self._listener.more(self._recorded)
            self._listener.ended(hit.execution_ms)

    def _completed(self, completed: Completed) -> None:
        if self._account.outcome is Outcome.ADOPTED:
            elapsed_ms = self._account.exchange.elapsed_ms()
            self._account.saved_ms = saved_ms(completed.execution_ms, elapsed_ms)
        if self._listener is not None:
            self._listener.ended(completed.execution_ms)

    # -- a generation --------------------------------------------------------------------------------------

    async def _follow(self, span_name: str, generation: GenerationRef, opening: Any) -> lives.Event:
        address = generation.agent_address
        with telemetry.span(self._conductor.tracer, span_name, kind=SpanKind.CLIENT) as span:
            if span.is_recording():
                span.set_attribute("dynbranch.generation_id", generation.generation_id.hex())
                span.set_attribute("server.address", address)
                if self._account.branch is not None:
                    span.set_attribute("dynbranch.branch_id", self._account.branch.hex())
                    telemetry.add_link(span, self._fill_span)
            try:
                heard = self._conductor.directory.while_heard(address, await opening)
                events = self._while_it_moves(heard) if self._life.may_abandon else heard
                async with aclosing(events):
                    return await self._relay(events, address, span)
            except InvalidRequest as refused:
                body = error_body(400, refused.message, code=refused.reason)
                return self._ended_unheard(Failed(400, body, may_retry=False))
            except Stalled:
                self._forget()
                return lives.Stalled()
            except (Unreachable, DomainError) as failure:
                return self._lost(self._conductor.lost(address, failure))
            except MalformedItem as problem:
                return self._ended_unheard(_malformed(problem))

    async def _while_it_moves(self, events: Heard) -> AsyncGenerator[GenerationEvents]:
        """Of an adopted fill. Raises Stalled when it gives nothing for too long, as long as nothing of it was
        shown."""
        within_s = self._conductor.adoption.stall_s
        async with aclosing(events):
            while True:
                shown = self._life.state is lives.State.SHOWING
                try:
                    async with asyncio.timeout(None if shown else within_s):
                        message = await anext(events, None)
                except TimeoutError:
                    raise Stalled from None
                if message is None:
                    return
                yield message

    async def _relay(self, events: AsyncIterator[GenerationEvents], address: str, span: Span) -> lives.Event:
        life, sink, listener = self._life, self._sink, self._listener
        shown, may_stall = False, self._life.may_abandon
        async for message in events:
            if message.traceparent:
                telemetry.add_link(span, message.traceparent)
            if life.state in (lives.State.ATTACHING, lives.State.EXECUTING):
                life.handle(lives.Heard())
            if message.items:
                if not self._said_first:
                    self._note_first()
                self._account.tail = message.items
                if await sink.items(message.items) and not shown:
                    shown = True
                    life.handle(lives.Shown())
                if listener is not None:
                    listener.more(message.items)
                # What goes past the messages is no progress that a stall could be told by.
                if shown or not may_stall:
                    self._flows_from = address
            if message.end is not None:
                return self._ended(message.end)
        return self._lost(lives.Lost("its stream ended without an end", ran=True))

    def _take(self, items: tuple[bytes, ...]) -> bool:
        """Straight from the agent to the client, without the turn of a task for each token."""
        if not self._flows_from or not self._sink.items_now(items):
            return False
        self._account.tail = items
        self._conductor.directory.spoke(self._flows_from)
        if self._listener is not None:
            self._listener.more(items)
        return True

    def _note_first(self) -> None:
        self._said_first = True
        self._account.timings_ms.append(("first", self._account.exchange.elapsed_ms()))

    def _ended(self, end: Any) -> lives.Event:
        if not isinstance(end, Completed):
            self._forget()
        return lives.Ended(end)

    def _ended_unheard(self, failed: Failed) -> lives.Event:
        if self._life.state in (lives.State.ATTACHING, lives.State.EXECUTING):
            self._life.handle(lives.Heard())
        return self._ended(failed)

    def _lost(self, lost: lives.Lost) -> lives.Event:
        self._forget()
        return lost

    def _forget(self) -> None:
        self._said_first = False
        self._flows_from = ""
        self._sink.forget()
        if self._listener is not None:
            self._listener.forget()


def _silent() -> ErrorResponse:
    body = error_body(503, f"The engine gave no answer: {_SILENT}.", code="engine_silent")
    return ErrorResponse(503, body, retry_after_s=1)


def _malformed(problem: MalformedItem) -> Failed:
    body = error_body(502, f"The engine's answer can not be read: {problem}.", code="malformed_answer")
    return Failed(502, body, may_retry=False)


def _fill_behind(answer: lives.Answered | lives.Unanswered) -> FillOrigin | None:
    """The fill that the demand promoted, consumed or took over."""
    match answer:
        case lives.Answered(Hit(promoted=origin)) | lives.Answered(Live(adopted=origin)):
            return origin
        case _:
            return None


def _describe_fill(span: Span, origin: FillOrigin) -> None:
    span.set_attribute("dynbranch.branch_id", origin.branch_id.hex())
    span.set_attribute("dynbranch.fill_id", origin.fill_id.hex())
    span.set_attribute("dynbranch.fill_stage", origin.stage)


def _describe_answer(span: Span, answer: lives.Answered | lives.Unanswered) -> None:
    match answer:
        case lives.Answered(outcome):
            span.set_attribute("dynbranch.outcome", type(outcome).__name__.lower())
            if (origin := _fill_behind(answer)) is not None:
                _describe_fill(span, origin)
        case lives.Unanswered(reason):
            span.set_attribute("dynbranch.outcome", "unanswered")
            span.set_attribute("dynbranch.reason", reason)
