"""The edges of each engine that the stub stands for."""

from __future__ import annotations

import asyncio
import json

import pytest
from dynbranch.enginemodel.parameters import FixedParameters
from dynbranch.stub_engine.engine import StubEngine
from dynbranch.stub_engine.faults import Fault, FaultKind
from dynbranch.stub_engine.settings import Flavour, StubSettings
from integration.stub_engine.conftest import HI, Client, until

SLOW = FixedParameters(time_to_first_token_ms=10, inter_token_ms=500, slots=2)
GAUGES = {
    Flavour.VLLM: ("vllm:num_requests_running", "vllm:num_requests_waiting", "vllm:kv_cache_usage_perc"),
    Flavour.SGLANG: ("sglang:num_running_reqs", "sglang:num_queue_reqs", "sglang:token_usage"),
    Flavour.OPENAI: ("vllm:num_requests_running", "vllm:num_requests_waiting"),
    Flavour.LLAMA_SERVER: ("llamacpp:requests_processing", "llamacpp:requests_deferred"),
}


@pytest.mark.parametrize("flavour", list(Flavour))
async def test_gauges_under_each_name(client: Client, flavour: Flavour) -> None:
    async with StubEngine(StubSettings(flavour=flavour, latency=SLOW)) as stub:
        asked = [asyncio.ensure_future(client.events(stub)) for _ in range(3)]
        await until(lambda: len(stub.requests) == 3)
        _, text = await client.get(stub, "/metrics")
        shown = {
            line.partition("{")[0].partition(" ")[0]: float(line.rsplit(" ", 1)[1])
            for line in text.splitlines()
            if not line.startswith("#")
        }
        assert [shown[name] for name in GAUGES[flavour][:2]] == [2, 1]
        assert all(0 < shown[name] <= 1 for name in GAUGES[flavour][2:])
        assert shown["process_start_time_seconds"] > 0
        for one in asked:
            one.cancel()
        await until(lambda: stub.running + stub.waiting == 0)


async def test_vllm_aborts_by_id_and_everything_by_none(client: Client) -> None:
    async with StubEngine(StubSettings(latency=SLOW)) as stub:
        asked = [asyncio.ensure_future(client.streamed(stub, request_id=f"r{n}")) for n in range(2)]
        await until(lambda: stub.running == 2)
        await client.post(stub, "/abort_requests", {"request_ids": ["chatcmpl-r1"]})
        assert (await asked[1])[-2]["choices"][0]["finish_reason"] == "abort"
        assert stub.running == 1
        await client.post(stub, "/abort_requests", {"request_ids": []})
        assert (await asked[0])[-2]["choices"][0]["finish_reason"] == "abort"


async def test_what_is_aborted_gives_what_it_had(client: Client) -> None:
    for faults in ((), (Fault(FaultKind.HANG),)):
        async with StubEngine(StubSettings(latency=SLOW, faults=faults)) as stub:
            whole = asyncio.ensure_future(client.chat(stub, max_tokens=9))
            stream = asyncio.ensure_future(client.streamed(stub, max_tokens=9))
            await until(lambda: stub.running == 2)
            assert stub.abort(lambda _: True) == 2
            choice, chunks = (await whole)["choices"][0], await stream
            assert choice["finish_reason"] == chunks[-2]["choices"][0]["finish_reason"] == "abort"
            assert len(choice["message"]["content"]) < 9 * 4


async def test_sglang_aborts_by_prefix_and_flushes_only_at_rest(client: Client) -> None:
    async with StubEngine(StubSettings(flavour=Flavour.SGLANG, latency=SLOW)) as stub:
        asked = [asyncio.ensure_future(client.streamed(stub, rid=rid)) for rid in ("ab-1", "ab-2")]
        await until(lambda: stub.running == 2)
        assert (await client.post(stub, "/flush_cache", {}))[0] == 400
        await client.post(stub, "/abort_request", {"rid": ""})
        assert stub.running == 2
        await client.post(stub, "/abort_request", {"rid": "ab"})
        assert [chunks[0]["id"] for chunks in await asyncio.gather(*asked)] == ["ab-1", "ab-2"]
        assert (await client.post(stub, "/flush_cache", {}))[0] == 200


async def test_sglang_describes_itself(client: Client) -> None:
    async with StubEngine(StubSettings(flavour=Flavour.SGLANG, model="m")) as stub:
        for path, key in (("/get_server_info", "served_model_name"), ("/get_model_info", "model_path")):
            status, text = await client.get(stub, path)
            assert status == 200 and json.loads(text)[key] == "m"
        assert (await client.get(stub, "/health_generate"))[0] == 200
        assert (await client.get(stub, "/props"))[0] == 404


async def test_llama_server_describes_itself(client: Client) -> None:
    settings = StubSettings(flavour=Flavour.LLAMA_SERVER, latency=SLOW, aliases=("other",))
    async with StubEngine(settings) as stub:
        assert json.loads((await client.get(stub, "/props"))[1])["total_slots"] == 2
        assert json.loads((await client.get(stub, "/v1/models"))[1])["data"][0]["aliases"] == ["other"]
        _, text = await client.post(stub, "/apply-template", {"messages": HI["messages"]})
        assert json.loads(text)["prompt"].startswith("<|im_start|>user\nhi")


async def test_when_the_head_comes(client: Client) -> None:
    never = FixedParameters(time_to_first_token_ms=10**7)
    for flavour, at_once in ((Flavour.VLLM, True), (Flavour.LLAMA_SERVER, False)):
        async with StubEngine(StubSettings(flavour=flavour, latency=never)) as stub:
            asked = asyncio.ensure_future(
                client.http.post(f"{stub.url}/v1/chat/completions", json={**HI, "stream": True})
            )
            done, _ = await asyncio.wait([asked], timeout=5 if at_once else 0.05)
            assert bool(done) is at_once
            asked.cancel()
            for one in done:
                one.result().close()
