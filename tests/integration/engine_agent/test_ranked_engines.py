"""The adapters of vLLM and SGLang before the stub engine, which has their edges as documented."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from typing import Any

import pytest
from contract.engine_agent.real_engines import items_of, model_of, nothing_left, ran, running, until
from dynbranch.domain.engine import Completed, GenerationOrder, ModelDescription, WorkClass
from dynbranch.domain.reuse import Level
from dynbranch.engine_agent.engines import sglang, vllm
from dynbranch.engine_agent.engines.openai import OpenAiEngine
from dynbranch.engine_agent.engines.port import Engine, EngineUnavailable
from dynbranch.engine_agent.engines.sglang import SglangEngine, SglangSettings
from dynbranch.engine_agent.engines.vllm import VllmEngine, VllmSettings
from dynbranch.engine_agent.orders import request_id
from dynbranch.engine_agent.shell import Agent
from dynbranch.enginemodel.parameters import FixedParameters
from dynbranch.runtime.clock import SystemClock
from dynbranch.stub_engine.engine import StubEngine
from dynbranch.stub_engine.settings import Flavour, StubSettings
from integration.engine_agent.test_probe import served
from integration.engine_agent.test_probe import vllm as vllm_routes
from unit.engine_agent.samples import chat_order

VOUCHED = {"weights": "w", "chat_template": "t"}


def attached(url: str, flavour: Flavour, **settings: Any) -> Engine:
    if flavour is Flavour.VLLM:
        return VllmEngine(VllmSettings(engine_url=url, **settings), SystemClock())
    return SglangEngine(SglangSettings(url, **settings), SystemClock())


@pytest.fixture(params=[Flavour.VLLM, Flavour.SGLANG], ids=lambda flavour: flavour.value)
async def stub(request: pytest.FixtureRequest) -> AsyncIterator[StubEngine]:
    """Runs one request at a time; a token comes every 2 ms."""
    pace = FixedParameters(inter_token_ms=2.0, slots=1)
    async with StubEngine(StubSettings(flavour=request.param, latency=pace)) as engine:
        yield engine


@pytest.fixture
async def agent(stub: StubEngine) -> AsyncIterator[Agent]:
    engine = attached(stub.url, stub.settings.flavour, slots=16, facts=VOUCHED)
    async with running(engine) as started:
        yield started


def order(model: ModelDescription, text: str, work: WorkClass, tokens: int) -> GenerationOrder:
    return replace(chat_order(text, model=model, max_tokens=tokens), work=work)


async def test_what_a_harness_waits_for_overtakes_in_either_sense_of_priorities(
    stub: StubEngine, agent: Agent
) -> None:
    model, ended = await model_of(agent), []

    async def run(one: GenerationOrder) -> None:
        _, end = await ran(agent, one)
        assert isinstance(end, Completed)
        ended.append(one.work)

    long = order(model, "long", WorkClass.FILL, 100)
    tasks = [asyncio.create_task(run(long))]
    await until(lambda: items_of(agent, long) > 0)
    for work in (WorkClass.DRAFT, WorkClass.FILL, WorkClass.CANONICAL):
        tasks.append(asyncio.create_task(run(order(model, work.value, work, 3))))
        await until(lambda: stub.running + stub.waiting == len(tasks))
    await asyncio.gather(*tasks)
    assert ended[-3:] == [WorkClass.CANONICAL, WorkClass.FILL, WorkClass.DRAFT]


async def test_bodies_say_what_the_engine_needs_to_know(stub: StubEngine, agent: Agent) -> None:
    ranked = replace(order(await model_of(agent), "x", WorkClass.FILL, 1), cache_scope="g" * 32)
    await ran(agent, ranked)
    body = json.loads(stub.bodies[-1])
    assert body["cache_salt"] == "g" * 32 and body["priority"] == 10 and body["stream"] is True
    if stub.settings.flavour is Flavour.SGLANG:
        assert body["rid"] == request_id(ranked.generation_id)


@pytest.mark.promise("C1.abort_frees_the_slot")
async def test_an_abort_ends_one_generation_and_no_other(stub: StubEngine, agent: Agent) -> None:
    model = await model_of(agent)
    first, second = (order(model, text, WorkClass.CANONICAL, 400) for text in "ab")
    tasks = [asyncio.create_task(ran(agent, one)) for one in (first, second)]
    await until(lambda: stub.running + stub.waiting == 2)
    assert (await agent.abort(first.generation_id, reason="enough")).aborted
    assert stub.running + stub.waiting == 1
    await until(lambda: items_of(agent, second) > 0)
    assert (await agent.abort(second.generation_id, reason="enough")).aborted
    await asyncio.gather(*tasks)
    assert agent.metrics.unconfirmed._value.get() == 0
    await until(lambda: not stub.running)


async def test_every_client_gone_leaves_nothing(stub: StubEngine, agent: Agent) -> None:
    model = await model_of(agent)
    orders = [order(model, f"t{i}", WorkClass.CANONICAL, 400) for i in range(12)]
    tasks = [asyncio.create_task(ran(agent, one)) for one in orders]
    await until(lambda: stub.running + stub.waiting == len(orders))
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    await nothing_left(agent, agent._engine)


class HearingStub(StubEngine):
    """Keeps what it was asked to abort."""

    def __init__(self, settings: StubSettings) -> None:
        super().__init__(settings)
        self.asked: list[Callable[[str], bool]] = []

    def abort(self, wanted: Callable[[str], bool]) -> int:
        self.asked.append(wanted)
        return super().abort(wanted)


async def test_sglang_is_told_of_an_abort_by_the_whole_id() -> None:
    pace = FixedParameters(inter_token_ms=20.0)
    async with HearingStub(StubSettings(flavour=Flavour.SGLANG, latency=pace)) as stub:
        async with running(attached(stub.url, Flavour.SGLANG, facts=VOUCHED)) as agent:
            model = await model_of(agent)
            one, other = (order(model, text, WorkClass.CANONICAL, 400) for text in "ab")
            task = asyncio.create_task(ran(agent, one))
            await until(lambda: stub.running == 1)
            await agent.abort(one.generation_id, reason="enough")
            await task
        (wanted,) = stub.asked
        assert wanted(request_id(one.generation_id)) and not wanted(request_id(other.generation_id))


async def test_a_vllm_without_priorities_is_sent_none() -> None:
    async with served(vllm_routes()) as url:
        engine = attached(url, Flavour.VLLM)
        facts = await engine.start()
        await engine.close()
    assert facts.fields.priorities == {} and facts.fields.salt_field == "cache_salt"
    assert facts.fields.defaults == {}, "nobody told what it samples with"
    assert not any(name.startswith("default.") for name, _ in facts.models[0].fingerprint.facts)


async def test_a_servers_own_report_of_its_defaults_is_sent_and_fingerprinted() -> None:
    params = {"temperature": 0.0, "top_p": 0.9, "top_k": 0, "min_p": 0.0, "repetition_penalty": 1.0}
    routes = vllm_routes(
        **{
            "/v1/chat/completions/render": {"token_ids": [1], "sampling_params": params},
            "/v1/completions": {"choices": []},
        }
    )
    async with served(routes) as url:
        engine = attached(url, Flavour.VLLM)
        facts = await engine.start()
        await engine.close()
    assert facts.fields.priorities == vllm.PRIORITIES
    assert facts.fields.defaults["m"]["top_p"] == "0.9"
    assert dict(facts.models[0].fingerprint.facts)["default.temperature"] == "0.0"


@pytest.mark.promise("I1")
@pytest.mark.parametrize(
    ("shown", "facts", "level"),
    [
        ({}, {}, Level.GREEDY),
        ({"vllm_env": {"VLLM_BATCH_INVARIANT": False}}, {}, Level.GREEDY),
        ({"vllm_env": {"VLLM_BATCH_INVARIANT": True}}, {}, Level.BATCH_INVARIANT),
        ({}, {"batch_invariant": "1"}, Level.BATCH_INVARIANT),
    ],
)
async def test_batch_invariance_is_declared_only_where_it_is_certain(
    shown: dict[str, Any], facts: dict[str, str], level: Level
) -> None:
    async with served(vllm_routes(**{"/server_info": shown})) as url:
        engine = attached(url, Flavour.VLLM, level=Level.BATCH_INVARIANT, facts=facts)
        found = (await engine.start()).models[0].fingerprint.level
        await engine.close()
    assert found is level


def sglang_routes(**info: Any) -> dict[str, Any]:
    shown = {"version": "0.5", "max_running_requests": 48, **info}
    return {
        "/v1/models": {"data": [{"id": "m", "root": "m"}]},
        "/get_server_info": shown,
        "/get_model_info": {"model_path": "/w/m", "weight_version": "7"},
    }


async def learned(routes: dict[str, Any], **settings: Any) -> Any:
    async with served(routes) as url:
        engine = attached(url, Flavour.SGLANG, **settings)
        facts = await engine.start()
        await engine.close()
    return facts


@pytest.mark.parametrize(
    ("info", "priorities"),
    [
        ({}, {}),
        ({"enable_priority_scheduling": True}, sglang.PRIORITIES),
        (
            {"enable_priority_scheduling": True, "schedule_low_priority_values_first": True},
            sglang.LOWER_FIRST,
        ),
    ],
)
async def test_sglang_says_in_which_order_it_serves(
    info: dict[str, Any], priorities: dict[WorkClass, int]
) -> None:
    facts = await learned(sglang_routes(**info))
    assert facts.fields.priorities == priorities and facts.fields.id_field == "rid" and facts.slots == 48


async def test_sglang_tells_its_weights_version_defaults_and_level() -> None:
    exact = {"enable_deterministic_inference": True, "sampling_defaults": "openai"}
    facts = await learned(sglang_routes(**exact), level=Level.BATCH_INVARIANT)
    known = dict(facts.models[0].fingerprint.facts)
    assert known["engine.weight_version"] == "7" and known["default.temperature"] == "1.0"
    assert facts.models[0].fingerprint.level is Level.BATCH_INVARIANT
    plain = await learned(sglang_routes(), level=Level.BATCH_INVARIANT)
    assert plain.models[0].fingerprint.level is Level.GREEDY and plain.fields.defaults == {}


async def test_another_make_of_engine_is_not_taken_for_one_of_these() -> None:
    async with served({"/v1/models": {"data": [{"id": "m"}]}}) as url:
        for flavour in (Flavour.VLLM, Flavour.SGLANG):
            engine = attached(url, flavour)
            with pytest.raises(EngineUnavailable, match="is not"):
                await engine.start()
            await engine.close()


async def test_many_who_ask_for_the_count_share_the_answers(stub: StubEngine) -> None:
    engine = attached(stub.url, stub.settings.flavour, facts=VOUCHED)
    await engine.start()
    inner = engine._server  # type: ignore[attr-defined]
    assert isinstance(inner, OpenAiEngine)
    before = inner._gauges._asked
    counts = await asyncio.gather(*(engine.counts() for _ in range(20)))
    assert len({count.running for count in counts}) == 1
    assert inner._gauges._asked - before <= 2
    await engine.close()
