"""A thought that is still being written begins what it is about to choose."""

from __future__ import annotations

import asyncio

import pytest
from dynbranch.engine_agent.fake import Script, text_chunks
from integration.branches.every_await import Awaits, Fault, in_leaping_time
from integration.branches.stack import Stack, running_stack, template

OPEN = ("{menu: {input: ways}, predictors: [offer]}", "{predictors: [stream]}")
MENU = ("predictors: [offer]", "predictors: [stream]")
UNREAD = ("predictors: [offer]", "predictors: [history]")
ASKED = "Ways:\n- Torvale\n- Irma Lund"
GO = "Go Irma Lund"
LONG = ("so", " on", " and") * 20
WHOLE = ('","way":"Irma', ' Lund"}')


def thought(*words: str, between_s: float = 0.1) -> Script:
    return Script(text_chunks(('{"why":"', *words, *LONG, *WHOLE)), between_s=between_s)


async def thinks(stack: Stack) -> asyncio.Future[object]:
    return asyncio.ensure_future(stack.post(ASKED))


async def is_begun_and_consumed(change: tuple[str, str], *, early: bool) -> None:
    loaded = template(False, change)
    says = thought("It was Irma", " Lund, I", " think", " ")
    async with running_stack(Awaits("nobody", 0, Fault.LOSE), loaded=loaded, decides=says) as stack:
        if not early:
            stack.gates[GO] = asyncio.Event()
        route = await thinks(stack)
        assert await stack.until(lambda: stack.runs[GO] == 1)
        assert not route.done(), "what it chooses is not written yet"
        assert stack.states("Irma Lund") and not stack.states("Torvale")
        [branch] = stack.branching.listed("w1", 1)
        [candidate] = stack.branching.inspect(branch.branch_id)["candidates"]
        assert candidate["spoken_of"] and not candidate["seen_in_decode"]
        assert candidate["reason"] == "spoken of: always"
        await route
        demand = asyncio.ensure_future(stack.post(GO))
        if not early:
            assert await stack.until(lambda: "adopted" in stack.states("Irma Lund"))
            stack.gates[GO].set()
        answer = await demand
        assert answer is not None and answer.text == f"done: {GO}" and stack.runs[GO] == 1
        assert answer.outcome == ("promoted" if early else "adopted")
        await stack.comes_to_rest()


@pytest.mark.promise("C2.stream_first")
@pytest.mark.parametrize("change", [OPEN, MENU], ids=["open", "menu"])
@pytest.mark.parametrize("early", [True, False], ids=["promoted", "adopted"])
def test_what_a_thought_speaks_of_is_begun_before_it_is_chosen(change: tuple[str, str], early: bool) -> None:
    in_leaping_time(is_begun_and_consumed(change, early=early))


async def begins_nothing(change: tuple[str, str], *words: str) -> None:
    loaded = template(False, change)
    async with running_stack(
        Awaits("nobody", 0, Fault.LOSE), loaded=loaded, decides=thought(*words)
    ) as stack:
        route = await thinks(stack)
        await stack.until(lambda: stack.runs[ASKED] == 1)
        await asyncio.sleep(2.0)
        assert not route.done() and not stack.runs[GO]
        await route
        await stack.comes_to_rest()


@pytest.mark.parametrize(
    ("change", "words"),
    [(OPEN, ("I think of nobody",)), (OPEN, ("of Irma Lundgren, ",)), (UNREAD, ("It was Irma Lund, ",))],
    ids=["nothing", "another", "not asked for"],
)
def test_what_is_not_spoken_of_is_not_begun(change: tuple[str, str], words: tuple[str, ...]) -> None:
    in_leaping_time(begins_nothing(change, *words))


async def says_it_again(change: tuple[str, str]) -> None:
    """A decision that stood already."""
    says = thought("It was Irma Lund, ", between_s=0.0)
    async with running_stack(
        Awaits("nobody", 0, Fault.LOSE), loaded=template(False, change), decides=says
    ) as stack:
        await stack.post(ASKED, workflow="w0")
        await stack.until(lambda: not any(stack.held().values()))
        answer = await stack.post(ASKED)
        assert answer is not None and answer.outcome == "hit"
        await stack.comes_to_rest()
        [branch] = stack.branching.listed("w1", 1)
        spoken = [one["spoken_of"] for one in stack.branching.inspect(branch.branch_id)["candidates"]]
        assert not any(spoken)


def test_of_what_was_recorded_nothing_is_told_as_spoken_of() -> None:
    in_leaping_time(says_it_again(OPEN))
