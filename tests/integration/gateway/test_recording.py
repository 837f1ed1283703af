"""Traffic that a gateway records: what stands in the file, and what never does."""

from __future__ import annotations

import asyncio
import json
import os
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from dynbranch.domain.events import Selection
from dynbranch.domain.template import Output, StageKind
from dynbranch.engine_agent.fake import Script, text_chunks
from dynbranch.enginemodel.parameters import H200_QWEN3_32B
from dynbranch.gateway.recording import Bodies
from dynbranch.rendering.reading import parse_template
from dynbranch.sim.fleet.playing import floor
from dynbranch.sim.fleet.runs import run
from dynbranch.sim.fleet.serving import C1, DYNBRANCH
from dynbranch.sim.workloads.traffic import from_traffic
from dynbranch.templates.traffic import read_arrivals, read_recording, read_traffic
from integration.gateway.fills import (
    ACT,
    DECIDE,
    DRAW,
    TEMPLATE,
    WORKFLOW,
    name_of,
    request,
    serve,
    templated,
    told,
)
from integration.gateway.world import Plan, eventually, running_world

pytestmark = pytest.mark.promise("G.record")

CHOICE = ('{"why":"', "nice", '","pick":"r', "ed", '","more":', "1}")
DECIDES = {"x-dynbranch-stage": "decide"}
KEY = "sk-never-to-be-seen"


def says(*words: str) -> Any:
    return lambda order: Script(items=text_chunks(words))


def recording(file: Path, *types: str, **more: Any) -> Plan:
    return Plan({"record": str(file), "record_types": types or ("picks",), **more})


async def test_traffic_is_recorded_as_the_template_tools_read_it(tmp_path: Path) -> None:
    file = tmp_path / "traffic.jsonl"
    async with running_world(recording(file)) as world:
        world.engine.writer = says(*CHOICE)
        await serve(world, DECIDE, **{"x-dynbranch-reads": "passages/1"})
        await serve(world, request("Pick one:\n- red\n- blue", stream=True), **DECIDES)
        await world.post("/dynbranch/v1/tools/search", b'{"query":"x"}', WORKFLOW)
        await serve(world, ACT, **{"x-dynbranch-workflow-type": "other"})
    first, second, tool = read_traffic(file)
    assert first.body == DECIDE and first.reads == ("passages/1",) and first.outcome == "miss"
    assert first.output == second.output == Output("".join(CHOICE), finish="stop")
    assert (tool.kind, tool.target, tool.body) == (StageKind.TOOL, "search", b'{"query":"x"}')
    assert tool.output == Output('{"found": ["p1"],  "n": 1.0}', finish="stop")
    assert first.at_ms <= second.at_ms <= tool.at_ms and oct(file.stat().st_mode)[-3:] == "600"


async def test_what_a_replay_needs_is_there_too(tmp_path: Path) -> None:
    file = tmp_path / "traffic.jsonl"
    async with running_world(recording(file)) as world:
        await templated(world)
        world.engine.writer = says(*CHOICE)
        name = await name_of(world, DECIDE)
        for body in (DECIDE, DECIDE, DRAW):
            await serve(world, body)
        recorder = world.gateway.recorder
        assert recorder is not None
        await eventually(lambda: recorder.written == 3)
        assert "dynbranch_gateway_recorded 3.0" in (await world.get("/metrics")).body.decode()
    miss, hit, drawn = read_traffic(file)
    assert [one.outcome for one in (miss, hit, drawn)] == ["miss", "hit", "miss"]
    assert (miss.name, hit.name, drawn.name) == (name.hex(), name.hex(), "")
    assert miss.stage == hit.stage == "decide" and drawn.stage == "draw"
    assert miss.selections == hit.selections == (Selection("pick", ("red",)),)
    assert miss.output_tokens == hit.output_tokens > 0 and miss.prompt_tokens == hit.prompt_tokens
    assert miss.execution_ms is not None and hit.execution_ms is not None
    assert miss.done_ms is not None and hit.at_ms >= miss.done_ms


@pytest.mark.parametrize("bodies", list(Bodies))
async def test_what_was_recorded_is_replayed_in_any_arm(bodies: Bodies, tmp_path: Path) -> None:
    """Three workflows: two that are alike, and one that drew its answer."""
    file = tmp_path / "traffic.jsonl"
    async with running_world(recording(file, record_bodies=bodies)) as world:
        await templated(world)
        world.engine.writer = says(*CHOICE)
        for number, follows in enumerate((ACT, ACT, DRAW)):
            workflow = {"x-dynbranch-workflow": f"w{number}"}
            await serve(world, DECIDE, **workflow)
            await serve(world, follows, **workflow)
    found = from_traffic([file], template=parse_template(TEMPLATE, "picks"))
    steps = [step for one in found.workload.workflows for turn in one.turns for step in turn.steps]
    assert [step.call.stage for step in steps] == ["decide", "act", "decide", "act", "decide", "draw"]
    first, again = steps[0].decision, steps[2].decision
    assert first is not None and again is not None and len(first.picked) == 1
    assert (first.ranked, again.ranked, again.picked) == ((), first.picked, first.picked)
    assert [call.content for call in again.chains[first.picked[0]]] == [steps[1].call.content]
    outcomes = {}
    for name, arm in {"floor": floor, "c1": C1, "dynbranch": DYNBRANCH}.items():
        done = run(found.workload, arm, H200_QWEN3_32B, engines=1)
        assert done.wrong == 0
        outcomes[name] = Counter(one for play in done.plays for one in play.outcomes)
    assert outcomes["floor"] == {"miss": 6}
    assert outcomes["c1"]["miss"] == 3, "decide, act and what was drawn"
    assert outcomes["dynbranch"]["miss"] <= 3 and sum(outcomes["dynbranch"].values()) == 6


@pytest.mark.parametrize("bodies", list(Bodies))
async def test_no_header_and_no_key_is_ever_written(bodies: Bodies, tmp_path: Path) -> None:
    file = tmp_path / "traffic.jsonl"
    async with running_world(recording(file, "*", record_bodies=bodies)) as world:
        world.engine.writer = says(*CHOICE)
        secrets = {"authorization": f"Bearer {KEY}", "x-api-key": KEY, "cookie": KEY, "x-whatever": KEY}
        await serve(world, DECIDE, **secrets)
        await world.post("/v1/chat/completions", ACT, secrets)
        await world.post("/v1/messages", b"{", secrets)
    tagged, untagged = read_arrivals(file)
    assert tagged.workflow_id == "w1" and untagged.workflow_id == untagged.workflow_type == ""
    text = file.read_text()
    assert KEY not in text and ("red" in text) == (bodies is Bodies.KEPT)


async def test_writes_are_recorded_when_they_are_acknowledged(tmp_path: Path) -> None:
    file = tmp_path / "traffic.jsonl"
    async with running_world(recording(file)) as world:
        await serve(world, DECIDE, **{"x-dynbranch-reads": "passages/1"})
        assert (await world.post("/dynbranch/v1/writes", b'{"records":["passages/1"]}')).status == 200
        assert (await world.post("/dynbranch/v1/writes", b'{"records":["nonsense"]}')).status == 400
        await serve(world, DECIDE, **{"x-dynbranch-reads": "passages/1"})
    read = read_recording(file)
    before, after = read.exchanges
    (write,) = read.writes
    assert write.records == ("passages/1",) and before.at_ms <= write.at_ms <= after.at_ms
    assert [one.outcome for one in read.exchanges] == ["miss", "miss"]
    workload = from_traffic([file]).workload
    assert [one.records for one in workload.writes] == [("passages/1",)]


async def test_an_answer_that_comes_early_waits_for_its_place(tmp_path: Path) -> None:
    file, gate = tmp_path / "traffic.jsonl", asyncio.Event()
    async with running_world(recording(file)) as world:
        world.engine.writer = lambda order: Script(gate=gate if b"slow" in order.body else None)
        slow = asyncio.get_running_loop().create_task(serve(world, request("slow")))
        await eventually(lambda: world.engine.orders)
        await serve(world, request("quick"))
        gate.set()
        await slow
    assert [json.loads(one.body)["messages"][0]["content"] for one in read_traffic(file)] == ["slow", "quick"]


async def test_a_file_that_can_not_be_written_stops_nothing(tmp_path: Path) -> None:
    async with running_world(recording(tmp_path / "nowhere" / "x")) as world:
        assert (await serve(world, DECIDE)).status == 200
        recorder = world.gateway.recorder
        assert recorder is not None
        await eventually(lambda: recorder.dropped)
        assert "dynbranch_gateway_records_dropped 1.0" in (await world.get("/metrics")).body.decode()
    assert told(world)


async def test_nothing_is_recorded_unless_a_type_is_named(tmp_path: Path) -> None:
    async with running_world(Plan({"record": str(tmp_path / "t.jsonl")})) as world:
        await serve(world, DECIDE)
        assert world.gateway.recorder is None
    assert not os.listdir(tmp_path)
