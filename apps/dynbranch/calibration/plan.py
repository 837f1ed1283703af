"""What is measured: canonical probes beside so many fills of such contexts, and in which order."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from random import Random
from typing import Final

MOST_COUNTS: Final = 8
"""Numbers of fills that are measured on an engine of many slots."""

KV_STEPS: Final = 3
LEAST_KV_SHARE: Final = 0.05
"""Contexts that together hold less of the budget show nothing."""


class NothingToMeasure(ValueError):
    """An engine with one slot runs nothing beside a canonical request."""


@dataclass(frozen=True, slots=True, order=True)
class Level:
    """A canonical probe beside ``fills``, each with a context of ``context_tokens`` more than a probe's."""

    fills: int
    context_tokens: int = 0


@dataclass(frozen=True, slots=True)
class Machine:
    """``kv_budget_tokens``: what fills may hold together, 0 where nobody says. ``context_tokens``: prompt
    and output of one request, 0: not known."""

    model: str
    slots: int
    kv_budget_tokens: int = 0
    context_tokens: int = 0


@dataclass(frozen=True, slots=True)
class Plan:
    """``slots``: short fills, more and more of them. ``kv``: one number of fills, of longer and longer
    contexts; empty where the engine has no room to show that."""

    slots: tuple[Level, ...]
    kv: tuple[Level, ...]

    @property
    def levels(self) -> tuple[Level, ...]:
        return (*self.slots, *self.kv)


def plan_for(machine: Machine, *, most_fills: int, output_tokens: int) -> Plan:
    """Raises NothingToMeasure. ``output_tokens``: the most that a fill may say."""
    most = min(machine.slots - 1, most_fills)
    if most < 1:
        raise NothingToMeasure("an engine with one slot has no room for a fill")
    counts = _counts(most)
    return Plan(tuple(Level(count) for count in counts), _kv_levels(machine, counts, output_tokens))


def _counts(most: int) -> tuple[int, ...]:
    if most < MOST_COUNTS:
        return tuple(range(most + 1))
    ratio = most ** (1 / (MOST_COUNTS - 2))
    return tuple(sorted({0, most, *(round(ratio**step) for step in range(MOST_COUNTS - 1))}))


def _kv_levels(machine: Machine, counts: Sequence[int], output_tokens: int) -> tuple[Level, ...]:
    fills = max(count for count in counts if count <= max(1, counts[-1] // 2))
    if not machine.kv_budget_tokens or not machine.context_tokens:
        return ()
    # Half of the output is a margin for chat templates, and for words that are more than one token.
    room = machine.context_tokens - 2 * output_tokens
    longest = min(machine.kv_budget_tokens // fills, room)
    if longest <= 0 or fills * longest < LEAST_KV_SHARE * machine.kv_budget_tokens:
        return ()
    return tuple(Level(fills, longest * step // KV_STEPS) for step in range(1, KV_STEPS + 1))


def rounds(plan: Plan, rng: Random) -> Iterator[tuple[Level, ...]]:
    """Without end: every level once a round, in an order and then in its reverse, between two probes
    alone."""
    others = [level for level in plan.levels if level.fills]
    alone = plan.slots[0]
    while True:
        rng.shuffle(others)
        yield (alone, *others, alone)
        yield (alone, *reversed(others), alone)
