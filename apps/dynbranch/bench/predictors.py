"""How well predictors foretell decisions that really fell, at what cost, and when a decode tells its choice.

Prequential: at each decision the predictor proposes, is judged, and only then learns what was selected. The
order is that of the records. Figures are over the records that no parameter was chosen on (three fifths, by a
hash of their id); the predictor sees and learns from all. ``raw`` has both parts.

The interval of a share is the percentile bootstrap over whole requests, questions, dialogues or runs, since
decisions of one depend on one another. It takes what was learned as given.
"""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dynbranch.bench.predictor_visibility import visibility_figures
from dynbranch.bench.result import Measured, Tell
from dynbranch.controller.core.predictors.context import ContextRanker
from dynbranch.controller.core.predictors.history import History
from dynbranch.controller.core.predictors.offer import Offer
from dynbranch.controller.core.predictors.port import Predictor, Question, Resolution
from dynbranch.controller.core.predictors.rates import Mixture
from dynbranch.demo.measures import Figure, median
from dynbranch.domain.ids import Instant
from dynbranch.records.decisions import (
    NEXT_INTENT,
    Decision,
    Same,
    commands,
    dialogues,
    exactly,
    loosely,
    react,
    routing,
    strictly,
    subagents,
)
from dynbranch.records.loading import Records, load

TOP = (1, 2, 3)
RESAMPLES = 2000
TIMED = ("routing", "react musique", "hci next intent")
TIMED_PROPOSALS = 500
_SEED = 7
_NOW = Instant(0.0)
"""The built-in predictors go by order, not by time."""


@dataclass(frozen=True, slots=True)
class View:
    """The decisions of some kinds among those of a trial; of all where none are named. ``figures``: which of
    their shares are figures, by key."""

    name: str
    kinds: tuple[str, ...] = ()
    figures: tuple[tuple[str, int], ...] = ()


@dataclass(frozen=True, slots=True)
class Trial:
    """One predictor on one stream of decisions."""

    name: str
    decisions: Callable[[Records], Iterable[Decision]]
    make: Callable[[], Predictor]
    same: Same = exactly
    views: tuple[View, ...] = ()

    @property
    def shown(self) -> tuple[View, ...]:
        return self.views or (View(self.name),)


@dataclass(slots=True)
class Seen:
    """``rank`` counts from 1; 0: not proposed."""

    record: str
    tuned: bool
    kind: str
    rank: int
    spent_ms: float


@dataclass(slots=True)
class All:
    """Every predictor that ships, mixed by what came true of each."""

    predictors: dict[str, Predictor] = field(
        default_factory=lambda: {"history": History(), "offer": Offer(), "context": ContextRanker()}
    )
    mixture: Mixture = field(default_factory=Mixture)

    def propose(self, question: Question, now: Instant) -> tuple[str, ...]:
        return self.mixture.merge(question.coordinate, self._rankings(question, now), question.at_most)

    def learn(self, resolution: Resolution, now: Instant) -> None:
        question = resolution.question
        rankings = self._rankings(question, now)
        self.mixture.learn(question.coordinate, rankings, resolution.selections)
        for predictor in self.predictors.values():
            predictor.learn(resolution, now)

    def _rankings(self, question: Question, now: Instant) -> dict[str, tuple[str, ...]]:
        return {name: predictor.propose(question, now) for name, predictor in self.predictors.items()}


class AsGiven:
    """Candidates in the order in which they come with the data: what a ranking has to beat."""

    def propose(self, question: Question, now: Instant) -> tuple[str, ...]:
        return tuple(candidate.selection for candidate in question.candidates or ())[: question.at_most]

    def learn(self, resolution: Resolution, now: Instant) -> None:
        """It knows nothing."""


def _musique(*, step: bool = True, given: bool = False) -> Callable[[Records], Iterable[Decision]]:
    return lambda records: react(records, "musique", step=step, given=given)


def _hotpot(*, step: bool = True, given: bool = False) -> Callable[[Records], Iterable[Decision]]:
    return lambda records: react(records, "hotpot", step=step, given=given)


def _blind(records: Records) -> Iterable[Decision]:
    return dialogues(records, services=False)


def _next_intents(records: Records) -> Iterable[Decision]:
    return (decision for decision in dialogues(records) if decision.kind in NEXT_INTENT)


def _view(name: str, *kinds: str, **figures: int) -> View:
    return View(name, kinds, tuple(figures.items()))


def trials() -> tuple[Trial, ...]:
    return (*_of_routing(), *_of_react(), *_of_dialogues(), *_of_the_past())


def _of_routing() -> Iterable[Trial]:
    view = _view("routing", routing_top1=1, routing_top2=2, routing_top3=3)
    yield Trial("routing", routing, ContextRanker, views=(view,))
    yield Trial("routing, all predictors", routing, All)
    yield Trial("routing, as listed", routing, AsGiven)


def _of_react() -> Iterable[Trial]:
    musique, hotpot = "react musique", "react hotpot"
    loose = _view(musique, react_musique_top1=1, react_musique_top2=2, react_musique_top3=3)
    strict = _view(f"{musique}, strict", react_musique_strict_top3=3)
    question = _view(f"{musique}, question only", react_musique_question_only_top3=3)
    yield Trial(musique, _musique(), ContextRanker, loosely, (loose,))
    yield Trial(strict.name, _musique(), ContextRanker, strictly, (strict,))
    yield Trial(question.name, _musique(step=False), ContextRanker, loosely, (question,))
    yield Trial(f"{musique}, given candidates", _musique(given=True), ContextRanker, loosely)
    yield Trial(f"{musique}, given candidates as given", _musique(given=True), AsGiven, loosely)
    yield Trial(f"{musique}, all predictors", _musique(), All, loosely)
    yield Trial(hotpot, _hotpot(), ContextRanker, loosely, (_view(hotpot, react_hotpot_top3=3),))
    yield Trial(f"{hotpot}, strict", _hotpot(), ContextRanker, strictly)
    yield Trial(f"{hotpot}, given candidates as given", _hotpot(given=True), AsGiven, loosely)


def _of_dialogues() -> Iterable[Trial]:
    known = (
        _view("hci next intent", *NEXT_INTENT, hci_intent_top1=1, hci_intent_top2=2),
        _view("hci offered intent", "OFFER_INTENT"),
        _view("hci anything more", "REQ_MORE"),
        _view("hci confirm", "CONFIRM", hci_confirm_top1=1),
        _view("hci offer", "OFFER", hci_offer_top1=1, hci_offer_top3=3),
        _view("hci value", "VALUE"),
    )
    unknown = "services not known"
    blind = _view(f"hci next intent, {unknown}", *NEXT_INTENT, hci_intent_blind_top1=1)
    yield Trial("hci", dialogues, Offer, views=known)
    offered = _view(f"hci offered intent, {unknown}", "OFFER_INTENT")
    yield Trial(f"hci, {unknown}", _blind, Offer, views=(blind, offered))
    yield Trial("hci next intent, all predictors", _next_intents, All)


def _of_the_past() -> Iterable[Trial]:
    yield Trial("subagent", subagents, History, views=(_view("subagent", subagent_top1=1),))
    command = _view("commands", commands_top1=1, commands_top3=3)
    yield Trial("commands", commands, History, views=(command,))


def measure(tell: Tell, *, data: Path | None = None, decodes: bool = True) -> Measured:
    """``data``: a folder of records instead of the package's own. ``decodes``: run the embedded model too."""
    records = load(data)
    figures: dict[str, Figure] = {}
    shares: dict[str, Any] = {}
    todo = trials()
    for number, trial in enumerate(todo):
        tell(trial.name, number, len(todo))
        seen = run(trial, records)
        for view in trial.shown:
            viewed = [one for one in seen if not view.kinds or one.kind in view.kinds]
            apart = [one for one in viewed if not one.tuned]
            shares[view.name] = {"apart": _shares(apart), "all": _shares(viewed)} | _spent(viewed)
            figures |= {key: top_share(apart, top) for key, top in view.figures}
            if view.name in TIMED:
                key = view.name.replace(" ", "_")
                figures[f"{key}_propose_ms"] = _median_ms(viewed)
    shown, raw_decodes = visibility_figures(records, tell, run_model=decodes)
    raw = {
        "records": records.where,
        "interval": "95 %, percentile bootstrap over whole records",
        "shares": shares,
        "decodes": raw_decodes,
    }
    failures = tuple(f"{key} has no records" for key, figure in figures.items() if not figure.n)
    return Measured(figures | shown, raw, failures)


def run(trial: Trial, records: Records) -> list[Seen]:
    """Propose, judge, learn, one decision after the other."""
    predictor = trial.make()
    seen: list[Seen] = []
    for decision in trial.decisions(records):
        begin = time.perf_counter()
        proposed = predictor.propose(decision.question, _NOW)
        spent_ms = (time.perf_counter() - begin) * 1e3
        right = (place for place, name in enumerate(proposed, 1) if trial.same(name, decision.selection))
        seen.append(Seen(decision.record, decision.tuned, decision.kind, next(right, 0), spent_ms))
        predictor.learn(Resolution(decision.question, (decision.selection,)), _NOW)
    return seen


def top_share(seen: Sequence[Seen], top: int) -> Figure:
    """The share of decisions whose selection was among the first ``top``."""
    if not seen:
        return Figure(0.0, 0.0, 0.0, 0)
    by_record: dict[str, list[bool]] = {}
    for one in seen:
        by_record.setdefault(one.record, []).append(0 < one.rank <= top)
    counts = [(sum(hits), len(hits)) for hits in by_record.values()]
    chance = random.Random(_SEED)
    shares = sorted(_share(chance.choices(counts, k=len(counts))) for _ in range(RESAMPLES))
    low, high = shares[round(0.025 * (RESAMPLES - 1))], shares[round(0.975 * (RESAMPLES - 1))]
    value = _share(counts)
    return Figure(value, min(low, value), max(high, value), len(seen))


def _share(counts: Sequence[tuple[int, int]]) -> float:
    return sum(hits for hits, _ in counts) / sum(size for _, size in counts)


def _shares(seen: Sequence[Seen]) -> dict[str, Any]:
    found: dict[str, Any] = {"decisions": len(seen), "records": len({one.record for one in seen})}
    if seen:
        found |= {f"top{top}": sum(0 < one.rank <= top for one in seen) / len(seen) for top in TOP}
    return found


def _median_ms(seen: Sequence[Seen]) -> Figure:
    """Of the last proposals: a predictor that has learned much has more to weigh."""
    spent = [one.spent_ms for one in seen[-TIMED_PROPOSALS:]]
    return median(spent) if spent else Figure(0.0, 0.0, 0.0, 0)


def _spent(seen: Sequence[Seen]) -> dict[str, float]:
    spent = sorted(one.spent_ms for one in seen)
    if not spent:
        return {}
    return {
        "propose_ms_p50": round(statistics.median(spent), 4),
        "propose_ms_p99": round(spent[min(len(spent) - 1, len(spent) * 99 // 100)], 4),
    }
