"""The gate before a branch's fills: a port, and the three policies that learn nothing.

Two questions, as in the paper's two levels: may the branch spend anything at all, and which of its candidates
run, in which order. Every refusal says why.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Protocol

from dynbranch.controller.core.branches.experience import EngineLoad, Experience
from dynbranch.controller.core.predictors.port import Coordinate
from dynbranch.domain.ids import BranchId, FillId, Instant, TrialId
from dynbranch.domain.template import Branching, Window


@dataclass(frozen=True, slots=True)
class LoadView:
    """``unplaced``: stages of fills that have no engine yet, and will have one within moments."""

    engines: tuple[EngineLoad, ...] = ()
    unplaced: int = 0

    @property
    def free(self) -> int:
        return sum(engine.free for engine in self.engines if engine.serves_models)

    @property
    def waiting(self) -> int:
        return sum(engine.waiting for engine in self.engines if engine.serves_models)


@dataclass(frozen=True, slots=True)
class Asked:
    """The branch as a policy sees it."""

    branch_id: BranchId
    trial_id: TrialId
    coordinate: Coordinate
    window: Window
    branching: Branching
    opened: Instant
    now: Instant
    admitted: int = 0
    """Fills that it has already."""


@dataclass(frozen=True, slots=True)
class Offered:
    """One candidate. ``rank`` counts from 0; ``chain`` are the stages that would run. ``seen``: the choice
    shows in the decode already, so it is no guess any more. ``spoken``: the decode speaks of it, which is
    less. ``only_tools``: no stage needs a model."""

    selection: str
    rank: int
    fill_id: FillId
    chain: tuple[str, ...]
    seen: bool = False
    only_tools: bool = False
    spoken: bool = False

    @property
    def guessed(self) -> bool:
        """Nothing in the decode tells of it: it counts among the first ``width``."""
        return not (self.seen or self.spoken)


@dataclass(frozen=True, slots=True)
class Decision:
    opens: bool
    reason: str = ""
    numbers: tuple[tuple[str, float], ...] = ()


@dataclass(frozen=True, slots=True)
class Verdict:
    """Of one candidate. ``numbers`` are what it was decided on, by name, ``engine`` where it was priced."""

    selection: str
    admitted: bool
    reason: str
    numbers: tuple[tuple[str, float], ...] = ()
    engine: str = ""


class Admission(Protocol):
    """Pure: the load is an argument, as the load after the candidates before is its own projection."""

    def open(self, asked: Asked, load: LoadView) -> Decision: ...

    def admit(self, asked: Asked, offered: Sequence[Offered], load: LoadView) -> tuple[Verdict, ...]:
        """One verdict per candidate, in the order in which the admitted ones shall start."""
        ...

    def hear(self, news: Experience, now: Instant) -> None: ...

    def validate_state(self) -> None: ...


class PolicyName(Enum):
    OFF = "off"
    ALWAYS = "always"
    STATIC = "static"
    PRICED = "priced"


class Unlearning:
    """What became of branches changes nothing."""

    __slots__ = ()

    def hear(self, news: Experience, now: Instant) -> None:
        pass

    def validate_state(self) -> None:
        pass


class Off(Unlearning):
    def open(self, asked: Asked, load: LoadView) -> Decision:
        return Decision(False, "the policy is off")

    def admit(self, asked: Asked, offered: Sequence[Offered], load: LoadView) -> tuple[Verdict, ...]:
        return tuple(Verdict(one.selection, False, "the policy is off") for one in offered)


@dataclass(frozen=True, slots=True)
class Always(Unlearning):
    """The first ``width`` candidates, whatever the load; what the decode tells of comes on top."""

    width: int

    def open(self, asked: Asked, load: LoadView) -> Decision:
        return Decision(True, "always")

    def admit(self, asked: Asked, offered: Sequence[Offered], load: LoadView) -> tuple[Verdict, ...]:
        verdicts = []
        taken = asked.admitted
        for one in offered:
            if one.guessed and taken >= self.width:
                reason = f"beyond the first {self.width}"
                verdicts.append(Verdict(one.selection, False, reason, (("rank", one.rank + 1),)))
                continue
            taken += one.guessed
            verdicts.append(Verdict(one.selection, True, "always", (("rank", one.rank + 1),)))
        return tuple(verdicts)


@dataclass(frozen=True, slots=True)
class Static(Unlearning):
    """Fixed thresholds: at least ``min_free`` free slots and at most ``max_waiting`` requests in queues. Each
    admitted fill takes one of the free slots from those after it."""

    width: int
    min_free: int = 3
    max_waiting: int = 2

    def open(self, asked: Asked, load: LoadView) -> Decision:
        reason = self._against(load.free, load.waiting)
        return Decision(not reason, reason or "free enough", _seen(load.free, load.waiting))

    def admit(self, asked: Asked, offered: Sequence[Offered], load: LoadView) -> tuple[Verdict, ...]:
        verdicts = []
        free, taken = load.free, asked.admitted
        for one in offered:
            numbers = (("rank", float(one.rank + 1)), *_seen(free, load.waiting))
            reason = self._against(free, load.waiting)
            if one.guessed and taken >= self.width:
                reason = f"beyond the first {self.width}"
            if not reason:
                free -= 1
                taken += one.guessed
            verdicts.append(Verdict(one.selection, not reason, reason or "free enough", numbers))
        return tuple(verdicts)

    def _against(self, free: int, waiting: int) -> str:
        if free < self.min_free:
            return f"{free} free slots, fewer than {self.min_free}"
        if waiting > self.max_waiting:
            return f"{waiting} requests wait, more than {self.max_waiting}"
        return ""


def _seen(free: int, waiting: int) -> tuple[tuple[str, float], ...]:
    return (("free_slots", float(free)), ("waiting", float(waiting)))
