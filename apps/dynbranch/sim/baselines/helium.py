"""Helium+ before the fleet: operators from an exact cache, and cache-aware scheduling of the others.

It dispatches concurrently: whatever may run does. An operator waits only where every worker is full; then the
one with the longest chain still after it goes first. That length is known here, as if every plan were.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from heapq import heappop, heappush

from dynbranch.domain.template import Speculable, Template
from dynbranch.sim.baselines.compared import Compared
from dynbranch.sim.baselines.instcache import LOOKUP_S
from dynbranch.sim.baselines.operator_cache import OperatorCache
from dynbranch.sim.baselines.prefixes import Prefixes, Worker, blocks_of, cache_aware
from dynbranch.sim.fleet.engines import Fleet, Run
from dynbranch.sim.fleet.playing import Play, Records, Served, Then
from dynbranch.sim.fleet.workflows import Call, Step


@dataclass(frozen=True, slots=True)
class HeliumSetting:
    """``capacity``: results. ``slack``: how many requests more a worker may have for the sake of a prefix."""

    capacity: int = 65_536
    slack: int = 1
    lookup_s: float = LOOKUP_S


@dataclass(frozen=True, slots=True)
class _Ready:
    """An operator that may run."""

    call: Call
    value: str
    then: Then


class Helium(Compared):
    def __init__(self, fleet: Fleet, records: Records, setting: HeliumSetting, template: Template) -> None:
        super().__init__(fleet, records)
        self._setting = setting
        self._cache = OperatorCache(setting.capacity)
        self._sampled = {s.name for s in template.stages if s.speculable is Speculable.ONCE}
        self._prefixes = Prefixes(len(fleet.places), blocks_of(fleet.parameters))
        self._queue: list[tuple[int, int, _Ready]] = []
        self._arrived = 0

    def call(self, play: Play, step: Step, then: Then) -> None:
        call = step.call
        known = None if call.stage in self._sampled else self._cache.find((call.stage, call.content))
        if known is not None:
            self.spending.hits += 1
            self._fleet.heap.after(self._setting.lookup_s, partial(then, Served("hit", known)))
            return
        self._arrived += 1
        after_it = len(play.workflow.turns[play.turn].steps) - play.step
        ready = _Ready(call, self._records.value_of(step), then)
        heappush(self._queue, (-after_it, self._arrived, ready))
        self._dispatch()

    def validate_state(self) -> None:
        self._fleet.validate_state()
        assert len(self._cache) <= self._setting.capacity
        free = any(place.canonical < self._fleet.parameters.slots for place in self._fleet.places)
        assert not (self._queue and free), "an operator waits, and a worker has room"

    def _dispatch(self) -> None:
        slots = self._fleet.parameters.slots
        while self._queue:
            open_ = [n for n, place in enumerate(self._fleet.places) if place.canonical < slots]
            if not open_:
                return
            ready = heappop(self._queue)[2]
            blocks = ready.call.blocks
            workers = [
                Worker(n, self._fleet.places[n].canonical, self._prefixes.longest(n, blocks)) for n in open_
            ]
            number = cache_aware(workers, self._setting.slack)
            self._prefixes.sent(number, blocks)
            self._fleet.submit(number, ready.call, partial(self._ended, ready))

    def _ended(self, ready: _Ready, run: Run) -> None:
        call = ready.call
        if call.stage not in self._sampled:
            self._cache.insert((call.stage, call.content), ready.value)
        # What comes next of this workflow is weighed with what waits.
        ready.then(Served("miss", ready.value))
        self._dispatch()
