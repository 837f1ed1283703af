"""Demands and commits of the core: what hits, what joins, what is stored, and what is refused why."""

from __future__ import annotations

from dataclasses import replace

import pytest
from dynbranch.csl.core.events import OutputsDiffer, ReleaseLeases, RenewLeases
from dynbranch.csl.core.limits import Limits
from dynbranch.csl.fake import SteppedLibrary, name_of
from dynbranch.domain.errors import InvalidRequest
from dynbranch.domain.ids import LeaseId, RecordId, Version
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

DOCS = ReadScope(sources=("docs",))


def reason(outcome: object) -> Refusal:
    assert isinstance(outcome, Refused), outcome
    return outcome.reason


def declared(record: str, as_of: Version | None = None) -> ReadScope:
    return ReadScope(declared=(DeclaredRead(RecordId(record), as_of),))


@pytest.mark.promise("I1")
def test_a_committed_result_is_served_byte_for_byte() -> None:
    library = SteppedLibrary()
    committed = library.commit(
        library.lease("a"), "the answer", level=Level.BATCH_INVARIANT, execution_ms=12.5
    )
    hit = library.demand("a")
    assert isinstance(committed, Committed) and isinstance(hit, Hit)
    assert (hit.payload, hit.level, hit.execution_ms) == (b"the answer", Level.BATCH_INVARIANT, 12.5)
    assert hit.incarnation == committed.incarnation


@pytest.mark.promise("C1.single_flight")
def test_a_second_demand_follows_the_first() -> None:
    library = SteppedLibrary()
    lease = library.lease("a")
    assert library.demand("a") == Live(lease.generation)
    library.commit(lease)
    assert isinstance(library.demand("a"), Hit)


@pytest.mark.promise("C1.single_flight")
def test_an_excluded_generation_is_not_offered_again() -> None:
    library = SteppedLibrary()
    first = library.lease("a")
    second = library.demand("a", exclude=[first.generation.generation_id])
    assert isinstance(second, Miss) and second.lease is not None
    assert library.demand("a") == Live(second.lease.generation)


@pytest.mark.promise("C1.single_flight")
def test_an_excluded_generation_may_still_commit() -> None:
    library = SteppedLibrary()
    first = library.lease("a")
    library.demand("a", exclude=[first.generation.generation_id])
    assert isinstance(library.commit(first), Committed)


def test_a_retried_demand_gets_its_own_lease_back() -> None:
    library = SteppedLibrary()
    first = library.demand("a", demand_id=b"d" * 16, generation=b"g" * 16)
    again = library.demand("a", demand_id=b"d" * 16, generation=b"g" * 16)
    assert isinstance(first, Miss) and first == again
    assert isinstance(library.demand("a"), Live)


def test_looking_only_grants_nothing_and_joins_nothing() -> None:
    library = SteppedLibrary()
    assert library.demand("a", may_execute=False) == Miss(None)
    lease = library.lease("a")
    assert library.demand("a", may_execute=False) == Miss(None)
    library.commit(lease)
    assert isinstance(library.demand("a", may_execute=False), Hit)


def test_no_cache_executes_although_an_entry_stands() -> None:
    library = SteppedLibrary()
    library.commit(library.lease("a"), "x")
    lease = library.lease("a", may_hit=False)
    assert isinstance(library.commit(lease, "x"), Committed)


def test_a_name_of_the_wrong_size_is_the_callers_fault() -> None:
    library = SteppedLibrary()
    lease = replace(library.lease("a"), name=b"short")  # type: ignore[arg-type]
    with pytest.raises(InvalidRequest):
        library.commit(lease)


def test_a_sampled_result_is_never_stored() -> None:
    library = SteppedLibrary()
    with pytest.raises(InvalidRequest):
        library.commit(library.lease("a"), level=Level.SAMPLED)


# Freshness at the commit


@pytest.mark.promise("I3")
def test_a_write_between_demand_and_commit_refuses_the_commit() -> None:
    library = SteppedLibrary()
    lease = library.lease("a", scope=declared("docs/1", Version(1, 0)))
    library.write("docs/1")
    assert reason(library.commit(lease)) is Refusal.LEASE_CLOSED
    assert library.demand("a", may_execute=False) == Miss(None)


@pytest.mark.promise("I3")
def test_a_write_closes_leases_whose_reads_are_not_known_yet() -> None:
    library = SteppedLibrary()
    lease = library.lease("a", scope=DOCS)
    result = library.write("docs/elsewhere")
    assert result.closed_leases == 1
    assert isinstance(library.demand("a", scope=DOCS), Miss), "a closed lease accepts no follower"
    assert reason(library.commit(lease, reads=["docs/1"])) is Refusal.LEASE_CLOSED


@pytest.mark.promise("I3")
def test_after_a_restart_the_read_token_still_refuses() -> None:
    library = SteppedLibrary()
    stale, fresh = library.lease("a", scope=DOCS), library.lease("b", scope=DOCS)
    library.write("docs/1")
    library.restart()
    assert reason(library.commit(stale, reads=["docs/1"])) is Refusal.STALE_READ
    assert isinstance(library.commit(fresh, reads=["docs/2"]), Committed)


@pytest.mark.promise("I3")
def test_a_phantom_insert_refuses_a_query() -> None:
    library = SteppedLibrary()
    query = library.lease("q", scope=DOCS)
    library.write("docs/new")
    library.restart()
    assert reason(library.commit(query, reads=["docs/*"])) is Refusal.STALE_READ


@pytest.mark.promise("I3")
def test_a_phantom_insert_fells_a_stored_query_and_leaves_a_row_reader() -> None:
    library = SteppedLibrary()
    library.commit(library.lease("query", scope=DOCS), reads=["docs/*"])
    library.commit(library.lease("row", scope=DOCS), reads=["docs/1"])
    assert library.write("docs/new").invalidated_names == (name_of("query"),)
    assert isinstance(library.demand("row"), Hit)


@pytest.mark.promise("I3")
def test_a_row_read_of_an_absent_id_falls_when_it_appears() -> None:
    library = SteppedLibrary()
    library.commit(library.lease("a", scope=DOCS), "not found", reads=["docs/absent"])
    assert library.write("docs/absent").invalidated_entries == 1


@pytest.mark.promise("I3")
def test_reads_that_nobody_told_mean_the_whole_source() -> None:
    library = SteppedLibrary()
    library.commit(library.lease("a", scope=DOCS), reads=None)
    assert library.write("other/1").invalidated_entries == 0
    assert library.write("docs/1").invalidated_entries == 1


@pytest.mark.promise("I3")
@pytest.mark.parametrize(
    ("as_of", "stored"), [(Version(1, 1), True), (Version(1, 0), False), (Version(0, 9), False)]
)
def test_a_declared_version_must_be_current(as_of: Version, stored: bool) -> None:
    library = SteppedLibrary()
    library.write("docs/1")
    outcome = library.commit(library.lease("a", scope=declared("docs/1", as_of)))
    assert isinstance(outcome, Committed) is stored


@pytest.mark.promise("I3")
def test_a_declared_version_of_the_future_hides_no_later_write() -> None:
    library = SteppedLibrary()
    lease = library.lease("a", scope=declared("docs/1", Version(1, 1_000)))
    library.restart()
    library.write("docs/1")
    assert reason(library.commit(lease)) is Refusal.STALE_READ


@pytest.mark.promise("C1.first_arrival")
def test_a_read_without_version_counts_from_the_first_arrival() -> None:
    library = SteppedLibrary()
    library.lease("start", workflow="w")
    library.write("docs/1")
    written = library.lease("a", workflow="w", scope=declared("docs/1"))
    unwritten = library.lease("b", workflow="w", scope=declared("docs/2"))
    assert reason(library.commit(written)) is Refusal.STALE_READ
    assert isinstance(library.commit(unwritten), Committed)


@pytest.mark.promise("C1.first_arrival")
def test_the_first_arrival_survives_a_restart() -> None:
    library = SteppedLibrary()
    library.lease("start", workflow="w")
    library.write("docs/1")
    library.restart()
    assert (
        reason(library.commit(library.lease("a", workflow="w", scope=declared("docs/1"))))
        is Refusal.STALE_READ
    )


@pytest.mark.promise("C1.first_arrival")
def test_without_a_known_first_arrival_nothing_is_stored() -> None:
    library = SteppedLibrary(limits=Limits(max_workflows=1))
    library.lease("start", workflow="w")
    for workflow in ("", "beyond the bound"):
        lease = library.lease("a" + workflow, workflow=workflow, scope=declared("docs/2"))
        assert reason(library.commit(lease)) is Refusal.UNKNOWN_FIRST_ARRIVAL


def test_tokens_of_another_epoch_or_of_the_future_never_commit() -> None:
    library = SteppedLibrary()
    lease = library.lease("a")
    for token in (Version(0, 0), Version(2, 0), Version(1, 7)):
        library.restart()
        outcome = library.commit(replace(lease, read_token=token))
        if token == Version(1, 7):
            assert isinstance(outcome, Committed), (
                "an opening skips far ahead of every token handed out before"
            )
        else:
            assert reason(outcome) is Refusal.STALE_READ


def test_forgotten_versions_stand_behind_a_floor() -> None:
    from dynbranch.csl.core.events import ForgetVersions

    library = SteppedLibrary(limits=Limits(max_versions=2))
    old = library.lease("old", scope=declared("docs/1", Version(1, 0)))
    library.commit(library.lease("kept", scope=declared("docs/9", Version(1, 0))))
    library.restart()
    library.write("docs/1", "docs/2")
    assert library.handle(ForgetVersions()) == 3
    assert reason(library.commit(old)) is Refusal.STALE_READ
    assert isinstance(library.demand("kept"), Hit)
    assert isinstance(library.commit(library.lease("new", scope=DOCS), reads=["docs/1"]), Committed)


# Derivations and producers


def chain(library: SteppedLibrary, workflow: str = "w") -> None:
    """get (reads docs/1) → answer."""
    library.commit(library.lease("get", workflow=workflow, scope=DOCS), "passage", reads=["docs/1"])
    library.commit(library.lease("answer", workflow=workflow, inputs=["passage"]), "text")


@pytest.mark.promise("C1.cascade")
def test_a_descendant_falls_with_its_producer() -> None:
    library = SteppedLibrary()
    chain(library)
    assert library.write("docs/1").invalidated_names == (name_of("get"), name_of("answer"))


@pytest.mark.promise("C1.provenance")
def test_a_hit_is_a_producer_in_the_workflow_that_it_was_served_in() -> None:
    library = SteppedLibrary()
    library.commit(library.lease("get", scope=DOCS), "passage", reads=["docs/1"])
    library.demand("get", workflow="w2")
    assert len(library.lease("answer", workflow="w2", inputs=["passage"]).producers) == 1
    assert library.lease("other", workflow="w3", inputs=["passage"]).producers == ()


@pytest.mark.promise("C1.provenance")
def test_followers_of_a_live_generation_were_served_its_output() -> None:
    library = SteppedLibrary()
    lease = library.lease("get", workflow="w1", scope=DOCS)
    assert isinstance(library.demand("get", workflow="w2", scope=DOCS), Live)
    library.commit(lease, "passage", reads=["docs/1"])
    assert len(library.lease("answer", workflow="w2", inputs=["passage"]).producers) == 1


@pytest.mark.promise("C1.provenance")
def test_a_lost_producer_gives_no_edge() -> None:
    library = SteppedLibrary()
    library.commit(library.lease("get", workflow="w", scope=DOCS), "passage", reads=["docs/1"])
    library.write("docs/1")
    assert library.lease("answer", workflow="w", inputs=["passage"]).producers == ()


@pytest.mark.promise("I3")
def test_a_producer_that_falls_closes_the_leases_built_on_it() -> None:
    library = SteppedLibrary()
    library.commit(library.lease("get", workflow="w", scope=DOCS), "passage", reads=["docs/1"])
    lease = library.lease("answer", workflow="w", inputs=["passage"])
    assert library.write("docs/1").closed_leases == 1
    assert isinstance(library.demand("answer", workflow="w2"), Miss)
    assert reason(library.commit(lease)) is Refusal.LEASE_CLOSED


@pytest.mark.promise("I3")
def test_after_a_restart_a_lost_producer_still_refuses_even_if_its_name_lives_again() -> None:
    library = SteppedLibrary()
    library.commit(library.lease("get", workflow="w", scope=DOCS), "passage", reads=["docs/1"])
    lease = library.lease("answer", workflow="w", inputs=["passage"])
    library.write("docs/1")
    library.restart()
    library.commit(library.lease("get", scope=DOCS), "passage", reads=["docs/1"])
    assert reason(library.commit(lease)) is Refusal.LOST_PRODUCER


@pytest.mark.promise("C1.derivations")
def test_an_entry_lives_as_long_as_one_derivation_is_whole() -> None:
    library = SteppedLibrary()
    library.commit(library.lease("a", scope=DOCS), reads=["docs/1"])
    library.commit(library.lease("a", scope=DOCS, may_hit=False), reads=["docs/2"])
    assert library.write("docs/1").invalidated_entries == 0
    assert isinstance(library.demand("a"), Hit)
    assert library.write("docs/2").invalidated_entries == 1


@pytest.mark.promise("C1.derivations")
def test_an_entry_never_holds_itself_up() -> None:
    library = SteppedLibrary()
    library.commit(library.lease("a", workflow="w", scope=DOCS), "yes", reads=["docs/1"])
    again = library.lease("a", workflow="w", inputs=["yes"], may_hit=False)
    assert len(again.producers) == 1
    assert isinstance(library.commit(again, "yes"), Committed)
    assert library.write("docs/1").invalidated_entries == 1


@pytest.mark.promise("C1.derivations")
def test_no_circle_of_derivations_outlives_its_records() -> None:
    library = SteppedLibrary()
    library.commit(library.lease("a", workflow="w", scope=DOCS), "ta", reads=["docs/1"])
    library.commit(library.lease("b", workflow="w", inputs=["ta"]), "tb")
    library.commit(library.lease("a", workflow="w", inputs=["tb"], may_hit=False), "ta")
    assert library.write("docs/1").invalidated_entries == 2


@pytest.mark.promise("C1.derivations")
def test_derivations_of_one_entry_are_bounded_and_not_doubled() -> None:
    library = SteppedLibrary(limits=Limits(max_derivations=3))
    library.commit(library.lease("a", scope=DOCS), reads=["docs/0"])
    for number in (0, 1, 2, 3, 4):
        lease = library.lease("a", scope=DOCS, may_hit=False)
        assert isinstance(library.commit(lease, reads=[f"docs/{number}"]), Committed)
    entry = library.library.inspect(name_of("a"), library.store).entry
    assert entry is not None
    assert [d.reads[0].record for d in entry.derivations] == ["docs/0", "docs/1", "docs/2"]


@pytest.mark.promise("I1")
def test_a_differing_output_is_not_stored_and_is_reported() -> None:
    library = SteppedLibrary()
    library.commit(library.lease("a"), "one")
    lease = library.lease("a", may_hit=False)
    assert reason(library.commit(lease, "two", level=Level.BATCH_INVARIANT)) is Refusal.DIFFERS
    assert library.effects == [OutputsDiffer(name_of("a"), Level.BATCH_INVARIANT)]
    hit = library.demand("a")
    assert isinstance(hit, Hit) and hit.payload == b"one"


def test_a_commit_that_is_sent_twice_changes_nothing() -> None:
    library = SteppedLibrary()
    lease = library.lease("a", scope=DOCS)
    assert library.commit(lease, reads=["docs/1"]) == library.commit(lease, reads=["docs/1"])
    entry = library.library.inspect(name_of("a"), library.store).entry
    assert entry is not None and len(entry.derivations) == 1


def test_a_payload_above_the_bound_is_refused() -> None:
    library = SteppedLibrary(limits=Limits(max_payload_bytes=3))
    assert reason(library.commit(library.lease("a"), "four")) is Refusal.TOO_LARGE


def test_too_many_reads_become_whole_sources() -> None:
    library = SteppedLibrary(limits=Limits(max_reads=2))
    library.commit(library.lease("a", scope=DOCS), reads=["docs/1", "docs/2", "docs/3"])
    assert library.write("docs/77").invalidated_entries == 1


def test_too_many_declared_reads_make_a_lease_on_whole_sources() -> None:
    library = SteppedLibrary()
    old, now = library.write("docs/old").version, library.write("notes/old").version
    many = [DeclaredRead(RecordId(f"docs/{number}"), now) for number in range(Limits().max_reads)]
    scope = ReadScope(declared=(*many, DeclaredRead(RecordId("notes/1"), old)))
    lease = library.lease("a", scope=scope)
    assert lease.scope.declared == (
        DeclaredRead(RecordId("docs/*"), old),
        DeclaredRead(RecordId("notes/*"), old),
    )
    assert reason(library.commit(lease)) is Refusal.STALE_READ, "notes were written after the oldest version"
    lease = library.lease("b", scope=ReadScope(declared=(*many, DeclaredRead(RecordId("docs/x"), now))))
    assert library.write("docs/77").closed_leases == 1
    assert reason(library.commit(lease)) is Refusal.LEASE_CLOSED


def test_too_many_declared_reads_without_a_version_are_not_stored() -> None:
    library = SteppedLibrary()
    now = library.write("docs/old").version
    many = [DeclaredRead(RecordId(f"docs/{number}"), now) for number in range(Limits().max_reads)]
    lease = library.lease("a", scope=ReadScope(declared=(*many, DeclaredRead(RecordId("docs/x")))))
    assert lease.scope.declared == (DeclaredRead(RecordId("docs/*")),)
    assert reason(library.commit(lease)) is Refusal.UNKNOWN_FIRST_ARRIVAL


def test_too_many_sources_get_no_lease() -> None:
    library = SteppedLibrary()
    most = Limits().max_reads
    named = ReadScope(sources=tuple(f"s{number}" for number in range(most + 1)))
    declaring = ReadScope(
        declared=tuple(DeclaredRead(RecordId(f"s{number}/1")) for number in range(most)), sources=("docs",)
    )
    assert library.demand("a", scope=named) == Miss(None)
    assert library.demand("b", scope=declaring) == Miss(None)
    assert library.lease("c", scope=replace(named, sources=named.sources[:most])).scope.sources


# Leases


@pytest.mark.promise("I4")
def test_a_lease_that_nobody_renews_expires() -> None:
    library = SteppedLibrary()
    lease = library.lease("a")
    library.clock.advance(6)
    assert library.handle(RenewLeases((lease.lease_id,), 10_000)) == frozenset()
    library.clock.advance(6)
    assert isinstance(library.demand("a"), Live)
    library.clock.advance(11)
    assert library.handle(RenewLeases((lease.lease_id,), 10_000)) == {lease.lease_id}
    assert isinstance(library.demand("a"), Miss)
    assert isinstance(library.commit(lease), Committed), "the token, not the lease, decides"


@pytest.mark.promise("I4")
def test_a_released_lease_is_gone() -> None:
    library = SteppedLibrary()
    lease = library.lease("a")
    library.handle(ReleaseLeases((lease.lease_id, LeaseId(b"unknown"))))
    assert isinstance(library.demand("a"), Miss)


@pytest.mark.promise("I4")
def test_leases_are_bounded_and_a_full_table_costs_storing_only() -> None:
    library = SteppedLibrary(limits=Limits(max_leases=1))
    library.lease("a")
    assert library.demand("b") == Miss(None)


def test_an_inspection_tells_what_stands_and_why_it_went() -> None:
    library = SteppedLibrary()
    chain(library)
    library.write("docs/1")
    lease = library.lease("answer")
    inspection = library.library.inspect(name_of("answer"), library.store)
    (gone,) = inspection.history
    assert inspection.entry is None and inspection.live == (lease.generation,)
    assert gone.lost_producer is not None and gone.lost_producer.name == name_of("get")
    (direct,) = library.library.inspect(name_of("get"), library.store).history
    assert (direct.record, direct.reporter, direct.version) == ("docs/1", "test", Version(1, 1))


def test_the_history_is_bounded() -> None:
    library = SteppedLibrary(limits=Limits(max_history=3))
    for _ in range(5):
        library.commit(library.lease("a", scope=DOCS), reads=["docs/1"])
        library.write("docs/1")
    assert len(library.library.inspect(name_of("a"), library.store).history) == 3
