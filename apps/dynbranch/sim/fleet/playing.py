"""Harnesses before a simulated fleet: they play workflows, whoever serves them, and say how long it took."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol

from dynbranch.sim.fleet.engines import Fleet, Run
from dynbranch.sim.fleet.workflows import Call, Step, Turn, Workflow, Workload, Write
from dynbranch.sim.heap import EventHeap


@dataclass(frozen=True, slots=True)
class Served:
    """``outcome`` in the words of ``x-dynbranch-outcome``; ``value`` is the result, see ``value_of``."""

    outcome: str
    value: str


Then = Callable[[Served], None]


@dataclass(slots=True, eq=False)
class Play:
    """One workflow under way. ``turn`` and ``step`` are where it stands."""

    workflow: Workflow
    began: float
    turn: int = 0
    step: int = 0
    ended: float | None = None
    outcomes: list[str] = field(default_factory=list)
    turns_s: list[float] = field(default_factory=list)
    """Of the measured turns that are over."""
    wrong: int = 0
    """Calls that were not answered as an execution at that moment would have."""

    @property
    def name(self) -> str:
        return f"w{self.workflow.number}"


class Serving(Protocol):
    """Who stands between the harnesses and the engines: one arm of a comparison."""

    def begins(self, play: Play) -> float | None:
        """The seconds after which the whole workflow is answered, where a completed result of it is known."""
        ...

    def waits(self, play: Play, turn: Turn) -> None:
        """A person thinks before this turn, from now on."""
        ...

    def call(self, play: Play, step: Step, then: Then) -> None:
        """The harness's own request. ``then`` is called once, and not before this returns."""
        ...

    def ends(self, play: Play) -> None: ...

    def write(self, write: Write) -> None: ...

    def validate_state(self) -> None:
        """Raises AssertionError."""
        ...


@dataclass(slots=True)
class Records:
    """Versions of what is read: whoever executes a call now gets these. A write to ``source/*`` is one to
    each of its records, and who reads ``source/*`` has read them all."""

    versions: dict[str, int] = field(default_factory=dict)
    sources: dict[str, int] = field(default_factory=dict)

    def write(self, write: Write) -> None:
        for record in write.records:
            source, _, _ = record.partition("/")
            self.versions[record] = self.versions.get(record, 0) + 1
            self.sources[source] = self.sources.get(source, 0) + 1

    def value_of(self, step: Step) -> str:
        """The result of a call: its content, and the versions that it read."""
        return self.value_of_call(step.call)

    def value_of_call(self, call: Call) -> str:
        if not call.reads:
            return call.content
        return f"{call.content} @ " + " ".join(str(self._version(read)) for read in call.reads)

    def _version(self, read: str) -> int:
        source, _, key = read.partition("/")
        if key == "*":
            return self.sources.get(source, 0)
        return self.versions.get(read, 0) + self.versions.get(f"{source}/*", 0)


class Harnesses:
    """Plays a workload to its end. ``finished`` is in the order of ends."""

    def __init__(self, heap: EventHeap, serving: Serving, records: Records) -> None:
        self.finished: list[Play] = []
        self._heap = heap
        self._serving = serving
        self._records = records
        self._next: deque[Workflow] = deque()
        self._clients = 0

    def play(self, workload: Workload, told: Callable[[int], None] | None = None) -> list[Play]:
        """``told`` is called with the number of workflows that have ended, now and then."""
        self.begin(workload)
        count, seen = len(workload.workflows), 0
        while len(self.finished) < count:
            assert self._heap.step(), "a workflow does not end"
            if told is not None and len(self.finished) >= seen + 50:
                seen = len(self.finished)
                told(seen)
        return self.finished

    def begin(self, workload: Workload) -> None:
        """Plan it. It plays as time goes on."""
        self._clients = workload.clients
        if workload.clients:
            self._next.extend(workload.workflows)
            for _ in range(min(workload.clients, len(self._next))):
                self._begin_next()
        else:
            self._next.extend(sorted(workload.workflows, key=lambda workflow: workflow.at_s))
            self._await_next()
        for write in workload.writes:
            self._heap.at(write.at_s, partial(self._write, write))

    def _write(self, write: Write) -> None:
        """The backend applies a change, reports it, and has its acknowledgement."""
        self._records.write(write)
        self._serving.write(write)

    def _await_next(self) -> None:
        """Only the next arrival is planned: a long stream costs no more than a short one."""
        if self._next:
            workflow = self._next.popleft()
            self._heap.at(workflow.at_s, partial(self._arrive, workflow))

    def _arrive(self, workflow: Workflow) -> None:
        self._await_next()
        self._begin(workflow)

    def _begin_next(self) -> None:
        """In a closed loop."""
        if self._clients and self._next:
            self._begin(self._next.popleft())

    def _begin(self, workflow: Workflow) -> None:
        play = Play(workflow, self._heap.now)
        whole_s = self._serving.begins(play)
        if whole_s is None:
            self._turn(play)
            return
        play.outcomes += ["hit"] * sum(len(turn.steps) for turn in workflow.turns)
        play.turns_s += [whole_s] * sum(turn.measured for turn in workflow.turns)
        self._heap.after(whole_s, partial(self._end, play))

    def _turn(self, play: Play) -> None:
        turns = play.workflow.turns
        if play.turn == len(turns):
            self._end(play)
            return
        turn = turns[play.turn]
        if turn.gap_s:
            self._serving.waits(play, turn)
            self._heap.after(turn.gap_s, partial(self._step, play, self._heap.now + turn.gap_s))
        else:
            self._step(play, self._heap.now)

    def _step(self, play: Play, since: float) -> None:
        """``since``: when the turn began."""
        turn = play.workflow.turns[play.turn]
        if play.step == len(turn.steps):
            if turn.measured:
                play.turns_s.append(self._heap.now - since)
            play.turn, play.step = play.turn + 1, 0
            self._turn(play)
            return
        step = turn.steps[play.step]
        if step.call.before_s:
            self._heap.after(step.call.before_s, partial(self._call, play, step, since))
        else:
            self._call(play, step, since)

    def _call(self, play: Play, step: Step, since: float) -> None:
        asked = self._records.value_of(step)

        def served(one: Served) -> None:
            play.outcomes.append(one.outcome)
            # Whoever is attached before a write may have what was read before it.
            play.wrong += one.value not in (asked, self._records.value_of(step))
            play.step += 1
            self._step(play, since)

        self._serving.call(play, step, served)

    def _end(self, play: Play) -> None:
        play.ended = self._heap.now
        self._serving.ends(play)
        self.finished.append(play)
        self._begin_next()


class Floor:
    """No reuse, and nothing runs ahead: each call is executed where the fewest are."""

    def __init__(self, fleet: Fleet, records: Records) -> None:
        self._fleet = fleet
        self._records = records

    def begins(self, play: Play) -> float | None:
        return None

    def waits(self, play: Play, turn: Turn) -> None:
        pass

    def call(self, play: Play, step: Step, then: Then) -> None:
        self._execute(step, then)

    def _execute(self, step: Step, then: Then) -> None:
        value = self._records.value_of(step)

        def ended(run: Run) -> None:
            then(Served("miss", value))

        self._fleet.submit(self._fleet.least_canonical(), step.call, ended)

    def ends(self, play: Play) -> None:
        pass

    def write(self, write: Write) -> None:
        pass

    def validate_state(self) -> None:
        self._fleet.validate_state()


Arm = Callable[[Fleet, Records, Workload, int], Serving]
"""One arm of a comparison, which makes its serving for a workload on a fleet, by seed. Of the workload it may
know the template, and what somebody might have prepared before the first request."""


def floor(fleet: Fleet, records: Records, workload: Workload, seed: int) -> Serving:
    return Floor(fleet, records)
