"""The core against a brute-force model, over random histories of commits, writes, evictions and restarts.

The model knows nothing of indexes. It keeps every life of every entry with all its derivations, keeps
evicted lives as ghosts that still support their children, and after a write looks again and again for
derivations that are not whole, until nothing changes. What it leaves must be exactly what the library
serves (Prop. A.5: the minimal cascade).
"""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from dynbranch.csl.core import eviction, rows
from dynbranch.csl.core.limits import Limits
from dynbranch.csl.core.store import Transaction
from dynbranch.csl.fake import SteppedLibrary, name_of
from dynbranch.domain.ids import GenerationId, LeaseId, Name, RecordId
from dynbranch.domain.reuse import (
    Committed,
    GenerationRef,
    Hit,
    Incarnation,
    Lease,
    ReadScope,
    Refusal,
    Refused,
    WriteResult,
)
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    initialize,
    invariant,
    precondition,
    rule,
)

WHATS = [f"n{number}" for number in range(7)]
SOURCES = ("s", "t")
RECORDS = [RecordId(f"{source}/{key}") for source in SOURCES for key in ("1", "2", "3", "*")]

GENEROUS = Limits(max_derivations=10_000, slice_nodes=10_000)
SLICED = Limits(max_derivations=10_000, slice_nodes=1)


@dataclass(frozen=True)
class Support:
    """One recorded execution."""

    reads: frozenset[str]
    producers: frozenset[Incarnation]


@dataclass
class Life:
    supports: list[Support]
    ghost: bool = False


@dataclass
class Model:
    sequence: int = 0
    lives: dict[Incarnation, Life] = field(default_factory=dict)
    writes: list[tuple[int, str]] = field(default_factory=list)

    def touched(self, record: str, written: str) -> bool:
        source, _, key = record.partition("/")
        other, _, changed = written.partition("/")
        return source == other and (key == changed or "*" in (key, changed))

    def written_after(self, record: str, sequence: int) -> bool:
        return any(at > sequence and self.touched(record, written) for at, written in self.writes)

    def write(self, records: list[RecordId]) -> set[Incarnation]:
        """Returns the served lives that fall."""
        self.sequence += 1
        self.writes += [(self.sequence, record) for record in records]
        for life in self.lives.values():
            life.supports = [
                support
                for support in life.supports
                if not any(self.touched(read, record) for read in support.reads for record in records)
            ]
        served_before = {one for one, life in self.lives.items() if not life.ghost}
        while True:
            dead = [one for one, life in self.lives.items() if not life.supports]
            if not dead:
                break
            for one in dead:
                del self.lives[one]
            for life in self.lives.values():
                life.supports = [s for s in life.supports if not s.producers.intersection(dead)]
        return served_before - self.lives.keys()

    def served(self, name: Name) -> Incarnation | None:
        return next((one for one, life in self.lives.items() if one.name == name and not life.ghost), None)


class Histories(RuleBasedStateMachine):
    """Leases are made by hand, so that tokens and producers may be as old as they like."""

    limits = GENEROUS
    hold_slices = False

    leases = Bundle("leases")

    @initialize()
    def start(self) -> None:
        self.library = SteppedLibrary(limits=self.limits, hold_slices=self.hold_slices)
        self.model = Model()
        self.lease_numbers = 0

    def lives(self) -> list[Incarnation]:
        return sorted(one for one, life in self.model.lives.items() if not life.ghost)

    @rule(target=leases, what=st.sampled_from(WHATS), data=st.data())
    def take_token(self, what: str, data: st.DataObject) -> tuple[Lease, int]:
        """What a demand gives: the place in history and the producers that are live now."""
        return self.lease(what, data), self.model.sequence

    def lease(self, what: str, data: st.DataObject, *, at_least: int = 0) -> Lease:
        lives = self.lives()
        some = (
            st.lists(st.sampled_from(lives), unique=True, min_size=at_least, max_size=2)
            if lives
            else st.just([])
        )
        self.lease_numbers += 1
        return Lease(
            lease_id=LeaseId(b"by hand%9d" % self.lease_numbers),
            name=name_of(what),
            generation=GenerationRef(GenerationId(b"g" * 16), "agent:1"),
            read_token=rows.read_meta(self.library.store).version,
            scope=ReadScope(sources=SOURCES),
            producers=tuple(data.draw(some)),
        )

    @rule(what=st.sampled_from(WHATS), reads=st.sets(st.sampled_from(RECORDS), max_size=2), data=st.data())
    def execute(self, what: str, reads: set[RecordId], data: st.DataObject) -> None:
        self.commit((self.lease(what, data), self.model.sequence), reads)

    @precondition(lambda self: self.lives())
    @rule(what=st.sampled_from(WHATS), data=st.data())
    def execute_what_only_needs_others(self, what: str, data: st.DataObject) -> None:
        self.commit((self.lease(what, data, at_least=1), self.model.sequence), set())

    @rule(taken=consumes(leases), reads=st.sets(st.sampled_from(RECORDS), max_size=3))
    def commit_late(self, taken: tuple[Lease, int], reads: set[RecordId]) -> None:
        self.commit(taken, reads)

    def commit(self, taken: tuple[Lease, int], reads: set[RecordId]) -> None:
        lease, sequence = taken
        outcome = self.library.commit(lease, reads=sorted(reads))
        lost = [one for one in lease.producers if not self.is_served(one)]
        if any(self.model.written_after(read, sequence) for read in reads):
            assert isinstance(outcome, Refused) and outcome.reason is Refusal.STALE_READ
        elif lost:
            assert isinstance(outcome, Refused) and outcome.reason is Refusal.LOST_PRODUCER
        else:
            assert isinstance(outcome, Committed)
            self.record(outcome.incarnation, Support(frozenset(reads), frozenset(lease.producers)))

    def is_served(self, one: Incarnation) -> bool:
        return one in self.model.lives and not self.model.lives[one].ghost

    def record(self, incarnation: Incarnation, support: Support) -> None:
        standing = self.model.served(incarnation.name)
        if standing is None:
            assert incarnation not in self.model.lives
            self.model.lives[incarnation] = Life([support])
            return
        assert incarnation == standing
        if self.library.library.is_falling(incarnation.name):
            # It falls with the write under way, which has been through it: no more support is recorded.
            return
        # An entry never rests on one that is younger than itself: nothing may hold itself up.
        if all(producer.number < incarnation.number for producer in support.producers):
            self.model.lives[standing].supports.append(support)

    @rule(records=st.lists(st.sampled_from(RECORDS), min_size=1, max_size=2, unique=True))
    def write(self, records: list[RecordId]) -> None:
        if not self.library.is_writing:
            self.check_write(self.library.write(*records), records)

    def check_write(self, result: WriteResult, records: list[RecordId]) -> None:
        fallen = self.model.write(records)
        assert set(result.invalidated_names) == {one.name for one in fallen}
        assert result.invalidated_entries == len(fallen)

    @precondition(lambda self: self.lives() and not self.library.library.slices)
    @rule(data=st.data())
    def evict(self, data: st.DataObject) -> None:
        if self.library.is_writing:
            return
        one = data.draw(st.sampled_from(self.lives()))
        transaction = Transaction(self.library.store)
        meta = rows.unpack_meta(transaction.get_guarded(rows.META) or b"")
        entry = rows.read_entry(transaction, one.name)
        assert entry is not None
        evicted = eviction.evict(transaction, meta, one.name, entry, self.limits)
        assert evicted is not None
        transaction.put(rows.META, rows.pack_meta(evicted))
        self.library.store.apply(transaction.batch())
        self.model.lives[one].ghost = True

    @precondition(lambda self: self.model.sequence % 3 == 2)
    @rule()
    def restart(self) -> None:
        self.library.restart()

    @precondition(lambda self: self.library.library.slices)
    @rule()
    def delete_one_slice(self) -> None:
        self.library.delete_slices(1)

    @invariant()
    def serves_exactly_what_the_model_holds(self) -> None:
        if not hasattr(self, "library"):
            return
        for what in WHATS:
            outcome = self.library.demand(what, may_execute=False)
            standing = self.model.served(name_of(what))
            assert (outcome.incarnation if isinstance(outcome, Hit) else None) == standing, what
        assert not self.library.violations()
        assert self.library.library.counters.guard_misses == 0


class SlicedHistories(Histories):
    """Cascades are deleted one node at a time, with anything in between."""

    limits = SLICED
    hold_slices = True


class PlannedHistories(SlicedHistories):
    """A write looks at one node at a time, with demands, commits and restarts in between."""

    @precondition(lambda self: not self.library.is_writing)
    @rule(records=st.lists(st.sampled_from(RECORDS), min_size=1, max_size=2, unique=True))
    def begin_write(self, records: list[RecordId]) -> None:
        self.written = records
        self.library.begin_write(*records)

    @precondition(lambda self: self.library.is_writing)
    @rule()
    def look_at_one_more_node(self) -> None:
        self.library.step_write()

    @precondition(lambda self: self.library.is_writing)
    @rule()
    def finish_write(self) -> None:
        self.check_write(self.library.finish_write(), self.written)


common = settings(
    max_examples=80, stateful_step_count=50, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)

TestHistories = pytest.mark.promise("C1.cascade")(Histories.TestCase)
TestHistories.settings = common
TestSlicedHistories = pytest.mark.promise("C1.cascade")(SlicedHistories.TestCase)
TestSlicedHistories.settings = common
TestPlannedHistories = pytest.mark.promise("C1.cascade")(PlannedHistories.TestCase)
TestPlannedHistories.settings = common


@pytest.mark.promise("C1.cascade")
def test_the_model_itself_knows_a_diamond() -> None:
    """A sanity check of the model: an aggregator falls with either of its producers."""
    model = Model()
    left, right, both = (Incarnation(name_of(what), at) for at, what in enumerate(("l", "r", "b")))
    model.lives[left] = Life([Support(frozenset({"s/1"}), frozenset())])
    model.lives[right] = Life([Support(frozenset({"s/2"}), frozenset())])
    model.lives[both] = Life([Support(frozenset(), frozenset({left, right}))])
    assert model.write([RecordId("s/1")]) == {left, both}
