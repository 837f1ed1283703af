"""How often selections were made in a context, with back-off to more general contexts. Memory is bounded."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Bounds:
    """``window``: about how many selections of a context count, the newest most, so that old habits fade.
    ``trust``: how many selections a special context needs to weigh as much as the more general one before
    it."""

    contexts: int = 20_000
    selections: int = 64
    window: float = 500.0
    trust: float = 2.0

    def __post_init__(self) -> None:
        if self.window < 2:
            raise ValueError(f"a window of {self.window} selections remembers nothing: give it at least 2")

    @property
    def keep(self) -> float:
        """What a count is still worth after one more selection in its context."""
        return 1.0 - 1.0 / self.window


@dataclass(slots=True)
class _Counts:
    by_selection: dict[str, float] = field(default_factory=dict)
    total: float = 0.0
    unit: float = 1.0
    """What the next selection adds. Growing it fades all that is there in one step."""


_RESCALE = 1e12
_LEAST_SHARE = 1e-3
"""What a selection that was never seen is taken to have had: one surprise may not decide for good."""


class Recurrence:
    """The context that was longest untouched goes first, and in a context the rarest selection."""

    def __init__(self, bounds: Bounds) -> None:
        self._bounds = bounds
        self._contexts: OrderedDict[Hashable, _Counts] = OrderedDict()

    def __len__(self) -> int:
        return len(self._contexts)

    def shares(self, contexts: Sequence[Hashable], base: Mapping[str, float]) -> dict[str, float]:
        """How likely each selection is, from ``base`` through ever more special contexts."""
        shares = dict(base)
        for context in contexts:
            counts = self._contexts.get(context)
            if counts is None:
                continue
            weight = self._bounds.trust * counts.unit
            scale = 1.0 / (counts.total + weight)
            for selection in counts.by_selection.keys() | shares.keys():
                seen = counts.by_selection.get(selection, 0.0)
                shares[selection] = (seen + weight * shares.get(selection, 0.0)) * scale
        return shares

    def count(self, contexts: Sequence[Hashable], selection: str) -> None:
        for context in contexts:
            counts = self._contexts.get(context)
            if counts is None:
                counts = self._contexts[context] = _Counts()
            self._contexts.move_to_end(context)
            self._add(counts, selection)
        while len(self._contexts) > self._bounds.contexts:
            self._contexts.popitem(last=False)

    def validate_state(self) -> None:
        assert len(self._contexts) <= self._bounds.contexts
        for counts in self._contexts.values():
            assert 0 < len(counts.by_selection) <= self._bounds.selections
            assert abs(counts.total - sum(counts.by_selection.values())) <= 1e-6 * counts.total

    def _add(self, counts: _Counts, selection: str) -> None:
        counts.unit /= self._bounds.keep
        counts.by_selection[selection] = counts.by_selection.get(selection, 0.0) + counts.unit
        counts.total += counts.unit
        if len(counts.by_selection) > self._bounds.selections:
            rarest = min(counts.by_selection, key=lambda name: (counts.by_selection[name], name))
            counts.total -= counts.by_selection.pop(rarest)
        if counts.unit > _RESCALE:
            counts.by_selection = {name: n / counts.unit for name, n in counts.by_selection.items()}
            counts.total, counts.unit = sum(counts.by_selection.values()), 1.0


@dataclass(slots=True)
class _Depth:
    """How well shares from contexts up to one depth foretold, as a fading mean."""

    surprise: float = 0.0
    weight: float = 0.0

    def mean(self) -> float:
        return self.surprise / self.weight if self.weight else 0.0


class BackOff:
    """Recurrence that learns per group (a coordinate) how special a context pays.

    Contexts stand from the most general to the most special. For each depth it keeps how surprising the
    selections were (the mean of -log of their share), and answers from the least surprising one: where people
    pick alike in all contexts, special contexts only split what is known.
    """

    def __init__(self, bounds: Bounds) -> None:
        self._bounds = bounds
        self._seen = Recurrence(bounds)
        self._depths: OrderedDict[Hashable, dict[int, _Depth]] = OrderedDict()

    def shares(
        self, group: Hashable, contexts: Sequence[Hashable], base: Mapping[str, float]
    ) -> dict[str, float]:
        depths = self._depths.get(group, {})
        best = min(
            range(1, len(contexts) + 1),
            # Of depths that are equally good, the most special.
            key=lambda depth: (depths[depth].mean() if depth in depths else 0.0, -depth),
            default=0,
        )
        return self._seen.shares(contexts[:best], base)

    def learn(
        self, group: Hashable, contexts: Sequence[Hashable], base: Mapping[str, float], selection: str
    ) -> None:
        depths = self._depths.setdefault(group, {})
        self._depths.move_to_end(group)
        while len(self._depths) > self._bounds.contexts:
            self._depths.popitem(last=False)
        shares = dict(base)
        for depth, context in enumerate(contexts, 1):
            shares = self._seen.shares([context], shares)
            tally = depths.setdefault(depth, _Depth())
            surprise = -math.log(max(shares.get(selection, 0.0), _LEAST_SHARE))
            tally.surprise = tally.surprise * self._bounds.keep + surprise
            tally.weight = tally.weight * self._bounds.keep + 1.0
        self._seen.count(contexts, selection)

    def validate_state(self) -> None:
        self._seen.validate_state()
        assert len(self._depths) <= self._bounds.contexts


def ranked(shares: Mapping[str, float], at_most: int) -> tuple[str, ...]:
    """The likeliest first; of equals the one that came first in ``shares``."""
    return tuple(sorted(shares, key=lambda selection: -shares[selection])[:at_most])
