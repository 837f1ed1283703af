"""A full disk at every batch of fills and of what demands do with them: whoever asks is served, nothing stays
reserved, nobody reads what was not demanded, and when there is room again everything works as before.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from itertools import count

import pytest
from dynbranch.csl.core.library import Library
from dynbranch.csl.core.store import Batch
from dynbranch.csl.fake import digest, name_of, origin_of
from dynbranch.csl.key_value import MemoryKeyValue, StoreFull
from dynbranch.domain.fills import BeginFill, FillGranted
from dynbranch.domain.ids import DemandId, GenerationId
from dynbranch.domain.reuse import PURE, Commit, Committed, Demand, GenerationRef, Hit, Identity, Level
from integration.branches.every_await import Awaits, Fault, in_leaping_time
from integration.branches.lives import LEFT, LIVES, lost_is_lost, served_right
from integration.branches.stack import Stack, running_stack

pytestmark = pytest.mark.timeout(900)
"""Dozens of short lives in one test: a busy machine stretches them."""

SHORTLY, LONG = 0.0, 20.0
"""How long it stays full: until the store looks again, or until every client has given up."""


class FullDisk(MemoryKeyValue):
    """Full at the ``nth`` batch from when it is armed, and until it has been so for ``full_s``."""

    def __init__(self, nth: int, full_s: float) -> None:
        super().__init__()
        self.armed = False
        self.struck = ""
        self._nth = nth
        self._full_s = full_s
        self._full_until: float | None = None

    def apply(self, batch: Batch) -> None:
        if self.armed and not self.struck:
            self._nth -= 1
            if not self._nth:
                self.struck = " ".join(sorted({key[:1].decode("latin-1") for key in batch.changes}))
                self._full_until = asyncio.get_running_loop().time() + self._full_s
        if self._full_until is not None:
            raise StoreFull("No space left on device")
        super().apply(batch)

    @property
    def has_room(self) -> bool:
        return self._full_until is None

    def reclaim(self) -> None:
        if self._full_until is None or asyncio.get_running_loop().time() < self._full_until:
            raise StoreFull("No space left on device")
        self._full_until = None


async def lived(disk: FullDisk, life: str, *, once: bool) -> None:
    """Raises AssertionError for what is left, or served wrongly."""
    async with running_stack(Awaits("nobody", 0, Fault.LOSE), once=once, rows=disk) as stack:
        disk.armed = True
        await LIVES[life](stack)
        if disk.struck:
            assert await stack.until(lambda: disk.has_room, 60.0)
            # What was given while there was no room is not there to be given again.
            again = await stack.post(LEFT, workflow="w4")
            assert again is not None and again.text.startswith(f"done: {LEFT}")
        await lost_is_lost(stack)
        await stack.comes_to_rest()
        for gate in stack.gates.values():
            gate.set()
        await served_right(stack)
        await stack.comes_to_rest()
        disk.armed = False
        assert await stack.until(lambda: disk.has_room, 60.0)
        await works(stack)


async def works(stack: Stack) -> None:
    """What is run ahead now is stored, and served to whoever demands it."""
    csl = stack.csl
    place = GenerationRef(GenerationId(b"g"), "e1")
    fill = BeginFill(
        origin_of("afterwards"), name_of("afterwards"), Identity(), PURE, place, shadow_ttl_ms=5000
    )
    leave = await csl.begin_fill(fill, timeout_s=1.0)
    assert isinstance(leave, FillGranted), leave
    output = digest("done")
    commit = Commit(leave.lease, b"done", output, Level.GREEDY, 10.0, output_digests=(output,))
    assert isinstance(await csl.commit(commit, timeout_s=1.0), Committed)
    demand = Demand(DemandId(b"d"), name_of("afterwards"), Identity(workflow_id="w9"), PURE, place)
    answer = await csl.demand(demand, timeout_s=1.0)
    assert isinstance(answer, Hit) and answer.promoted == leave.lease.fill, answer


def at_every_batch(life: str, full_s: float, *, once: bool) -> Counter[str]:
    """Lives it anew with the disk full at the first batch, at the second, until one life comes to its end
    without. Returns of which rows the batches were."""
    struck: Counter[str] = Counter()
    for nth in count(1):
        disk = FullDisk(nth, full_s)
        try:
            in_leaping_time(lived(disk, life, once=once))
        except Exception as failure:
            failure.add_note(f"full at batch {nth}, of rows {disk.struck}, for {full_s} s")
            raise
        if not disk.struck:
            return struck
        struck[disk.struck] += 1
    raise AssertionError("count never ends")


@pytest.mark.promise("I1", "I2", "I4", "C2.shadow_unreadable", "C2.once")
@pytest.mark.parametrize("once", [False, True])
@pytest.mark.parametrize("full_s", [SHORTLY, LONG])
@pytest.mark.parametrize("life", LIVES)
def test_a_full_disk_at_every_batch_leaves_nothing(life: str, full_s: float, once: bool) -> None:
    struck = at_every_batch(life, full_s, once=once)
    assert struck.total() >= 8, struck


def test_what_is_consumed_without_a_row_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """A store that serves a sampled result, and can not write down that it is gone."""
    monkeypatch.setattr(Library, "without_room", lambda self, event, refused, view: refused.reply)
    with pytest.raises(AssertionError) as found:
        at_every_batch("ends first", SHORTLY, once=True)
    (told,) = found.value.__notes__
    assert told.startswith("full at batch ")
