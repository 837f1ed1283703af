"""How far DSP plans ahead: as many steps as its drafts are expected to stay right, learned as it runs.

Dynamic speculative planning learns by temporal differences how many consecutive drafts will be right from a
state on. Here a state is its class, and what is learned its running mean (an expectile of 0.5 is a mean).
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field


def returns(right: Sequence[bool], ahead: Sequence[float], lam: float) -> tuple[float, ...]:
    """Of each step, how many consecutive drafts were right from it on: the λ-return.

    ``ahead``: what was expected of each step. λ of 1 counts; below 1 each step's count leans on what was
    expected of the next one.
    """
    found: list[float] = []
    later, expected = 0.0, 0.0
    for was_right, value in zip(reversed(right), reversed(ahead), strict=True):
        later = 1 + (1 - lam) * expected + lam * later if was_right else 0.0
        expected = value
        found.append(later)
    return tuple(reversed(found))


@dataclass(slots=True)
class _Mean:
    count: int = 0
    value: float = 0.0


@dataclass(slots=True)
class PlanDepth:
    """``offset``: deeper trades tokens for time, shallower the other way. Depth 1 until ``trained`` steps of
    a class were seen."""

    offset: int = 0
    lam: float = 0.95
    trained: int = 16
    _classes: dict[Hashable, _Mean] = field(default_factory=dict)

    def expected(self, state: Hashable) -> float:
        known = self._classes.get(state)
        return 0.0 if known is None else known.value

    def depth(self, state: Hashable) -> int:
        known = self._classes.get(state)
        if known is None or known.count < self.trained:
            return 1
        return max(1, round(known.value) + self.offset)

    def learn(self, steps: Sequence[tuple[Hashable, bool]]) -> None:
        """Consecutive drafts of one workflow, up to the first that was wrong or to the end."""
        ahead = [self.expected(state) for state, _ in steps]
        found = returns([right for _, right in steps], ahead, self.lam)
        for (state, _), value in zip(steps, found, strict=True):
            mean = self._classes.setdefault(state, _Mean())
            mean.count += 1
            mean.value += (value - mean.value) / mean.count


def first_mismatch(drafted: Sequence[tuple[str, ...]], real: Sequence[tuple[str, ...]]) -> int | None:
    """The place of the first draft that is not exactly what the target says; None: all are, as far as it has
    said anything."""
    for place, (draft, said) in enumerate(zip(drafted, real, strict=False)):
        if draft != said:
            return place
    return None
