"""What the controller is told of workflow types that have a template; and that nobody waits for it."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from dynbranch.domain.branches import BranchSummary, TemplateSource
from dynbranch.domain.events import Selection
from dynbranch.domain.ids import BranchId, UnixMs
from dynbranch.domain.template import Output, StageKind
from dynbranch.engine_agent.fake import Script, text_chunks
from dynbranch.gateway.listening import MAX_OUTPUT_CHARACTERS, ChoiceWatch
from dynbranch.gateway.telling import TemplateInForce
from dynbranch.rendering.telling import read_output
from dynbranch.runtime import telemetry
from integration.gateway.fills import (
    ACT,
    DECIDE,
    PICKS,
    TEMPLATE,
    WORKFLOW,
    request,
    running_fill,
    serve,
    templated,
    told_arrivals,
    told_choices,
    told_outcomes,
)
from integration.gateway.world import Plan, World, eventually, running_world
from opentelemetry.sdk.trace import TracerProvider

CHOICE = ('{"why":"', "nice", '","pick":"r', "ed", '","more":', "1}")
STREAMED = request("Pick one:\n- red\n- blue", stream=True)


def says(*words: str, **script: Any) -> Any:
    return lambda order: Script(items=text_chunks(words), **script)


async def decide(world: World, body: bytes = DECIDE, **headers: str) -> Any:
    """With the header: a streamed request is not quite what the template writes."""
    return await serve(world, body, **{"x-dynbranch-stage": "decide", **headers})


async def outcomes(world: World, count: int) -> list[Any]:
    await eventually(lambda: len(told_outcomes(world)) >= count)
    return told_outcomes(world)


async def test_a_traced_arrival_is_told_with_its_span(monkeypatch: pytest.MonkeyPatch) -> None:
    provider = TracerProvider(shutdown_on_exit=False)
    monkeypatch.setattr(telemetry, "tracer", provider.get_tracer)
    caller = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
    async with running_world(Plan()) as world:
        await templated(world)
        await serve(world, DECIDE, traceparent=caller)
        await outcomes(world, 1)
        [arrival] = told_arrivals(world)
    _, trace, span, _ = caller.split("-")
    version, told_trace, told_span, flags = arrival.traceparent.split("-")
    assert (version, told_trace, flags) == ("00", trace, "01") and told_span != span
    provider.shutdown()


async def test_arrivals_of_a_template_s_stages_are_told_with_their_inputs(world: World) -> None:
    await templated(world)
    headers = {"authorization": "Bearer sk-x"}
    await serve(world, DECIDE, **headers)
    await outcomes(world, 1)
    [arrival] = told_arrivals(world)
    assert arrival.told is not None and arrival.told.stage == "decide"
    assert arrival.told.values == (("menu", '["red","blue"]'),)
    assert arrival.told.forward_headers == (("authorization", "Bearer sk-x"),)
    assert arrival.told.sharing_group.startswith("forwarded/") and arrival.told.cache_scope
    assert arrival.name is not None and arrival.identity.workflow_id == "w1"


@pytest.mark.parametrize("kind", ["plain", "streamed", "hit", "joined", "adopted", "promoted"])
async def test_an_answer_is_told_however_it_came(world: World, kind: str) -> None:
    await templated(world)
    gate = asyncio.Event()
    world.engine.writer = says(*CHOICE, gate=gate)
    body = STREAMED if kind == "streamed" else DECIDE
    count = 1
    if kind in ("adopted", "promoted"):
        async with running_fill(world, body) as fill:
            if kind == "promoted":
                gate.set()
                await fill.ended()
            demand = asyncio.get_running_loop().create_task(decide(world, body))
            await eventually(lambda: world.csl.demands)
            await asyncio.sleep(0.02)
            gate.set()
            assert (await demand).outcome == kind
    elif kind == "joined":
        count = 2
        demands = [asyncio.get_running_loop().create_task(decide(world, body)) for _ in range(2)]
        await eventually(lambda: len(world.csl.demands) == 2)
        gate.set()
        assert "joined" in {answer.outcome for answer in await asyncio.gather(*demands)}
    else:
        gate.set()
        await decide(world, body)
        if kind == "hit":
            count = 2
            assert (await decide(world, body)).outcome == "hit"
    for outcome in await outcomes(world, count):
        assert outcome.told is not None and outcome.told.stage == "decide"
        assert outcome.told.selections == (Selection("pick", ("red",)),)
        output = read_output(outcome.told.output_json, StageKind.CHAT)
        assert output == Output("".join(CHOICE), finish="stop")
        assert outcome.told.execution_ms > 0


@pytest.mark.promise("C2.stream_first")
@pytest.mark.parametrize("body", [STREAMED, DECIDE], ids=["streamed", "plain"])
async def test_a_choice_is_told_while_the_answer_is_written(world: World, body: bytes) -> None:
    await templated(world)
    words = (*CHOICE[:-2], '","more":"', *["on and on "] * 100, '"}')
    world.engine.writer = says(*words, between_s=0.01)
    demand = asyncio.get_running_loop().create_task(decide(world, body))
    await eventually(lambda: told_choices(world))
    assert not demand.done()
    await demand
    [choice] = told_choices(world)
    assert choice.selection == Selection("pick", ("red",)) and choice.closed and 6 <= choice.items < 100
    assert choice.stage == "decide" and choice.demand_id == told_arrivals(world)[0].demand_id


async def test_a_stage_without_a_decision_is_not_watched(world: World) -> None:
    await templated(world)
    world.engine.writer = says(*CHOICE)
    await serve(world, ACT)
    [outcome] = await outcomes(world, 1)
    assert outcome.told.stage == "act" and outcome.told.selections == () and outcome.told.output_json
    assert not told_choices(world)


async def test_a_tool_s_result_is_told_as_it_is(world: World) -> None:
    await templated(world)
    await world.post("/dynbranch/v1/tools/search", b'{"query":"x"}', WORKFLOW)
    [outcome] = await outcomes(world, 1)
    assert outcome.told.stage == "search" and outcome.told.output_json == b'{"found": ["p1"],  "n": 1.0}'


async def test_an_output_that_can_not_be_read_is_ambiguous(world: World) -> None:
    await templated(world)
    world.engine.writer = says("no json")
    await decide(world, DECIDE)
    [outcome] = await outcomes(world, 1)
    assert outcome.told.selections == (Selection("pick", ambiguous=True),)


async def test_what_is_too_large_is_not_told(world: World) -> None:
    await templated(world)
    world.engine.writer = says("x" * 1000, *["y" * 1024] * (MAX_OUTPUT_CHARACTERS // 1024))
    await decide(world, DECIDE)
    [outcome] = await outcomes(world, 1)
    assert outcome.told.output_json == b"" and outcome.told.selections == (Selection("pick", ambiguous=True),)


async def test_a_large_request_is_read_beside_the_loop(world: World) -> None:
    await templated(world)
    menu = "".join(f"\n- item {number}" for number in range(20_000))
    body = request("Pick one:" + menu, metadata={"n": list(range(11_000))})
    assert (await serve(world, body, **{"x-dynbranch-stage": "decide"})).status == 200
    await eventually(lambda: told_arrivals(world))
    [arrival] = told_arrivals(world)
    assert arrival.told is not None
    assert arrival.told.values == () or len(arrival.told.values[0][1]) < 2**18


@pytest.mark.parametrize("how", ["refused", "left", "raw"])
async def test_what_was_not_answered_is_told_without_an_answer(world: World, how: str) -> None:
    await templated(world)
    world.engine.writer = lambda order: Script(fail_after=0) if how == "refused" else Script(first_s=5)
    if how == "raw":
        await serve(world, DECIDE, **{"x-dynbranch-bypass": "1"})
    elif how == "refused":
        await decide(world, DECIDE)
    else:
        demand = asyncio.get_running_loop().create_task(decide(world, DECIDE))
        await eventually(lambda: world.engine.orders)
        demand.cancel()
    if how == "raw":
        await asyncio.sleep(0.05)
        assert not told_outcomes(world)
        return
    [outcome] = await outcomes(world, 1)
    assert outcome.told is None and outcome.failed is (how == "refused")


async def test_other_workflow_types_are_told_as_ever(world: World) -> None:
    await templated(world)
    await serve(world, DECIDE, **{"x-dynbranch-workflow-type": "other"})
    [outcome] = await outcomes(world, 1)
    assert outcome.told is None and told_arrivals(world)[0].told is None


# -- nothing here is ever in the way -----------------------------------------------------------------------


@pytest.mark.promise("C2.never_in_the_way")
async def test_a_template_that_fails_at_everything_fails_no_request(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    await templated(world)
    known = world.gateway.templates
    assert known is not None
    in_force = known.of("picks")
    assert isinstance(in_force, TemplateInForce)

    def breaks(*_: Any, **__: Any) -> Any:
        raise RuntimeError("a bug of a template")

    monkeypatch.setattr(in_force.follower, "arrived", breaks)
    monkeypatch.setattr(in_force.follower, "gave", breaks)
    monkeypatch.setattr(ChoiceWatch, "read", breaks)
    assert (await decide(world, DECIDE)).outcome == "miss"
    assert (await decide(world, STREAMED)).outcome == "hit"
    monkeypatch.setattr(in_force.follower.recogniser, "stage_of", breaks)
    assert (await decide(world, DECIDE)).outcome == "hit"
    seen = await outcomes(world, 3)
    assert [outcome.told for outcome in seen] == [None, None, None]


@pytest.mark.promise("C2.never_in_the_way")
async def test_a_bad_template_is_skipped_and_the_others_stay(world: World) -> None:
    bad = TemplateSource("bad", "workflow_type: [")
    await templated(world)
    world.controller.put_templates(bad, PICKS, TemplateSource("more", TEMPLATE.replace("picks", "more")))
    known = world.gateway.templates
    assert known is not None
    await eventually(lambda: known.of("more"))
    assert known.of("bad") is None and known.of("picks") is not None and known.rejected == 1
    world.controller.put_templates(PICKS)
    await eventually(lambda: known.of("more") is None)


@pytest.mark.promise("C2.never_in_the_way")
async def test_a_controller_that_is_gone_is_not_missed(world: World) -> None:
    await templated(world)
    world.controller.lose()
    assert [(await decide(world, DECIDE)).outcome for _ in range(2)] == ["miss", "hit"]
    world.controller.reachable = True
    world.controller.put_templates(PICKS, TemplateSource("more", TEMPLATE.replace("picks", "more")))
    known = world.gateway.templates
    assert known is not None
    await eventually(lambda: known.of("more"))
    assert [outcome.told is not None for outcome in await outcomes(world, 2)] == [True, True]


async def test_disabled_means_no_template() -> None:
    async with running_world(Plan({"enabled": False, "engine_url": "http://127.0.0.1:1"})) as world:
        assert world.gateway.templates is None and world.gateway.reporter is None


# -- branches for people -----------------------------------------------------------------------------------


async def test_branches_are_listed_and_shown(world: World) -> None:
    branch = BranchId(b"\x01" * 16)
    summary = BranchSummary(branch, "picks", "w1", "pick", "open", UnixMs(5), 2, 1, 0)
    world.controller.branches[branch] = (summary, json.dumps({"branch": branch.hex(), "state": "open"}))
    [listed] = (await world.get("/dynbranch/v1/branches?workflow=w1")).json["data"]
    assert listed["branch"] == branch.hex() and listed["candidates"] == 2
    assert (await world.get("/dynbranch/v1/branches?workflow=other")).json["data"] == []
    assert (await world.get(f"/dynbranch/v1/branches/{branch.hex()}")).json["state"] == "open"


@pytest.mark.parametrize(
    ("path", "status", "code"),
    [
        ("/ff", 404, "unknown_branch"),
        ("/nothex", 400, "invalid_branch"),
        ("?work=x", 400, "unknown_parameter"),
    ],
)
async def test_what_is_asked_wrongly_is_told_what_to_do(
    world: World, path: str, status: int, code: str
) -> None:
    answer = await world.get(f"/dynbranch/v1/branches{path}")
    assert (answer.status, answer.error["code"]) == (status, code)


async def test_without_a_controller_there_are_no_branches(world: World) -> None:
    world.controller.lose()
    answer = await world.get("/dynbranch/v1/branches")
    assert (answer.status, answer.error["code"]) == (503, "controller_unreachable")
    async with running_world(Plan({"enabled": False, "engine_url": "http://127.0.0.1:1"})) as disabled:
        assert (await disabled.get("/dynbranch/v1/branches")).error["code"] == "no_controller"
