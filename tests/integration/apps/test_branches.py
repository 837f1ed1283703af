"""Branches across every service, each a process of its own, before stub engines: the flows of the demo."""

from __future__ import annotations

import asyncio
import json
import urllib.request
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from dynbranch.bench.acting import MODEL, acted, acting
from dynbranch.demo.flows import MENUS, ROUTING_CHAIN, SUB_AGENTS
from dynbranch.demo.playing import AHEAD, Played, Player
from dynbranch.demo.rehearsal import Performance, performances
from dynbranch.demo.stack import Stack
from dynbranch.enginemodel.parameters import FixedParameters

PAUSE_S = 0.5
LATENCY = FixedParameters(time_to_first_token_ms=40, inter_token_ms=10)


@pytest.fixture
async def stack(tmp_path: Path) -> AsyncIterator[Stack]:
    async with acted(tmp_path, engines=2, latency=LATENCY, writer=acting, policy="always") as running:
        await warmed(running)
        yield running


def performance(kind: str, number: int) -> Performance:
    return [one for one in performances(MODEL) if one.workflow_type == kind][number]


async def played(url: str, kind: str, number: int, workflow: str) -> Played:
    async with Player(url, key=workflow) as player:
        return await player.play(performance(kind, number), workflow_id=workflow, pause_s=lambda: PAUSE_S)


async def got(url: str) -> Any:
    def read() -> Any:
        with urllib.request.urlopen(url, timeout=10) as response:
            return json.load(response)

    return await asyncio.to_thread(read)


async def branches(stack: Stack, workflow: str) -> list[Any]:
    listed = await got(f"{stack.url}/dynbranch/v1/branches?workflow={workflow}")
    return [await got(f"{stack.url}/dynbranch/v1/branches/{one['branch']}") for one in listed["data"]]


def losers(branch: Any) -> list[Any]:
    chosen = branch["resolution"]["selections"] if branch["resolution"] else []
    return [fill for fill in branch["fills"] if fill["selection"] not in chosen]


async def warmed(stack: Stack) -> None:
    """The gateway knows the templates, and predictors have been asked. Fails by the test's own time limit."""
    while not await branches(stack, "warm"):
        await played(stack.url, ROUTING_CHAIN, 3, "warm")


@pytest.mark.promise("I1")
@pytest.mark.promise("I2")
async def test_flows_run_ahead_and_answer_the_same(stack: Stack) -> None:
    for kind, stages in (
        (ROUTING_CHAIN, {"arguments", "execute"}),
        (MENUS, {"act", "tell"}),
    ):
        ahead: set[str] = set()
        for number in range(2):
            floor = await played(stack.floor_url, kind, number, f"floor-{kind}-{number}")
            with_branches = await played(stack.url, kind, number, f"ahead-{kind}-{number}")
            assert with_branches.equals(floor)
            ahead |= {step.stage for step in with_branches.steps if step.outcome in AHEAD}
        assert ahead == stages, kind


@pytest.mark.promise("I2")
async def test_losers_of_an_exclusive_branch_do_not_outlive_it(stack: Stack) -> None:
    floor = await played(stack.floor_url, SUB_AGENTS, 0, "floor")
    with_branches = await played(stack.url, SUB_AGENTS, 0, "ahead")
    assert with_branches.equals(floor)
    gone = {"discarded", "aborted", "refused", "passed"}
    while True:
        resolved = [one for one in await branches(stack, "ahead") if one["resolution"]]
        lost = [stage for one in resolved for fill in losers(one) for stage in fill["stages"]]
        if {stage["state"] for stage in lost} <= gone:
            break
        await asyncio.sleep(0.05)
    assert any(stage["state"] in ("discarded", "aborted") for stage in lost)
