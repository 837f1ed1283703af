"""Random histories of demands, fills, commits, losses, writes and restarts, held against what must never be.

Every result says which versions of its records it saw, so a wrong or stale one gives itself away.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

import pytest
from dynbranch.csl.core.events import AcknowledgeSettlements, SweepShadows
from dynbranch.csl.core.limits import Limits
from dynbranch.csl.fake import SteppedLibrary, name_of
from dynbranch.domain.fills import FillGranted, FillKnown, Settlement, SettlementKind
from dynbranch.domain.ids import FillId, RecordId
from dynbranch.domain.reuse import (
    Committed,
    DeclaredRead,
    GenerationRef,
    Hit,
    Lease,
    Level,
    Live,
    Miss,
    ReadScope,
)
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

RECORDS = ("s/1", "s/2", "t/1")
READS = {"a": ("s/1",), "b": ("s/1", "t/1"), "c": ("t/1",), "pure": ()}
SAMPLED = ("draw", "roll")
TERMINAL = frozenset(
    {SettlementKind.PROMOTED, SettlementKind.CONSUMED, SettlementKind.DISCARDED, SettlementKind.STALE}
)

asked = st.sampled_from(sorted(READS))
drawn = st.sampled_from(SAMPLED)


@dataclass
class Running:
    """An execution that saw the records as they were when it began."""

    what: str
    lease: Lease
    output: str
    fill: str = ""
    demands: set[bytes] = field(default_factory=set)


class Histories(RuleBasedStateMachine):
    @initialize()
    def found(self) -> None:
        self.library = SteppedLibrary(limits=Limits(max_shadows=6, slice_nodes=2))
        self.versions = Counter[str]()
        self.running: list[Running] = []
        self.begun: dict[str, str] = {}
        self.lost: set[bytes] = set()
        self.forgotten: set[bytes] = set()
        self.adopted: set[GenerationRef] = set()
        self.promoted: set[tuple[bytes, int]] = set()
        self.given: set[str] = set()
        self.taken: dict[tuple[bytes, int, SettlementKind], Settlement] = {}
        self.read_through = 0
        self.fills = 0
        self.draws = 0
        self.library.demand("founding", workflow="w")

    # What a stage would give now, and what it reads

    def now(self, what: str) -> str:
        return f"{what}:" + ",".join(f"{one}={self.versions[one]}" for one in READS[what])

    def scope(self, what: str) -> ReadScope:
        """Each read counts from now: the harness has just looked."""
        version = self.library.library.stats(self.library.store).version
        return ReadScope(declared=tuple(DeclaredRead(RecordId(one), version) for one in READS[what]))

    # Rules

    @rule(what=asked, hit=st.booleans())
    def demand(self, what: str, hit: bool) -> None:
        outcome = self.library.demand(what, workflow="w", scope=self.scope(what), may_hit=hit)
        match outcome:
            case Hit(payload=payload, promoted=promoted):
                assert hit and payload.decode() == self.now(what)
                if promoted is not None:
                    assert promoted.fill_id not in self.lost
                    assert (promoted.fill_id, promoted.stage) not in self.promoted
                    self.promoted.add((promoted.fill_id, promoted.stage))
            case Live(generation, adopted):
                assert hit
                (running,) = [one for one in self.running if one.lease.generation == generation]
                assert running.output == self.now(what), "a follower joined an execution that is stale"
                assert adopted is None or adopted.fill_id not in self.lost
                self.adopted.add(generation)
            case Miss(lease) if lease is not None:
                self.running.append(Running(what, lease, self.now(what)))

    @rule(what=drawn)
    def draw(self, what: str) -> None:
        outcome = self.library.demand(what, once=True)
        match outcome:
            case Hit(payload=payload, promoted=promoted):
                assert payload.decode() not in self.given, "a draw was given twice"
                assert promoted is not None and promoted.fill_id not in self.lost
                self.given.add(payload.decode())
            case Live(generation, adopted):
                (running,) = [one for one in self.running if one.lease.generation == generation]
                assert adopted is not None and running.output not in self.given
                assert adopted.fill_id not in self.lost
                self.adopted.add(generation)
                self.given.add(running.output)
            case Miss(lease):
                assert lease is None

    @rule(what=asked)
    def begin(self, what: str) -> None:
        self.fills += 1
        fill = f"f{self.fills}"
        begun = self.library.begin_fill(what, fill, workflow="w", scope=self.scope(what), ttl_ms=5000)
        if isinstance(begun, FillGranted):
            self.running.append(Running(what, begun.lease, self.now(what), fill))
        elif isinstance(begun, FillKnown):
            assert begun.payload.decode() == self.now(what)

    @rule(what=asked, then=asked)
    def begin_chain(self, what: str, then: str) -> None:
        """Two stages at once, the second built from the first."""
        self.fills += 1
        fill = f"f{self.fills}"
        begun = self.library.begin_fill(what, fill, workflow="w", scope=self.scope(what), ttl_ms=5000)
        if not isinstance(begun, FillGranted):
            return
        self.library.commit(begun.lease, self.now(what))
        following = self.library.begin_fill(
            then, fill, stage=1, after=what, workflow="w", scope=self.scope(then), ttl_ms=5000
        )
        if isinstance(following, FillGranted):
            self.running.append(Running(then, following.lease, self.now(then), fill))

    @rule(what=drawn)
    def begin_draw(self, what: str) -> None:
        self.fills += 1
        begun = self.library.begin_fill(what, f"f{self.fills}", once=True, ttl_ms=5000)
        if isinstance(begun, FillGranted):
            self.draws += 1
            self.running.append(Running(what, begun.lease, f"{what}#{self.draws}", f"f{self.fills}"))

    @rule(data=st.data())
    def end(self, data: st.DataObject) -> None:
        if self.running:
            running = self.running.pop(data.draw(st.integers(0, len(self.running) - 1)))
            level = Level.SAMPLED if running.lease.once else Level.GREEDY
            outcome = self.library.commit(running.lease, running.output, level=level)
            if running.fill and running.fill.encode() in self.lost:
                assert not isinstance(outcome, Committed)

    @rule(data=st.data())
    def lose(self, data: st.DataObject) -> None:
        if self.fills:
            fill = f"f{data.draw(st.integers(1, self.fills + 1))}"
            result = self.library.discard(fill)
            if FillId(fill.encode()) not in result.immune:
                self.lost.add(fill.encode())

    @rule(record=st.sampled_from(RECORDS))
    def write(self, record: str) -> None:
        self.versions[record] += 1
        self.library.write(record)

    @rule()
    def restart(self) -> None:
        """Executions go on; the store knows neither their leases nor its tombstones any more."""
        self.library.restart()
        going_on = {one.fill.encode() for one in self.running if one.fill}
        begun = {f"f{number + 1}".encode() for number in range(self.fills)}
        # What was lost while it ran is stored after all, and settled anew.
        self.forgotten |= self.lost & going_on
        self.lost &= begun - going_on
        for running in self.running:
            if running.lease.once:
                self.given.discard(running.output)

    @rule(seconds=st.sampled_from([0.5, 3.0, 6.0]))
    def wait(self, seconds: float) -> None:
        self.library.clock.advance(seconds)

    @rule()
    def sweep(self) -> None:
        while self.library.handle(SweepShadows()):
            pass

    @rule(acknowledged=st.booleans())
    def read(self, acknowledged: bool) -> None:
        for one in self.library.settlements():
            key = (one.origin.fill_id, one.origin.stage, one.kind)
            if one.origin.fill_id in self.forgotten:
                self.taken.pop(key, None)
                continue
            assert key not in self.taken or self.taken[key].number == one.number, "settled twice"
            self.taken[key] = one
            self.read_through = max(self.read_through, one.number)
        if acknowledged:
            self.library.handle(AcknowledgeSettlements(self.read_through))

    # What holds at every moment

    @invariant()
    def shadows_are_unseen(self) -> None:
        for what in (*READS, *SAMPLED):
            inspection = self.library.library.inspect(name_of(what), self.library.store)
            if inspection.entry is not None:
                assert what in READS
            hidden = {one.lease.generation for one in self.running if one.fill} - self.adopted
            assert not hidden.intersection(inspection.live)

    def teardown(self) -> None:
        """Every shadow ends exactly once."""
        if not hasattr(self, "library"):
            return
        self.library.clock.advance(4000.0)
        while self.library.handle(SweepShadows()):
            pass
        self.read(acknowledged=False)
        ends = Counter((fill, stage) for fill, stage, kind in self.taken if kind in TERMINAL)
        for fill, stage, kind in self.taken:
            if kind is SettlementKind.SHADOWED and fill not in self.forgotten:
                assert ends[fill, stage] == 1, (fill, stage, ends[fill, stage])
        assert not list(self.library.store.scan(b"G"))


Histories.TestCase.settings = settings(max_examples=30, stateful_step_count=30, deadline=None)


@pytest.mark.promise("I2")
@pytest.mark.promise("C2.lost_never_promoted")
@pytest.mark.promise("C2.once")
@pytest.mark.promise("C2.settlement_outbox")
class TestFillHistories(Histories.TestCase):  # type: ignore[misc,name-defined]
    pass
