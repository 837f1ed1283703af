"""Prometheus metrics of predictors: how often each is right, and the time it takes."""

from __future__ import annotations

from collections.abc import Sequence

from prometheus_client import CollectorRegistry, Counter, Histogram

_SECONDS = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1, 2.5)
_RANKS_TOLD = 3


class PredictorMetrics:
    """Labels are the names of configured predictors, and ``mixture`` for what they propose together."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._answers = Counter(
            "dynbranch_predictor_answers",
            "Answers by what came of asking: ranked, nothing, late, busy, failed.",
            ("predictor", "how"),
            registry=registry,
        )
        self._seconds = Histogram(
            "dynbranch_predictor_seconds",
            "Time until a predictor answered or was given up on.",
            ("predictor",),
            buckets=_SECONDS,
            registry=registry,
        )
        self._selected = Counter(
            "dynbranch_predictor_selected",
            "Resolved branches by the best rank that a selection had: 1, 2, 3, later, missed.",
            ("predictor", "rank"),
            registry=registry,
        )
        self._unlearned = Counter(
            "dynbranch_predictor_unlearned",
            "Resolutions that a predictor did not hear of, since it was too far behind.",
            ("predictor",),
            registry=registry,
        )

    def answered(self, predictor: str, how: str, spent_ms: float) -> None:
        self._answers.labels(predictor, how).inc()
        self._seconds.labels(predictor).observe(spent_ms / 1000)

    def selected(self, predictor: str, ranking: Sequence[str], selections: Sequence[str]) -> None:
        self._selected.labels(predictor, best_rank(ranking, selections)).inc()

    def unlearned(self, predictor: str) -> None:
        self._unlearned.labels(predictor).inc()


def best_rank(ranking: Sequence[str], selections: Sequence[str]) -> str:
    for place, selection in enumerate(ranking, 1):
        if selection in selections:
            return str(place) if place <= _RANKS_TOLD else "later"
    return "missed"
