"""What the controller has seen: reported events folded into a summary of bounded size."""

from __future__ import annotations

from collections import Counter, OrderedDict
from dataclasses import dataclass
from typing import assert_never

from dynbranch.controller.core.numbering import Numbering
from dynbranch.domain.events import (
    ArrivalSeen,
    ChoiceSeen,
    ControllerSummary,
    EventBatch,
    GatewayEvent,
    OutcomeSeen,
)
from dynbranch.domain.ids import Instant

OUTCOMES = frozenset({"hit", "promoted", "adopted", "joined", "miss", "bypass"})
OTHER_OUTCOME = "other"
"""Stands for whatever a gateway of another version says, so that no peer can grow the summary."""

_MAX_COUNT = 2**64 - 1


@dataclass(frozen=True, slots=True)
class Limits:
    """How much is remembered of whom. The longest silent goes first."""

    reporters: int = 1024
    """A reporter is one life of one gateway; a thousand outlast any rollout."""
    reporter_silence_s: float = 3600.0
    """After so long nothing of a reporter is still on its way."""
    workflows: int = 100_000
    """About 20 MB. A workflow that comes back after it was forgotten counts again."""


@dataclass(frozen=True, slots=True)
class Received:
    """What one batch brought: the events that were new, and how many were not."""

    fresh: tuple[GatewayEvent, ...]
    duplicates: int


@dataclass(slots=True)
class _Reporter:
    numbering: Numbering
    last_heard: Instant


class Journal:
    """Folds batches. Events are recognised by reporter and number: a redelivered one counts once, a number
    that was passed over counts as lost until it comes."""

    def __init__(self, limits: Limits | None = None) -> None:
        self._limits = limits or Limits()
        self._reporters: OrderedDict[str, _Reporter] = OrderedDict()
        self._workflows: OrderedDict[tuple[str, str, str], None] = OrderedDict()
        self._workflows_seen = 0
        self._arrivals = 0
        self._outcomes: Counter[str] = Counter()
        self._saved_ms = 0.0
        self._duplicates = 0
        self._lost_of_forgotten = 0

    def handle(self, batch: EventBatch, now: Instant) -> Received:
        if not batch.events:
            return Received((), 0)
        numbering = self._numbering(batch, now)
        fresh = tuple(
            event for number, event in enumerate(batch.events, batch.first_number) if numbering.claim(number)
        )
        for event in fresh:
            self._fold(event)
        duplicates = len(batch.events) - len(fresh)
        self._duplicates += duplicates
        self._forget(now)
        return Received(fresh, duplicates)

    def summary(self) -> ControllerSummary:
        lost = self._lost_of_forgotten + sum(known.numbering.lost for known in self._reporters.values())
        return ControllerSummary(
            arrivals=self._arrivals,
            outcomes=tuple(sorted(self._outcomes.items())),
            saved_ms=self._saved_ms,
            workflows=self._workflows_seen,
            duplicates=self._duplicates,
            lost=min(lost, _MAX_COUNT),
        )

    def validate_state(self) -> None:
        assert len(self._reporters) <= self._limits.reporters
        assert len(self._workflows) <= min(self._limits.workflows, self._workflows_seen)
        heard = [known.last_heard for known in self._reporters.values()]
        assert heard == sorted(heard)
        for known in self._reporters.values():
            known.numbering.validate_state()

    def _numbering(self, batch: EventBatch, now: Instant) -> Numbering:
        known = self._reporters.get(batch.reporter)
        if known is None:
            known = self._reporters[batch.reporter] = _Reporter(Numbering(batch.first_number), now)
        known.last_heard = now
        self._reporters.move_to_end(batch.reporter)
        return known.numbering

    def _fold(self, event: GatewayEvent) -> None:
        match event:
            case ArrivalSeen():
                self._arrivals += 1
                self._see_workflow(event)
            case OutcomeSeen():
                self._outcomes[event.outcome if event.outcome in OUTCOMES else OTHER_OUTCOME] += 1
                self._saved_ms += event.saved_ms
            case ChoiceSeen():
                pass
            case _:
                assert_never(event)

    def _see_workflow(self, event: ArrivalSeen) -> None:
        who = event.identity
        if not who.workflow_id:
            return
        key = (who.tenant, who.workflow_type_id, who.workflow_id)
        if key not in self._workflows:
            self._workflows_seen += 1
        self._workflows[key] = None
        self._workflows.move_to_end(key)

    def _forget(self, now: Instant) -> None:
        while len(self._workflows) > self._limits.workflows:
            self._workflows.popitem(last=False)
        while self._reporters:
            longest_silent = next(iter(self._reporters.values()))
            silent = now - longest_silent.last_heard > self._limits.reporter_silence_s
            if not silent and len(self._reporters) <= self._limits.reporters:
                return
            self._lost_of_forgotten += longest_silent.numbering.lost
            self._reporters.popitem(last=False)
