"""Parrot before the fleet: the dataflow is known, and the scheduler keeps latency engines nearly empty.

A turn's calls follow one another, each reads what the one before wrote, and somebody waits for the last:
all are for latency, the first the deepest. No result is reused, and nothing runs ahead.
"""

from __future__ import annotations

from bisect import insort
from dataclasses import dataclass
from functools import partial
from typing import Final

from dynbranch.sim.baselines.compared import Compared
from dynbranch.sim.baselines.dataflow import Criterion, EngineLoad, Limits, Need, Task, propagate, tick
from dynbranch.sim.baselines.prefixes import Prefixes, blocks_of
from dynbranch.sim.fleet.engines import Fleet, Run
from dynbranch.sim.fleet.playing import Play, Records, Served, Then
from dynbranch.sim.fleet.workflows import Call, Step, Turn

HORIZON: Final = 32
"""How many of the calls that wait are looked at in one tick: the deepest. It keeps a tick short when many
wait."""


ROOMY: Final = Limits(64, 131_072)
"""Sixteen and thirty-two times what was published: docs/baselines.md."""


@dataclass(frozen=True, slots=True)
class ParrotSetting:
    limits: Limits = ROOMY


@dataclass(frozen=True, slots=True)
class _Waiting:
    need: Need
    call: Call
    value: str
    then: Then


class Parrot(Compared):
    def __init__(self, fleet: Fleet, records: Records, setting: ParrotSetting) -> None:
        super().__init__(fleet, records)
        self._setting = setting
        self._prefixes = Prefixes(len(fleet.places), blocks_of(fleet.parameters))
        self._loads = [EngineLoad() for _ in fleet.places]
        self._queue: list[tuple[int, int, _Waiting]] = []
        self._needs: dict[str, tuple[int, tuple[Need, ...]]] = {}
        self._arrived = 0

    def call(self, play: Play, step: Step, then: Then) -> None:
        self._arrived += 1
        waiting = _Waiting(self._need(play), step.call, self._records.value_of(step), then)
        insort(self._queue, (-waiting.need.depth, self._arrived, waiting))
        self._tick()

    def ends(self, play: Play) -> None:
        self._needs.pop(play.name, None)

    def validate_state(self) -> None:
        self._fleet.validate_state()
        limits = self._setting.limits
        for load, place in zip(self._loads, self._fleet.places, strict=True):
            assert load.tasks == place.canonical
            assert load.latency_tasks == 0 or load.tasks <= max(1, limits.tasks)
            assert load.tasks < 2 or load.latency_tasks == 0 or load.tokens <= limits.tokens
        assert not self._queue or all(load.tasks for load in self._loads), "a call waits for an idle engine"

    def _need(self, play: Play) -> Need:
        known = self._needs.get(play.name)
        if known is None or known[0] != play.turn:
            known = play.turn, needs_of(play.workflow.turns[play.turn], f"{play.name} {play.turn}")
            self._needs[play.name] = known
        return known[1][play.step]

    def _tick(self) -> None:
        limits = self._setting.limits
        if all(load.latency_tasks and load.tasks >= limits.tasks for load in self._loads):
            return
        front, engines = self._queue[:HORIZON], range(len(self._loads))
        queue = [
            Task(
                number,
                waiting.need,
                _tokens(waiting.call),
                tuple(self._prefixes.longest(engine, waiting.call.blocks) for engine in engines),
            )
            for _, number, waiting in front
        ]
        placed = dict(tick(queue, self._loads, limits))
        self._queue[:HORIZON] = [one for one in front if one[1] not in placed]
        for _, number, waiting in front:
            if number not in placed:
                continue
            engine = placed[number]
            self._count(engine, waiting, 1)
            self._prefixes.sent(engine, waiting.call.blocks)
            self._fleet.submit(engine, waiting.call, partial(self._ended, waiting))

    def _ended(self, waiting: _Waiting, run: Run) -> None:
        self._count(run.engine, waiting, -1)
        waiting.then(Served("miss", waiting.value))
        if self._queue:
            self._tick()

    def _count(self, engine: int, waiting: _Waiting, sign: int) -> None:
        load = self._loads[engine]
        latency = waiting.need.criterion is Criterion.LATENCY
        self._loads[engine] = EngineLoad(
            load.tasks + sign,
            load.tokens + sign * _tokens(waiting.call),
            load.latency_tasks + sign * latency,
        )


def needs_of(turn: Turn, name: str) -> tuple[Need, ...]:
    """Of each of its calls in their order. ``name``: of the turn, among all."""
    names = [f"{name} {number}" for number in range(len(turn.steps))]
    inputs = {one: names[number - 1 : number] for number, one in enumerate(names) if number}
    needs = propagate(inputs, {names[-1]: Criterion.LATENCY})
    return tuple(needs[name] for name in names)


def _tokens(call: Call) -> int:
    return call.prompt_tokens + call.output_tokens
