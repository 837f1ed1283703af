"""InstCache before the fleet: whole requests from an exact map, and everything else as the floor has it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import partial
from itertools import zip_longest

from dynbranch.sim.baselines.compared import Compared
from dynbranch.sim.baselines.whole_requests import Answer, WholeRequests, predicted, request_of
from dynbranch.sim.fleet.engines import Fleet
from dynbranch.sim.fleet.playing import Play, Records, Served, Then
from dynbranch.sim.fleet.workflows import Step, Workflow

LOOKUP_S = 0.0017
"""What this gateway takes for a hit, bench/results/hit_path.json: no cache here is given a slower one."""


@dataclass(frozen=True, slots=True)
class InstCacheSetting:
    """``predictions``: how many of the predicted requests are there when the stream begins."""

    predictions: int = 4096
    lookup_s: float = LOOKUP_S


@dataclass(slots=True, eq=False)
class _Asked:
    """The turn under way: what its calls came to, and what is known of it."""

    values: list[str] = field(default_factory=list)
    known: Answer | None = None


class InstCache(Compared):
    def __init__(
        self, fleet: Fleet, records: Records, setting: InstCacheSetting, history: Iterable[Workflow] = ()
    ) -> None:
        super().__init__(fleet, records)
        self._setting = setting
        self._cache = WholeRequests(dict(predicted(history, setting.predictions)))
        self.spending.prefilled = len(self._cache.answers)
        self._asked: dict[str, list[_Asked]] = {}

    def begins(self, play: Play) -> float | None:
        turns = play.workflow.turns
        answer = self._cache.find(request_of(turns, 0)) if len(turns) == 1 else None
        if answer is None:
            self._asked[play.name] = []
            return None
        now = [self._records.value_of(step) for step in turns[0].steps]
        play.wrong += sum(had != has for had, has in zip_longest(answer, now))
        self.spending.hits += len(now)
        return self._setting.lookup_s

    def call(self, play: Play, step: Step, then: Then) -> None:
        asked = self._asked[play.name]
        if play.step == 0:
            asked.append(_Asked(known=self._cache.find(request_of(play.workflow.turns, play.turn))))
        turn = asked[-1]
        if turn.known is not None and play.step < len(turn.known):
            self.spending.hits += 1
            after_s = self._setting.lookup_s if play.step == 0 else 0.0
            value = turn.known[play.step]
            self._fleet.heap.after(after_s, partial(then, Served("hit", value)))
            return
        turn.values.append(self._records.value_of(step))
        self._execute(step, then)

    def ends(self, play: Play) -> None:
        """What was asked for the first time is known from now on."""
        for number, asked in enumerate(self._asked.pop(play.name, [])):
            if asked.known is None:
                self._cache.insert(request_of(play.workflow.turns, number), tuple(asked.values))
