"""From probes to price curves: robust, monotone, and steep near capacity as the prior is."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from dynbranch.calibration.plan import Level, Machine, Plan
from dynbranch.controller.core.pricing.prices import Curve, PriceCurves

LEAST_ROUNDS: Final = 2

MOST_MS: Final = 1000.0
"""A second of one slot delays nobody by more than a second."""


class TooFewProbes(ValueError):
    """Too little was measured in the time that there was."""


@dataclass(frozen=True, slots=True)
class Stretch:
    """A canonical request beside this level's fills, over alone: the median of rounds, the middle half."""

    level: Level
    median: float
    low: float
    high: float
    n: int


@dataclass(slots=True)
class Probes:
    """``by_round``: ms of each level's probes in one round, those alone included."""

    by_round: list[dict[Level, list[float]]]

    @property
    def alone_ms(self) -> float:
        """The median of the probes that ran alone."""
        return statistics.median(
            ms for rows in self.by_round for level, each in rows.items() if not level.fills for ms in each
        )

    def stretches(self, plan: Plan) -> dict[Level, Stretch]:
        """Each probe is compared with those alone in its own round, so that slow drift of the machine goes
        out. Levels with fewer rounds than two are left out."""
        alone, found = plan.slots[0], {}
        for level in plan.levels:
            ratios = [
                statistics.mean(rows[level]) / statistics.mean(rows[alone])
                for rows in self.by_round
                if level in rows and alone in rows
            ]
            if len(ratios) >= LEAST_ROUNDS:
                low, _, high = statistics.quantiles(ratios, n=4, method="inclusive")
                found[level] = Stretch(level, statistics.median(ratios), low, high, len(ratios))
        return found


def curves_of(
    stretches: Mapping[Level, Stretch], plan: Plan, machine: Machine, prior: PriceCurves
) -> PriceCurves:
    """Raises TooFewProbes. Where nothing of the KV cache was measured, its prior stays."""
    slot = _slot_steps([stretches[level] for level in plan.slots if level in stretches], machine)
    if not slot:
        raise TooFewProbes("no number of fills was measured in two rounds")
    base = next((one for one in plan.slots if plan.kv and one.fills == plan.kv[0].fills), None)
    with_context = [
        stretches[level] for level in (base, *plan.kv) if level is not None and level in stretches
    ]
    kv = _kv_steps(with_context, machine) if base in stretches else []
    return PriceCurves(
        slot=_curve(slot, prior.slot, MOST_MS), kv=_curve(kv, prior.kv, math.inf) if kv else prior.kv
    )


@dataclass(frozen=True, slots=True)
class _Step:
    """Between two levels: the load in their middle, ms per unit, and how many units lie between."""

    at: float
    price_ms: float
    width: float


def _slot_steps(found: Sequence[Stretch], machine: Machine) -> list[_Step]:
    """A fill that holds its slot for a second while a request would need ``a`` times its time, instead of
    ``b``, delays that request by 1 - a/b seconds; a step of several fills is even within."""
    steps = []
    for one, more in pairwise(found):
        width = more.level.fills - one.level.fills
        load = (1 + (one.level.fills + more.level.fills - 1) / 2) / machine.slots
        steps.append(_Step(load, 1000 * (1 - (one.median / more.median) ** (1 / width)), width))
    return steps


def _kv_steps(found: Sequence[Stretch], machine: Machine) -> list[_Step]:
    """The same for shares of the budget, which are small steps: d ln(stretch) / d share."""
    steps = []
    for one, more in pairwise(found):
        shares = [kv_share(each.level, machine) for each in (one, more)]
        width = shares[1] - shares[0]
        price_ms = 1000 * math.log(more.median / one.median) / width
        steps.append(_Step(sum(shares) / 2, price_ms, width))
    return steps


def kv_share(level: Level, machine: Machine) -> float:
    held = level.fills * level.context_tokens
    return held / machine.kv_budget_tokens if machine.kv_budget_tokens else 0.0


def _curve(steps: Sequence[_Step], prior: Curve, most_ms: float) -> Curve:
    """Through the measured steps, and from the last one on as much steeper as the prior is there."""
    prices = isotonic([step.price_ms for step in steps], [step.width for step in steps])
    prices = [min(most_ms, max(0.0, price)) for price in prices]
    points = [(step.at, price) for step, price in zip(steps, prices, strict=True)]
    mean = sum(price * step.width for price, step in zip(prices, steps, strict=True))
    mean /= sum(step.width for step in steps)
    below = prior.points[0][1]
    for at, prior_ms in prior.points:
        if at > points[-1][0]:
            points.append((at, min(most_ms, max(points[-1][1], mean * prior_ms / below))))
    return Curve(tuple(points))


def isotonic(values: Sequence[float], weights: Sequence[float]) -> list[float]:
    """The rising sequence that is nearest by weighted squares (pool adjacent violators)."""
    pools: list[tuple[float, float, int]] = []
    for value, weight in zip(values, weights, strict=True):
        pools.append((value, weight, 1))
        while len(pools) > 1 and pools[-2][0] > pools[-1][0]:
            (a, a_weight, a_count), (b, b_weight, b_count) = pools[-2:]
            both = a_weight + b_weight
            pools[-2:] = [((a * a_weight + b * b_weight) / both, both, a_count + b_count)]
    return [value for value, _, count in pools for _ in range(count)]
