"""The CSL as a simulated process: the production library on rows that can be lost.

It does what the service's shell does, on virtual time: decide and apply at once, answer a write only when it
is durable, delete what a write condemned in slices, flush and tidy now and then.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import TypeVar

from dynbranch.csl.core import consistency, founding
from dynbranch.csl.core.events import (
    Decision,
    DeleteSlice,
    GuardMissed,
    Moment,
    OutputsDiffer,
    ReleaseLeases,
    RenewLeases,
    Write,
)
from dynbranch.csl.core.limits import Limits
from dynbranch.csl.core.store import View
from dynbranch.domain.errors import DomainError
from dynbranch.domain.ids import Instant, LeaseId, UnixMs
from dynbranch.domain.reuse import Commit, CommitOutcome, Committed, Demand, DemandOutcome, WriteResult
from dynbranch.sim.cores import Cores
from dynbranch.sim.crash_rows import CrashRows
from dynbranch.sim.heap import EventHeap
from dynbranch.sim.judge import LeaseBook, Violation
from dynbranch.sim.network import Node, Respond
from dynbranch.sim.trace import Trace
from dynbranch.sim.weather import Weather

R = TypeVar("R")

FIRST_EPOCH = 1
HOUSEKEEPING_S = 0.5
SLICE_S = 0.002
STEP_S = 0.002
CHECK_ROWS_EVERY = 200
CHECK_MEMORY_EVERY = 20


@dataclass(frozen=True, slots=True)
class _Waiting:
    event: Write
    respond: Respond[WriteResult]
    acknowledged: Callable[[], None]


class CslNode(Node):
    def __init__(self, heap: EventHeap, rng: Random, weather: Weather, cores: Cores, trace: Trace) -> None:
        super().__init__("csl", heap)
        self._rng = rng
        self._cores = cores
        self._trace = trace
        self._limits = Limits(
            max_entries=weather.max_entries,
            max_versions=weather.max_versions,
            slice_nodes=weather.slice_nodes,
            plan_nodes=weather.plan_nodes,
            entry_ttl_ms=weather.entry_ttl_ms,
            lease_ttl_ms=weather.lease_ttl_ms,
            max_history=50,
            max_history_per_write=10,
        )
        self._flush_s = weather.flush_ms / 1000
        self._ids = 0
        self._handled = 0
        self.rows = CrashRows()
        self.rows.apply(founding.found(FIRST_EPOCH))
        self.rows.synced(self.rows.applied)
        self.outcomes: dict[str, int] = {}
        self._start()

    def _start(self) -> None:
        self.library = self._cores.library(limits=self._limits, new_id=self._new_id, view=self.rows)
        self.book = LeaseBook()
        self._writes: deque[_Waiting] = deque()
        self._arriving: set[tuple[str, str]] = set()
        self._slicing = False
        self._planning = False
        self.later(HOUSEKEEPING_S, self._housekeeping)

    def _new_id(self) -> bytes:
        self._ids += 1
        return self._rng.getrandbits(64).to_bytes(8, "big") + self._ids.to_bytes(8, "big")

    # Its life

    def lose(self, *, power: bool) -> None:
        """The process dies; with ``power`` the machine too."""
        self.crash()
        self.rows, lost = self.rows.lose(self._rng if power else None)
        self._trace.note(self.name, "power loss" if power else "crash", f"{lost} batches lost")

    def restart(self) -> None:
        super().restart()
        self.rows.apply(self._cores.open_store(self.rows))
        self._start()
        for number in self.library.slices:
            self._delete_slice(number)
        self.rows.synced(self.rows.applied)
        self._trace.note(self.name, "restart")
        self._check_rows()

    # What it is asked

    def demand(self, event: Demand, respond: Respond[DemandOutcome]) -> None:
        durable = False

        def decide() -> Decision[DemandOutcome]:
            nonlocal durable
            decision = self.library.demand(event, self.rows, self._moment())
            durable = decision.durable
            return decision

        outcome = self._do(decide, respond)
        if outcome is None:
            return
        word = type(outcome).__name__.lower()
        self.outcomes[word] = self.outcomes.get(word, 0) + 1
        self._trace.note(self.name, word, event.name[:4], event.demand_id)
        self.book.answered(event, outcome, self.rows, self.heap.now)
        workflow = (event.identity.tenant, event.identity.workflow_id)
        if durable:
            self._arriving.add(workflow)
        if workflow not in self._arriving:
            respond(outcome)
            return

        def arrived() -> None:
            self._arriving.discard(workflow)
            respond(outcome)

        self._flush(arrived)

    def commit(self, event: Commit, respond: Respond[CommitOutcome]) -> None:
        outcome = self._do(lambda: self.library.commit(event, self.rows, self._moment()), respond)
        if outcome is None:
            return
        word = "committed" if isinstance(outcome, Committed) else outcome.reason.value
        self.outcomes[word] = self.outcomes.get(word, 0) + 1
        self._trace.note(self.name, "commit", event.lease.name[:4], event.lease.lease_id, word)
        self.book.ended([event.lease.lease_id])
        respond(outcome)

    def renew(self, event: RenewLeases, respond: Respond[frozenset[LeaseId]]) -> None:
        unknown = self._do(lambda: self.library.renew_leases(event, self._moment()), respond)
        if unknown is not None:
            known = [lease_id for lease_id in event.lease_ids if lease_id not in unknown]
            self.book.renewed(known, self._after(event.ttl_ms))
            self.book.forget(self.heap.now)
            respond(unknown)

    def release(self, event: ReleaseLeases, respond: Respond[None]) -> None:
        self._do(lambda: self.library.release_leases(event, self.rows, self._moment()), respond)
        self._trace.note(self.name, "released", *event.lease_ids)
        self.book.ended(event.lease_ids)
        respond(None)

    def write(self, event: Write, respond: Respond[WriteResult], acknowledged: Callable[[], None]) -> None:
        """``acknowledged`` is called the moment that the answer leaves."""
        self._writes.append(_Waiting(event, respond, acknowledged))
        self._next_write()

    def idle(self) -> list[str]:
        """What is still held, when nobody asks for anything any more."""
        self._apply(self.library.renew_leases(RenewLeases((), 0), self._moment()))
        stats = self.library.stats(self.rows)
        held = [f"{stats.leases} leases"] if stats.leases else []
        return held + ([f"{len(self._writes)} writes"] if self._writes else [])

    # Inside

    def _do(self, decide: Callable[[], Decision[R]], respond: Respond[R]) -> R | None:
        try:
            return self._apply(decide())
        except DomainError as error:
            self._trace.note(self.name, "refuses", error.reason)
            respond(error)
            return None

    def _apply(self, decision: Decision[R]) -> R:
        if not decision.batch.empty:
            self.rows.apply(decision.batch)
        for effect in decision.effects:
            if isinstance(effect, GuardMissed):
                raise Violation("I3", "a stored entry was not current, although writes cascade")
            if isinstance(effect, OutputsDiffer):
                self.outcomes["differ"] = self.outcomes.get("differ", 0) + 1
        self._handled += 1
        if self._handled % CHECK_MEMORY_EVERY == 0:
            self._check_memory()
        if self._handled % CHECK_ROWS_EVERY == 0:
            self._check_rows()
        return decision.reply

    def _next_write(self) -> None:
        if self._writes and not self._planning and not self.library.slices:
            self._planning = True
            waiting = self._writes.popleft()
            try:
                self.library.begin_write(waiting.event, self.rows, self._moment())
            except DomainError as error:
                self._planning = False
                waiting.respond(error)
                return
            index = self.rows.copy()
            self.later(0.0, lambda: self._plan(waiting, index))

    def _plan(self, waiting: _Waiting, index: View) -> None:
        """One step of the plan; other events come between the steps."""
        if not self.library.step_plan(self.rows, index, self._limits.plan_nodes):
            self.later(STEP_S * self._rng.random(), lambda: self._plan(waiting, index))
            return
        decision = self.library.finish_plan(self.rows, index)
        self._apply(decision)
        self._planning = False
        self._trace.note(self.name, "write", *waiting.event.records, decision.reply.version)
        self.book.written(waiting.event.records, self.rows)
        if self.library.slices and not self._slicing:
            self._slicing = True
            self.later(SLICE_S, self._slices)

        def acknowledge() -> None:
            waiting.acknowledged()
            waiting.respond(decision.reply)

        if decision.durable:
            self._flush(acknowledge)
        else:
            acknowledge()
        self._next_write()

    def _flush(self, then: Callable[[], None]) -> None:
        applied = self.rows.applied

        def done() -> None:
            self.rows.synced(applied)
            then()

        self.later(self._flush_s * (0.5 + self._rng.random()), done)

    def _slices(self) -> None:
        numbers = self.library.slices
        if numbers:
            self._delete_slice(numbers[0])
            self.later(SLICE_S, self._slices)
            return
        self._slicing = False
        self._next_write()

    def _delete_slice(self, number: int) -> None:
        self._apply(self.library.delete_slice(DeleteSlice(number), self.rows))
        self.library.slice_deleted(number)

    def _housekeeping(self) -> None:
        if not self.library.slices and not self._planning:
            while self._apply(self.library.expire_entries(self.rows, self._moment())):
                pass
            self._apply(self.library.forget_versions(self.rows))
        self._flush(lambda: None)
        self.later(HOUSEKEEPING_S, self._housekeeping)

    def _moment(self) -> Moment:
        return Moment(self.heap.now, UnixMs(int(self.heap.now * 1000)))

    def _after(self, ttl_ms: int) -> Instant:
        return Instant(self.heap.now + min(ttl_ms, self._limits.max_lease_ttl_ms) / 1000.0)

    def check(self) -> None:
        self._check_memory()
        self._check_rows()

    def _check_memory(self) -> None:
        for what in self.library.violations(self.rows):
            raise Violation("I4", what)

    def _check_rows(self) -> None:
        for what in consistency.violations(self.rows):
            raise Violation("C1.cascade", what)
