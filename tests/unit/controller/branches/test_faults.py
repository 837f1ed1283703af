"""A fault at every await of a fill: whatever fails, is cancelled or hangs, nothing stays reserved."""

from __future__ import annotations

import asyncio
from itertools import count
from pathlib import Path

import pytest
from dynbranch.bench.chaos_world import Chaos, Fault, Faults, FaultyAgent, FaultyStore
from dynbranch.controller.core.branches.instances import Bounds
from dynbranch.controller.core.branches.lifecycle import FILL_ENDS
from dynbranch.controller.running import Timings
from dynbranch.csl.core.limits import Limits
from dynbranch.csl.fake import FakeCsl
from dynbranch.runtime.chance import new_id
from dynbranch.runtime.clock import SystemClock
from unit.controller.branches.world import World, world

TIMINGS = Timings(
    store_s=0.2, stage_s=0.5, abort_s=0.2, detach_grace_ms=50, discard_retries_s=(0.02, 0.05, 0.1)
)
PLACES = {
    "before begin_fill", "after begin_fill", "before generate", "within generate",
    "before discard_fills", "after discard_fills", "before abort", "after abort",
}  # fmt: skip

ENDED = {state.value for state in FILL_ENDS}


async def life(there: World) -> None:
    """Two candidates; the loser still runs when the winner is told, and the harness demands what it won."""
    there.gates["Go right"] = asyncio.Event()
    there.arrive("r1", "left", "right")
    # Until both stand so, or the fault has ended what there was of them.
    await there.until(lambda: came_to(there, "right", ["running"]))
    await there.until(lambda: came_to(there, "left", ["shadow", "shadow"]))
    there.answer("r1", "left")
    await there.demand("Go left", may_execute=False)
    await there.demand("Sum up: done: Go left", may_execute=False)
    await there.until(lambda: there.view["state"] == "settled")


def came_to(there: World, selection: str, states: list[str]) -> bool:
    if there.view["state"] not in ("opening", "open"):
        return True
    now = there.states().get(selection, [])
    return now == states or any(state in ENDED for state in now)


async def with_a_fault(folder: Path, chaos: Chaos) -> None:
    csl = FakeCsl(clock=SystemClock(), new_id=new_id, limits=Limits(lease_ttl_ms=500))
    faults = Faults(chaos)
    async with world(
        folder,
        csl=csl,
        bounds=Bounds(linger_s=0.2),
        timings=TIMINGS,
        expires_s=2.0,
        wrap_store=lambda store: FaultyStore(store, faults),
        wrap_agent=lambda agent: FaultyAgent(agent, faults),
    ) as there:
        await life(there)
        await there.empty()
        assert len(there.branching.book.filling) == 0, chaos.place


@pytest.mark.promise("I4")
@pytest.mark.parametrize("fault", list(Fault))
async def test_a_fault_at_every_await_leaves_nothing_reserved(tmp_path: Path, fault: Fault) -> None:
    plain = Chaos(fault)
    await with_a_fault(tmp_path / "plain", plain)
    assert set(plain.passed) == PLACES
    every = [
        Chaos(fault, place, time) for place, times in plain.passed.items() for time in range(1, times + 1)
    ]
    at_once = asyncio.Semaphore(8)

    async def one(number: int, chaos: Chaos) -> None:
        async with at_once:
            await with_a_fault(tmp_path / f"at{number}", chaos)

    async with asyncio.TaskGroup() as group:
        for number, chaos in enumerate(every):
            group.create_task(one(number, chaos))
    # Later times may never come: a fault changes what follows it. On a busy machine a branch may be over
    # before it comes to a place: that one is tried alone.
    struck = {chaos.place for chaos in every if chaos.struck}
    for place in sorted(PLACES - struck):
        chaos = Chaos(fault, place)
        for time in count():
            await with_a_fault(tmp_path / f"{place} alone {time}", chaos)
            if chaos.struck:
                break
