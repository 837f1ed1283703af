"""What Parrot knows and how it schedules: criteria that propagate backward, and one tick of its scheduler."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum


class Criterion(Enum):
    LATENCY = "latency"
    THROUGHPUT = "throughput"


@dataclass(frozen=True, slots=True)
class Need:
    """``depth``: how many calls lie between a call's output and what somebody waits for. ``group``: calls
    that are wanted together share one; None: alone."""

    criterion: Criterion
    depth: int
    group: str | None = None


def propagate(inputs: Mapping[str, Sequence[str]], wanted: Mapping[str, Criterion]) -> dict[str, Need]:
    """What is needed of each variable, from what is ``wanted`` of the last ones.

    ``inputs``: by variable those that its call reads. Producers of one consumer that runs for its latency are
    wanted as soon as the last of them is there, so that several are a group for throughput; a single one
    inherits the criterion. A variable with several consumers keeps the strictest need, and the greatest
    depth.
    """
    needs = {name: Need(criterion, 0) for name, criterion in wanted.items()}
    frontier = list(wanted)
    while frontier:
        consumer = frontier.pop(0)
        need = needs[consumer]
        producers = inputs.get(consumer, ())
        several = len(producers) > 1
        for producer in producers:
            criterion = Criterion.THROUGHPUT if several else need.criterion
            found = Need(criterion, need.depth + 1, consumer if several else None)
            known = needs.get(producer)
            if known is not None:
                found = _stricter(known, found)
            if found != known:
                needs[producer] = found
                frontier.append(producer)
    return needs


def _stricter(one: Need, other: Need) -> Need:
    depth = max(one.depth, other.depth)
    first = one if one.criterion is Criterion.LATENCY else other
    return Need(first.criterion, depth, first.group)


@dataclass(frozen=True, slots=True)
class Limits:
    """Of an engine that runs anything for its latency. Any other has none."""

    tasks: int = 4
    tokens: int = 4096


@dataclass(frozen=True, slots=True)
class Task:
    """``tokens``: prompt and output. ``held``: by engine, blocks of its prompt's beginning."""

    number: int
    need: Need
    tokens: int
    held: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class EngineLoad:
    tasks: int = 0
    tokens: int = 0
    latency_tasks: int = 0


def tick(queue: Sequence[Task], engines: Sequence[EngineLoad], limits: Limits) -> tuple[tuple[int, int], ...]:
    """(task, engine) of all that go now. The deepest first, then the first come; a group goes together to one
    engine, or waits; the engine that holds the longest prefix of those with room, then the emptiest."""
    loads = list(engines)
    placed: list[tuple[int, int]] = []
    for together in _groups(queue):
        latency = sum(task.need.criterion is Criterion.LATENCY for task in together)
        tokens = sum(task.tokens for task in together)
        roomy = [
            number
            for number, load in enumerate(loads)
            if _fits(load, len(together), tokens, latency > 0, limits)
        ]
        if not roomy:
            continue
        first = together[0]
        number = min(roomy, key=lambda one: (-first.held[one] if first.held else 0, loads[one].tasks, one))
        load = loads[number]
        loads[number] = EngineLoad(
            load.tasks + len(together), load.tokens + tokens, load.latency_tasks + latency
        )
        placed += [(task.number, number) for task in together]
    return tuple(placed)


def _groups(queue: Sequence[Task]) -> list[list[Task]]:
    found: dict[str | int, list[Task]] = {}
    for task in sorted(queue, key=lambda task: (-task.need.depth, task.number)):
        found.setdefault(task.number if task.need.group is None else task.need.group, []).append(task)
    return list(found.values())


def _fits(load: EngineLoad, tasks: int, tokens: int, latency: bool, limits: Limits) -> bool:
    if load.tasks == 0 or not (latency or load.latency_tasks):
        # What is larger than the limit by itself runs alone.
        return True
    return load.tasks + tasks <= limits.tasks and load.tokens + tokens <= limits.tokens
