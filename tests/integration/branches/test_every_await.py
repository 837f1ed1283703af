"""A fault at every await of fills and of what demands do with them: everything is given back, nobody reads
what was not demanded, and the next request of the same kind is served right.
"""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any

import pytest
from dynbranch.csl.shell import Shell
from dynbranch.domain.fills import DiscardFills, DiscardResult
from dynbranch.engine_agent.following import Follower
from integration.branches.every_await import Awaits, Fault, at_every_await
from integration.branches.lives import LIVES, lost_is_lost, served_right
from integration.branches.stack import running_stack

pytestmark = pytest.mark.timeout(900)
"""Hundreds of short lives in one test: a busy machine stretches them."""


async def lived(awaits: Awaits, life: str, *, once: bool = False, meanwhile: str = "") -> None:
    """Raises AssertionError for what is left, or served wrongly."""
    async with running_stack(awaits, once=once) as stack:
        acts = {
            "the store restarts": stack.restart_store,
            "the engine dies": stack.lose_engine,
            "the client leaves": stack.leave,
        }
        awaits.act = acts.get(meanwhile)
        await LIVES[life](stack)
        awaits.armed = False
        await lost_is_lost(stack)
        # The loser's engine gives nothing: it has to be told.
        await stack.comes_to_rest()
        for gate in stack.gates.values():
            gate.set()
        await served_right(stack)
        await stack.comes_to_rest()


SAMPLED_TOO = [
    ("demand", Fault.CANCEL, ""),
    ("demand", Fault.CANCEL_LATE, ""),
    ("demand", Fault.MEANWHILE, "the client leaves"),
    ("fill", Fault.CANCEL, ""),
    ("fill", Fault.CANCEL_LATE, ""),
    ("lines", Fault.LOSE, ""),
    ("lines", Fault.MEANWHILE, "the store restarts"),
    ("engine", Fault.MEANWHILE, "the engine dies"),
]
CASES = [
    *((*case, once) for case in SAMPLED_TOO for once in (False, True)),
    ("route", Fault.CANCEL, "", False),
    ("route", Fault.CANCEL_LATE, "", False),
    ("route", Fault.MEANWHILE, "the client leaves", False),
    ("lines", Fault.MEANWHILE, "the engine dies", False),
]
AT_LEAST = {"route": 5, "demand": 4, "fill": 4, "lines": 20, "engine": 6}
"""Half of what is usual: which awaits a life has depends on what came first in it."""


@pytest.mark.promise("I1", "I2", "I4", "C2.shadow_unreadable", "C2.once")
@pytest.mark.parametrize("life", LIVES)
@pytest.mark.parametrize(("watched", "fault", "meanwhile", "once"), CASES)
def test_a_fault_at_every_await_leaves_nothing(
    watched: str, fault: Fault, meanwhile: str, once: bool, life: str
) -> None:
    def run(awaits: Awaits) -> Coroutine[Any, Any, None]:
        return lived(awaits, life, once=once, meanwhile=meanwhile)

    struck = at_every_await(run, watched, fault)
    assert struck.total() >= AT_LEAST[watched], struck


def test_what_is_not_given_back_is_found_and_the_await_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """An agent that does not notice that a fill's controller is gone."""
    monkeypatch.setattr(Follower, "leave", lambda self: None)
    with pytest.raises(AssertionError, match=r"still held: .*the agent's slots for fills") as found:
        at_every_await(lambda awaits: lived(awaits, "is taken over"), "fill", Fault.CANCEL)
    (told,) = found.value.__notes__
    assert told.startswith("it is cancelled where it waits: await ")


def test_what_was_lost_and_is_served_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """A store that forgets a discard."""

    async def ignored(self: Shell, discard: DiscardFills) -> DiscardResult:
        return DiscardResult()

    monkeypatch.setattr(Shell, "discard_fills", ignored)
    with pytest.raises(AssertionError, match="promoted"):
        at_every_await(lambda awaits: lived(awaits, "ends first"), "demand", Fault.CANCEL)
