from __future__ import annotations

from dataclasses import replace

import pytest
from dynbranch.domain.engine import Aborted, Completed, Failed, GenerationOrder
from dynbranch.domain.errors import Conflict, NotFound, NotReady
from dynbranch.domain.ids import GenerationId, Instant
from dynbranch.engine_agent.core.ledger import ReleasedTwice, Slots
from dynbranch.engine_agent.core.lifecycle import State
from dynbranch.engine_agent.core.messages import (
    AbortAsked,
    AbortEngine,
    Attached,
    CommitAnswered,
    CommitResult,
    DrainAsked,
    Effect,
    Ended,
    EngineEnded,
    EngineFailed,
    EngineLetGo,
    EngineLost,
    EngineReady,
    Event,
    FollowerId,
    ItemsArrived,
    Left,
    Ordered,
    ReleaseLeases,
    RenewLeases,
    StartEngine,
    Ticked,
    Wake,
)
from dynbranch.engine_agent.core.registry import Limits, Registry
from unit.engine_agent.samples import chat_order, lease

FIRST, SECOND = FollowerId(1), FollowerId(2)


class Driver:
    """A registry with its time, checked after each event."""

    def __init__(self, slots: int = 2, limits: Limits | None = None) -> None:
        self.registry = Registry(limits)
        self.now = 0.0
        self.tell(EngineReady(slots))

    def tell(self, event: Event) -> list[Effect]:
        effects = self.registry.handle(event, Instant(self.now))
        self.registry.validate_state()
        return effects

    def order(self, order: GenerationOrder, follower: FollowerId = FIRST, width: int = 1) -> list[Effect]:
        return self.tell(Ordered(order, follower, width))

    def state(self, order: GenerationOrder) -> State:
        generation = self.registry.find(order.generation_id)
        assert generation is not None
        return generation.state


def failure() -> Failed:
    return Failed(500, b"{}", may_retry=False)


@pytest.mark.promise("C1.single_flight")
def test_a_generation_runs_commits_and_completes() -> None:
    driver, order = Driver(), chat_order(leased=True)
    assert order.lease is not None
    assert driver.order(order) == [StartEngine(order)]
    assert driver.tell(ItemsArrived(order.generation_id, (b"one",))) == [Wake(order.generation_id)]
    driver.now = 0.5
    effects = driver.tell(EngineEnded(order.generation_id))
    assert effects == [CommitResult(order.generation_id, order.lease, 500.0, None)]
    generation = driver.registry.find(order.generation_id)
    assert generation is not None and generation.end is None, "the end waits for the commit"
    assert not driver.registry.slots.held, "the slot does not"
    effects = driver.tell(CommitAnswered(order.generation_id, "committed"))
    assert effects == [Wake(order.generation_id), Ended(order.generation_id)]
    assert generation.end == Completed("committed", 500.0)
    assert not driver.registry.leases.held


def test_the_end_waits_for_a_slow_commit_no_longer_than_its_budget() -> None:
    driver, order = Driver(limits=Limits(commit_budget_s=0.1)), chat_order(leased=True)
    driver.order(order)
    driver.tell(EngineEnded(order.generation_id))
    driver.now = 0.1
    assert driver.registry.next_deadline() == Instant(0.1)
    assert driver.tell(Ticked()) == [Wake(order.generation_id), Ended(order.generation_id)]
    generation = driver.registry.find(order.generation_id)
    assert generation is not None and generation.end == Completed("pending", 0.0)
    assert driver.registry.leases.held, "the commit is still in flight"
    assert driver.tell(CommitAnswered(order.generation_id, "unavailable", release=True)) == [
        ReleaseLeases((order.lease.lease_id,)) if order.lease else None
    ]
    assert generation.end == Completed("unavailable", 0.0), "late followers learn the answer"


def test_without_a_lease_nothing_is_committed() -> None:
    driver, order = Driver(), chat_order()
    driver.order(order)
    driver.tell(EngineEnded(order.generation_id))
    generation = driver.registry.find(order.generation_id)
    assert generation is not None and generation.end == Completed("not_asked", 0.0)


def test_an_unstorable_result_is_served_and_its_lease_released() -> None:
    driver, order = Driver(), chat_order(leased=True)
    driver.order(order)
    effects = driver.tell(EngineEnded(order.generation_id, unstorable="content_filter"))
    assert order.lease is not None and ReleaseLeases((order.lease.lease_id,)) in effects
    generation = driver.registry.find(order.generation_id)
    assert generation is not None and generation.end == Completed("content_filter", 0.0)


@pytest.mark.promise("I4")
def test_a_failure_releases_lease_and_slot_and_starts_the_next() -> None:
    driver, order, waiting = Driver(slots=1), chat_order(leased=True), chat_order()
    driver.order(order)
    assert driver.order(waiting, SECOND) == []
    effects = driver.tell(EngineFailed(order.generation_id, failure()))
    assert order.lease is not None
    assert effects == [
        ReleaseLeases((order.lease.lease_id,)),
        Wake(order.generation_id),
        Ended(order.generation_id),
        StartEngine(waiting),
    ]


@pytest.mark.promise("C1.abort_when_nobody_follows")
def test_the_last_follower_who_leaves_aborts_and_the_slot_waits_for_the_engine() -> None:
    driver, order, waiting = Driver(slots=1), chat_order(leased=True), chat_order()
    driver.order(order)
    driver.tell(Attached(order.generation_id, SECOND))
    driver.order(waiting)
    assert driver.tell(Left(order.generation_id, FIRST)) == []
    effects = driver.tell(Left(order.generation_id, SECOND))
    assert AbortEngine(order.generation_id) in effects
    assert not any(isinstance(effect, StartEngine) for effect in effects), "the engine still works on it"
    assert not driver.registry.leases.held
    effects = driver.tell(EngineLetGo(order.generation_id))
    assert effects == [Ended(order.generation_id), StartEngine(waiting)]
    assert driver.state(order) is State.ABORTED


def test_within_the_grace_a_new_follower_saves_the_generation() -> None:
    driver, order = Driver(), chat_order(grace_ms=1000)
    driver.order(order)
    assert driver.tell(Left(order.generation_id, FIRST)) == []
    driver.now = 0.9
    driver.tell(Attached(order.generation_id, SECOND))
    driver.now = 5.0
    assert driver.tell(Ticked()) == []
    assert driver.state(order) is State.RUNNING


def test_the_grace_counts_from_the_last_leave() -> None:
    driver, order = Driver(), chat_order(grace_ms=1000)
    driver.order(order)
    driver.tell(Left(order.generation_id, FIRST))
    driver.now = 0.9
    driver.tell(Attached(order.generation_id, SECOND))
    driver.tell(Left(order.generation_id, SECOND))
    driver.now = 1.0
    assert driver.tell(Ticked()) == []
    driver.now = 1.9
    assert AbortEngine(order.generation_id) in driver.tell(Ticked())


def test_what_waits_is_aborted_without_the_engine() -> None:
    driver, order, waiting = Driver(slots=1), chat_order(), chat_order(leased=True)
    driver.order(order)
    driver.order(waiting)
    effects = driver.tell(AbortAsked(waiting.generation_id, "cancelled"))
    assert waiting.lease is not None
    assert effects == [
        ReleaseLeases((waiting.lease.lease_id,)),
        Wake(waiting.generation_id),
        Ended(waiting.generation_id),
    ]
    generation = driver.registry.find(waiting.generation_id)
    assert generation is not None and generation.end == Aborted("cancelled")


def test_an_abort_in_the_middle_of_a_commit_changes_nothing() -> None:
    driver, order = Driver(), chat_order(leased=True)
    driver.order(order)
    driver.tell(EngineEnded(order.generation_id))
    assert driver.tell(AbortAsked(order.generation_id, "late")) == []
    assert driver.tell(Left(order.generation_id, FIRST)) == []
    driver.tell(CommitAnswered(order.generation_id, "committed"))
    assert driver.state(order) is State.COMPLETED


def test_items_and_ends_that_cross_an_abort_are_ignored() -> None:
    driver, order = Driver(), chat_order()
    driver.order(order)
    driver.tell(AbortAsked(order.generation_id, "cancelled"))
    assert driver.tell(ItemsArrived(order.generation_id, (b"late",))) == []
    assert driver.tell(EngineEnded(order.generation_id)) == []
    assert driver.tell(EngineFailed(order.generation_id, failure())) == []
    driver.tell(EngineLetGo(order.generation_id))


def test_several_choices_take_several_slots_and_nobody_is_overtaken() -> None:
    driver = Driver(slots=4)
    wide, narrow, widest = chat_order(), chat_order(), chat_order()
    assert driver.order(chat_order(), width=2)
    first = driver.order(wide, width=3)
    assert first == [], "two slots are free"
    assert driver.order(narrow) == [], "it would fit, but it came later"
    assert driver.order(widest, width=100) == []
    running = next(iter(driver.registry.slots.held))
    effects = driver.tell(EngineEnded(running))
    assert [e.order for e in effects if isinstance(e, StartEngine)] == [wide, narrow]
    for order in (wide, narrow):
        effects = driver.tell(EngineEnded(order.generation_id))
    assert StartEngine(widest) in effects, "more than there are takes all"


def test_a_full_queue_refuses() -> None:
    driver = Driver(slots=1, limits=Limits(waiting=1))
    driver.order(chat_order())
    driver.order(chat_order())
    with pytest.raises(NotReady) as refusal:
        driver.order(chat_order(leased=True))
    assert refusal.value.reason == "queue_full"
    driver.registry.validate_state()


def test_no_queue_at_all_still_runs() -> None:
    driver = Driver(slots=1, limits=Limits(waiting=0))
    assert driver.order(chat_order())
    with pytest.raises(NotReady):
        driver.order(chat_order())


def test_one_id_and_one_lease_are_one_generation() -> None:
    driver, order = Driver(), chat_order(leased=True)
    driver.order(order)
    with pytest.raises(Conflict) as refusal:
        driver.order(order)
    assert refusal.value.reason == "generation_exists"
    with pytest.raises(Conflict) as refusal:
        driver.order(replace(chat_order(), lease=order.lease))
    assert refusal.value.reason == "lease_in_use"


def test_draining_takes_nothing_new_and_lets_the_rest_end() -> None:
    driver, order = Driver(), chat_order()
    driver.order(order)
    driver.tell(DrainAsked())
    with pytest.raises(NotReady) as refusal:
        driver.order(chat_order())
    assert refusal.value.reason == "draining"
    driver.tell(EngineEnded(order.generation_id))
    assert driver.registry.open_count == 0


def test_a_lost_engine_fails_what_waits_and_another_may_be_asked() -> None:
    driver, running, waiting = Driver(slots=1), chat_order(), chat_order(leased=True)
    driver.order(running)
    driver.order(waiting)
    driver.tell(EngineLost("it died"))
    generation = driver.registry.find(waiting.generation_id)
    assert generation is not None and isinstance(generation.end, Failed) and generation.end.may_retry
    with pytest.raises(NotReady) as refusal:
        driver.order(chat_order())
    assert refusal.value.reason == "engine_not_ready"
    driver.tell(EngineFailed(running.generation_id, failure()))
    driver.tell(EngineReady(3))
    assert driver.order(chat_order())


def test_what_has_no_result_can_not_be_followed() -> None:
    driver, order = Driver(), chat_order()
    with pytest.raises(NotFound):
        driver.tell(Attached(GenerationId(b"x" * 16), FIRST))
    driver.order(order)
    driver.tell(AbortAsked(order.generation_id, "cancelled"))
    with pytest.raises(NotFound) as refusal:
        driver.tell(Attached(order.generation_id, SECOND))
    assert refusal.value.reason == "generation_lost"


def test_finished_logs_stay_for_their_time() -> None:
    driver, order = Driver(limits=Limits(retention_s=5)), chat_order()
    driver.order(order)
    driver.tell(EngineEnded(order.generation_id))
    driver.now = 4.9
    driver.tell(Attached(order.generation_id, SECOND))
    driver.now = 5.0
    driver.tell(Ticked())
    assert driver.registry.find(order.generation_id) is None
    assert driver.registry.finished_bytes == 0
    assert driver.tell(Left(order.generation_id, SECOND)) == []


def test_finished_logs_are_bounded_in_bytes() -> None:
    driver = Driver(limits=Limits(retention_bytes=10_000))
    orders = [chat_order() for _ in range(20)]
    for order in orders:
        driver.order(order)
        driver.tell(ItemsArrived(order.generation_id, (b"x" * 3000,)))
        driver.tell(EngineEnded(order.generation_id))
        assert driver.registry.finished_bytes <= 10_000
    assert driver.registry.find(orders[-1].generation_id) is not None
    assert driver.registry.find(orders[0].generation_id) is None


def test_a_log_that_grows_too_large_is_aborted_and_fails() -> None:
    driver, order = Driver(limits=Limits(log_bytes=10)), chat_order(leased=True)
    driver.order(order)
    driver.tell(ItemsArrived(order.generation_id, (b"12345678",)))
    effects = driver.tell(ItemsArrived(order.generation_id, (b"12345678",)))
    assert AbortEngine(order.generation_id) in effects
    generation = driver.registry.find(order.generation_id)
    assert generation is not None and isinstance(generation.end, Failed)
    driver.tell(EngineLetGo(order.generation_id))


def test_all_leases_are_renewed_together_and_only_while_held() -> None:
    driver = Driver(slots=1)
    first, second, brief = chat_order(leased=True), chat_order(leased=True), chat_order()
    brief = replace(brief, lease=lease(ttl_ms=30_000))
    for order in (first, second, brief):
        driver.order(order)
    assert driver.registry.next_deadline() == Instant(3.0)
    driver.now = 3.0
    assert first.lease is not None and second.lease is not None and brief.lease is not None
    assert driver.tell(Ticked()) == [
        RenewLeases((first.lease.lease_id, second.lease.lease_id), 9000),
        RenewLeases((brief.lease.lease_id,), 30_000),
    ]
    assert driver.tell(Ticked()) == []
    for order in (first, second, brief):
        driver.tell(AbortAsked(order.generation_id, "enough"))
    driver.now = 60.0
    assert driver.tell(Ticked()) == []


def test_what_is_released_twice_is_a_bug() -> None:
    slots = Slots(1)
    with pytest.raises(ReleasedTwice):
        slots.release(GenerationId(b"x"))
    with pytest.raises(ReleasedTwice):
        slots.leave_queue(GenerationId(b"x"))
