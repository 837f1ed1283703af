"""Fills and drafts in the registry: limits, giving way, adoption, and leases that the store closed."""

from __future__ import annotations

from dataclasses import replace

import pytest
from dynbranch.domain.engine import Aborted, Completed, GenerationOrder, WorkClass
from dynbranch.domain.errors import NotReady
from dynbranch.engine_agent.core.lifecycle import State
from dynbranch.engine_agent.core.messages import (
    AbortAsked,
    AbortEngine,
    Attached,
    CommitAnswered,
    CommitResult,
    EngineEnded,
    EngineFailed,
    EngineLetGo,
    EngineReady,
    LeasesUnknown,
    Left,
    ReleaseLeases,
    StartEngine,
    Ticked,
    Wake,
)
from dynbranch.engine_agent.core.registry import Limits
from unit.engine_agent.samples import chat_order, fill_order
from unit.engine_agent.test_registry import FIRST, SECOND, Driver, failure


def refused(driver: Driver, order: GenerationOrder, width: int = 1) -> str:
    with pytest.raises(NotReady) as refusal:
        driver.order(order, width=width)
    driver.registry.validate_state()
    assert driver.registry.find(order.generation_id) is None
    return refusal.value.reason


def end_of(driver: Driver, order: GenerationOrder) -> object:
    generation = driver.registry.find(order.generation_id)
    assert generation is not None
    return generation.end


@pytest.mark.promise("C2.fill_limits")
def test_half_of_the_slots_are_for_fills_and_drafts() -> None:
    driver = Driver(slots=5)
    driver.order(fill_order())
    driver.order(fill_order(work=WorkClass.DRAFT))
    assert (driver.registry.speculation.slots, driver.registry.drafts) == (2, 1)
    assert refused(driver, fill_order(leased=True)) == "fill_limit"
    assert refused(driver, fill_order(work=WorkClass.DRAFT)) == "fill_limit"
    assert driver.order(chat_order()), "there are slots for canonical work"


@pytest.mark.promise("C2.fill_limits")
@pytest.mark.parametrize(("slots", "limit", "fills"), [(1, None, 1), (4, 0, 0), (4, 3, 3)])
def test_as_many_fills_as_there_may_be(slots: int, limit: int | None, fills: int) -> None:
    driver = Driver(slots=slots, limits=Limits(fill_slots=limit))
    for _ in range(fills):
        driver.order(fill_order())
    assert refused(driver, fill_order()) == "fill_limit"


def test_a_fill_of_several_choices_takes_several_of_the_fill_slots() -> None:
    driver = Driver(slots=6)
    driver.order(fill_order(), width=2)
    assert refused(driver, fill_order(), width=2) == "fill_limit"
    driver.order(fill_order())
    assert driver.registry.speculation.slots == 3


@pytest.mark.promise("C2.fill_limits")
def test_the_budget_of_tokens_bounds_what_fills_reserve_together() -> None:
    driver = Driver(slots=8, limits=Limits(fill_kv_tokens=1000))
    first = fill_order(tokens=600)
    driver.order(first)
    assert refused(driver, fill_order(tokens=401)) == "fill_limit"
    driver.order(fill_order(tokens=400))
    driver.tell(EngineEnded(first.generation_id))
    assert driver.registry.speculation.tokens == 400
    driver.order(fill_order(tokens=600))


def test_canonical_work_reserves_no_share_of_the_fills() -> None:
    driver = Driver(limits=Limits(fill_kv_tokens=0))
    driver.order(replace(chat_order(), reserve_tokens=5000))
    assert (driver.registry.speculation.slots, driver.registry.speculation.tokens) == (0, 0)


@pytest.mark.promise("C2.canonical_first")
def test_a_fill_never_waits_in_the_queue() -> None:
    driver = Driver(slots=2)
    driver.order(chat_order())
    driver.order(chat_order())
    assert refused(driver, fill_order()) == "fill_limit"
    driver = Driver(slots=2)
    driver.order(chat_order())
    driver.order(chat_order(), width=2)
    assert refused(driver, fill_order()) == "fill_limit", "a slot is free, and somebody waits for two"


@pytest.mark.promise("C2.canonical_first")
def test_the_newest_fill_gives_way_to_canonical_work_that_would_wait() -> None:
    driver = Driver(slots=4)
    old, new, demand = fill_order(), fill_order(leased=True), chat_order()
    for order in (old, new, chat_order(), chat_order()):
        driver.order(order)
    effects = driver.order(demand)
    assert new.lease is not None
    assert effects == [
        ReleaseLeases((new.lease.lease_id,)),
        AbortEngine(new.generation_id),
        Wake(new.generation_id),
    ]
    assert end_of(driver, new) == Aborted("gave_way")
    assert driver.registry.speculation.slots == 2, "its slot is not free yet"
    assert StartEngine(demand) in driver.tell(EngineLetGo(new.generation_id))
    assert driver.registry.speculation.slots == 1 and driver.state(old) is State.RUNNING


@pytest.mark.promise("C2.canonical_first")
def test_a_slot_that_comes_free_anyway_costs_no_second_fill() -> None:
    driver = Driver(slots=2, limits=Limits(fill_slots=2))
    old, new = fill_order(), fill_order()
    driver.order(old)
    driver.order(new)
    driver.tell(AbortAsked(old.generation_id, "lost"))
    assert driver.order(chat_order()) == []
    assert AbortEngine(new.generation_id) in driver.order(chat_order())


def test_no_fill_is_aborted_in_vain() -> None:
    driver = Driver(slots=4)
    fill = fill_order()
    driver.order(fill)
    canonical = chat_order()
    driver.order(canonical, width=3)
    assert driver.order(chat_order(), width=2) == [], "it waits for canonical work, whatever the fill does"
    effects = driver.tell(EngineEnded(canonical.generation_id))
    assert any(isinstance(effect, StartEngine) for effect in effects)
    assert driver.state(fill) is State.RUNNING


@pytest.mark.promise("C2.canonical_first")
def test_an_abort_may_make_a_fill_worth_aborting() -> None:
    driver = Driver(slots=3)
    canonical, fill = chat_order(), fill_order()
    for order in (canonical, chat_order(), fill):
        driver.order(order)
    assert driver.order(chat_order(), width=2) == []
    effects = driver.tell(AbortAsked(canonical.generation_id, "cancelled"))
    assert AbortEngine(fill.generation_id) in effects


@pytest.mark.promise("C2.canonical_first")
def test_canonical_work_is_not_refused_for_want_of_a_queue_while_fills_hold_slots() -> None:
    driver = Driver(slots=1, limits=Limits(waiting=0))
    fill, demand = fill_order(), chat_order()
    driver.order(fill)
    assert AbortEngine(fill.generation_id) in driver.order(demand)
    assert StartEngine(demand) in driver.tell(EngineLetGo(fill.generation_id))


def test_fills_keep_their_slots_where_they_are_told_to() -> None:
    driver = Driver(slots=1, limits=Limits(fills_give_way=False))
    driver.order(fill_order())
    assert driver.order(chat_order()) == []
    driver = Driver(slots=1, limits=Limits(fills_give_way=False, waiting=0))
    driver.order(fill_order())
    assert refused(driver, chat_order()) == "queue_full"


@pytest.mark.promise("C2.adoption")
def test_an_adopted_fill_is_canonical_work() -> None:
    driver = Driver(slots=2, limits=Limits(fill_kv_tokens=100))
    fill = fill_order(tokens=100, leased=True)
    driver.order(fill)
    driver.tell(Attached(fill.generation_id, SECOND, adopts=True))
    driver.tell(Attached(fill.generation_id, SECOND, adopts=True))
    assert not driver.registry.speculation.held and driver.registry.slots.used == 1
    driver.order(fill_order(tokens=100))
    assert driver.registry.speculation.slots == 1, "its share is for others"
    assert fill.lease is not None
    assert driver.tell(AbortAsked(fill.generation_id, "lost", only_speculative=True)) == []
    assert driver.tell(LeasesUnknown(frozenset({fill.lease.lease_id}))) == []
    driver.order(chat_order())
    driver.order(chat_order())
    assert driver.state(fill) is State.RUNNING, "nobody's work stands before it"
    driver.tell(EngineEnded(fill.generation_id))
    driver.tell(CommitAnswered(fill.generation_id, "committed"))
    assert isinstance(end_of(driver, fill), Completed)


@pytest.mark.promise("C1.abort_when_nobody_follows")
def test_an_adopted_fill_ends_like_other_work_when_nobody_follows_it() -> None:
    driver, fill = Driver(), fill_order(grace_ms=2000)
    driver.order(fill)
    driver.tell(Attached(fill.generation_id, SECOND, adopts=True))
    driver.tell(Left(fill.generation_id, FIRST))
    driver.now = 10.0
    assert driver.tell(Ticked()) == [], "its adopter follows it"
    driver.tell(Left(fill.generation_id, SECOND))
    driver.now = 12.0
    assert AbortEngine(fill.generation_id) in driver.tell(Ticked())


@pytest.mark.promise("I2")
def test_a_fill_that_nobody_follows_is_aborted_after_its_grace() -> None:
    driver, fill = Driver(), fill_order(grace_ms=2000, leased=True)
    driver.order(fill)
    driver.tell(Left(fill.generation_id, FIRST))
    driver.now = 1.9
    assert driver.tell(Ticked()) == []
    driver.now = 2.0
    assert AbortEngine(fill.generation_id) in driver.tell(Ticked())
    driver.tell(EngineLetGo(fill.generation_id))
    assert not driver.registry.speculation.held and not driver.registry.leases.held


def test_a_follower_that_does_not_adopt_and_a_draft_change_nothing() -> None:
    driver = Driver(slots=4)
    fill, draft = fill_order(), fill_order(work=WorkClass.DRAFT)
    driver.order(fill)
    driver.order(draft)
    driver.tell(Attached(fill.generation_id, SECOND))
    driver.tell(Attached(draft.generation_id, SECOND, adopts=True))
    assert driver.registry.speculation.slots == 2


@pytest.mark.promise("C2.adoption")
def test_what_has_ended_can_be_adopted_and_holds_nothing() -> None:
    driver, fill = Driver(), fill_order(leased=True, tokens=5)
    driver.order(fill)
    effects = driver.tell(EngineEnded(fill.generation_id))
    assert any(isinstance(effect, CommitResult) for effect in effects)
    assert not driver.registry.speculation.held
    driver.tell(Attached(fill.generation_id, SECOND, adopts=True))
    driver.tell(CommitAnswered(fill.generation_id, "committed"))
    driver.tell(Attached(fill.generation_id, SECOND, adopts=True))


@pytest.mark.parametrize("budget_s", [0.0, 0.1])
def test_the_end_of_a_fill_waits_for_its_commit_until_a_demand_takes_it_over(budget_s: float) -> None:
    driver, fill = Driver(limits=Limits(commit_budget_s=budget_s)), fill_order(leased=True)
    driver.order(fill)
    driver.tell(EngineEnded(fill.generation_id))
    driver.now = 1.0
    driver.tell(Ticked())
    assert end_of(driver, fill) is None, "whoever goes on from it needs what is stored"
    driver.tell(Attached(fill.generation_id, SECOND, adopts=True))
    driver.now = 1.0 + budget_s
    driver.tell(Ticked())
    assert end_of(driver, fill) == Completed("pending", 0.0)
    driver.tell(CommitAnswered(fill.generation_id, "committed"))
    assert end_of(driver, fill) == Completed("committed", 0.0)


@pytest.mark.promise("I2")
def test_a_fill_whose_lease_the_store_has_closed_ends_at_once() -> None:
    driver = Driver(slots=4)
    fill, other, demand = fill_order(leased=True), fill_order(leased=True), chat_order(leased=True)
    for order in (fill, other, demand):
        driver.order(order)
    assert fill.lease is not None and demand.lease is not None
    effects = driver.tell(LeasesUnknown(frozenset({fill.lease.lease_id, demand.lease.lease_id})))
    assert [effect for effect in effects if isinstance(effect, AbortEngine)] == [
        AbortEngine(fill.generation_id)
    ]
    assert end_of(driver, fill) == Aborted("lease_unknown")
    assert driver.state(other) is State.RUNNING and driver.state(demand) is State.RUNNING


@pytest.mark.promise("I4")
def test_a_fill_that_fails_gives_its_share_back() -> None:
    driver, fill = Driver(limits=Limits(fill_kv_tokens=10)), fill_order(tokens=10)
    driver.order(fill)
    driver.tell(EngineFailed(fill.generation_id, failure()))
    driver.tell(EngineReady(2))
    assert driver.order(fill_order(tokens=10))


def test_the_end_of_a_fill_waits_for_its_commit_until_a_demand_waits_for_it() -> None:
    driver, order = Driver(limits=Limits(commit_budget_s=0.1)), fill_order(leased=True)
    driver.order(order)
    driver.tell(EngineEnded(order.generation_id))
    driver.now = 0.1
    assert driver.tell(Ticked()) == []
    assert end_of(driver, order) is None
    driver.tell(Attached(order.generation_id, SECOND, adopts=True))
    driver.now = 0.2
    assert Wake(order.generation_id) in driver.tell(Ticked())
    assert end_of(driver, order) == Completed("pending", 0.0)
