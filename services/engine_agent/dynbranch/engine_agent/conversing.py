"""Many followers on one stream: what there is for several of them travels in one message.

The first item of a generation and its end go out at once, and whatever is there goes with them. What comes in
between may wait a few milliseconds for company; nobody reads it that fast, and a message costs what a dozen
tokens cost.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import contextmanager
from functools import partial
from typing import Any

import grpc
from dynbranch.domain.errors import DomainError
from dynbranch.engine_agent.following import Follower
from dynbranch.engine_agent.shell import Agent
from dynbranch.runtime import telemetry
from dynbranch.runtime.error_status import call_error_of
from dynbranch.runtime.tasks import Tasks
from dynbranch.v1 import engine_agent_pb2 as pb
from dynbranch.wire import engine_agent as wire
from opentelemetry import context as otel_context

_log = logging.getLogger(__name__)

COMPANY_S = 0.007
"""The shortest time between two messages of which nothing is urgent."""

APART_PER_CALL_S = 0.0002
"""The shortest time between any two messages, for each call under way, and no more than the one before."""

WINDOW_BYTES = 2**20
"""What a follower may be sent beyond what it has taken."""

MAX_MESSAGE_BYTES = 2**20
MAX_CALLS = 10_000


class Conversation:
    """One caller's stream, from its opening to its end. ``write`` sends one message."""

    def __init__(
        self, agent: Agent, write: Callable[[pb.EngineAgentServiceConverseResponse], Any], tasks: Tasks
    ) -> None:
        self._agent = agent
        self._write = write
        self._tasks = tasks
        self._loop = asyncio.get_running_loop()
        self._calls: dict[int, _Call] = {}
        self._ready: dict[int, _Call] = {}
        """Those for whom there may be something, in the order in which it came."""
        self._failed: list[pb.GenerationAnswer] = []
        self._go = asyncio.Event()
        self._sent_at = float("-inf")
        self._timer: asyncio.TimerHandle | None = None

    async def listen(self, messages: AsyncIterator[pb.EngineAgentServiceConverseRequest]) -> None:
        """Returns when the caller says no more. Then, or when cancelled, ``leave``."""
        async for message in messages:
            for ask in message.asks:
                self._hear(ask)

    def leave(self) -> None:
        """The caller is gone, and with it all its followers."""
        if self._timer is not None:
            self._timer.cancel()
        calls, self._calls = self._calls, {}
        for call in calls.values():
            call.leave()

    # -- what is asked -------------------------------------------------------------------------------------

    def _hear(self, ask: pb.GenerationAsk) -> None:
        known = self._calls.get(ask.call)
        match ask.WhichOneof("ask"):
            case "leave" if known is not None:
                self._forget(known)
            case "taken_bytes" if known is not None:
                known.taken_bytes = ask.taken_bytes
                self._wake(known)
            case "generate" | "attach" as kind if known is None:
                self._begin(ask, kind)
            case _:
                # It has ended meanwhile.
                pass

    def _begin(self, ask: pb.GenerationAsk, kind: str) -> None:
        call = self._calls[ask.call] = _Call(ask.call)
        if len(self._calls) > MAX_CALLS:
            self._fail(call, None)
            return
        if kind == "generate":
            with self._served(call), _in_trace(ask):
                call.follow(self._agent.order(wire.order_in(ask.generate), partial(self._wake, call)))
        else:
            # In a task of its own: it may wait for the generation.
            self._tasks.spawn(self._attach(call, ask), name="attach")

    async def _attach(self, call: _Call, ask: pb.GenerationAsk) -> None:
        with self._served(call):
            order = wire.attach_in(ask.attach)
            await self._agent.known_within(order.generation_id, order.wait_ms)
            if call.number in self._calls:
                call.follow(self._agent.join(order, partial(self._wake, call)))
                self._wake(call)

    @contextmanager
    def _served(self, call: _Call) -> Any:
        """A failure within is this call's answer, and nobody else's matter."""
        try:
            yield
        except DomainError as error:
            self._fail(call, error)
        except Exception:  # noqa: BLE001  # the boundary of one call: a bug there must not end the others
            _log.exception("a bug ended a call")
            self._fail(call, None)

    def _fail(self, call: _Call, error: DomainError | None) -> None:
        if self._forget(call):
            self._failed.append(pb.GenerationAnswer(call=call.number, error=call_error_of(error)))
            self._go.set()

    def _forget(self, call: _Call) -> bool:
        self._ready.pop(call.number, None)
        known = self._calls.pop(call.number, None) is not None
        call.leave()
        return known

    # -- what is answered ----------------------------------------------------------------------------------

    def _wake(self, call: _Call) -> None:
        self._ready[call.number] = call
        if self._go.is_set():
            return
        left_s = 0.0 if call.is_urgent else self._sent_at + COMPANY_S - self._loop.time()
        if left_s <= 0:
            self._go.set()
        elif self._timer is None:
            self._timer = self._loop.call_later(left_s, self._in_time)

    def _in_time(self) -> None:
        self._timer = None
        if self._ready:
            self._go.set()

    async def speak(self) -> None:
        """Runs until cancelled, or until the caller is gone."""
        try:
            await self._speak()
        except grpc.aio.BaseError as lost:
            _log.info("a caller is gone: %s", lost)

    async def _speak(self) -> None:
        while True:
            await self._go.wait()
            # What is about to be there goes along, for it is the message that costs: one more turn of the
            # loop, and where many are under way a moment after the message before.
            apart_s = min(COMPANY_S, APART_PER_CALL_S * len(self._calls))
            await asyncio.sleep(max(0.0, self._sent_at + apart_s - self._loop.time()))
            self._go.clear()
            while answers := self._gathered():
                self._sent_at = self._loop.time()
                await self._write(pb.EngineAgentServiceConverseResponse(answers=answers))

    def _gathered(self) -> list[pb.GenerationAnswer]:
        answers, self._failed = self._failed, []
        size, ready = 0, self._ready
        while ready and size < MAX_MESSAGE_BYTES:
            call = ready.pop(next(iter(ready)))
            try:
                size += self._answer(call, answers)
            except DomainError as error:
                self._fail(call, error)
        answers += self._failed
        self._failed = []
        return answers

    def _answer(self, call: _Call, answers: list[pb.GenerationAnswer]) -> int:
        """Returns how many bytes were added."""
        follower = call.follower
        if follower is None or call.sent_bytes - call.taken_bytes >= WINDOW_BYTES:
            return 0
        events = self._agent.next_of(follower)
        if events is None:
            return 0
        answers.append(pb.GenerationAnswer(call=call.number, events=wire.events_out(events)))
        size = sum(map(len, events.items))
        call.sent_bytes += size
        if follower.is_over:
            self._forget(call)
        elif follower.has_more:
            self._ready[call.number] = call
        return size


class _Call:
    __slots__ = ("_gone", "follower", "number", "sent_bytes", "taken_bytes")

    def __init__(self, number: int) -> None:
        self.number = number
        self.follower: Follower | None = None
        self.sent_bytes = 0
        self.taken_bytes = 0
        self._gone = False

    @property
    def is_urgent(self) -> bool:
        return self.follower is not None and self.follower.is_urgent

    def follow(self, follower: Follower) -> None:
        if self._gone:
            follower.leave()
        else:
            self.follower = follower

    def leave(self) -> None:
        self._gone = True
        follower, self.follower = self.follower, None
        if follower is not None:
            follower.leave()


@contextmanager
def _in_trace(ask: pb.GenerationAsk) -> Any:
    """The caller's span is current within, if it named one."""
    if not ask.traceparent:
        yield
        return
    caller = telemetry.extract({"traceparent": ask.traceparent, "tracestate": ask.tracestate})
    token = otel_context.attach(caller)
    try:
        yield
    finally:
        otel_context.detach(token)


async def converse(
    agent: Agent,
    messages: AsyncIterator[pb.EngineAgentServiceConverseRequest],
    context: grpc.aio.ServicerContext[Any, Any],
) -> None:
    """Serves one stream to its end."""
    async with Tasks() as tasks:
        conversation = Conversation(agent, context.write, tasks)
        speaking = tasks.spawn(conversation.speak(), name="conversation said")
        listening = tasks.spawn(conversation.listen(messages), name="conversation heard")
        try:
            await asyncio.wait((speaking, listening), return_when=asyncio.FIRST_COMPLETED)
        finally:
            conversation.leave()
