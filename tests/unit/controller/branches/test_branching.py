"""Branches at work beside the store's and the agent's twins."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from dynbranch.bench.chaos_world import Faults, FaultyStore
from dynbranch.controller.core.branches.instances import Bounds
from dynbranch.domain.errors import NotFound
from dynbranch.domain.fills import Settlement
from dynbranch.domain.ids import BranchId, RecordId
from dynbranch.domain.reuse import Hit, Live, Miss
from dynbranch.naming.chunks import decode_payload
from dynbranch.rendering.outputs import output_of
from dynbranch.runtime import telemetry
from opentelemetry.sdk.trace import TracerProvider
from unit.controller.branches.world import WHO, World, put_template, world

OTHER = replace(WHO, workflow_id="w2")


async def shadowed(there: World, *selections: str) -> None:
    await there.until(lambda: all(there.states().get(s) == ["shadow", "shadow"] for s in selections))


@pytest.mark.promise("C2.chain")
async def test_a_chain_runs_ahead_and_each_stage_is_promoted_by_its_own_demand(tmp_path: Path) -> None:
    async with world(tmp_path) as there:
        there.arrive("r1", "left", "right")
        await shadowed(there, "left", "right")
        there.answer("r1", "left")
        first = await there.demand("Go left")
        assert isinstance(first, Hit) and first.promoted is not None and first.promoted.stage == 0
        assert output_of(decode_payload(first.payload)).text == "done: Go left"
        second = await there.demand("Sum up: done: Go left")
        assert isinstance(second, Hit) and second.promoted is not None and second.promoted.stage == 1
        assert isinstance(await there.demand("Go right"), Miss), "the loser is gone"
        view = await there.settled()
        assert there.states() == {"left": ["promoted"] * 2, "right": ["discarded"] * 2}
        assert view["resolution"]["selections"] == ["left"]
        assert view["engine_time"]["saved_ms"] > 0 and view["engine_time"]["discarded_ms"] > 0
        assert [(c["selection"], c["selected"]) for c in view["candidates"]] == [
            ("left", True),
            ("right", False),
        ]


async def test_the_store_is_told_the_span_of_a_fill(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    provider = TracerProvider(shutdown_on_exit=False)
    monkeypatch.setattr(telemetry, "tracer", provider.get_tracer)
    async with world(tmp_path) as there:
        there.arrive("r1", "left")
        await shadowed(there, "left")
        first = await there.demand("Go left")
        second = await there.demand("Sum up: done: Go left")
    assert isinstance(first, Hit) and first.promoted is not None and first.promoted.traceparent
    assert isinstance(second, Hit) and second.promoted is not None
    assert second.promoted.traceparent == first.promoted.traceparent, "one fill, one span"
    provider.shutdown()


@pytest.mark.promise("I2")
async def test_a_loser_that_runs_is_aborted_in_the_engine(tmp_path: Path) -> None:
    async with world(tmp_path) as there:
        there.gates["Go right"] = asyncio.Event()
        there.arrive("r1", "left", "right")
        await there.until(lambda: there.states().get("right") == ["running"])
        there.answer("r1", "left")
        await there.until(lambda: there.states()["right"] == ["aborted"])
        await there.until(lambda: len(there.engine.running) == 0)
        assert len(there.engine.aborted) == 1
        await there.until(lambda: len(there.view["abort_confirmed_ms"]) == 1)
        await there.empty()


async def test_a_demand_takes_a_running_fill_over_and_the_loss_that_follows_leaves_it(tmp_path: Path) -> None:
    async with world(tmp_path) as there:
        there.gates["Go right"] = asyncio.Event()
        there.arrive("r1", "left", "right")
        await there.until(lambda: there.states().get("right") == ["running"])
        live = await there.demand("Go right", who=OTHER)
        assert isinstance(live, Live) and live.adopted is not None
        follower = there.agent.attach(
            live.generation.generation_id, from_item=0, wait_ms=0, idle_s=20, adopts=True
        )
        first = asyncio.ensure_future(anext(follower))
        await asyncio.sleep(0)
        there.answer("r1", "left")
        await there.until(lambda: there.view["fills"][1]["lost"])
        there.gates["Go right"].set()
        assert (await first).items
        await follower.aclose()
        await there.until(lambda: there.states()["right"] == ["confirmed"])
        assert isinstance(await there.demand("Go right", who=OTHER), Hit)
        await there.empty()


@pytest.mark.promise("C2.settled_once")
async def test_a_demand_of_the_own_workflow_resolves_its_branch(tmp_path: Path) -> None:
    async with world(tmp_path) as there:
        there.arrive("r1", "left", "right")
        await shadowed(there, "left", "right")
        assert isinstance(await there.demand("Go right"), Hit)
        await there.until(lambda: there.view["resolution"])
        assert there.view["resolution"]["by"] == "demand"
        assert there.view["resolution"]["selections"] == ["right"]


@pytest.mark.promise("C2.stream_first")
async def test_a_choice_in_the_decode_is_filled_at_once(tmp_path: Path) -> None:
    async with world(tmp_path) as there:
        there.arrive("r1", "a", "b", "c", "d")
        await shadowed(there, "a", "b", "c")
        there.choice("r1", "d")
        await shadowed(there, "d")
        there.choice("r1", "d", closed=True)
        assert there.view["resolution"]["by"] == "stream"
        await there.until(lambda: there.states()["a"] == ["discarded"] * 2)
        assert isinstance(await there.demand("Go d"), Hit)


async def test_a_name_that_runs_already_is_joined_and_the_chain_goes_on_from_it(tmp_path: Path) -> None:
    async with world(tmp_path) as there:
        there.gates["Go left"] = asyncio.Event()
        there.arrive("r1", "left")
        await there.until(lambda: there.states().get("left") == ["running"])
        first = there.view["branch"]
        there.arrive("r2", "left", who=OTHER)
        await there.until(lambda: there.view["branch"] != first and there.view["fills"])
        await asyncio.sleep(0.05)
        there.gates["Go left"].set()
        await there.until(lambda: there.states()["left"] in (["passed", "passed"], ["passed", "shadow"]))
        # The leave for the second name may be ahead of its order.
        await there.until(lambda: len(there.engine.orders) >= 2)
        await there.until(lambda: not there.engine.running)
        assert len(there.engine.orders) == 2, "each name ran once"


async def test_what_stood_already_is_passed_over(tmp_path: Path) -> None:
    async with world(tmp_path) as there:
        there.arrive("r1", "left")
        await shadowed(there, "left")
        there.arrive("r2", "left", who=OTHER)
        await there.until(
            lambda: there.view["workflow"] == "w2" and there.states() == {"left": ["passed"] * 2}
        )
        assert len(there.engine.orders) == 2


async def test_a_write_ends_what_read_the_record(tmp_path: Path) -> None:
    async with world(tmp_path, reads="['notes/{{ selection }}']") as there:
        assert not isinstance(await there.demand("the workflow's first arrival"), Hit)
        there.gates["Go left"] = asyncio.Event()
        there.arrive("r1", "left", "right")
        await there.until(lambda: there.states().get("left") == ["running"])
        await there.until(lambda: there.states().get("right") == ["shadow", "shadow"])
        await there.csl.write([RecordId("notes/left"), RecordId("notes/right")], reporter="test", timeout_s=5)
        await there.until(lambda: there.states() == {"left": ["aborted"], "right": ["discarded"] * 2})
        await there.until(lambda: not there.engine.running)


@pytest.mark.promise("C2.once")
async def test_a_sampled_stage_runs_ahead_for_one_demand(tmp_path: Path) -> None:
    async with world(tmp_path, once=True) as there:
        there.arrive("r1", "left")
        await shadowed(there, "left")
        first = await there.demand("Go left", once=True)
        assert isinstance(first, Hit) and first.promoted is not None
        await there.until(lambda: there.states()["left"][0] == "promoted")
        assert there.view["fills"][0]["stages"][0]["once"] is True
        assert not isinstance(await there.demand("Go left", once=True), Hit)
        there.answer("r1", "left")
        # The next decision of that kind draws anew.
        there.arrive("r2", "left", who=OTHER)
        await there.until(lambda: there.states().get("left", [])[:1] == ["shadow"])
        assert isinstance(await there.demand("Go left", who=OTHER, once=True), Hit)


async def test_templates_are_read_again_and_open_branches_keep_their_version(tmp_path: Path) -> None:
    async with world(tmp_path) as there:
        watch = there.branching.templates.watch()
        before = await anext(watch)
        put_template(tmp_path, "workflow_type: [broken")
        there.branching.templates._folder._next = None  # type: ignore[union-attr]
        assert await there.branching.templates.look()
        assert (await anext(watch)).templates == before.templates, "the last good version stays"
        await watch.aclose()
        there.arrive("r1", "left")
        await shadowed(there, "left")


async def test_unknown_workflow_types_and_branches(tmp_path: Path) -> None:
    async with world(tmp_path) as there:
        there.arrive("r1", "left", who=replace(WHO, workflow_type_id="others"))
        assert there.branching.listed("", 9) == ()
        with pytest.raises(NotFound):
            there.branching.inspect(BranchId(b"nothing"))


async def test_an_answer_may_come_before_its_arrival(tmp_path: Path) -> None:
    async with world(tmp_path) as there:
        there.answer("r1", "left", outcome="hit")
        there.arrive("r1", "left", "right")
        view = await there.settled()
        assert view["resolution"]["by"] == "hit" and view["fills"] == []
        assert there.engine.orders == []


async def test_a_silent_workflow_gives_everything_back(tmp_path: Path) -> None:
    async with world(tmp_path, bounds=Bounds(workflow_ttl_s=0.3)) as there:
        there.gates["Go left"] = asyncio.Event()
        there.arrive("r1", "left")
        view = await there.settled()
        assert view["resolution"]["by"] == "the workflow is silent"
        await there.empty()


@pytest.mark.promise("I4")
async def test_a_controller_that_stops_with_fills_in_flight_leaks_nothing(tmp_path: Path) -> None:
    async with world(tmp_path) as there:
        there.gates["Go left"] = asyncio.Event()
        there.arrive("r1", "left", "right")
        await there.until(lambda: there.states().get("left") == ["running"])
        await there.branching.__aexit__(None, None, None)
        await there.empty()


@pytest.mark.promise("C2.one_reader")
async def test_of_two_controllers_of_a_store_the_newer_one_fills_and_the_older_says_what_to_do(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with world(tmp_path, epoch=1) as older:
        older.gates["Go left"] = asyncio.Event()
        older.arrive("r1", "left")
        await older.until(lambda: older.states().get("left") == ["running"])
        async with world(tmp_path, csl=older.csl, epoch=2) as newer:
            # What it ran it has let go.
            await older.until(lambda: older.states()["left"] == ["aborted"])
            await older.until(lambda: not older.engine.running)
            older.arrive("r2", "right", who=OTHER)
            assert older.view["fills"] == [] and not older.branching.book.filling.reservations
            newer.arrive("r3", "right")
            await shadowed(newer, "right")
            assert isinstance(await newer.demand("Go right"), Hit)
            await newer.until(lambda: newer.states()["right"][0] == "promoted")
            down = [one.registry.get_sample_value("dynbranch_stood_down") for one in (older, newer)]
            assert down == [1, 0]
    said = [record for record in caplog.records if record.levelname == "ERROR"]
    assert len(said) == 1 and "Stop one of the two controllers" in said[0].getMessage()


class Deaf(FaultyStore):
    """A store whose settlements do not come through."""

    async def read_settlements(self, **options: Any) -> tuple[Settlement, ...]:
        await asyncio.sleep(60)
        return ()


@pytest.mark.promise("I2")
async def test_what_a_dead_controller_left_the_next_one_takes_away(tmp_path: Path) -> None:
    async with world(tmp_path, wrap_store=lambda store: Deaf(store, Faults())) as there:
        there.arrive("r1", "left")
        while (await there.csl.stats(timeout_s=5)).shadows < 2:
            await asyncio.sleep(0.01)
        # Killed: nothing is told to anybody.
        await there.branching.tasks.__aexit__(None, None, None)
        async with world(tmp_path, csl=there.csl) as again:
            await again.until(lambda: again.branching.book.filling.unknown)
            while (await there.csl.stats(timeout_s=5)).discarded_shadows < 2:
                await asyncio.sleep(0.01)
            assert isinstance(await again.demand("Go left", may_execute=False), Miss)


@pytest.mark.promise("I4")
async def test_an_engine_that_is_lost_keeps_nothing_of_the_books(tmp_path: Path) -> None:
    async with world(tmp_path) as there:
        there.gates["Go left"] = asyncio.Event()
        there.arrive("r1", "left")
        await there.until(lambda: there.states().get("left") == ["running"])
        there.agent.lose()
        await there.until(lambda: there.states()["left"] == ["aborted"])
        assert len(there.branching.book.filling.reservations) == 0
        there.agent.find()
        await there.empty()
