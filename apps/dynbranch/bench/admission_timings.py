"""What one decision costs: Action 1 over candidates and engines, and Action 0's score. The product's own code
in this process, one call at a time, the kinds in turn."""

from __future__ import annotations

import time
from collections.abc import Callable
from random import Random
from typing import Final

from dynbranch.bench.admission_snapshots import Ranges, Snapshot, draw_one
from dynbranch.controller.core.pricing.constants import Constants
from dynbranch.controller.core.pricing.gate import Gate
from dynbranch.controller.core.pricing.load import Envelope, Reading, View, view_of
from dynbranch.controller.core.pricing.ordering import order, order_exactly
from dynbranch.controller.core.pricing.prices import prior_curves
from dynbranch.controller.core.pricing.returns import Classes, context_of
from dynbranch.domain.ids import BranchId, Instant, TrialId

ENGINES: Final = ("engine-1", "engine-2", "engine-3", "engine-4")
"""As many as the paper's machine has."""

_KEY: Final = ("tenant", "workflow", "decision")
_READINGS_S: Final = 0.25
_OBSERVATIONS: Final = 50
_WARM_UP: Final = 20


def times_us(rounds: int, rng: Random, told: Callable[[int], None]) -> dict[str, list[float]]:
    """By kind, the microseconds of each call. ``k4`` and ``k8``: so many candidates at four engines;
    ``k4_one_engine`` and ``k4_exact`` at one, the latter by the exact order. ``action0``: four envelopes,
    the context, the score; ``action0_with_trial`` the gate's whole answer."""
    action0 = _Action0(rng)
    gate = _WholeAction0(rng)
    found: dict[str, list[float]] = {}
    for number in range(-_WARM_UP, rounds):
        calls = [
            ("k4", _decision(4, ENGINES, rng)),
            ("k8", _decision(8, ENGINES, rng)),
            ("k4_one_engine", _decision(4, ENGINES[:1], rng)),
            ("k4_exact", _exact(_snapshot(4, ENGINES[:1], rng))),
            ("action0", action0.ready(number + _WARM_UP)),
            ("action0_with_trial", gate.ready(number + _WARM_UP)),
        ]
        rng.shuffle(calls)
        for kind, call in calls:
            begun = time.perf_counter_ns()
            call()
            took_us = (time.perf_counter_ns() - begun) / 1000
            if number >= 0:
                found.setdefault(kind, []).append(took_us)
        if number % 50 == 0:
            told(max(0, number))
    return found


def _snapshot(size: int, engines: tuple[str, ...], rng: Random) -> Snapshot:
    return draw_one(Ranges(), size, engines, prior_curves(), rng)


def _decision(size: int, engines: tuple[str, ...], rng: Random) -> Callable[[], object]:
    snapshot = _snapshot(size, engines, rng)
    return lambda: order(snapshot.candidates, snapshot.views, snapshot.curves)


def _exact(snapshot: Snapshot) -> Callable[[], object]:
    return lambda: order_exactly(snapshot.candidates, snapshot.views, snapshot.curves)


class _Action0:
    """A class that has learned from some branches, and four engines that were read four times a second for
    longer than the envelope looks back."""

    def __init__(self, rng: Random) -> None:
        constants = Constants()
        self._model = Classes(constants).get(_KEY)
        self._envelopes = [Envelope(constants.horizon_s) for _ in ENGINES]
        self._rng = rng
        self._now = 0.0
        for _ in range(_OBSERVATIONS):
            self._read()
            self._model.enter(
                context_of(self._views([self._reading() for _ in ENGINES]), 0.3), rng.gauss(300, 500)
            )

    def ready(self, number: int) -> Callable[[], float]:
        self._read()
        readings = [self._reading() for _ in ENGINES]
        consumption = (number % 10) / 10
        return lambda: self._model.score(context_of(self._views(readings), consumption)).upper

    def _read(self) -> None:
        self._now += _READINGS_S
        for envelope in self._envelopes:
            envelope.see(self._rng.uniform(0.0, 1.2), Instant(self._now))

    def _reading(self) -> Reading:
        return Reading("engine", 16, self._rng.randint(0, 16), self._rng.randint(0, 4), 2, 8, 1000, 20_000)

    def _views(self, readings: list[Reading]) -> list[View]:
        return [
            view_of(reading, envelope, Instant(self._now))
            for reading, envelope in zip(readings, self._envelopes, strict=True)
        ]


class _WholeAction0:
    """A gate that saw four engines and some trials of one class."""

    def __init__(self, rng: Random) -> None:
        self._gate = Gate()
        self._rng = rng
        self._now = 0.0
        for number in range(_OBSERVATIONS):
            trial_id = TrialId(b"warm" + bytes([number]))
            self.ready(number, trial_id)()
            self._gate.resolve(trial_id, Instant(self._now))

    def ready(self, number: int, trial_id: TrialId | None = None) -> Callable[[], object]:
        self._now += _READINGS_S
        now, rng = Instant(self._now), self._rng
        readings = [
            Reading(engine, 16, rng.randint(0, 16), rng.randint(0, 4), 2, 8, 1000, 20_000)
            for engine in ENGINES
        ]
        for reading in readings:
            self._gate.see(reading, now)
        branch_id = BranchId(number.to_bytes(16, "big"))
        trial_id = trial_id or TrialId(branch_id)
        return lambda: self._gate.open(branch_id, trial_id, _KEY, readings, now)
