"""What Action 0 loses while it learns, on a truth that is known, beside whoever opens below a fixed load."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Final

from dynbranch.bench.admission_regimes import ENGINE, KEY
from dynbranch.controller.core.pricing.gate import Gate
from dynbranch.controller.core.pricing.load import Reading
from dynbranch.domain.ids import BranchId, Instant, TrialId

SLOTS: Final = 8
PRESSURES: Final = (0.0, 0.25, 0.5, 0.75, 1.0, 1.25)
THRESHOLDS: Final = (-1.0, *PRESSURES)
"""A branch opens where the load is no higher: from never to always."""

TRUTHS_MS: Final = (150.0, 300.0)
"""What a branch returns on an idle engine: less by ``SLOPE_MS`` at full load, and by chance."""

SLOPE_MS: Final = 400.0
NOISE_MS: Final = 100.0


def regret(open_at: float | None, *, truth_ms: float, seed: int, rounds: int) -> list[float]:
    """Lost until each round, in ms, against opening exactly where it is worth it. None: the gate decides."""
    random, gate, lost, total = Random(seed), Gate(seed=seed), [], 0.0
    for number in range(rounds):
        # Far enough apart for one load to leave nothing in the envelope of the next.
        now, pressure = Instant(number * 100.0), random.choice(PRESSURES)
        mean_ms, trial_id = truth_ms - SLOPE_MS * pressure, TrialId(b"t%d" % number)
        seen = Reading(ENGINE, SLOTS, round(pressure * SLOTS), 0, 0, SLOTS)
        gate.see(seen, now)
        if open_at is None:
            opens = gate.open(BranchId(b"b%d" % number), trial_id, KEY, [seen], now).opens
        else:
            opens = pressure <= open_at
        if opens and open_at is None:
            gate.charge_setup(trial_id, -(mean_ms + random.gauss(0.0, NOISE_MS)))
            gate.resolve(trial_id, now)
        total += max(0.0, mean_ms) - (mean_ms if opens else 0.0)
        lost.append(total)
    return lost


def swept(seeds: Sequence[int], rounds: int) -> list[dict[str, float]]:
    """A row a truth and a seed: lost by the gate in all and in the second half, by the best threshold, by the
    median one, and by the worst."""
    rows = []
    for truth_ms in TRUTHS_MS:
        for seed in seeds:
            mine = regret(None, truth_ms=truth_ms, seed=seed, rounds=rounds)
            fixed = sorted(regret(at, truth_ms=truth_ms, seed=seed, rounds=rounds)[-1] for at in THRESHOLDS)
            rows.append(
                {
                    "truth_ms": truth_ms,
                    "seed": seed,
                    "gate_ms": mine[-1],
                    "gate_second_half_ms": mine[-1] - mine[rounds // 2 - 1],
                    "best_threshold_ms": fixed[0],
                    "median_threshold_ms": fixed[len(fixed) // 2],
                    "worst_threshold_ms": fixed[-1],
                }
            )
    return rows
