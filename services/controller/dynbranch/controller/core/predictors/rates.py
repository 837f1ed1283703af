"""How often the first, second, … of a ranking comes true: the only probabilities that predictors get."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field

RANKS = 8
_PRIOR_WEIGHT = 4.0
_FIRST_PRIOR = 0.4
"""Before anything is seen: the first of a ranking comes true in two of five, the next in half as many …"""


@dataclass(slots=True)
class _Tally:
    hits: list[float] = field(default_factory=lambda: [0.0] * RANKS)
    asked: list[float] = field(default_factory=lambda: [0.0] * RANKS)


def _mean(tally: _Tally, rank: int, before: float) -> float:
    return (tally.hits[rank] + _PRIOR_WEIGHT * before) / (tally.asked[rank] + _PRIOR_WEIGHT)


class RankRates:
    """Per key (a coordinate, or a predictor at a coordinate) and rank. A key that is new starts from what all
    keys together say. Memory is bounded: the key that was longest untouched goes first."""

    def __init__(self, *, keys: int = 4096, keep: float = 0.998) -> None:
        self._most = keys
        self._keep = keep
        self._all = _Tally()
        self._tallies: OrderedDict[Hashable, _Tally] = OrderedDict()

    def rate(self, key: Hashable, rank: int) -> float:
        """The mean share of times that rank ``rank`` (0 is the first) was selected."""
        rank = min(rank, RANKS - 1)
        overall = _mean(self._all, rank, _FIRST_PRIOR * 0.5**rank)
        tally = self._tallies.get(key)
        return overall if tally is None else _mean(tally, rank, overall)

    def learn(self, key: Hashable, proposed: Sequence[str], selections: Sequence[str]) -> None:
        tally = self._tallies.setdefault(key, _Tally())
        self._tallies.move_to_end(key)
        while len(self._tallies) > self._most:
            self._tallies.popitem(last=False)
        for rank, selection in enumerate(proposed[:RANKS]):
            for each in (tally, self._all):
                each.hits[rank] = each.hits[rank] * self._keep + (selection in selections)
                each.asked[rank] = each.asked[rank] * self._keep + 1.0

    def validate_state(self) -> None:
        assert len(self._tallies) <= self._most
        for tally in (self._all, *self._tallies.values()):
            assert all(0 <= hits <= asked + 1e-9 for hits, asked in zip(tally.hits, tally.asked, strict=True))


class Mixture:
    """Merges the rankings of several predictors by how often each rank of each came true here.

    A candidate that several name counts for more: the chance that at least one of them is right, as if they
    erred apart from one another. That overstates the chance, and only the order is used.
    """

    def __init__(self, rates: RankRates | None = None) -> None:
        self._rates = rates or RankRates()

    def merge(
        self, coordinate: Hashable, rankings: Mapping[str, Sequence[str]], at_most: int
    ) -> tuple[str, ...]:
        """Ties go to the predictor that is named first."""
        missing: dict[str, float] = {}
        for predictor, ranking in rankings.items():
            for rank, selection in enumerate(dict.fromkeys(ranking)):
                wrong = 1.0 - self._rates.rate((coordinate, predictor), rank)
                missing[selection] = missing.get(selection, 1.0) * wrong
        return tuple(sorted(missing, key=lambda selection: missing[selection])[:at_most])

    def learn(
        self, coordinate: Hashable, rankings: Mapping[str, Sequence[str]], selections: Sequence[str]
    ) -> None:
        for predictor, ranking in rankings.items():
            self._rates.learn((coordinate, predictor), tuple(dict.fromkeys(ranking)), selections)

    def validate_state(self) -> None:
        self._rates.validate_state()
