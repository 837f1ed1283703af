"""A fleet of simulated engines on virtual time: who runs where, and what of it is ahead of any demand."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from heapq import heapify, heappop, heappush

from dynbranch.domain.ids import Instant
from dynbranch.enginemodel import messages as engine
from dynbranch.enginemodel.model import EngineModel, engine_model
from dynbranch.enginemodel.parameters import Parameters
from dynbranch.sim.fleet.workflows import Call
from dynbranch.sim.heap import EventHeap, Timer

AHEAD = 1
"""The priority of what nobody waits for; canonical work has 0."""


@dataclass(slots=True, eq=False)
class Run:
    """One generation at an engine. ``began``: when it was sent there; ``slot_at``: when it got its slot."""

    number: int
    engine: int
    call: Call
    ahead: bool
    began: float
    ended: Callable[[Run], None]
    shown: Callable[[Run, int], None] | None = None
    slot_at: float | None = None


@dataclass(slots=True, eq=False)
class Place:
    """One engine. ``canonical`` and ``ahead`` count what runs or waits there; ``busy_s`` is slot time, by
    whether somebody waited for it at its end."""

    model: EngineModel
    wake: Timer | None = None
    wake_at: Instant | None = None
    canonical: int = 0
    ahead: int = 0
    busy_s: dict[bool, float] = field(default_factory=lambda: {False: 0.0, True: 0.0})


class Fleet:
    def __init__(self, heap: EventHeap, parameters: Parameters, engines: int) -> None:
        self.heap = heap
        self.parameters = parameters
        self.places = [Place(engine_model(parameters)) for _ in range(engines)]
        self.runs: dict[int, Run] = {}
        self.stirred: set[int] = set()
        """Engines where something has changed; whoever reads them out takes them away."""
        self._made = 0
        self._order = [(0, number) for number in range(engines)]
        """(canonical, engine), the least first; stale where the engine has another number by now."""

    def least_canonical(self) -> int:
        """Where a canonical request runs, whoever serves it: where the fewest do, the first of equals. What a
        prompt shares with earlier ones is not looked at."""
        order, places = self._order, self.places
        while order[0][0] != places[order[0][1]].canonical:
            heappop(order)
        return order[0][1]

    def submit(
        self,
        number: int,
        call: Call,
        ended: Callable[[Run], None],
        *,
        ahead: bool = False,
        priority: int | None = None,
        marks: tuple[int, ...] = (),
        shown: Callable[[Run, int], None] | None = None,
    ) -> Run:
        """``ended`` is called once, unless the run is aborted; ``shown`` when it has a token of ``marks``,
        with that one's index. ``priority`` None: as ``ahead`` has it."""
        self._made += 1
        run = Run(self._made, number, call, ahead, self.heap.now, ended, shown)
        self.runs[run.number] = run
        place = self.places[number]
        if ahead:
            place.ahead += 1
        else:
            self._count(number, 1)
        order = engine.Submit(
            run.number,
            call.prompt_tokens,
            call.output_tokens,
            blocks=call.blocks,
            priority=(AHEAD if ahead else 0) if priority is None else priority,
            marks=marks,
        )
        self._drive(number, order)
        return run

    def adopt(self, run: Run) -> None:
        """Somebody waits for it now."""
        if run.ahead:
            run.ahead = False
            self.places[run.engine].ahead -= 1
            self._count(run.engine, 1)
            self._drive(run.engine, engine.Raise(run.number, 0))

    def abort(self, run: Run) -> float:
        """What it has used of a slot, in seconds. A run that has ended used what it used."""
        if self.runs.pop(run.number, None) is None:
            return 0.0
        used_s = self._left(run)
        self._drive(run.engine, engine.Abort(run.number))
        return used_s

    def validate_state(self) -> None:
        """Raises AssertionError."""
        for number, place in enumerate(self.places):
            place.model.validate_state()
            there = [run for run in self.runs.values() if run.engine == number]
            ahead = sum(run.ahead for run in there)
            gauges = place.model.gauges
            assert (place.ahead, place.canonical) == (ahead, len(there) - ahead)
            assert gauges.running + gauges.waiting == len(there)

    def _left(self, run: Run) -> float:
        place = self.places[run.engine]
        if run.ahead:
            place.ahead -= 1
        else:
            self._count(run.engine, -1)
        used_s = 0.0 if run.slot_at is None else self.heap.now - run.slot_at
        place.busy_s[run.ahead] += used_s
        return used_s

    def _count(self, number: int, more: int) -> None:
        place, order = self.places[number], self._order
        place.canonical += more
        heappush(order, (place.canonical, number))
        if len(order) > 8 * len(self.places) + 64:
            order[:] = [(place.canonical, number) for number, place in enumerate(self.places)]
            heapify(order)

    def _drive(self, number: int, event: engine.Event) -> None:
        place = self.places[number]
        self.stirred.add(number)
        effects = place.model.handle(event, self.heap.now)
        wake = place.model.next_wake()
        if place.wake is None or place.wake_at != wake or place.wake.action is None:
            if place.wake is not None:
                place.wake.cancel()
            again = partial(self._drive, number, engine.WAKE)
            place.wake = None if wake is None else self.heap.at(wake, again)
            place.wake_at = wake
        for effect in effects:
            self._told(effect)

    def _told(self, effect: engine.Effect) -> None:
        assert not isinstance(effect, engine.Refused), "a request is larger than the engine"
        run = self.runs.get(effect.request)  # type: ignore[call-overload]
        if run is None:
            # It was given up at this very moment.
            return
        match effect:
            case engine.Admitted(at=at):
                run.slot_at = at
            case engine.Token(index=index):
                if run.shown is not None:
                    run.shown(run, index)
            case engine.Finished():
                del self.runs[run.number]
                self._left(run)
                run.ended(run)
            case engine.Preempted():
                pass
