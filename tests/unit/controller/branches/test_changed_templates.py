"""A template that is saved anew while a branch of it is open: nothing that began under the old one is served
for requests of the new one, nothing that the new one forbids begins, and everything is given back."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest
from dynbranch.domain.events import OutcomeSeen, OutputTold, Selection
from dynbranch.domain.ids import DemandId, UnixMs
from dynbranch.domain.reuse import Hit, Miss
from dynbranch.domain.template import Output, StageKind
from dynbranch.rendering.telling import told_output
from unit.controller.branches.world import WHO, World, put_template, world

FORBIDDEN = "the template in force lets it not run ahead"


async def saved(there: World, folder: Path, text: str) -> None:
    put_template(folder, text)
    there.branching.templates._folder._next = None  # type: ignore[union-attr]
    assert await there.branching.templates.look()


def text_in(folder: Path) -> str:
    return (folder / "ways.yaml").read_text()


def told_of(there: World, demand: str, point: str, chosen: str) -> None:
    """As a gateway tells an answer that has another version of the template."""
    output = told_output(Output(f'{{"way":"{chosen}"}}'), StageKind.CHAT)
    told = OutputTold("route", 0, (Selection(point, (chosen,)),), output, 10.0)
    there.branching.observe(OutcomeSeen(UnixMs(2), DemandId(demand.encode()), "miss", 10.0, told=told))


@pytest.mark.promise("C2.template")
async def test_what_the_new_one_forbids_does_not_begin(tmp_path: Path) -> None:
    async with world(tmp_path) as there:
        there.gates["Go left"] = asyncio.Event()
        there.arrive("r1", "left")
        await there.until(lambda: there.states().get("left") == ["running"])
        head, _, last = text_in(tmp_path).rpartition("speculable: yes")
        last = last.replace("then: [work, finish]", "then: [work]")
        await saved(there, tmp_path, f"{head}speculable: no{last}")
        there.gates["Go left"].set()
        await there.until(lambda: there.states()["left"] == ["shadow", "refused"])
        (fill,) = there.view["fills"]
        assert fill["stages"][1]["reason"] == FORBIDDEN
        assert len(there.engine.orders) == 1, "what follows was not run"
        there.answer("r1", "left")
        assert isinstance(await there.demand("Go left"), Hit)
        await there.settled()
        await there.empty()


async def test_under_one_that_is_withdrawn_nothing_begins(tmp_path: Path) -> None:
    async with world(tmp_path) as there:
        there.gates["Go left"] = asyncio.Event()
        there.arrive("r1", "left")
        await there.until(lambda: there.states().get("left") == ["running"])
        (tmp_path / "ways.yaml").unlink()
        there.branching.templates._folder._next = None  # type: ignore[union-attr]
        assert await there.branching.templates.look()
        there.gates["Go left"].set()
        await there.until(lambda: there.states()["left"] == ["shadow", "refused"])
        there.answer("r1", "left")
        assert isinstance(await there.demand("Go left"), Hit)
        await there.settled()
        await there.empty()


async def test_a_request_that_is_written_otherwise_finds_nothing_of_the_old_one(tmp_path: Path) -> None:
    async with world(tmp_path) as there:
        there.arrive("r1", "left")
        await there.until(lambda: there.states().get("left") == ["shadow", "shadow"])
        await saved(there, tmp_path, text_in(tmp_path).replace("Go {{", "Walk {{"))
        there.answer("r1", "left")
        outcome = await there.demand("Walk left")
        assert isinstance(outcome, Miss) and outcome.lease is not None
        await there.csl.release_leases([outcome.lease.lease_id], timeout_s=5.0)
        other = replace(WHO, workflow_id="w2")
        there.arrive("r2", "right", who=other)
        await there.until(lambda: there.states().get("right") == ["shadow", "shadow"])
        assert isinstance(await there.demand("Walk right", who=other), Hit)


@pytest.mark.promise("C2.branch_expires")
async def test_a_decision_that_the_new_one_calls_otherwise_is_nobodys_and_its_branch_ends(
    tmp_path: Path,
) -> None:
    async with world(tmp_path, expires_s=1.0) as there:
        there.arrive("r1", "left", "right")
        await there.until(lambda: there.states() == {way: ["shadow"] * 2 for way in ("left", "right")})
        (branch,) = there.branching.listed("", 9)
        await saved(there, tmp_path, text_in(tmp_path).replace("\n  way:\n", "\n  road:\n"))
        # The workflow goes on under the new one before its decision is told.
        there.arrive("r2", "left")
        told_of(there, "r1", "road", "left")
        await there.until(
            lambda: (
                there.branching.inspect(branch.branch_id)["state"] == "settled"
                and there.branching.book.branches.unresolved <= 1
            )
        )
        states = {
            fill["selection"]: [stage["state"] for stage in fill["stages"]]
            for fill in there.branching.inspect(branch.branch_id)["fills"]
        }
        assert states == {way: ["discarded"] * 2 for way in ("left", "right")}
        await there.empty()
        assert isinstance(await there.demand("Go right", may_execute=False), Miss)


@pytest.mark.promise("C2.selection_removes")
async def test_an_answer_that_was_read_by_the_new_one_selects_nothing_of_the_old_one(tmp_path: Path) -> None:
    async with world(tmp_path) as there:
        there.arrive("r1", "left", "right")
        await there.until(lambda: there.states() == {way: ["shadow"] * 2 for way in ("left", "right")})
        await saved(there, tmp_path, text_in(tmp_path).replace("\n  way:\n", "\n  road:\n"))
        told_of(there, "r1", "road", "left")
        view = await there.settled()
        assert view["resolution"]["selections"] == []
        assert there.states() == {way: ["discarded"] * 2 for way in ("left", "right")}
        await there.empty()
