"""Shadows, promotion, adoption, loss and settlement, one rule at a time; each step checks the whole store."""

from __future__ import annotations

import pytest
from dynbranch.csl.core.events import AcknowledgeSettlements, ReleaseLeases, SweepShadows
from dynbranch.csl.core.limits import Limits
from dynbranch.csl.fake import SteppedLibrary, name_of, origin_of
from dynbranch.domain.errors import InvalidRequest
from dynbranch.domain.fills import (
    DiscardReason,
    FillGranted,
    FillKnown,
    FillLive,
    FillRefusal,
    FillRefused,
    SettlementKind,
)
from dynbranch.domain.ids import FillId, RecordId
from dynbranch.domain.reuse import (
    Committed,
    DeclaredRead,
    Hit,
    Level,
    Live,
    Miss,
    ReadScope,
    Refusal,
    Refused,
)

K = SettlementKind


@pytest.fixture
def library() -> SteppedLibrary:
    return SteppedLibrary()


def kinds(library: SteppedLibrary) -> list[SettlementKind]:
    return [one.kind for one in library.settlements()]


def reading(*records: str) -> ReadScope:
    return ReadScope(declared=tuple(DeclaredRead(RecordId(one), None) for one in records))


def granted(begun: object) -> FillGranted:
    assert isinstance(begun, FillGranted), begun
    return begun


@pytest.mark.promise("C2.shadow_unreadable")
def test_no_serving_path_sees_a_shadow(library: SteppedLibrary) -> None:
    assert isinstance(library.fill("a", "f"), Committed)
    inspection = library.library.inspect(name_of("a"), library.store)
    assert inspection.entry is None and inspection.live == () and inspection.history == ()
    assert library.library.stats(library.store).entries == 0
    assert isinstance(library.demand("a", may_hit=False, may_execute=False), Miss)


@pytest.mark.promise("C2.shadow_unreadable")
def test_a_write_tells_nobody_of_the_shadows_that_it_fells(library: SteppedLibrary) -> None:
    library.demand("first", workflow="w")
    library.fill("a", "f", workflow="w", scope=reading("s/1"))
    result = library.write("s/1")
    assert result.invalidated_entries == 0 and result.invalidated_names == ()
    assert library.library.inspect(name_of("a"), library.store).history == ()
    assert kinds(library) == [K.SHADOWED, K.STALE]


def test_a_running_fill_is_not_shown_as_live(library: SteppedLibrary) -> None:
    library.begin_fill("a", "f")
    assert library.library.inspect(name_of("a"), library.store).live == ()


@pytest.mark.promise("C2.promotion_atomic_once")
def test_an_exact_demand_promotes_and_later_ones_hit(library: SteppedLibrary) -> None:
    library.fill("a", "f", "the result")
    hit = library.demand("a", workflow="w")
    assert isinstance(hit, Hit) and hit.payload == b"the result" and hit.promoted == origin_of("f")
    again = library.demand("a")
    assert isinstance(again, Hit) and again.promoted is None
    shadowed, promoted = library.settlements()
    assert promoted.kind is K.PROMOTED and promoted.demanded_by is not None
    assert promoted.demanded_by.workflow_id == "w" and shadowed.kind is K.SHADOWED
    assert isinstance(library.demand("another name"), Miss)


@pytest.mark.promise("C2.promotion_atomic_once")
def test_promotion_survives_a_restart(library: SteppedLibrary) -> None:
    library.fill("a", "f")
    library.restart()
    assert isinstance(library.demand("a"), Hit)
    library.restart()
    again = library.demand("a")
    assert isinstance(again, Hit) and again.promoted is None


@pytest.mark.promise("I3")
def test_a_stale_shadow_is_not_promoted(library: SteppedLibrary) -> None:
    library.demand("first", workflow="w")
    library.fill("a", "f", workflow="w", scope=reading("s/1"))
    library.write("s/1")
    assert isinstance(library.demand("a"), Miss)


def test_a_demand_that_read_more_than_the_fill_does_not_promote(library: SteppedLibrary) -> None:
    """No write to the further record would fell what was promoted."""
    library.demand("first", workflow="w")
    library.fill("a", "f", workflow="w", scope=reading("s/1"))
    assert isinstance(library.demand("a", workflow="w", scope=reading("s/1", "s/2")), Miss)
    assert isinstance(library.demand("a", workflow="w", scope=reading("s/1")), Hit)


def test_whoever_is_served_by_a_fill_is_told_its_span(library: SteppedLibrary) -> None:
    library.fill("a", "f", traceparent="00-trace-span-01")
    library.begin_fill("b", "g", traceparent="00-other-span-01")
    live = library.demand("b")
    assert isinstance(live, Live) and live.adopted is not None
    assert live.adopted.traceparent == "00-other-span-01"
    library.restart()
    hit = library.demand("a")
    assert isinstance(hit, Hit) and hit.promoted is not None
    assert hit.promoted.traceparent == "00-trace-span-01"


@pytest.mark.promise("C2.lost_never_promoted")
def test_a_lost_shadow_is_never_promoted(library: SteppedLibrary) -> None:
    library.fill("a", "f")
    result = library.discard("f")
    assert result.discarded_shadows == 1 and result.abort == () and not result.immune
    library.restart()
    assert isinstance(library.demand("a"), Miss)
    assert library.handle(SweepShadows()) == 1
    assert kinds(library) == [K.SHADOWED, K.DISCARDED]
    assert len(list(library.store.scan(b"E"))) == 0


@pytest.mark.parametrize("once", [False, True])
def test_a_lost_shadow_gives_way_to_the_next_fill_of_its_name(library: SteppedLibrary, once: bool) -> None:
    library.fill("a", "f", "the lost result", once=once)
    library.discard("f")
    assert isinstance(library.fill("a", "g", "the next result"), Committed)
    hit = library.demand("a")
    assert isinstance(hit, Hit) and hit.promoted == origin_of("g")
    assert kinds(library) == [K.SHADOWED, K.DISCARDED, K.SHADOWED, K.PROMOTED]


@pytest.mark.promise("C2.lost_never_promoted")
def test_a_lost_fill_that_runs_is_named_to_be_aborted_and_commits_nothing(library: SteppedLibrary) -> None:
    begun = granted(library.begin_fill("a", "f"))
    result = library.discard("f")
    assert result.abort == (begun.lease.generation,)
    assert isinstance(library.demand("a"), Miss)
    refused = library.commit(begun.lease)
    assert isinstance(refused, Refused) and refused.reason is Refusal.LEASE_CLOSED


@pytest.mark.promise("I4")
def test_a_commit_that_comes_twice_is_settled_once(library: SteppedLibrary) -> None:
    begun = granted(library.begin_fill("a", "f"))
    assert isinstance(library.commit(begun.lease), Committed)
    assert isinstance(library.commit(begun.lease), Committed)
    hit = library.demand("a")
    assert isinstance(hit, Hit) and hit.promoted == origin_of("f")
    assert kinds(library) == [K.SHADOWED, K.PROMOTED]


@pytest.mark.promise("C2.lost_never_promoted")
def test_a_fill_that_begins_after_its_loss_is_refused(library: SteppedLibrary) -> None:
    library.discard("f")
    assert library.begin_fill("a", "f") == FillRefused(FillRefusal.LOST, "it was discarded before it began")


def test_promoted_and_adopted_work_is_immune_to_loss(library: SteppedLibrary) -> None:
    library.fill("a", "f")
    begun = granted(library.begin_fill("b", "g"))
    assert isinstance(library.demand("a"), Hit)
    live = library.demand("b")
    assert isinstance(live, Live) and live.adopted == origin_of("g")
    result = library.discard("f", "g")
    assert result.immune == {FillId(b"f"), FillId(b"g")} and result.abort == ()
    assert isinstance(library.commit(begun.lease), Committed)
    assert isinstance(library.demand("a"), Hit) and isinstance(library.demand("b"), Hit)


@pytest.mark.promise("C2.adoption")
def test_one_demand_adopts_and_others_follow(library: SteppedLibrary) -> None:
    begun = granted(library.begin_fill("a", "f"))
    first = library.demand("a", demand_id=b"d1", workflow="w")
    second = library.demand("a", demand_id=b"d2")
    assert first == Live(begun.lease.generation, origin_of("f"))
    assert second == Live(begun.lease.generation)
    assert library.demand("a", demand_id=b"d1", workflow="w") == first
    library.commit(begun.lease, "x")
    hit = library.demand("a")
    assert isinstance(hit, Hit) and hit.promoted is None
    assert kinds(library) == [K.ADOPTED, K.CONFIRMED]


@pytest.mark.promise("C2.adoption")
def test_a_write_lets_an_adopted_fill_end_and_stores_nothing(library: SteppedLibrary) -> None:
    library.demand("first", workflow="w")
    begun = granted(library.begin_fill("a", "f", workflow="w", scope=reading("s/1")))
    assert isinstance(library.demand("a", workflow="w", scope=reading("s/1")), Live)
    library.write("s/1")
    assert isinstance(library.commit(begun.lease, execution_ms=7.0), Refused)
    adopted, served = library.settlements()
    assert (adopted.kind, served.kind) == (K.ADOPTED, K.SERVED)
    assert (served.origin, served.execution_ms, served.reason) == (origin_of("f"), 7.0, "lease_closed")


@pytest.mark.promise("C2.adoption", "I4")
def test_an_adopted_fill_whose_lease_runs_out_has_failed(library: SteppedLibrary) -> None:
    """Whoever ran it is gone, and nobody else tells how it ended."""
    granted(library.begin_fill("a", "f"))
    granted(library.begin_fill("b", "g"))
    assert isinstance(library.demand("a"), Live)
    library.clock.advance(11.0)
    # Also when somebody else's demand was the first to see it.
    assert isinstance(library.demand("c"), Miss)
    assert library.handle(SweepShadows()) == 1 and library.handle(SweepShadows()) == 0
    assert kinds(library) == [K.ADOPTED, K.FAILED]
    assert library.settlements()[-1].origin == origin_of("f"), "of the other its controller tells"


@pytest.mark.promise("I3")
def test_a_write_closes_a_running_fill_and_says_where_it_runs(library: SteppedLibrary) -> None:
    library.demand("first", workflow="w")
    begun = granted(library.begin_fill("a", "f", workflow="w", scope=reading("s/1")))
    library.write("s/1")
    assert isinstance(library.demand("a"), Miss)
    (stale,) = library.settlements()
    assert stale.kind is K.STALE and stale.generation == begun.lease.generation
    assert isinstance(library.commit(begun.lease), Refused)


def test_a_demand_that_wants_no_hit_neither_promotes_nor_adopts(library: SteppedLibrary) -> None:
    library.fill("a", "f")
    library.begin_fill("b", "g")
    assert isinstance(library.demand("a", may_hit=False), Miss)
    assert isinstance(library.demand("b", may_hit=False), Miss)
    assert kinds(library) == [K.SHADOWED]


def test_a_canonical_execution_confirms_an_equal_shadow(library: SteppedLibrary) -> None:
    library.fill("a", "f", "same")
    lease = library.lease("a", may_hit=False)
    assert isinstance(library.commit(lease, "same"), Committed)
    hit = library.demand("a")
    assert isinstance(hit, Hit) and hit.promoted is None
    assert library.settlements()[-1].reason == "confirmed_by_execution"


def test_a_canonical_execution_takes_the_place_of_another_shadow(library: SteppedLibrary) -> None:
    library.fill("a", "f", "one")
    lease = library.lease("a", may_hit=False)
    assert isinstance(library.commit(lease, "other"), Committed)
    hit = library.demand("a")
    assert isinstance(hit, Hit) and hit.payload == b"other"
    assert library.settlements()[-1].reason == "differs"


def test_what_stands_or_runs_is_not_filled_again(library: SteppedLibrary) -> None:
    library.commit(library.lease("done"), "d")
    library.fill("shadowed", "f", "s")
    lease = library.lease("running")
    done, shadowed = library.begin_fill("done", "g"), library.begin_fill("shadowed", "g")
    assert isinstance(done, FillKnown) and not done.shadow and done.payload == b"d"
    assert isinstance(shadowed, FillKnown) and shadowed.shadow and shadowed.payload == b"s"
    assert library.begin_fill("running", "g") == FillLive(lease.generation)


def test_beginning_twice_gives_the_same_lease(library: SteppedLibrary) -> None:
    assert library.begin_fill("a", "f") == library.begin_fill("a", "f")


def test_stages_of_a_chain_hang_on_each_other(library: SteppedLibrary) -> None:
    """A write to what the first stage read fells the second too, promoted or not."""
    library.demand("first", workflow="w")
    library.fill("one", "f", "1", workflow="w", scope=reading("s/1"))
    library.fill("two", "f", "2", workflow="w", stage=1, after="one")
    library.fill("three", "f", "3", workflow="w", stage=2, after="two")
    assert isinstance(library.demand("one", scope=reading("s/1")), Hit)
    assert isinstance(library.demand("two"), Hit)
    library.write("s/1")
    assert isinstance(library.demand("two"), Miss) and isinstance(library.demand("three"), Miss)


def test_a_stage_without_the_one_before_is_refused(library: SteppedLibrary) -> None:
    refused = library.begin_fill("two", "f", stage=1, after="one")
    assert isinstance(refused, FillRefused) and refused.reason is FillRefusal.LOST


def test_a_discarded_producer_leaves_its_reads_to_what_was_promoted(library: SteppedLibrary) -> None:
    library.demand("first", workflow="w")
    library.fill("one", "f", "1", workflow="w", scope=reading("s/1"))
    library.fill("two", "f", "2", workflow="w", stage=1, after="one")
    assert isinstance(library.demand("two"), Hit)
    library.discard("f")
    assert library.handle(SweepShadows()) == 1
    assert isinstance(library.demand("two"), Hit)
    library.write("s/1")
    assert isinstance(library.demand("two"), Miss)


def test_a_shadow_expires(library: SteppedLibrary) -> None:
    library.fill("a", "f", ttl_ms=1000)
    library.clock.advance(2.0)
    assert isinstance(library.demand("a", may_execute=False), Miss)
    assert library.handle(SweepShadows()) == 1
    assert library.settlements()[-1].reason == "expired"


@pytest.mark.parametrize("once", [False, True])
def test_a_shadow_that_is_too_old_is_nothing_to_go_on_from(library: SteppedLibrary, once: bool) -> None:
    library.fill("a", "f", "old", ttl_ms=1000, once=once)
    library.clock.advance(2.0)
    assert isinstance(library.fill("a", "g", "new"), Committed)
    hit = library.demand("a")
    assert isinstance(hit, Hit) and hit.payload == b"new" and hit.promoted == origin_of("g")
    assert [one.reason for one in library.settlements()] == ["", "expired", "", ""]
    assert library.handle(SweepShadows()) == 0


def test_a_shadow_that_is_too_old_and_can_not_be_taken_away_yet_refuses_the_next(
    library: SteppedLibrary,
) -> None:
    library.fill("a", "f", ttl_ms=1000)
    library.clock.advance(2.0)
    library.begin_write("s/1")
    refused = library.begin_fill("a", "g")
    assert isinstance(refused, FillRefused) and refused.reason is FillRefusal.NOT_STORABLE
    library.finish_write()
    assert isinstance(library.begin_fill("a", "g"), FillGranted)


def test_there_are_no_more_shadows_than_allowed() -> None:
    library = SteppedLibrary(limits=Limits(max_shadows=2))
    library.fill("a", "f")
    library.begin_fill("b", "g")
    full = library.begin_fill("c", "h")
    assert isinstance(full, FillRefused) and full.reason is FillRefusal.FULL


def test_eviction_for_room_spares_shadows() -> None:
    library = SteppedLibrary(limits=Limits(max_entries=3))
    library.fill("a", "f")
    for number in range(8):
        library.commit(library.lease(f"c{number}"), f"{number}")
    assert isinstance(library.demand("a"), Hit)


@pytest.mark.promise("C2.once")
def test_a_sampled_result_is_consumed_by_one_demand(library: SteppedLibrary) -> None:
    library.fill("a", "f", "draw", once=True)
    assert isinstance(library.demand("a", may_execute=False), Miss)
    first = library.demand("a", once=True, demand_id=b"d1")
    assert isinstance(first, Hit) and first.payload == b"draw" and first.level is Level.SAMPLED
    assert library.demand("a", once=True, demand_id=b"d1") == first
    assert library.demand("a", once=True, demand_id=b"d2") == Miss(None)
    library.restart()
    assert library.demand("a", once=True) == Miss(None)
    assert kinds(library) == [K.SHADOWED, K.CONSUMED]


def test_consumed_results_are_kept_within_bounds_and_each_for_its_own_demand() -> None:
    library = SteppedLibrary(limits=Limits(max_consumed=3, max_consumed_bytes=10))
    consumed = library.library.memory.consumed

    def draw(what: str, payload: str) -> Hit:
        library.fill(what, what, payload, once=True)
        taken = library.demand(what, once=True, demand_id=what.encode())
        assert isinstance(taken, Hit)
        return taken

    def again(what: str, demand: str) -> object:
        return library.demand(what, once=True, demand_id=demand.encode())

    drawn = {what: draw(what, what * 4) for what in "abc"}
    assert (len(consumed), consumed.held_bytes) == (2, 8)
    assert again("a", "a") == Miss(None)
    assert again("b", "b") == drawn["b"] and again("c", "c") == drawn["c"]
    assert again("c", "b") == Miss(None)
    large = draw("d", "d" * 20)
    assert (len(consumed), consumed.held_bytes) == (1, 20)
    assert again("d", "d") == large
    for what in "efgh":
        draw(what, "")
    assert (len(consumed), consumed.held_bytes) == (3, 0)


@pytest.mark.promise("C2.once")
def test_a_running_sampled_fill_is_taken_by_one_demand_and_never_stored(library: SteppedLibrary) -> None:
    begun = granted(library.begin_fill("a", "f", once=True))
    taken = library.demand("a", once=True)
    assert isinstance(taken, Live) and taken.adopted == origin_of("f")
    assert library.demand("a", once=True) == Miss(None)
    assert isinstance(library.commit(begun.lease, level=Level.SAMPLED), Refused)
    assert library.demand("a", once=True) == Miss(None)
    assert kinds(library) == [K.CONSUMED, K.SERVED]


@pytest.mark.promise("C2.settlement_outbox")
def test_an_adopted_fill_that_comes_to_nothing_is_told(library: SteppedLibrary) -> None:
    leases = [granted(library.begin_fill(what, what)).lease for what in ("a", "b")]
    assert isinstance(library.demand("a"), Live)
    library.handle(ReleaseLeases(tuple(lease.lease_id for lease in leases)))
    assert [(one.kind, one.name) for one in library.settlements()] == [
        (K.ADOPTED, name_of("a")),
        (K.FAILED, name_of("a")),
    ]
    assert library.library.memory.leases.fills == 0


@pytest.mark.promise("C2.settlement_outbox")
def test_whatever_keeps_an_adopted_result_out_of_the_store_is_told() -> None:
    library = SteppedLibrary(limits=Limits(max_payload_bytes=4))
    begun = granted(library.begin_fill("a", "f"))
    assert isinstance(library.demand("a"), Live)
    refused = library.commit(begun.lease, "too long")
    assert isinstance(refused, Refused) and refused.reason is Refusal.TOO_LARGE
    begun = granted(library.begin_fill("b", "g"))
    assert isinstance(library.demand("b"), Live)
    library.commit(library.lease("b", may_hit=False), "one")
    assert isinstance(library.commit(begun.lease, "two"), Refused)
    assert [(one.kind, one.reason) for one in library.settlements()] == [
        (K.ADOPTED, ""),
        (K.SERVED, "too_large"),
        (K.ADOPTED, ""),
        (K.SERVED, "differs"),
    ]
    # A fill that nobody took over ends with its own run, which tells it.
    assert isinstance(library.commit(granted(library.begin_fill("c", "h")).lease, "too long"), Refused)
    assert len(kinds(library)) == 4


@pytest.mark.promise("C2.once")
def test_a_repeated_demand_is_led_to_its_own_draw_however_short_that_was(library: SteppedLibrary) -> None:
    begun = granted(library.begin_fill("a", "f", once=True))
    taken = library.demand("a", once=True, demand_id=b"d1")
    library.commit(begun.lease, level=Level.SAMPLED)
    assert library.demand("a", once=True, demand_id=b"d1") == taken
    assert library.demand("a", once=True, demand_id=b"d2") == Miss(None)
    gone = [begun.lease.generation.generation_id]
    assert library.demand("a", once=True, demand_id=b"d1", exclude=gone) == Miss(None)
    assert library.demand("b", once=True, demand_id=b"d1") == Miss(None)


@pytest.mark.promise("C2.once")
def test_a_sampled_fill_that_was_lost_with_its_agent_is_given_to_nobody_else(library: SteppedLibrary) -> None:
    begun = granted(library.begin_fill("a", "f", once=True))
    library.demand("a", once=True, demand_id=b"d1")
    gone = [begun.lease.generation.generation_id]
    assert library.demand("a", once=True, exclude=gone) == Miss(None)
    assert library.demand("a", once=True) == Miss(None)
    library.clock.advance(60.0)
    assert isinstance(library.begin_fill("a", "g", once=True), FillGranted)
    assert kinds(library) == [K.CONSUMED]


@pytest.mark.promise("C2.once")
def test_a_sampled_fill_that_the_store_forgot_is_not_stored(library: SteppedLibrary) -> None:
    """It may have been consumed before the restart."""
    begun = granted(library.begin_fill("a", "f", once=True))
    library.demand("a", once=True)
    library.restart()
    assert isinstance(library.commit(begun.lease, level=Level.SAMPLED), Refused)


@pytest.mark.promise("C2.once")
def test_one_sampled_fill_per_name(library: SteppedLibrary) -> None:
    library.begin_fill("a", "f", once=True)
    library.fill("b", "g", once=True)
    for what in ("a", "b"):
        taken = library.begin_fill(what, "h", once=True)
        assert isinstance(taken, FillRefused) and taken.reason is FillRefusal.ONCE_TAKEN


def test_a_sampled_result_without_such_a_lease_is_refused(library: SteppedLibrary) -> None:
    with pytest.raises(InvalidRequest):
        library.commit(library.lease("a"), level=Level.SAMPLED)


@pytest.mark.promise("C2.settlement_outbox")
def test_settlements_wait_until_they_are_acknowledged(library: SteppedLibrary) -> None:
    library.fill("a", "f")
    library.demand("a")
    library.restart()
    shadowed, promoted = library.settlements()
    assert shadowed.number < promoted.number
    assert library.handle(AcknowledgeSettlements(shadowed.number)) == 1
    assert library.settlements() == (promoted,)
    library.fill("b", "g")
    assert library.settlements()[-1].number > promoted.number


def test_old_settlements_make_room() -> None:
    library = SteppedLibrary(limits=Limits(max_settlements=3))
    for number in range(6):
        library.fill(f"{number}", f"f{number}")
    assert [one.origin.fill_id for one in library.settlements()] == [b"f3", b"f4", b"f5"]
    assert library.library.counters.dropped_settlements == 3


def test_a_restarted_store_keeps_a_fill_that_it_does_not_know(library: SteppedLibrary) -> None:
    begun = granted(library.begin_fill("a", "f"))
    library.restart()
    assert isinstance(library.commit(begun.lease), Committed)
    hit = library.demand("a")
    assert isinstance(hit, Hit) and hit.promoted == origin_of("f")


def test_a_discard_while_a_write_is_planned_is_taken_away_later(library: SteppedLibrary) -> None:
    library.demand("first", workflow="w")
    library.fill("a", "f", workflow="w", scope=reading("s/1"))
    library.fill("b", "g")
    library.begin_write("s/1")
    library.discard("g", reason=DiscardReason.EXPIRED)
    assert isinstance(library.demand("b"), Miss)
    assert library.handle(SweepShadows()) == 0
    library.finish_write()
    assert library.handle(SweepShadows()) == 1


def test_a_promotion_while_a_write_is_planned_falls_with_it(library: SteppedLibrary) -> None:
    library.demand("first", workflow="w")
    library.fill("a", "f", workflow="w", scope=reading("s/1"))
    library.begin_write("s/1")
    while not library.step_write():
        pass
    assert isinstance(library.demand("a", workflow="w", scope=reading("s/1")), Hit)
    library.finish_write()
    assert isinstance(library.demand("a", may_execute=False), Miss)
    assert kinds(library) == [K.SHADOWED, K.PROMOTED]
