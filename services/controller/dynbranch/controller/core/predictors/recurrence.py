"""How often selections were made in a context, with back-off to more general contexts. Memory is bounded."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Bounds:
    """``keep``: what a count is still worth after one more selection in its context, so that old habits fade;
    0.998 halves in 350. ``trust``: how many selections a special context needs to weigh as much as the more
    general one before it."""

    contexts: int = 20_000
    selections: int = 64
    keep: float = 0.998
    trust: float = 2.0


@dataclass(slots=True)
class _Counts:
    by_selection: dict[str, float] = field(default_factory=dict)
    total: float = 0.0
    unit: float = 1.0
    """What the next selection adds. Growing it fades all that is there in one step."""


_RESCALE = 1e12


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


def ranked(shares: Mapping[str, float], at_most: int) -> tuple[str, ...]:
    """The likeliest first; of equals the one that came first in ``shares``."""
    return tuple(sorted(shares, key=lambda selection: -shares[selection])[:at_most])
