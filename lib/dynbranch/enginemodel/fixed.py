"""An engine whose times do not depend on its load."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, replace
from heapq import heappop, heappush
from math import floor
from typing import assert_never

from dynbranch.domain.ids import Instant
from dynbranch.enginemodel.kv_pool import Holding, KvPool
from dynbranch.enginemodel.messages import (
    Abort,
    Admitted,
    Counters,
    Effect,
    Event,
    Finished,
    Gauges,
    Raise,
    RequestKey,
    Submit,
    Token,
    Wake,
)
from dynbranch.enginemodel.parameters import FixedParameters


@dataclass(slots=True)
class _Run:
    """Token ``index`` comes at ``first_at + index * interval_s``."""

    order: Submit
    first_at: float
    interval_s: float
    holding: Holding
    marks: deque[int]

    def at(self, index: int) -> Instant:
        return Instant(self.first_at + index * self.interval_s)

    def produced(self, now: float) -> int:
        if now < self.first_at:
            return 0
        if self.interval_s <= 0:
            return self.order.output_tokens
        index = floor((now - self.first_at) / self.interval_s)
        # The division may round across a token's instant; ``at`` decides.
        while self.at(index + 1) <= now:
            index += 1
        while self.at(index) > now:
            index -= 1
        return min(index + 1, self.order.output_tokens)


class FixedEngine:
    """Waiting requests get a slot in the order of priority, then of arrival. The KV pool is only counted."""

    def __init__(self, parameters: FixedParameters) -> None:
        self._parameters = parameters
        self._running: dict[RequestKey, _Run] = {}
        self._waiting: dict[RequestKey, tuple[Submit, int]] = {}
        """With the number of its arrival."""
        self._queue: list[tuple[int, int, RequestKey]] = []
        self._due: list[tuple[float, int, int, _Run]] = []
        """(instant, number, token index, run); stale when the run is not running."""
        self._number = 0
        self._now = Instant(float("-inf"))
        self._pool = KvPool(parameters.kv_pool_tokens, parameters.block_tokens)
        self._counters = Counters()

    def handle(self, event: Event, now: Instant) -> list[Effect]:
        """Whatever has happened until ``now``, in order, and then what the event does."""
        effects: list[Effect] = []
        self._advance(now, effects)
        match event:
            case Submit():
                self._submit(event, now, effects)
            case Abort():
                self._abort(event.request, now, effects)
            case Raise():
                self._raise(event)
            case Wake():
                pass
            case _:
                assert_never(event)
        return effects

    def next_wake(self) -> Instant | None:
        """When the next effect comes if nothing else happens."""
        due = self._due
        while due and self._running.get(due[0][3].order.request) is not due[0][3]:
            heappop(due)
        return Instant(due[0][0]) if due else None

    def produced(self, request: RequestKey) -> int:
        """Tokens that a request had at the last instant that was handled."""
        run = self._running.get(request)
        return run.produced(self._now) if run else 0

    @property
    def gauges(self) -> Gauges:
        share = min(1.0, self._pool.held_tokens / self._pool.capacity_tokens)
        return Gauges(len(self._running), len(self._waiting), share, self._counters)

    def flush_cache(self) -> None:
        self._pool.flush()

    def validate_state(self) -> None:
        """Raises AssertionError."""
        assert len(self._running) <= self._parameters.slots
        assert not self._running.keys() & self._waiting.keys()
        assert not self._waiting or len(self._running) == self._parameters.slots
        counters = self._counters
        ended = counters.finished + counters.aborted + counters.refused
        assert counters.submitted == ended + len(self._running) + len(self._waiting)
        assert counters.prefix_hit_tokens <= counters.prefix_query_tokens

    # -- events --------------------------------------------------------------------------------------------

    def _submit(self, order: Submit, now: Instant, effects: list[Effect]) -> None:
        assert order.request not in self._running and order.request not in self._waiting, "submitted twice"
        assert order.prompt_tokens >= 1 and order.output_tokens >= 1
        self._counters.submitted += 1
        if len(self._running) < self._parameters.slots:
            self._admit(order, now, effects)
            self._advance(now, effects)
            return
        self._number += 1
        self._waiting[order.request] = order, self._number
        heappush(self._queue, (order.priority, self._number, order.request))

    def _abort(self, request: RequestKey, now: Instant, effects: list[Effect]) -> None:
        if self._waiting.pop(request, None) is not None:
            self._counters.aborted += 1
        elif run := self._running.get(request):
            self._counters.aborted += 1
            self._leave(run, run.produced(now), now, effects)
            self._advance(now, effects)

    def _raise(self, event: Raise) -> None:
        waiting = self._waiting.get(event.request)
        if waiting is not None and event.priority < waiting[0].priority:
            order, number = waiting
            self._waiting[event.request] = replace(order, priority=event.priority), number
            heappush(self._queue, (event.priority, number, event.request))

    def _admit(self, order: Submit, now: Instant, effects: list[Effect]) -> None:
        pace = order.pace or self._parameters
        counters, pool = self._counters, self._pool
        hits = pool.cached_blocks(order.blocks, order.prompt_tokens)
        hit_tokens = hits * pool.block_tokens
        counters.prefix_query_tokens += order.prompt_tokens
        counters.prefix_hit_tokens += hit_tokens
        counters.prompt_tokens += order.prompt_tokens
        holding = pool.hold(order.blocks, hits, order.prompt_tokens)
        if pool.block_tokens:
            pool.publish(holding, order.blocks, hits, order.prompt_tokens // pool.block_tokens)
        first_at = now + pace.time_to_first_token_ms / 1000
        run = _Run(order, first_at, pace.inter_token_ms / 1000, holding, deque(sorted(order.marks)))
        self._running[order.request] = run
        effects.append(Admitted(order.request, now, hit_tokens))
        self._schedule(run, 0)

    def _schedule(self, run: _Run, produced: int) -> None:
        index = produced if run.order.every_token else run.order.output_tokens - 1
        while run.marks:
            if run.marks[0] >= produced:
                index = min(index, run.marks[0])
                break
            run.marks.popleft()
        self._number += 1
        heappush(self._due, (run.at(index), self._number, index, run))

    def _advance(self, now: Instant, effects: list[Effect]) -> None:
        self._now = max(self._now, now)
        due = self._due
        while due and due[0][0] <= now:
            _, _, index, run = heappop(due)
            order = run.order
            if self._running.get(order.request) is not run:
                continue
            last = order.output_tokens - 1
            if order.every_token:
                # Somebody who looks late gets what has come until now in one piece.
                while index < last and run.at(index + 1) <= now:
                    index += 1
            at = run.at(index)
            if index == last:
                self._counters.finished += 1
                effects.append(Finished(order.request, at))
                self._leave(run, order.output_tokens, at, effects)
            else:
                effects.append(Token(order.request, at, index))
                self._schedule(run, index + 1)

    def _leave(self, run: _Run, produced: int, at: Instant, effects: list[Effect]) -> None:
        order, pool = run.order, self._pool
        del self._running[order.request]
        self._counters.output_tokens += produced
        pool.grow(run.holding, produced)
        if pool.block_tokens:
            first = order.prompt_tokens // pool.block_tokens
            last = (order.prompt_tokens + produced) // pool.block_tokens
            pool.publish(run.holding, order.blocks, first, last)
        pool.release(run.holding)
        while self._queue and len(self._running) < self._parameters.slots:
            waiting = self._waiting.pop(heappop(self._queue)[2], None)
            if waiting is not None:
                self._admit(waiting[0], at, effects)
