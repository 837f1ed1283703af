"""Lives of two fills and of what a harness asks meanwhile, and what must hold after each, whatever failed."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Coroutine
from typing import Any

from integration.branches.stack import ROUTE, Stack

LEFT = "Go left"
ENDED = {"shadow", "promoted", "adopted", "confirmed", "aborted", "refused", "discarded", "passed"}


async def ends_first(stack: Stack) -> None:
    """Both candidates' fills end, the winner is told, and the harness demands it."""
    stack.gates[ROUTE] = asyncio.Event()
    route = asyncio.ensure_future(stack.post(ROUTE, who="route"))
    await stack.until(lambda: len(s := stack.states("left")) == 2 and ENDED.issuperset(s))
    stack.gates[ROUTE].set()
    await route
    await demanded(stack)


async def is_taken_over(stack: Stack) -> None:
    """The demand comes while its fill runs; the loser runs when it is lost."""
    stack.gates |= {ROUTE: asyncio.Event(), LEFT: asyncio.Event(), "Go right": asyncio.Event()}
    route = asyncio.ensure_future(stack.post(ROUTE, who="route"))
    await stack.until(lambda: stack.states("left") == ["running", "waiting"] and stack.runs["Go right"])
    stack.gates[ROUTE].set()
    await route
    demands = asyncio.ensure_future(demanded(stack))
    await stack.until(lambda: "adopted" in stack.states("left"))
    stack.gates[LEFT].set()
    await demands


async def demanded(stack: Stack) -> None:
    """What comes after the decision, as far as the harness gets."""
    work = await stack.post(LEFT, who="demand")
    if work is not None and work.status == 200:
        await stack.post(f"Sum up: {work.text}", who="demand")


LIVES: dict[str, Callable[[Stack], Coroutine[Any, Any, None]]] = {
    "ends first": ends_first,
    "is taken over": is_taken_over,
}


async def lost_is_lost(stack: Stack) -> None:
    """What the controller knows as discarded, another workflow does not get."""
    if set(stack.states("right")) == {"discarded"}:
        answer = await stack.post("Go right", workflow="w3")
        assert answer is not None and answer.outcome not in ("promoted", "adopted"), answer


async def served_right(stack: Stack) -> None:
    """The same once more, of another workflow: nothing of what was lost, and nothing twice that was drawn."""
    for way in ("left", "right"):
        answer = await stack.post(f"Go {way}", workflow="w2")
        assert answer is not None and answer.status == 200 and not answer.cut, answer
        assert answer.text.partition(" #")[0] == f"done: Go {way}"
        assert answer.outcome in ("miss", "hit"), answer.outcome
    assert max(Counter(stack.given).values(), default=1) == 1, stack.given
