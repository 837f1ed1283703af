"""What must hold of a branch after every step, when nothing is under way, and when all is over."""

from __future__ import annotations

from collections import Counter
from functools import partial

from dynbranch.controller.core.branches.book import BranchBook
from dynbranch.controller.core.branches.lifecycle import BranchState, FillState
from dynbranch.controller.core.branches.messages import Settled
from dynbranch.controller.core.branches.records import Branch, Fill
from dynbranch.csl.core import fill_rows, rows
from dynbranch.csl.core.events import RenewLeases
from dynbranch.csl.core.fill_rows import ShadowRow
from dynbranch.domain.fills import Settlement, SettlementKind
from dynbranch.domain.ids import FillId, Instant, Name
from dynbranch.domain.reuse import GenerationRef, Hit, Live
from dynbranch.domain.template import Branching
from dynbranch.engine_agent.core.lifecycle import State
from dynbranch.engine_agent.core.registry import Registry
from dynbranch.sim.branch_acts import Broken
from dynbranch.sim.branch_cast import LEASE_S, LINGER_S, At, Step, name_of, version_in
from dynbranch.sim.branch_parts import StoreSide
from dynbranch.sim.branch_steps import deliveries_of
from dynbranch.sim.branch_world import BranchWorld
from dynbranch.sim.fingerprint import digest_of

MOST_AT_THE_END = 500

AS_TOLD = {
    SettlementKind.PROMOTED: frozenset({FillState.PROMOTED}),
    # Its response may have ended before the store had answered.
    SettlementKind.CONFIRMED: frozenset({FillState.CONFIRMED, FillState.SERVED_ONLY}),
    # Its end may have been heard before that a demand had taken it over.
    SettlementKind.SERVED: frozenset({FillState.SERVED_ONLY, FillState.ABORTED}),
    SettlementKind.FAILED: frozenset({FillState.FAILED, FillState.ABORTED, FillState.REFUSED}),
}
TOLD_BY = {
    FillState.PROMOTED: frozenset({SettlementKind.PROMOTED, SettlementKind.CONSUMED}),
    FillState.CONFIRMED: frozenset({SettlementKind.CONFIRMED}),
}
ONCE_PER_SHADOW = frozenset(
    {SettlementKind.PROMOTED, SettlementKind.CONSUMED, SettlementKind.DISCARDED, SettlementKind.STALE}
)
BEFORE_ITS_END = frozenset({State.ADMITTED, State.RUNNING, State.COMMITTING})


def take(world: BranchWorld, step: Step) -> None:
    """One step, and whether what it gave is as promised. Raises Broken."""
    asking = step[0] == At.ASKING.name.lower()
    standing = _standing(world, int(step[1])) if asking else None
    world.take(step)
    if asking:
        _answered(world, int(step[1]), standing)
    if step[0] in ("served", At.ASKING.name.lower()):
        _served(world, int(step[1]))


# What a request is answered


def _standing(world: BranchWorld, number: int) -> ShadowRow | None:
    """The shadow that a request is about to find, as the rows have it."""
    key = fill_rows.shadow_key(name_of(world.requests[number].text))
    row = world.store.look(("shadow", key), lambda side: side.rows.get(key))
    return None if row is None else fill_rows.unpack_shadow(row)


def _answered(world: BranchWorld, number: int, standing: ShadowRow | None) -> None:
    match world.answered:
        case Hit(promoted=None):
            _holds(standing is None, "I2", "a shadow was served without a promotion")
        case Hit(promoted=origin) if origin is not None:
            _holds(standing is not None, "I2", "promoted what was no shadow")
            assert standing is not None
            _holds(not standing.lost, "I2", "a lost shadow was promoted")
            _holds(standing.origin == origin, "I2", "a promotion names another fill")
            _holds(origin.fill_id not in world.discarded, "I2", "a discarded fill was promoted")
        case Live(generation, adopted) if adopted is not None:
            _adopted(world, number, generation, adopted.fill_id)
        case _:
            pass


def _adopted(world: BranchWorld, number: int, generation: GenerationRef, fill: FillId) -> None:
    adopter = world.adopters.setdefault(generation.generation_id, number)
    _holds(adopter == number, "I2", "a fill was adopted twice")
    _holds(fill not in world.discarded, "I2", "a discarded fill was adopted")


def _served(world: BranchWorld, number: int) -> None:
    request = world.requests[number]
    if request.at is not At.SERVED:
        return
    text = request.served.decode()
    again = [one for one in world.requests if one is not request and one.served == request.served]
    _holds(not (world.scenario.once and again), "C2.once", f"{text!r} was served twice")
    _holds(text.startswith(request.text), "I1", f"{request.text!r} was served {text!r}")
    if world.scenario.reads:
        # What it asks may hold what it was served before a write: that is its own.
        read = request.served.removeprefix(request.text.encode())
        _holds(version_in(read) >= request.floor, "I3", f"a stale result was served: {text!r}")


# In every state


def look(world: BranchWorld) -> None:
    reserved = world.book.look("reserved", lambda book: len(book.filling.reservations))
    _holds(reserved == len(world.reserved), "I4", f"{reserved} are reserved for {len(world.reserved)} stages")
    again = [what for what, times in world.moved.items() if times > 1]
    _holds(not again, "I4", f"counted twice: {again}")
    for request in world.requests:
        name = name_of(request.text)
        stands = world.store.look(("stands", name), partial(_stands, name))
        _holds(not stands or name in world.demanded, "I2", "a result stands that nobody demanded")


def told_again(world: BranchWorld) -> None:
    """Every settlement that was told is told once more: it must change nothing."""
    told = (*world.past.values(), *(row for row in world.settlements() if row.number in world.told))
    if not told:
        return
    now = Instant(world.now)
    world.book.look((told, now), lambda book: _again(book, told, now))


def _again(book: BranchBook, told: tuple[Settlement, ...], now: Instant) -> None:
    before = _of_book(book)
    for row in told:
        effects = book.handle(Settled(row), now)
        _holds(not effects, "I4", f"a settlement that came twice led to {effects}")
    _holds(_of_book(book) == before, "I4", "a settlement that came twice changed the book")


def _stands(name: Name, side: StoreSide) -> bool:
    return side.library.inspect(name, side.rows).entry is not None


def _of_book(book: BranchBook) -> tuple[object, ...]:
    """Also what is counted: engine time, and what was news."""
    branches = book.branches.listed("", 100)
    times = [(s.used_ms, s.saved_ms, s.reason) for branch in branches for s in branch.stages()]
    return digest_of(book), times, book.filling.late, book.filling.unknown


# When nothing is under way


def at_rest(world: BranchWorld) -> None:
    book, side, registry = world.book.core, world.store.core, world.registry.core
    _holds(not book.filling.reservations, "I4", "something is reserved and nothing is under way")
    for request in world.requests:
        _holds(request.at in (At.HOME, At.SERVED), "I5", "a request waits, and nothing is under way")
    for branch in book.branches.listed("", 100):
        for fill in branch.fills.values():
            if _is_lost(branch, fill):
                _is_gone(world, fill, side, registry)
        if all(fill.is_over for fill in branch.fills.values()) and not branch.unresolved:
            _holds(branch.state is BranchState.SETTLED, "I4", "all its fills are over, and it is not settled")


def _is_lost(branch: Branch, fill: Fill) -> bool:
    if branch.unresolved:
        return False
    if branch.selections is None:
        return True
    if fill.spared:
        won = [one for one in branch.fills.values() if one.selection in branch.selections]
        _holds(any(fill.names() & one.names() for one in won), "I2", "a loser that nobody leans on was kept")
        return False
    return branch.point.branching is Branching.EXCLUSIVE and fill.selection not in branch.selections


def _is_gone(world: BranchWorld, fill: Fill, side: StoreSide, registry: Registry) -> None:
    over = all(stage.is_over for stage in fill.stages)
    _holds(over, "I2", f"{fill.selection} was lost, and is not over")
    for key, row in side.rows.scan(rows.SHADOWS):
        shadow = fill_rows.unpack_shadow(row)
        lives = shadow.origin.fill_id == fill.fill_id and not shadow.lost
        _holds(not lives, "I2", f"{fill.selection} was lost, and its shadow lives: {key.hex()}")
    for generation in registry.generations.values():
        lease = generation.order.lease
        if lease is None or lease.fill is None or lease.fill.fill_id != fill.fill_id:
            continue
        runs = generation.state in BEFORE_ITS_END and not generation.followers
        adopted = generation.id in world.adopters
        _holds(adopted or not runs, "I2", f"{fill.selection} was lost, and still runs")
        _holds(adopted or generation.state is not State.RUNNING, "I2", f"{fill.selection} runs though lost")


# When all is over


def at_the_end(world: BranchWorld) -> None:
    """Lets time pass and everything come to its end. What was held must be given back, once."""
    for _ in range(3):
        for _ in range(MOST_AT_THE_END):
            steps = deliveries_of(world)
            if not steps:
                break
            take(world, steps[0])
            look(world)
        world.sweep()
        world.pass_time(2 * LEASE_S)
        world.ask(RenewLeases((), 0))
    told_again(world)
    for branch in world.book.core.branches.listed("", 100):
        for stage in branch.stages():
            over = stage.is_over
            _holds(over, "I4", f"the end of a stage was never told: {stage.state.value}")
    world.pass_time(LINGER_S)
    _holds(not deliveries_of(world), "I5", "it does not come to an end")
    side, filling = world.store.core, world.book.core.filling
    _holds(not len(filling) and not filling.reservations, "I4", "fills are left in the book")
    _holds(
        world.closed == 1 or (world.restarts and not world.closed),
        "I4",
        f"the predictors were told {world.closed} times",
    )
    _holds(not any(True for _ in side.rows.scan(rows.SHADOWS)), "I2", "a shadow is left")
    _holds(not side.library.memory.leases.fills, "I4", "a fill's lease is left")
    _holds(not world.registry.core.open_count, "I4", "a generation is left")
    _settled(world)


def _settled(world: BranchWorld) -> None:
    """Each shadow ended once, and the book knows every stage as the store does."""
    kinds: dict[tuple[FillId, int], list[SettlementKind]] = {}
    for row in (*world.past.values(), *world.settlements()):
        kinds.setdefault((row.origin.fill_id, row.origin.stage), []).append(row.kind)
    for found in kinds.values():
        counted = Counter(found)
        _holds(max(counted.values()) == 1, "I4", f"settled twice: {found}")
        if SettlementKind.SHADOWED in counted:
            ends = sum(counted[kind] for kind in ONCE_PER_SHADOW)
            _holds(ends == 1, "I4", f"a shadow ended {ends} times: {found}")
    branches = world.book.core.branches.listed("", 100)
    _holds(len(branches) == 1 or world.restarts, "I4", f"{len(branches)} branches")
    for stage in (stage for branch in branches for stage in branch.stages()):
        found = kinds.get((stage.key.fill_id, stage.key.number), [])
        what = f"{stage.state.value} in the book, by the store {[kind.value for kind in found]}"
        for kind, states in AS_TOLD.items():
            _holds(kind not in found or stage.state in states, "I4", what)
        told_by = TOLD_BY.get(stage.state)
        _holds(told_by is None or told_by.intersection(found), "I4", what)


def _holds(condition: object, promise: str, what: str) -> None:
    if not condition:
        raise Broken(promise, what)
