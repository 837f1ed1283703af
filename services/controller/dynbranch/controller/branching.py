"""The book of branches at work: what gateways tell and what the store settles goes in, effects come out."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter, OrderedDict
from collections.abc import Coroutine
from contextlib import aclosing
from dataclasses import replace
from functools import partial
from types import TracebackType
from typing import Any, Self, assert_never

from dynbranch.clients.ports import Unreachable
from dynbranch.controller.agents import Agents
from dynbranch.controller.branch_metrics import BranchMetrics
from dynbranch.controller.branch_spans import BranchSpans
from dynbranch.controller.core.branches.book import BranchBook
from dynbranch.controller.core.branches.messages import (
    AbortGeneration,
    CandidatesProposed,
    Detach,
    DiscardRuns,
    Effect,
    Ending,
    Event,
    Learn,
    Mark,
    PredictorAnswer,
    PrepareStage,
    Propose,
    RunStage,
    Settled,
    StageEnded,
    StageKey,
    StagePrepared,
    TimePassed,
    Told,
    Unlearn,
)
from dynbranch.controller.core.branches.view import summary_of, view_of
from dynbranch.controller.hearing import answered_of, arrived_of, shown_of
from dynbranch.controller.predicting import Proposal
from dynbranch.controller.preparing import CanNotPrepare, Preparer
from dynbranch.controller.running import Runner, Store
from dynbranch.controller.templates_in_force import Foretelling, Templates
from dynbranch.domain.branches import BranchSummary
from dynbranch.domain.errors import Conflict, DomainError, NotFound
from dynbranch.domain.events import ArrivalSeen, ChoiceSeen, ControllerSummary, GatewayEvent, OutcomeSeen
from dynbranch.domain.fills import SUPERSEDED, DiscardReason
from dynbranch.domain.ids import BranchId, DemandId
from dynbranch.domain.template import Speculable
from dynbranch.runtime.clock import Clock
from dynbranch.runtime.tasks import Tasks

_log = logging.getLogger(__name__)

TICK_S = 0.25
SETTLEMENTS_AT_ONCE = 512
SETTLEMENTS_WAIT_MS = 5000
MAX_EARLY = 4096
"""Answers whose arrival has not come: without it nobody knows how they are to be read."""
_BEGINNINGS = (Propose, PrepareStage, RunStage)
_STORE_MARGIN_S = 5.0
_FIRST_BACK_OFF_S = 0.1
_LAST_BACK_OFF_S = 3.0
_FAREWELL_S = 2.0


class Branching:
    """Use as an async context manager: it owns every task that a branch needs."""

    def __init__(
        self,
        book: BranchBook,
        *,
        store: Store,
        runner: Runner,
        preparer: Preparer,
        agents: Agents,
        templates: Templates,
        foretelling: Foretelling,
        metrics: BranchMetrics,
        clock: Clock,
    ) -> None:
        self.book = book
        self.templates = templates
        self.tasks = Tasks()
        self._store = store
        self._runner = runner
        self._preparer = preparer
        self._agents = agents
        self._foretelling = foretelling
        self._metrics = metrics
        self._clock = clock
        self._spans = BranchSpans()
        self._work: dict[StageKey, asyncio.Task[Event]] = {}
        self._proposals: dict[BranchId, Proposal] = {}
        self._early: OrderedDict[DemandId, OutcomeSeen] = OrderedDict()
        self._fills = 0
        self._counts: Counter[str] = Counter()
        self._closing = False
        self._stood_down = False
        metrics.watch(book)

    async def __aenter__(self) -> Self:
        await self.tasks.__aenter__()
        await self._foretelling.adopt(self.templates.in_force)
        self._agents.start(self.tasks, self.handle)
        self.tasks.spawn(self._keep_foretelling(), name="predictors")
        self.tasks.spawn(self._read_settlements(), name="settlements")
        self.tasks.spawn(self._keep_time(), name="branch timers")
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._closing = True
        try:
            await self._take_leave()
        finally:
            try:
                await self.tasks.__aexit__(kind, error, trace)
            finally:
                await self._foretelling.close()
                self._spans.close()

    async def _take_leave(self) -> None:
        """Nobody will know these fills any more. What can not be told ends by itself: engines end what
        nobody follows, shadows have their time."""
        running = tuple(sorted({key.fill_id for key in self._work}))
        if not running:
            return
        try:
            async with asyncio.timeout(_FAREWELL_S):
                await self._runner.discard(DiscardRuns(None, running, (), DiscardReason.CANCELLED))
        except TimeoutError:
            _log.info("%d fills are left to end by themselves", len(running))

    # -- hearing -------------------------------------------------------------------------------------------

    def observe(self, event: GatewayEvent) -> None:
        """What a gateway told. Never waits."""
        match event:
            case ArrivalSeen():
                self._observe_arrival(event)
            case OutcomeSeen():
                self._observe_outcome(event)
            case ChoiceSeen():
                with self._spans.because_of(event.demand_id):
                    self.handle(shown_of(event))
            case _:
                assert_never(event)

    def _observe_arrival(self, event: ArrivalSeen) -> None:
        if event.told is None:
            return
        loaded = self.templates.in_force.get(event.identity.workflow_type_id)
        arrived = None if loaded is None else arrived_of(event, loaded.template)
        if arrived is None:
            self._metrics.untold()
            return
        self._spans.hear(event.demand_id, event.traceparent)
        with self._spans.because_of(event.demand_id):
            self.handle(arrived)
        early = self._early.pop(event.demand_id, None)
        if early is not None:
            self._observe_outcome(early)

    def _observe_outcome(self, event: OutcomeSeen) -> None:
        workflow = self.book.workflows.of_demand(event.demand_id)
        if workflow is not None:
            with self._spans.because_of(event.demand_id):
                self.handle(answered_of(event, workflow.template))
        elif event.told is not None:
            self._early[event.demand_id] = event
            while len(self._early) > MAX_EARLY:
                self._early.popitem(last=False)

    def handle(self, event: Event) -> None:
        for effect in self.book.handle(event, self._clock.now()):
            self._perform(effect)

    # -- doing ---------------------------------------------------------------------------------------------

    def _perform(self, effect: Effect) -> None:
        match effect:
            case Told():
                self._tell(effect)
            case Learn(branch_id, selections):
                proposal = self._proposals.pop(branch_id, None)
                if proposal is not None:
                    self._foretelling.learn(proposal, selections)
            case Unlearn(branch_id):
                self._proposals.pop(branch_id, None)
            case Detach(key):
                self._leave(key)
            case _ if self._closing or (self._stood_down and isinstance(effect, _BEGINNINGS)):
                self._begin_nothing(effect)
            case Propose():
                self.tasks.spawn(self._propose(effect), name=f"propose {effect.point.name}")
            case PrepareStage():
                self._spans.prepare(effect)
                self._fills += effect.key.number == 0
                self._put_to_work(effect.key, self._prepare(effect), f"prepare {effect.stage}")
            case RunStage():
                self._put_to_work(effect.key, self._run(effect), f"fill {effect.identity.stage}")
            case DiscardRuns():
                self.tasks.spawn(self._discard(effect), name="discard fills")
            case AbortGeneration(generation, reason):
                self.tasks.spawn(self._runner.abort(generation, reason), name="abort a stale fill")
            case _:
                assert_never(effect)

    def _begin_nothing(self, effect: Effect) -> None:
        """What would begin now would be cancelled at once, or refused. What the book takes to be begun has
        ended."""
        match effect:
            case Propose(branch_id):
                self.handle(CandidatesProposed(branch_id, ()))
            case PrepareStage(key) | RunStage(key):
                self.handle(StageEnded(key, Ending.ABORTED, detail="this controller runs nothing ahead"))
            case _:
                pass

    def _put_to_work(self, key: StageKey, work: Coroutine[Any, Any, Event], name: str) -> None:
        """Each stage's task ends with one event, also when it is cancelled before it began."""
        task = self.tasks.spawn(work, name=name)
        self._work[key] = task
        task.add_done_callback(partial(self._worked, key))

    def _worked(self, key: StageKey, task: asyncio.Task[Event]) -> None:
        if self._work.get(key) is task:
            del self._work[key]
        if task.cancelled():
            self.handle(StageEnded(key, Ending.ABORTED, detail="let go"))
        elif task.exception() is not None:
            # The owner of the task stops the service; what the stage held is given back all the same.
            self.handle(StageEnded(key, Ending.FAILED, detail="a fault of the controller"))
        else:
            self.handle(task.result())

    def _leave(self, key: StageKey) -> None:
        task = self._work.get(key)
        if task is not None:
            task.cancel()

    async def _propose(self, ask: Propose) -> None:
        proposal = None
        loaded = self.templates.version(ask.template.digest)
        if loaded is not None:
            proposal = await self._foretelling.propose(ask, loaded)
        hold_s = ask.not_before - self._clock.now()
        if hold_s > 0:
            await self._clock.sleep(hold_s)
        if proposal is None:
            self.handle(CandidatesProposed(ask.branch_id, ()))
            return
        self._proposals[ask.branch_id] = proposal
        answers = tuple(
            PredictorAnswer(name, answer.how.value, answer.spent_ms, answer.ranking)
            for name, answer in proposal.answers.items()
        )
        self.handle(CandidatesProposed(ask.branch_id, proposal.ranked, proposal.spent_ms, answers))

    async def _prepare(self, ask: PrepareStage) -> Event:
        loaded = self.templates.version(ask.template.digest)
        if loaded is None:
            return StageEnded(ask.key, Ending.REFUSED, detail="its template is no longer known")
        if not self._may_still_run(ask):
            return StageEnded(ask.key, Ending.REFUSED, detail="the template in force lets it not run ahead")
        try:
            return StagePrepared(ask.key, await self._preparer.prepare(ask, loaded.renderer))
        except CanNotPrepare as problem:
            return StageEnded(ask.key, Ending.REFUSED, detail=str(problem))

    def _may_still_run(self, ask: PrepareStage) -> bool:
        """A branch keeps the template that it opened under; what one in force forbids does not begin all the
        same: whoever changes the file may have learned that a stage is not safe to run twice."""
        current = self.templates.in_force.get(ask.template.workflow_type)
        stages = () if current is None else current.template.stages
        return any(one.name == ask.stage and one.speculable is not Speculable.NO for one in stages)

    async def _run(self, ask: RunStage) -> Event:
        origin = replace(ask.origin, traceparent=self._spans.traceparent(ask.key.fill_id))
        with self._spans.within(ask.key.fill_id):
            return await self._runner.run(replace(ask, origin=origin), self.handle)

    async def _discard(self, ask: DiscardRuns) -> None:
        discarded = await self._runner.discard(ask)
        for spent_ms in discarded.abort_ms:
            self._metrics.aborted(spent_ms)
        for key in ask.keys:
            self._leave(key)
        self.handle(discarded)

    def _tell(self, told: Told) -> None:
        branch = self.book.branches.get(told.branch_id)
        if branch is None:
            return
        self._metrics.tell(told, branch)
        self._spans.tell(told, branch)
        if told.mark is Mark.STAGE_MOVED:
            self._counts[str(dict(told.facts)["state"])] += 1

    # -- time and settlements ------------------------------------------------------------------------------

    async def _keep_foretelling(self) -> None:
        async with aclosing(self.templates.watch()) as changes:
            async for _ in changes:
                await self._foretelling.adopt(self.templates.in_force)

    async def _keep_time(self) -> None:
        while True:
            await self._clock.sleep(TICK_S)
            self.handle(TimePassed())

    def _stand_down(self, why: Conflict) -> None:
        """A newer controller has the store: this one could not learn what becomes of its fills. It lets go of
        those that run, and runs none until it is started again. Requests are served as before."""
        _log.error("no fills run ahead any more: %s. %s Then start this one again.", why, why.advice)
        self._stood_down = True
        self._metrics.stood_down()
        keys = tuple(sorted(self._work))
        if keys:
            fills = tuple(dict.fromkeys(key.fill_id for key in keys))
            lost = DiscardRuns(None, fills, keys, DiscardReason.CANCELLED)
            self.tasks.spawn(self._discard(lost), name="discard fills")

    async def _read_settlements(self) -> None:
        through, back_off_s = 0, _FIRST_BACK_OFF_S
        while True:
            try:
                rows = await self._store.read_settlements(
                    acknowledged_through=through,
                    after=through,
                    at_most=SETTLEMENTS_AT_ONCE,
                    wait_ms=SETTLEMENTS_WAIT_MS,
                    timeout_s=SETTLEMENTS_WAIT_MS / 1000 + _STORE_MARGIN_S,
                    reader_epoch=self._runner.epoch,
                )
            except (Unreachable, DomainError) as failure:
                if isinstance(failure, Conflict) and failure.reason == SUPERSEDED:
                    self._stand_down(failure)
                    return
                if through or back_off_s == _FIRST_BACK_OFF_S:
                    _log.warning("settlements can not be read, trying again: %s", failure)
                # It may come back as another store, whose numbers say nothing of the ones before.
                through = 0
                await self._clock.sleep(back_off_s)
                back_off_s = min(_LAST_BACK_OFF_S, 2 * back_off_s)
                continue
            back_off_s = _FIRST_BACK_OFF_S
            for row in rows:
                self.handle(Settled(row))
                through = row.number

    # -- looking -------------------------------------------------------------------------------------------

    def inspect(self, branch_id: BranchId) -> dict[str, Any]:
        """Raises NotFound."""
        branch = self.book.branches.get(branch_id)
        if branch is None:
            raise NotFound(
                "unknown_branch",
                f"no branch {branch_id.hex()[:64]} is open or was settled lately",
                advice="List the branches of the workflow; settled ones are remembered for a while only.",
            )
        return view_of(branch, self._clock.now())

    def listed(self, workflow_id: str, at_most: int) -> tuple[BranchSummary, ...]:
        return tuple(map(summary_of, self.book.branches.listed(workflow_id, at_most)))

    def counted(self, summary: ControllerSummary) -> ControllerSummary:
        """With what is to be said of branches. Stages of fills count, since each is a result of its own."""
        return replace(
            summary,
            branches=self.book.branches.opened,
            open_branches=self.book.branches.unresolved,
            fills=self._fills,
            promoted=self._counts["promoted"],
            adopted=self._counts["adopted"],
            discarded=self._counts["discarded"] + self._counts["aborted"],
        )
