"""Predictors at work: time boxes, faults, metrics, what others register, and drafts from an engine agent."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

import pytest
from dynbranch.controller.core.predictors.port import Predictor, Question, Resolution
from dynbranch.controller.drafting import DraftModel, Drafts
from dynbranch.controller.predicting import (
    BUILT_IN,
    QUEUED,
    Answered,
    AnyPredictor,
    BadPredictor,
    Predicting,
    made,
    registered,
)
from dynbranch.controller.predictor_metrics import PredictorMetrics, best_rank
from dynbranch.domain.engine import GenerationOrder, WorkClass
from dynbranch.domain.errors import NotFound
from dynbranch.domain.ids import Instant
from dynbranch.domain.template import PredictorUse
from dynbranch.engine_agent.core.registry import Limits
from dynbranch.engine_agent.fake import FakeEngineAgent, Script, ScriptedEngine, text_chunks
from dynbranch.runtime.clock import SystemClock
from prometheus_client import CollectorRegistry
from unit.controller.predictors.questions import NOW, among, asked, question

ABOUT = question(candidates=among("a", "b", "c"))
LONG_MS = 60_000.0
SHORT_MS = 20.0


@dataclass
class Says:
    ranking: tuple[str, ...]
    learned: list[tuple[str, ...]] = field(default_factory=list)

    def propose(self, question: Question, now: Instant) -> tuple[str, ...]:
        return self.ranking

    def learn(self, resolution: Resolution, now: Instant) -> None:
        self.learned.append(resolution.selections)


class Hangs(Says):
    def __init__(self) -> None:
        super().__init__(("a",))
        self.released = threading.Event()
        self.asked = 0

    def propose(self, question: Question, now: Instant) -> tuple[str, ...]:
        self.asked += 1
        assert self.released.wait(60)
        return self.ranking


class Breaks(Says):
    def __init__(self) -> None:
        super().__init__(())

    def propose(self, question: Question, now: Instant) -> tuple[str, ...]:
        raise RuntimeError("a fault of a predictor")

    def learn(self, resolution: Resolution, now: Instant) -> None:
        raise RuntimeError("a fault of a predictor")


class Slow:
    def __init__(self) -> None:
        self.cancelled = False

    async def propose_slowly(self, question: Question, now: Instant) -> tuple[str, ...]:
        try:
            await asyncio.Event().wait()
        finally:
            self.cancelled = True
        return ()


@pytest.fixture
def registry() -> CollectorRegistry:
    return CollectorRegistry()


def predicting(registry: CollectorRegistry, **predictors: AnyPredictor) -> Predicting:
    return Predicting(predictors, SystemClock(), PredictorMetrics(registry))


def counted(registry: CollectorRegistry, name: str, **labels: str) -> float:
    return registry.get_sample_value(f"dynbranch_predictor_{name}_total", labels) or 0.0


async def test_rankings_are_merged_and_learned_from(registry: CollectorRegistry) -> None:
    one, two = Says(("a", "b")), Says(("b", "c"))
    async with predicting(registry, one=one, two=two) as at_work:
        for _ in range(20):
            proposal = await at_work.propose(ABOUT, deadline_ms=LONG_MS)
            at_work.learn(proposal, ("c",))
        proposal = await at_work.propose(ABOUT, deadline_ms=LONG_MS)
    assert proposal.ranked[0] == "c"
    assert one.learned == [("c",)] * 20
    assert counted(registry, "selected", predictor="two", rank="2") == 20
    assert counted(registry, "selected", predictor="one", rank="missed") == 20
    assert counted(registry, "answers", predictor="one", how="ranked") == 21


async def test_a_late_predictor_gives_nothing_is_charged_and_holds_up_nobody(
    registry: CollectorRegistry,
) -> None:
    hanging = Hangs()
    async with predicting(registry, hangs=hanging, says=Says(("b",))) as at_work:
        first = await at_work.propose(ABOUT, deadline_ms=SHORT_MS)
        second = await at_work.propose(ABOUT, deadline_ms=LONG_MS)
        assert first.ranked == second.ranked == ("b",)
        assert first.answers["hangs"].how is Answered.LATE
        assert first.answers["hangs"].ranking == ()
        assert first.spent_ms > 0
        assert second.answers["hangs"].how is Answered.BUSY
        assert "hangs" not in first.rankings()
        assert hanging.asked == 1
        hanging.released.set()
        while (third := await at_work.propose(ABOUT, deadline_ms=LONG_MS)).answers[
            "hangs"
        ].how is Answered.BUSY:
            await asyncio.sleep(0)
    assert third.answers["hangs"].ranking == ("a",)


async def test_a_question_that_was_given_up_on_before_its_turn_is_never_asked(
    registry: CollectorRegistry,
) -> None:
    hanging = Hangs()
    async with predicting(registry, hangs=hanging) as at_work:
        both = await asyncio.gather(
            at_work.propose(ABOUT, deadline_ms=SHORT_MS), at_work.propose(ABOUT, deadline_ms=SHORT_MS)
        )
        assert [p.answers["hangs"].how for p in both] == [Answered.LATE] * 2
        hanging.released.set()
        while (await at_work.propose(ABOUT, deadline_ms=LONG_MS)).answers["hangs"].how is Answered.BUSY:
            await asyncio.sleep(0)
    assert hanging.asked == 2


async def test_a_predictors_fault_costs_its_ranking_only(
    registry: CollectorRegistry, caplog: pytest.LogCaptureFixture
) -> None:
    async with predicting(registry, breaks=Breaks(), says=Says(("b",))) as at_work:
        proposal = await at_work.propose(ABOUT, deadline_ms=LONG_MS)
        at_work.learn(proposal, ("b",))
        again = await at_work.propose(ABOUT, deadline_ms=LONG_MS)
    assert proposal.ranked == again.ranked == ("b",)
    assert proposal.answers["breaks"].how is Answered.FAILED
    assert "predictor breaks failed" in caplog.text


async def test_a_lane_that_is_full_refuses_and_counts(registry: CollectorRegistry) -> None:
    hanging = Hangs()
    async with predicting(registry, hangs=hanging) as at_work:
        proposal = await at_work.propose(ABOUT, deadline_ms=SHORT_MS)
        for _ in range(QUEUED + 3):
            at_work.learn(proposal, ("a",))
        assert counted(registry, "unlearned", predictor="hangs") == 3
        hanging.released.set()


async def test_who_waits_is_cancelled_at_the_deadline(registry: CollectorRegistry) -> None:
    slow = Slow()
    async with predicting(registry, slow=slow, says=Says(("a",))) as at_work:
        proposal = await at_work.propose(ABOUT, deadline_ms=SHORT_MS)
    assert slow.cancelled
    assert proposal.answers["slow"].how is Answered.LATE
    assert proposal.ranked == ("a",)


async def test_only_the_named_are_asked(registry: CollectorRegistry) -> None:
    async with predicting(registry, one=Says(("a",)), two=Says(("b",))) as at_work:
        proposal = await at_work.propose(ABOUT, ("two", "unknown"), deadline_ms=LONG_MS)
    assert set(proposal.answers) == {"two"}


def test_others_register_predictors_by_entry_point() -> None:
    factories = registered([("mine", lambda: Says(("a",)))])
    assert list(factories) == [*BUILT_IN, "mine"]
    mine = made([PredictorUse("mine"), PredictorUse("history"), PredictorUse("mine")], factories)
    assert list(mine) == ["mine", "history"]
    assert all(isinstance(predictor, Predictor) for predictor in mine.values())
    assert list(registered())[: len(BUILT_IN)] == list(BUILT_IN)


def test_a_predictor_gets_the_parameters_of_its_use() -> None:
    short = PredictorUse("history", (("window", 20),))
    assert list(made([short, PredictorUse("history")], BUILT_IN)) == ["history(window=20)", "history"]


@pytest.mark.parametrize(
    ("use", "said"),
    [
        (PredictorUse("histroy"), "there are: history, offer"),
        (PredictorUse("history", (("windw", 20),)), "windw"),
        (PredictorUse("offer", (("window", 0),)), "at least 2"),
    ],
)
def test_a_predictor_that_can_not_be_had_says_why(use: PredictorUse, said: str) -> None:
    with pytest.raises(BadPredictor, match=said):
        made([use], BUILT_IN)


@pytest.mark.parametrize("flaw", [KeyError("a"), AssertionError(), RuntimeError("x"), ZeroDivisionError()])
def test_a_predictor_whose_code_fails_can_not_be_had(flaw: Exception) -> None:
    def fails() -> Says:
        raise flaw

    with pytest.raises(BadPredictor, match=r"'mine' can not be made: ."):
        made([PredictorUse("mine")], {"mine": fails})


def test_a_name_is_taken_once() -> None:
    with pytest.raises(BadPredictor, match="history"):
        registered([("history", lambda: Says(()))])


def test_best_rank() -> None:
    assert [best_rank(("a", "b", "c", "d"), (s,)) for s in "abcdx"] == ["1", "2", "3", "later", "missed"]


# Drafts


def writing(order: GenerationOrder) -> Script:
    seed = json.loads(order.body)["seed"]
    return Script(text_chunks((("tea", " "), ("milk",), ("milk", "."))[seed % 3]))


@pytest.fixture
async def engine() -> AsyncIterator[ScriptedEngine]:
    yield ScriptedEngine(SystemClock(), writing, slots=8)


MENU = question(asked("What shall we drink?"), candidates=among("tea", "milk"))


async def test_the_draft_model_is_asked_several_times_as_a_draft(engine: ScriptedEngine) -> None:
    async with FakeEngineAgent(engine=engine) as agent:
        assert await DraftModel(agent, Drafts(samples=3)).propose_slowly(MENU, NOW) == ("milk", "tea")
    assert [order.work for order in engine.orders] == [WorkClass.DRAFT] * 3
    assert {order.lease for order in engine.orders} == {None}


async def test_a_sample_that_fails_is_no_vote(engine: ScriptedEngine) -> None:
    engine.writer = lambda order: (
        Script(fail_after=0) if json.loads(order.body)["seed"] else Script(text_chunks(("tea",)))
    )
    async with FakeEngineAgent(engine=engine) as agent:
        assert await DraftModel(agent, Drafts(samples=3)).propose_slowly(MENU, NOW) == ("tea",)


async def test_a_sample_that_the_engine_has_no_room_for_is_no_vote(engine: ScriptedEngine) -> None:
    async with FakeEngineAgent(engine=engine, limits=Limits(fill_slots=2)) as agent:
        assert await DraftModel(agent, Drafts(samples=3)).propose_slowly(MENU, NOW) == ("tea", "milk")
    assert len(engine.orders) == 2


async def test_a_model_that_is_not_served_is_not_found(engine: ScriptedEngine) -> None:
    async with FakeEngineAgent(engine=engine) as agent:
        with pytest.raises(NotFound):
            await DraftModel(agent, Drafts(model="other")).propose_slowly(MENU, NOW)


async def test_at_the_deadline_the_engine_is_free_again(
    engine: ScriptedEngine, registry: CollectorRegistry
) -> None:
    engine.writer = lambda order: Script(gate=asyncio.Event())
    async with FakeEngineAgent(engine=engine) as agent:
        # Described before, so that the deadline falls into the drafts.
        await agent.describe(timeout_s=5)
        drafts = DraftModel(agent, Drafts(samples=3))
        async with predicting(registry, draft=drafts) as at_work:
            proposal = await at_work.propose(MENU, deadline_ms=200)
            assert proposal.answers["draft"].how is Answered.LATE
            while engine.running:
                await asyncio.sleep(0.005)
    assert len(engine.aborted) == len(engine.orders) == 3
