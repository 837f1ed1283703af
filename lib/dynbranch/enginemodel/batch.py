"""A continuous-batching engine: steps of decodes and prefill chunks over a KV pool with a prefix cache.

Between two changes of the batch nothing is decided, so a *phase* of equal steps is arithmetic: its k-th step
takes ``first_s + k * growth_s``, since every step adds a token of context to each sequence. A generation
costs a handful of phases, not an event for each token.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from heapq import heappop, heappush
from math import floor, sqrt
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
    Preempted,
    Raise,
    Refused,
    RequestKey,
    Submit,
    Token,
    Wake,
)
from dynbranch.enginemodel.parameters import BatchParameters

_NOT_DECODING = -1


@dataclass(slots=True, eq=False)
class _Sequence:
    """``fixed_tokens`` of output before the engine's step ``joined_step``, and one a step from then on."""

    order: Submit
    number: int
    fixed_tokens: int = 0
    joined_step: int = _NOT_DECODING
    prefill_left: int = 0
    prefill_tokens: int = 0
    hit_tokens: int | None = None
    """At its first admission."""
    holding: Holding = field(default_factory=Holding)

    @property
    def rank(self) -> tuple[int, int]:
        """Lower goes first."""
        return self.order.priority, self.number

    def produced(self, step: int) -> int:
        if self.joined_step == _NOT_DECODING:
            return self.fixed_tokens
        return self.fixed_tokens + step - self.joined_step


@dataclass(slots=True)
class _Phase:
    """``steps`` alike, of which ``done`` are over. ``chunks``: prompt tokens of a sequence in each step."""

    began: float
    first_s: float
    growth_s: float
    steps: int
    chunks: list[tuple[_Sequence, int]]
    done: int = 0

    def end(self, steps: int) -> Instant:
        """When the first ``steps`` are over."""
        return Instant(self.began + steps * self.first_s + self.growth_s * (steps * (steps - 1) / 2))

    def done_by(self, now: float) -> int:
        if now >= self.end(self.steps):
            return self.steps
        steps = min(self.steps, max(self.done, self._estimate(now - self.began)))
        # Rounding may move the estimate across a step's end; ``end`` decides.
        while steps < self.steps and self.end(steps + 1) <= now:
            steps += 1
        while steps > self.done and self.end(steps) > now:
            steps -= 1
        return steps

    def _estimate(self, elapsed_s: float) -> int:
        if elapsed_s <= 0:
            return 0
        if self.growth_s <= 0:
            return floor(min(elapsed_s / self.first_s, self.steps))
        linear = self.first_s - self.growth_s / 2
        root = sqrt(linear * linear + 2 * self.growth_s * elapsed_s)
        return floor(min((root - linear) / self.growth_s, self.steps))


class BatchEngine:
    """Requests run in the order of priority (lower first), then of arrival. A prompt's blocks become usable
    by others when its whole prefill is over. Under pressure the last in that order is preempted and
    recomputed."""

    def __init__(self, parameters: BatchParameters) -> None:
        self._parameters = parameters
        self._pool = KvPool(parameters.kv_pool_tokens, parameters.block_tokens)
        self._waiting: dict[RequestKey, _Sequence] = {}
        self._queue: list[tuple[int, int, _Sequence]] = []
        self._running: dict[RequestKey, _Sequence] = {}
        self._prefilling: dict[RequestKey, _Sequence] = {}
        self._watched: dict[RequestKey, _Sequence] = {}
        self._decoding = 0
        self._context_tokens = 0
        self._step = 0
        self._due: list[tuple[int, int, int, int, _Sequence]] = []
        """(step, sequence number, token index, joined step, sequence); stale when the joined step differs."""
        self._phase: _Phase | None = None
        self._number = 0
        self._counters = Counters()

    def handle(self, event: Event, now: Instant) -> list[Effect]:
        """Whatever has happened until ``now``, in order, and then what the event does."""
        effects: list[Effect] = []
        self._advance(now, effects)
        match event:
            case Submit():
                self._submit(event, now, effects)
            case Abort():
                self._abort(event.request)
            case Raise():
                self._raise(event)
            case Wake():
                pass
            case _:
                assert_never(event)
        return effects

    def next_wake(self) -> Instant | None:
        """When the next effect may come if nothing else happens."""
        phase = self._phase
        if phase is None:
            return None
        return phase.end(phase.done + 1 if self._watched else phase.steps)

    def produced(self, request: RequestKey) -> int:
        """Tokens that a request had at the last instant that was handled."""
        sequence = self._running.get(request) or self._waiting.get(request)
        return sequence.produced(self._step) if sequence else 0

    @property
    def gauges(self) -> Gauges:
        share = self._pool.held_tokens / self._pool.capacity_tokens
        return Gauges(len(self._running), len(self._waiting), share, self._counters)

    def flush_cache(self) -> None:
        self._pool.flush()

    def validate_state(self) -> None:
        """Raises AssertionError."""
        step = self._step
        holdings = []
        for sequence in self._running.values():
            grown = step - sequence.joined_step if sequence.joined_step != _NOT_DECODING else 0
            holdings.append(Holding(sequence.holding.shared, sequence.holding.private_tokens + grown))
            assert sequence.produced(step) < sequence.order.output_tokens
        self._pool.validate_state(holdings)
        decoding = self._decoding_sequences()
        assert self._decoding == len(decoding)
        assert self._decoding + len(self._prefilling) == len(self._running) <= self._parameters.slots
        assert self._context_tokens == sum(s.order.prompt_tokens + s.produced(step) for s in decoding)
        assert not self._running.keys() & self._waiting.keys()
        assert self._phase is not None or not (self._running or self._waiting), "work, and nobody works"
        counters = self._counters
        ended = counters.finished + counters.aborted + counters.refused
        assert counters.submitted == ended + len(self._running) + len(self._waiting)
        assert counters.prefix_hit_tokens <= counters.prefix_query_tokens

    # -- events --------------------------------------------------------------------------------------------

    def _submit(self, order: Submit, now: Instant, effects: list[Effect]) -> None:
        assert order.request not in self._running and order.request not in self._waiting, "submitted twice"
        assert order.prompt_tokens >= 1 and order.output_tokens >= 1
        self._counters.submitted += 1
        if order.prompt_tokens + order.output_tokens > self._pool.capacity_tokens:
            self._counters.refused += 1
            effects.append(Refused(order.request, now))
            return
        self._number += 1
        self._wait(_Sequence(order, self._number))
        if self._phase is None:
            self._begin_phase(now, effects)
        elif len(self._running) < self._parameters.slots:
            self._cut_phase()

    def _abort(self, request: RequestKey) -> None:
        if self._waiting.pop(request, None) is not None:
            self._counters.aborted += 1
        elif sequence := self._running.get(request):
            self._counters.aborted += 1
            self._leave(sequence)
            self._cut_phase()

    def _raise(self, event: Raise) -> None:
        request = event.request
        sequence = self._waiting.get(request) or self._running.get(request)
        if sequence is None or event.priority >= sequence.order.priority:
            return
        sequence.order = replace(sequence.order, priority=event.priority)
        if request in self._waiting:
            # Its former place in the queue is passed over once it has been admitted from this one.
            heappush(self._queue, (*sequence.rank, sequence))
            if len(self._running) < self._parameters.slots:
                self._cut_phase()

    def _cut_phase(self) -> None:
        """The step in flight ends as it would; what comes after is decided anew."""
        phase = self._phase
        if phase is not None:
            phase.steps = min(phase.steps, phase.done + 1)

    # -- time ----------------------------------------------------------------------------------------------

    def _advance(self, now: Instant, effects: list[Effect]) -> None:
        while (phase := self._phase) is not None:
            done = phase.done_by(now)
            moved = done > phase.done
            if moved:
                self._run_steps(phase, done - phase.done)
                phase.done = done
            if done < phase.steps:
                if moved:
                    self._tell_tokens(phase.end(done), effects)
                return
            at = phase.end(done)
            self._phase = None
            self._end_phase(phase, at, effects)
            self._begin_phase(at, effects)

    def _run_steps(self, phase: _Phase, steps: int) -> None:
        tokens = steps * self._decoding
        self._step += steps
        self._context_tokens += tokens
        self._pool.held_tokens += tokens
        self._pool.trim()
        for sequence, chunk_tokens in phase.chunks:
            sequence.prefill_left -= chunk_tokens * steps

    def _tell_tokens(self, at: Instant, effects: list[Effect]) -> None:
        for request, sequence in self._watched.items():
            effects.append(Token(request, at, sequence.produced(self._step) - 1))

    def _end_phase(self, phase: _Phase, at: Instant, effects: list[Effect]) -> None:
        due = self._due
        while due and due[0][0] <= self._step:
            _, _, index, joined_step, sequence = heappop(due)
            if sequence.joined_step != joined_step:
                continue
            if index == sequence.order.output_tokens - 1:
                self._finish(sequence, at, effects)
            elif not sequence.order.every_token:
                effects.append(Token(sequence.order.request, at, index))
        for sequence, _ in phase.chunks:
            if not sequence.prefill_left and sequence.order.request in self._prefilling:
                self._join(sequence, at, effects)
        self._tell_tokens(at, effects)

    def _join(self, sequence: _Sequence, at: Instant, effects: list[Effect]) -> None:
        """Its prefill is over, which gives its next token."""
        order, pool = sequence.order, self._pool
        del self._prefilling[order.request]
        if pool.block_tokens:
            hits = len(sequence.holding.shared)
            pool.publish(sequence.holding, order.blocks, hits, sequence.prefill_tokens // pool.block_tokens)
        pool.grow(sequence.holding, 1)
        sequence.fixed_tokens += 1
        sequence.joined_step = self._step
        self._decoding += 1
        self._context_tokens += order.prompt_tokens + sequence.fixed_tokens
        index = sequence.fixed_tokens - 1
        if sequence.fixed_tokens == order.output_tokens:
            self._finish(sequence, at, effects)
            return
        if order.every_token:
            self._watched[order.request] = sequence
        elif index in order.marks:
            effects.append(Token(order.request, at, index))
        for mark in {order.output_tokens - 1, *order.marks}:
            if index < mark < order.output_tokens:
                step = self._step + mark - index
                heappush(self._due, (step, sequence.number, mark, self._step, sequence))

    def _finish(self, sequence: _Sequence, at: Instant, effects: list[Effect]) -> None:
        self._counters.finished += 1
        effects.append(Finished(sequence.order.request, at))
        self._leave(sequence)

    def _leave(self, sequence: _Sequence) -> None:
        order, pool = sequence.order, self._pool
        produced = sequence.produced(self._step)
        self._counters.output_tokens += produced
        self._stop(sequence)
        if pool.block_tokens and sequence.joined_step != _NOT_DECODING:
            first = sequence.prefill_tokens // pool.block_tokens
            last = (order.prompt_tokens + produced) // pool.block_tokens
            pool.publish(sequence.holding, order.blocks, first, last)
        sequence.joined_step = _NOT_DECODING
        pool.release(sequence.holding)

    def _stop(self, sequence: _Sequence) -> None:
        """Out of the batch; what it holds includes what it has grown by."""
        order = sequence.order
        del self._running[order.request]
        self._prefilling.pop(order.request, None)
        self._watched.pop(order.request, None)
        if sequence.joined_step != _NOT_DECODING:
            self._decoding -= 1
            self._context_tokens -= order.prompt_tokens + sequence.produced(self._step)
            sequence.holding.private_tokens += self._step - sequence.joined_step

    # -- decisions at a step's beginning -------------------------------------------------------------------

    def _begin_phase(self, at: Instant, effects: list[Effect]) -> None:
        preempted = self._relieve_pressure(at, effects)
        if not preempted:
            self._admit_waiting(at, effects)
        if self._running:
            self._phase = self._plan(at)

    def _relieve_pressure(self, at: Instant, effects: list[Effect]) -> bool:
        """Every running sequence needs room for one more token."""
        preempted = False
        while len(self._running) > 1 and self._pool.free_tokens < len(self._running):
            last = max(self._running.values(), key=lambda sequence: sequence.rank)
            self._preempt(last, at, effects)
            preempted = True
        return preempted

    def _preempt(self, sequence: _Sequence, at: Instant, effects: list[Effect]) -> None:
        produced = sequence.produced(self._step)
        self._stop(sequence)
        sequence.fixed_tokens = produced
        sequence.joined_step = _NOT_DECODING
        self._pool.release(sequence.holding)
        self._counters.preemptions += 1
        effects.append(Preempted(sequence.order.request, at))
        self._wait(sequence)

    def _wait(self, sequence: _Sequence) -> None:
        self._waiting[sequence.order.request] = sequence
        heappush(self._queue, (*sequence.rank, sequence))

    def _admit_waiting(self, at: Instant, effects: list[Effect]) -> None:
        pool = self._pool
        while self._queue and len(self._running) < self._parameters.slots:
            sequence = self._queue[0][2]
            if self._waiting.get(sequence.order.request) is not sequence:
                heappop(self._queue)
                continue
            order = sequence.order
            tokens = order.prompt_tokens + sequence.fixed_tokens
            hits = pool.cached_blocks(order.blocks, tokens)
            if pool.needed_tokens(order.blocks, hits, tokens) > pool.free_tokens - len(self._running) - 1:
                return
            heappop(self._queue)
            del self._waiting[order.request]
            sequence.holding = pool.hold(order.blocks, hits, tokens)
            sequence.prefill_tokens = tokens
            sequence.prefill_left = tokens - hits * pool.block_tokens
            self._running[order.request] = sequence
            self._prefilling[order.request] = sequence
            if sequence.hit_tokens is None:
                sequence.hit_tokens = hits * pool.block_tokens
                self._count_admission(order, sequence.hit_tokens)
            effects.append(Admitted(order.request, at, sequence.hit_tokens))

    def _count_admission(self, order: Submit, hit_tokens: int) -> None:
        self._counters.prefix_query_tokens += order.prompt_tokens
        self._counters.prefix_hit_tokens += hit_tokens
        self._counters.prompt_tokens += order.prompt_tokens

    def _plan(self, at: Instant) -> _Phase:
        """The longest run of equal steps. Prefill comes in the order of rank, a chunk a step."""
        parameters, decoding = self._parameters, self._decoding
        decode_ms = parameters.decode_ms(decoding, self._context_tokens)
        growth_ms = parameters.kilotoken_ms * decoding / 1000
        chunks, chunk_steps = self._plan_chunks()
        chunk_ms = 0.0
        if chunks:
            chunk_ms = sum(tokens for _, tokens in chunks) / parameters.prefill_tokens_per_s * 1000
        # Without decodes, reading the weights hides behind computing the prompt.
        first_ms = decode_ms + chunk_ms if decoding else max(parameters.decode_step_ms, chunk_ms)
        steps = self._steps_until_change()
        if chunks:
            steps = min(steps, chunk_steps)
        return _Phase(at, first_ms / 1000, growth_ms / 1000, steps, chunks)

    def _plan_chunks(self) -> tuple[list[tuple[_Sequence, int]], int]:
        """What is prefilled in each of the next steps, and how many steps alike there are."""
        budget = self._parameters.prefill_chunk_tokens
        chunks: list[tuple[_Sequence, int]] = []
        for sequence in self._by_rank(self._prefilling):
            if not chunks and sequence.prefill_left >= budget:
                return [(sequence, budget)], sequence.prefill_left // budget
            tokens = min(budget, sequence.prefill_left)
            chunks.append((sequence, tokens))
            budget -= tokens
            if not budget:
                break
        return chunks, 1

    @staticmethod
    def _by_rank(sequences: dict[RequestKey, _Sequence]) -> Iterator[_Sequence]:
        if len(sequences) < 2:
            return iter(sequences.values())
        return iter(sorted(sequences.values(), key=lambda sequence: sequence.rank))

    def _steps_until_change(self) -> int:
        """Until somebody's last or marked token, or until the pool is full. At least one."""
        due = self._due
        while due and due[0][4].joined_step != due[0][3]:
            heappop(due)
        steps = due[0][0] - self._step if due else self._parameters.kv_pool_tokens
        if self._decoding:
            room = (self._pool.free_tokens - len(self._prefilling)) // self._decoding
            steps = min(steps, room)
        return max(1, steps)

    def _decoding_sequences(self) -> list[_Sequence]:
        return [s for s in self._running.values() if s.joined_step != _NOT_DECODING]
