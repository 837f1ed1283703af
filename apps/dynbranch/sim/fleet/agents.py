"""Engine agents of a simulated fleet: generations with whoever follows them, and the commit at their end."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

from dynbranch.domain.ids import GenerationId, RecordId
from dynbranch.domain.reuse import Lease
from dynbranch.sim.fleet.engines import Fleet, Run
from dynbranch.sim.fleet.playing import Records
from dynbranch.sim.fleet.store import Store
from dynbranch.sim.fleet.workflows import Call


@dataclass(frozen=True, slots=True)
class End:
    """How a generation ended, with what it was worth: its result, and whether the store took it. ``value``
    None: it was aborted. ``slot_s``: how long it had a slot of its engine."""

    value: str | None
    execution_ms: float
    slot_s: float
    stored: bool = False


Follower = Callable[[End], None]


@dataclass(slots=True, eq=False)
class Generation:
    """``value`` is what it gives: what its call reads, it has read when it began. ``demanded``: a harness
    waits for it. ``shown``: the last of its marks that can be read; those in ``watching`` are told when
    theirs can."""

    generation_id: GenerationId
    value: str
    lease: Lease | None
    followers: list[Follower]
    demanded: bool
    run: Run | None = None
    """None while it is sent to its engine."""
    shown: int = -1
    watching: list[tuple[int, Callable[[], None]]] = field(default_factory=list)


class Agents:
    """A follower is told once, at the end, in the order in which they came; ``settle`` is called when all
    were."""

    def __init__(self, fleet: Fleet, records: Records, store: Store, settle: Callable[[], None]) -> None:
        self.running: dict[GenerationId, Generation] = {}
        self._fleet = fleet
        self._heap = fleet.heap
        self._records = records
        self._store = store
        self._settle = settle

    def execute(
        self,
        engine: int,
        call: Call,
        lease: Lease | None,
        follower: Follower,
        *,
        marks: tuple[int, ...] = (),
    ) -> Generation:
        """A canonical request. ``marks``: tokens with which something of it can be read."""
        return self._start(engine, call, lease, follower, marks=marks, ahead=False)

    def fill(self, engine: int, call: Call, lease: Lease, follower: Follower) -> Generation:
        return self._start(engine, call, lease, follower, marks=(), ahead=True)

    def follow(self, generation: Generation, follower: Follower, *, demanded: bool) -> None:
        """A demand makes it canonical."""
        generation.followers.append(follower)
        if demanded and not generation.demanded:
            assert generation.run is not None
            generation.demanded = True
            self._fleet.adopt(generation.run)

    def watch(self, generation: Generation, mark: int, seen: Callable[[], None]) -> None:
        """``seen`` is called when the token ``mark`` can be read: at once, if it can. Its generation must
        have that mark, or have a later one."""
        if generation.shown >= mark:
            seen()
        else:
            generation.watching.append((mark, seen))

    def abort(self, generation_id: GenerationId) -> bool:
        """What runs ahead. What a demand waits for is left alone, and what has ended, too: False."""
        generation = self.running.get(generation_id)
        if generation is None or generation.demanded:
            return False
        del self.running[generation_id]
        run = generation.run
        assert run is not None
        slot_s = self._fleet.abort(run)
        if generation.lease is not None:
            self._store.release(generation.lease)
        self._tell(generation, End(None, (self._heap.now - run.began) * 1000, slot_s))
        return True

    def validate_state(self) -> None:
        """Raises AssertionError."""
        assert self._store.leases == sum(one.lease is not None for one in self.running.values())
        for one in self.running.values():
            assert one.run is not None and one.run.number in self._fleet.runs
            assert one.run.ahead != one.demanded
            assert one.followers, "nobody follows it"

    def _start(
        self,
        engine: int,
        call: Call,
        lease: Lease | None,
        follower: Follower,
        *,
        marks: tuple[int, ...],
        ahead: bool,
    ) -> Generation:
        made = GenerationId(self._store.new_id()) if lease is None else lease.generation.generation_id
        value = self._records.value_of_call(call)
        generation = self.running[made] = Generation(made, value, lease, [follower], not ahead)
        generation.run = self._fleet.submit(
            engine,
            call,
            partial(self._ended, made),
            ahead=ahead,
            marks=marks,
            shown=partial(self._shown, made) if marks else None,
        )
        return generation

    def _shown(self, generation_id: GenerationId, run: Run, mark: int) -> None:
        generation = self.running[generation_id]
        generation.shown = mark
        due = [seen for at, seen in generation.watching if at <= mark]
        generation.watching = [one for one in generation.watching if one[0] > mark]
        for seen in due:
            seen()

    def _ended(self, generation_id: GenerationId, run: Run) -> None:
        generation = self.running.pop(generation_id)
        assert run.slot_at is not None
        now, lease = self._heap.now, generation.lease
        execution_ms = (now - run.began) * 1000
        stored = False
        if lease is not None:
            reads = tuple(RecordId(read) for read in run.call.reads)
            stored = self._store.commit(lease, generation.value, execution_ms, reads)
        self._tell(generation, End(generation.value, execution_ms, now - run.slot_at, stored))

    def _tell(self, generation: Generation, end: End) -> None:
        for follower in generation.followers:
            follower(end)
        self._settle()
