"""What is followed of one generation, over a stream that many share."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import AsyncGenerator

from dynbranch.clients.calls import decoded
from dynbranch.clients.conversation import Call, Conversation, Failure
from dynbranch.clients.errors import meaning_of
from dynbranch.clients.ports import Take, Unreachable, take_nothing
from dynbranch.domain.engine import GenerationEvents
from dynbranch.v1 import engine_agent_pb2 as pb
from dynbranch.wire import engine_agent as wire

_log = logging.getLogger(__name__)

Agents = Conversation[pb.GenerationAsk, pb.GenerationAnswer]

TAKEN_STEP_BYTES = 2**18
"""The agent is told of every so many bytes that were taken; its window is several times as large."""


async def followed(
    conversation: Agents, ask: pb.GenerationAsk, idle_s: float, take: Take
) -> AsyncGenerator[GenerationEvents, None]:
    """Starts the call when first awaited, and leaves the moment that the generator is closed.

    More than ``idle_s`` seconds without a message is Unreachable.
    """
    following = _Following(idle_s, take)
    following.begin(conversation, ask)
    try:
        while True:
            if not following.heard:
                await following.something()
            answer = following.heard.popleft()
            if not isinstance(answer, pb.GenerationAnswer):
                raise answer
            if answer.HasField("error"):
                raise meaning_of(answer.error)
            events = decoded(wire.answer_in, answer)
            following.took(events.items)
            yield events
            if events.end is not None:
                return
    finally:
        following.leave()


class _Following:
    """The answers that came and were not taken yet. The agent's window bounds them."""

    def __init__(self, idle_s: float, take: Take) -> None:
        self._take = take
        self.heard: deque[pb.GenerationAnswer | Failure] = deque()
        self._loop = asyncio.get_running_loop()
        self._idle_s = idle_s
        self._heard_at = self._loop.time()
        self._waiter: asyncio.Future[None] | None = None
        self._call: Call[pb.GenerationAsk, pb.GenerationAnswer] | None = None
        self._taken_bytes = 0
        self._told_bytes = 0
        self._over = False
        # One timer per call that looks again, not one per message.
        self._watch = self._loop.call_later(idle_s, self._look)

    def begin(self, conversation: Agents, ask: pb.GenerationAsk) -> None:
        def numbered(number: int) -> pb.GenerationAsk:
            ask.call = number
            return ask

        try:
            self._call = conversation.call(numbered, self._hear, self._fail)
        except Unreachable:
            self._watch.cancel()
            raise

    async def something(self) -> None:
        self._waiter = self._loop.create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None

    def took(self, items: tuple[bytes, ...]) -> None:
        self._taken_bytes += sum(map(len, items))
        if self._taken_bytes - self._told_bytes >= TAKEN_STEP_BYTES and not self._over:
            self._told_bytes = self._taken_bytes
            assert self._call is not None
            self._call.say(pb.GenerationAsk(call=self._call.number, taken_bytes=self._taken_bytes))

    def leave(self) -> None:
        self._watch.cancel()
        if self._call is not None:
            call, self._call = self._call, None
            call.hang_up(None if self._over else pb.GenerationAsk(call=call.number, leave=True))
            # The call knows this one: all that hangs on it would wait for the garbage collector.
            self._take = take_nothing

    def _hear(self, answer: pb.GenerationAnswer) -> None:
        self._heard_at = self._loop.time()
        self._over = answer.HasField("error") or answer.events.HasField("end")
        waiter = self._waiter
        if waiter is not None and not waiter.done() and not self._over:
            items = wire.items_of(answer)
            if items and self._taken(items):
                self.took(items)
                return
        self.heard.append(answer)
        self._wake()

    def _taken(self, items: tuple[bytes, ...]) -> bool:
        try:
            return self._take(items)
        except Exception:  # noqa: BLE001  # the boundary of one call: a bug there must not end the others
            _log.exception("a follower could not take its items, and gets them as messages")
            self._take = take_nothing
            return False

    def _fail(self, failure: Failure) -> None:
        self.heard.append(failure)
        self._wake()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def _look(self) -> None:
        left_s = self._heard_at + self._idle_s - self._loop.time()
        if left_s > 0:
            self._watch = self._loop.call_later(left_s, self._look)
        else:
            self._fail(Unreachable(f"no message for {self._idle_s} s"))
