"""Predictors at work: each in its own lane, never longer than its time, none of them on a canonical path."""

from __future__ import annotations

import asyncio
import logging
import queue
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from importlib.metadata import entry_points
from types import TracebackType
from typing import Protocol, Self

from dynbranch.controller.core.predictors.context import ContextRanker
from dynbranch.controller.core.predictors.history import History
from dynbranch.controller.core.predictors.offer import Offer
from dynbranch.controller.core.predictors.port import Predictor, Question, Resolution
from dynbranch.controller.core.predictors.rates import Mixture
from dynbranch.controller.core.predictors.stream import Stream
from dynbranch.controller.predictor_metrics import PredictorMetrics
from dynbranch.domain.ids import Instant
from dynbranch.domain.template import PredictorUse
from dynbranch.runtime.clock import Clock

_log = logging.getLogger(__name__)

ENTRY_POINTS = "dynbranch.predictors"
"""Whoever installs a package with entry points of this group registers predictors. Each is called with the
parameters that a template gives it, and gives a ``Predictor`` or a ``SlowPredictor``."""

DEADLINE_MS = 50.0
"""A ranker takes about two milliseconds; a window is hundreds long."""

QUEUED = 256
"""What may wait in a lane. Beyond it questions go unanswered and resolutions unlearned, both counted."""


class SlowPredictor(Protocol):
    """A predictor that waits for others, as for an engine. It is cancelled at its deadline."""

    async def propose_slowly(self, question: Question, now: Instant) -> tuple[str, ...]: ...


AnyPredictor = Predictor | SlowPredictor
Factory = Callable[..., AnyPredictor]

BUILT_IN: Mapping[str, Factory] = {
    "history": History,
    "offer": Offer,
    "context": ContextRanker,
    "stream": Stream,
}
"""The draft model needs an engine: who wires one adds it, see ``drafting``."""


class BadPredictor(ValueError):
    """A predictor that can not be had: its name is unknown or taken twice, or its parameters do not fit."""


def registered(more: Iterable[tuple[str, Factory]] | None = None) -> dict[str, Factory]:
    """How each predictor is made: those that ship and ``more``, which are those of entry points where it is
    None. Raises BadPredictor, and whatever importing a package's own code raises."""
    if more is None:
        more = ((point.name, point.load()) for point in entry_points(group=ENTRY_POINTS))
    factories = dict(BUILT_IN)
    for name, factory in more:
        if name in factories:
            raise BadPredictor(f"there is a predictor {name!r} already: rename the other")
        factories[name] = factory
    return factories


def label(use: PredictorUse) -> str:
    """``history``, or ``history(window=500)``: two uses with one label are one predictor."""
    given = ", ".join(f"{key}={value}" for key, value in use.parameters)
    return f"{use.name}({given})" if given else use.name


def made(uses: Iterable[PredictorUse], factories: Mapping[str, Factory]) -> dict[str, AnyPredictor]:
    """The predictors that templates use, by label, each once. Raises BadPredictor."""
    predictors: dict[str, AnyPredictor] = {}
    for use in uses:
        if label(use) in predictors:
            continue
        factory = factories.get(use.name)
        if factory is None:
            raise BadPredictor(f"there is no predictor {use.name!r}; there are: {', '.join(factories)}")
        try:
            predictors[label(use)] = factory(**dict(use.parameters))
        # A template gives the parameters, and a package may bring the code: neither ends the controller.
        except Exception as problem:
            told = f"the predictor {label(use)!r} can not be made: {str(problem) or type(problem).__name__}"
            raise BadPredictor(told) from problem
    return predictors


class Answered(Enum):
    RANKED = "ranked"
    NOTHING = "nothing"
    LATE = "late"
    BUSY = "busy"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Answer:
    """One predictor's. ``spent_ms`` is charged whether or not there is a ranking."""

    ranking: tuple[str, ...]
    spent_ms: float
    how: Answered


@dataclass(frozen=True, slots=True)
class Proposal:
    """``ranked`` merges the rankings by what came true of each before."""

    question: Question
    ranked: tuple[str, ...]
    answers: Mapping[str, Answer] = field(default_factory=dict)

    @property
    def spent_ms(self) -> float:
        return sum(answer.spent_ms for answer in self.answers.values())

    def rankings(self) -> dict[str, tuple[str, ...]]:
        """Those of the predictors that had their say; one that was late says nothing about itself."""
        heard = (Answered.RANKED, Answered.NOTHING)
        return {name: answer.ranking for name, answer in self.answers.items() if answer.how in heard}


class Predicting:
    """Asks predictors side by side and tells them what became of their answers. Use as a context manager."""

    def __init__(
        self,
        predictors: Mapping[str, AnyPredictor],
        clock: Clock,
        metrics: PredictorMetrics,
        *,
        mixture: Mixture | None = None,
    ) -> None:
        self._slow = {n: p for n, p in predictors.items() if not isinstance(p, Predictor)}
        self._lanes = {n: _Lane(n, p) for n, p in predictors.items() if isinstance(p, Predictor)}
        self._order = tuple(predictors)
        self._clock = clock
        self._metrics = metrics
        self._mixture = mixture or Mixture()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for lane in self._lanes.values():
            lane.close()

    @property
    def names(self) -> tuple[str, ...]:
        return self._order

    async def propose(
        self, question: Question, names: Iterable[str] | None = None, *, deadline_ms: float = DEADLINE_MS
    ) -> Proposal:
        """Ask the named predictors, all where none are named. Takes ``deadline_ms`` at most."""
        wanted = [name for name in (self._order if names is None else names) if name in self._order]
        async with asyncio.TaskGroup() as group:
            asked = {
                name: group.create_task(self._ask(name, question, deadline_ms), name=f"predict {name}")
                for name in wanted
            }
        answers = {name: task.result() for name, task in asked.items()}
        rankings = {name: answer.ranking for name, answer in answers.items()}
        ranked = self._mixture.merge(question.coordinate, rankings, question.at_most)
        return Proposal(question, ranked, answers)

    def learn(self, proposal: Proposal, selections: tuple[str, ...]) -> None:
        """What the branch came to. Costs its caller microseconds: the predictors learn in their lanes."""
        rankings = proposal.rankings()
        self._mixture.learn(proposal.question.coordinate, rankings, selections)
        for name, ranking in rankings.items():
            self._metrics.selected(name, ranking, selections)
        self._metrics.selected("mixture", proposal.ranked, selections)
        resolution, now = Resolution(proposal.question, selections), self._clock.now()
        for name, lane in self._lanes.items():
            if not lane.learn(resolution, now):
                self._metrics.unlearned(name)

    async def _ask(self, name: str, question: Question, deadline_ms: float) -> Answer:
        begin = self._clock.now()
        ranking: tuple[str, ...] = ()
        try:
            async with asyncio.timeout(deadline_ms / 1000):
                ranking = await self._ranking(name, question, begin)
            how = Answered.RANKED if ranking else Answered.NOTHING
        except TimeoutError:
            how = Answered.LATE
        except _Busy:
            how = Answered.BUSY
        except Exception:  # noqa: BLE001 -- a predictor may be anybody's code; its faults cost its ranking
            _log.exception("predictor %s failed", name)
            how = Answered.FAILED
        answer = Answer(ranking, (self._clock.now() - begin) * 1000, how)
        self._metrics.answered(name, how.value, answer.spent_ms)
        return answer

    async def _ranking(self, name: str, question: Question, now: Instant) -> tuple[str, ...]:
        slow = self._slow.get(name)
        if slow is not None:
            found = await slow.propose_slowly(question, now)
        else:
            found = await self._lanes[name].propose(question, now)
        return tuple(dict.fromkeys(found))[: question.at_most]


class _Busy(Exception):
    """The lane still works on something older."""


class _Lane:
    """A thread for one predictor, so that one that computes too long holds up nobody, and one that never
    returns costs a thread. It is a daemon: nothing waits for it at the end."""

    def __init__(self, name: str, predictor: Predictor) -> None:
        self._predictor = predictor
        self._waiting: queue.Queue[Callable[[], None] | None] = queue.Queue(QUEUED)
        self._overdue = 0
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._work, name=f"predict-{name}", daemon=True)
        self._name = name
        self._thread.start()

    def close(self) -> None:
        """What waits is dropped."""
        while True:
            try:
                self._waiting.get_nowait()
            except queue.Empty:
                break
        self._waiting.put_nowait(None)

    async def propose(self, question: Question, now: Instant) -> tuple[str, ...]:
        """Raises _Busy while an answer that was given up on is still being computed."""
        with self._lock:
            if self._overdue:
                raise _Busy
        loop = asyncio.get_running_loop()
        told: asyncio.Future[tuple[str, ...]] = loop.create_future()
        given_up = threading.Event()

        def work() -> None:
            ranking: tuple[str, ...] = ()
            failure: BaseException | None = None
            try:
                if not given_up.is_set():
                    ranking = self._predictor.propose(question, now)
            except Exception as error:  # noqa: BLE001 -- it is raised where the answer is awaited
                failure = error
            with self._lock:
                self._overdue -= given_up.is_set()
                finished.set()
            if not loop.is_closed():
                loop.call_soon_threadsafe(_settle, told, ranking, failure)

        finished = threading.Event()
        if not self._put(work):
            raise _Busy
        try:
            return await told
        except asyncio.CancelledError:
            with self._lock:
                if not finished.is_set():
                    given_up.set()
                    self._overdue += 1
            raise

    def learn(self, resolution: Resolution, now: Instant) -> bool:
        """False: the lane is full, and this goes unlearned."""

        def work() -> None:
            try:
                self._predictor.learn(resolution, now)
            except Exception:  # noqa: BLE001 -- as above
                _log.exception("predictor %s failed to learn", self._name)

        return self._put(work)

    def _put(self, work: Callable[[], None]) -> bool:
        try:
            self._waiting.put_nowait(work)
        except queue.Full:
            return False
        return True

    def _work(self) -> None:
        while (work := self._waiting.get()) is not None:
            work()


def _settle(
    told: asyncio.Future[tuple[str, ...]], ranking: tuple[str, ...], failure: BaseException | None
) -> None:
    if told.done():
        return
    if failure is None:
        told.set_result(ranking)
    else:
        told.set_exception(failure)
