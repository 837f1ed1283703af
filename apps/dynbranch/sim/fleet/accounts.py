"""What running ahead cost and brought, workflow by workflow, and how full the engines were."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

from dynbranch.sim.fleet.engines import Fleet
from dynbranch.sim.heap import EventHeap


@dataclass(slots=True)
class Account:
    """Of one workflow. Seconds are of an engine's slot.

    ``opened``: branches; ``refused``: those for which nothing was predicted, by Action 0 or the policy.
    ``fills`` are those of which a stage ran, ``stages`` all of theirs; ``consumed`` those of which a demand
    took a stage. ``discarded_s``: of stages that nobody took. Whoever drafts on engines counts it in
    ``draft_s``.
    """

    opened: int = 0
    refused: int = 0
    predictions: int = 0
    fills: int = 0
    stages: int = 0
    consumed: int = 0
    used_s: float = 0.0
    discarded_s: float = 0.0
    draft_s: float = 0.0

    @property
    def consumed_s(self) -> float:
        return self.used_s - self.discarded_s

    def __add__(self, other: Account) -> Account:
        return Account(
            self.opened + other.opened,
            self.refused + other.refused,
            self.predictions + other.predictions,
            self.fills + other.fills,
            self.stages + other.stages,
            self.consumed + other.consumed,
            self.used_s + other.used_s,
            self.discarded_s + other.discarded_s,
            self.draft_s + other.draft_s,
        )


@dataclass(frozen=True, slots=True)
class Price:
    """One candidate that was priced, when, and at which p*."""

    at_s: float
    threshold: float
    admitted: bool


@dataclass(slots=True)
class Accounts:
    """By the workflow's number."""

    workflows: defaultdict[int, Account] = field(default_factory=lambda: defaultdict(Account))
    prices: list[Price] = field(default_factory=list)


@runtime_checkable
class Accounted(Protocol):
    """A serving that says what it spent. Others spend nothing ahead of a demand."""

    @property
    def accounts(self) -> Accounts: ...


@dataclass(frozen=True, slots=True)
class Slice:
    """Means over one slice of time, of all engines: requests that run and that wait, of both those that ran
    ahead, and the share of the KV pool that is held. ``slots`` are those of all engines."""

    at_s: float
    running: float
    waiting: float
    ahead: float
    kv_share: float
    slots: int

    @property
    def utilisation(self) -> float:
        return self.running / self.slots


class Meter:
    """Looks at every engine every ``every_s``, for as long as anything is looked at. Not all of a fleet of a
    thousand: ``at_most`` of it, evenly."""

    def __init__(
        self, heap: EventHeap, fleet: Fleet, *, every_s: float = 1.0, slice_s: float = 10.0, at_most: int = 64
    ) -> None:
        step = max(1, len(fleet.places) // at_most)
        self._looked_at = fleet.places[::step]
        self._share = len(fleet.places) / len(self._looked_at)
        self._heap = heap
        self._every_s = every_s
        self._slots = fleet.parameters.slots * len(fleet.places)
        self._looks = max(1, round(slice_s / every_s))
        self._sums = [0.0] * 4
        self._count = 0
        self._began = 0.0
        self.slices: list[Slice] = []
        heap.after(every_s, self._look)

    def _look(self) -> None:
        sums = self._sums
        for place in self._looked_at:
            gauges = place.model.gauges
            sums[0] += gauges.running
            sums[1] += gauges.waiting
            sums[2] += place.ahead
            sums[3] += gauges.kv_used_share
        self._count += 1
        if self._count == self._looks:
            running, waiting, ahead, kv = (value / self._count for value in sums)
            found = Slice(
                self._began,
                running * self._share,
                waiting * self._share,
                ahead * self._share,
                kv / len(self._looked_at),
                self._slots,
            )
            self.slices.append(found)
            self._sums, self._count, self._began = [0.0] * 4, 0, self._heap.now
        self._heap.after(self._every_s, self._look)


def total(accounts: Mapping[int, Account]) -> Account:
    return sum(accounts.values(), Account())
