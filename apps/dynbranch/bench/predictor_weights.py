"""What a name's features weigh before anything is learned: ``python -m dynbranch.bench.predictor_weights``.

Maximum likelihood of a conditional logit with an L2 penalty, by gradient ascent, over the records that
``bench predictors`` keeps out of its figures: MuSiQue and HotpotQA, with and without the workflow's last
step. Prints ``PRIOR`` of ``controller/core/predictors/entities.py``.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence

from dynbranch.controller.core.predictors.entities import FEATURES, found
from dynbranch.records.decisions import Decision, loosely, react
from dynbranch.records.loading import load

PENALTY = 2.0
STEPS = 600
RATE = 0.3

Example = tuple[list[tuple[float, ...]], list[bool]]


def examples(decisions: Iterable[Decision]) -> Iterator[Example]:
    """Features of each name, and which names are right. A question that no name or every name answers says
    nothing."""
    for decision in decisions:
        entities = found(decision.question)
        right = [loosely(entity.name, decision.selection) for entity in entities]
        if decision.tuned and any(right) and not all(right):
            yield [entity.features for entity in entities], right


def fitted(given: Sequence[Example]) -> list[float]:
    weights = [0.0] * len(FEATURES)
    for _ in range(STEPS):
        slope = [-PENALTY * weight for weight in weights]
        for features, right in given:
            _add_slope(slope, weights, features, right)
        weights = [w + RATE * s / len(given) for w, s in zip(weights, slope, strict=True)]
    return weights


def _add_slope(
    slope: list[float], weights: list[float], features: list[tuple[float, ...]], right: list[bool]
) -> None:
    scores = [sum(w * x for w, x in zip(weights, row, strict=True)) for row in features]
    best = max(scores)
    odds = [math.exp(score - best) for score in scores]
    total = sum(odds)
    total_right = sum(odd for odd, is_right in zip(odds, right, strict=True) if is_right)
    for odd, is_right, row in zip(odds, right, features, strict=True):
        pull = (odd / total_right if is_right else 0.0) - odd / total
        for place, value in enumerate(row):
            slope[place] += pull * value


def main() -> None:
    records = load()
    given = [
        example
        for source in ("musique", "hotpot")
        for step in (True, False)
        for example in examples(react(records, source, step=step))
    ]
    for name, weight in zip(FEATURES, fitted(given), strict=True):
        print(f'    "{name}": {round(weight, 1) + 0.0},')


if __name__ == "__main__":
    main()
