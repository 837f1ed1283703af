"""Any order of events keeps the books: at the end no slot, no place in the queue and no lease is held."""

from __future__ import annotations

from dataclasses import replace

import pytest
from dynbranch.domain.engine import Failed, GenerationOrder, WorkClass
from dynbranch.domain.errors import DomainError
from dynbranch.domain.ids import GenerationId, Instant, LeaseId
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
    LeasesUnknown,
    Left,
    Ordered,
    ReleaseLeases,
    RenewLeases,
    StartEngine,
    Ticked,
    Wake,
)
from dynbranch.engine_agent.core.registry import Limits, Registry
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from unit.engine_agent.samples import chat_order


class Conservation(RuleBasedStateMachine):
    """The engine, the store and the followers around a registry, in any interleaving."""

    limits = Limits(waiting=3, log_bytes=40, retention_s=2, retention_bytes=6000, fill_kv_tokens=100)

    def __init__(self) -> None:
        super().__init__()
        self.registry = Registry(self.limits)
        self.now = 0.0
        self.followers: set[tuple[GenerationId, FollowerId]] = set()
        self.next_follower = 0
        self.on_engine: dict[GenerationId, int] = {}
        self.aborting: set[GenerationId] = set()
        self.committing: set[GenerationId] = set()
        self.leases: dict[LeaseId, int] = {}
        self.ended: dict[GenerationId, int] = {}
        self.accepted: set[GenerationId] = set()
        self.slots = 0
        self.shares: dict[GenerationId, tuple[int, int]] = {}
        """Slots and tokens of every fill and draft that is on the engine and was not taken over."""

    def tell(self, event: Event) -> None:
        for effect in self.registry.handle(event, Instant(self.now)):
            self.perform(effect)

    def perform(self, effect: Effect) -> None:
        match effect:
            case StartEngine(order):
                assert order.generation_id not in self.on_engine
                self.on_engine[order.generation_id] = 1
            case AbortEngine(generation):
                assert generation in self.on_engine
                self.aborting.add(generation)
            case CommitResult(generation):
                self.committing.add(generation)
            case ReleaseLeases(leases):
                for lease_id in leases:
                    self.leases[lease_id] += 1
            case RenewLeases(leases):
                assert all(self.leases[lease_id] == 0 for lease_id in leases), "a settled lease is renewed"
            case Ended(generation):
                self.ended[generation] = self.ended.get(generation, 0) + 1
            case Wake():
                pass

    @initialize(slots=st.integers(1, 3))
    def engine_starts(self, slots: int) -> None:
        self.slots = slots
        self.tell(EngineReady(slots))

    @rule(
        leased=st.booleans(),
        grace_ms=st.sampled_from([0, 500]),
        width=st.integers(1, 4),
        work=st.sampled_from([WorkClass.CANONICAL, *WorkClass]),
        tokens=st.integers(0, 60),
    )
    def order(self, leased: bool, grace_ms: int, width: int, work: WorkClass, tokens: int) -> None:
        order: GenerationOrder = replace(
            chat_order(leased=leased), detach_grace_ms=grace_ms, work=work, reserve_tokens=tokens
        )
        follower = self.new_follower()
        if order.lease is not None:
            self.leases[order.lease.lease_id] = 0
        try:
            self.tell(Ordered(order, follower, width))
        except DomainError:
            if order.lease is not None:
                del self.leases[order.lease.lease_id]
            return
        self.accepted.add(order.generation_id)
        self.followers.add((order.generation_id, follower))
        if work is not WorkClass.CANONICAL:
            assert order.generation_id in self.on_engine, "a fill starts at once or not at all"
            self.shares[order.generation_id] = (min(width, self.slots), tokens)
            assert sum(slots for slots, _ in self.shares.values()) <= self.registry.fill_slots
            assert sum(tokens for _, tokens in self.shares.values()) <= 100

    def new_follower(self) -> FollowerId:
        self.next_follower += 1
        return FollowerId(self.next_follower)

    @precondition(lambda self: self.accepted)
    @rule(data=st.data(), adopts=st.booleans())
    def attach(self, data: st.DataObject, adopts: bool) -> None:
        generation = data.draw(st.sampled_from(sorted(self.accepted)))
        follower = self.new_follower()
        try:
            self.tell(Attached(generation, follower, adopts))
        except DomainError:
            return
        self.followers.add((generation, follower))
        known = self.registry.find(generation)
        if adopts and known is not None and known.order.work is WorkClass.FILL:
            self.shares.pop(generation, None)

    @precondition(lambda self: self.followers)
    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        who = data.draw(st.sampled_from(sorted(self.followers)))
        self.followers.discard(who)
        self.tell(Left(*who))

    @precondition(lambda self: self.accepted)
    @rule(data=st.data(), only_speculative=st.booleans())
    def abort(self, data: st.DataObject, only_speculative: bool) -> None:
        generation = data.draw(st.sampled_from(sorted(self.accepted)))
        before = set(self.aborting)
        self.tell(AbortAsked(generation, "asked", only_speculative))
        if only_speculative:
            assert self.aborting - before <= self.shares.keys(), "only what nobody waits for"

    @precondition(lambda self: self.registry.leases.held)
    @rule(data=st.data())
    def store_forgets(self, data: st.DataObject) -> None:
        held = sorted(self.registry.leases.held)
        before = set(self.aborting)
        self.tell(LeasesUnknown(frozenset(data.draw(st.lists(st.sampled_from(held), min_size=1)))))
        assert self.aborting - before <= self.shares.keys(), "what somebody waits for runs on"

    @precondition(lambda self: len(self.accepted) > 10)
    @rule()
    def drain(self) -> None:
        self.tell(DrainAsked())

    @precondition(lambda self: self.on_engine)
    @rule(data=st.data(), size=st.integers(1, 30))
    def item(self, data: st.DataObject, size: int) -> None:
        self.tell(ItemsArrived(data.draw(st.sampled_from(sorted(self.on_engine))), (b"x" * size,)))

    @precondition(lambda self: self.on_engine)
    @rule(data=st.data(), how=st.sampled_from(["clean", "unstorable", "failed"]))
    def engine_ends(self, data: st.DataObject, how: str) -> None:
        """May cross an abort: then the end is stale, and the engine still has to let go."""
        generation = data.draw(st.sampled_from(sorted(self.on_engine)))
        if generation not in self.aborting:
            del self.on_engine[generation]
        if how == "failed":
            self.tell(EngineFailed(generation, Failed(500, b"", may_retry=False)))
        else:
            self.tell(EngineEnded(generation, unstorable="content_filter" if how == "unstorable" else ""))

    @precondition(lambda self: self.aborting)
    @rule(data=st.data())
    def engine_lets_go(self, data: st.DataObject) -> None:
        generation = data.draw(st.sampled_from(sorted(self.aborting)))
        self.aborting.discard(generation)
        del self.on_engine[generation]
        self.tell(EngineLetGo(generation))

    @precondition(lambda self: self.committing)
    @rule(data=st.data(), committed=st.booleans())
    def store_answers(self, data: st.DataObject, committed: bool) -> None:
        generation = data.draw(st.sampled_from(sorted(self.committing)))
        self.committing.discard(generation)
        known = self.registry.find(generation)
        assert known is not None and known.order.lease is not None
        if committed:
            self.leases[known.order.lease.lease_id] += 1
        self.tell(
            CommitAnswered(generation, "committed" if committed else "unavailable", release=not committed)
        )

    @rule(seconds=st.sampled_from([0.05, 0.2, 0.6, 3.0]))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds
        self.tell(Ticked())
        due = self.registry.next_deadline()
        assert due is None or due > self.now

    @rule(slots=st.integers(1, 3))
    def engine_dies_and_returns(self, slots: int) -> None:
        self.tell(EngineLost("died"))
        self.registry.validate_state()
        self.tell(EngineReady(slots))
        self.slots = slots

    @invariant()
    def books_are_kept(self) -> None:
        self.registry.validate_state()
        assert set(self.registry.slots.held) == set(self.on_engine)
        assert all(count <= 1 for count in self.leases.values())
        assert all(count == 1 for count in self.ended.values())
        for generation in self.shares.keys() - self.on_engine.keys():
            del self.shares[generation]
        held = {id_: (share.slots, share.tokens) for id_, share in self.registry.speculation.held.items()}
        assert held == self.shares, "what fills reserved is held until the engine is rid of them, once"
        self.nobody_waits_for_a_fill()

    def nobody_waits_for_a_fill(self) -> None:
        registry = self.registry
        if not registry.slots.waiting or not registry.limits.fills_give_way:
            return
        head = min(next(iter(registry.slots.waiting.values())), registry.slots.total)
        coming = sum(registry.slots.held[generation] for generation in self.aborting)
        free = registry.slots.total - registry.slots.used + coming
        fills = sum(self.shares[id_][0] for id_ in self.shares.keys() - self.aborting)
        assert head <= free or head > free + fills, "a fill keeps a slot that canonical work needs"

    def teardown(self) -> None:
        for who in sorted(self.followers):
            self.tell(Left(*who))
        self.now += 10.0
        self.tell(Ticked())
        for generation in sorted(self.aborting):
            self.tell(EngineLetGo(generation))
        while self.on_engine.keys() - self.aborting:
            generation = sorted(self.on_engine.keys() - self.aborting)[0]
            del self.on_engine[generation]
            self.tell(EngineFailed(generation, Failed(500, b"", may_retry=False)))
        for generation in sorted(self.committing):
            known = self.registry.find(generation)
            assert known is not None and known.order.lease is not None
            self.leases[known.order.lease.lease_id] += 1
            self.tell(CommitAnswered(generation, "committed"))
        self.registry.validate_state()
        assert not self.registry.slots.held and not self.registry.slots.waiting
        assert not self.registry.leases.held and self.registry.leases.renew_at is None
        assert not self.registry.speculation.held
        assert all(count == 1 for count in self.leases.values()), "each lease is settled exactly once"
        assert self.registry.open_count == 0
        assert self.ended.keys() == self.accepted
        self.now += 10.0
        self.tell(Ticked())
        assert not self.registry.generations and self.registry.finished_bytes == 0


@pytest.mark.promise("I4")
class TestConservation(Conservation.TestCase):  # type: ignore[name-defined,misc]
    settings = settings(max_examples=120, stateful_step_count=40, deadline=None)


class Patient(Conservation):
    """Fills keep their slots until they end."""

    limits = replace(Conservation.limits, fills_give_way=False, fill_slots=2)


@pytest.mark.promise("I4")
class TestPatient(Patient.TestCase):  # type: ignore[name-defined,misc]
    settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
