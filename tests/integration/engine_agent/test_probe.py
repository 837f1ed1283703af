"""The start-up probe against servers of other makes, as their documentation says they answer."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Any

import pytest
from aiohttp import web
from dynbranch.domain.engine import ModelDescription
from dynbranch.engine_agent.engines.openai import OpenAiEngine, OpenAiSettings
from dynbranch.engine_agent.engines.port import EngineUnavailable
from dynbranch.engine_agent.engines.probe import Flavour
from dynbranch.runtime.clock import SystemClock

Routes = dict[str, Any]


@asynccontextmanager
async def served(routes: Routes) -> AsyncIterator[str]:
    """Each path answers with its value: text as it is, a callable with the request's JSON, else JSON."""

    async def answer(request: web.Request) -> web.Response:
        value = routes.get(request.path)
        if value is None:
            raise web.HTTPNotFound
        if callable(value):
            value = value(await request.json())
        return web.Response(text=value) if isinstance(value, str) else web.json_response(value)

    app = web.Application()
    app.router.add_route("*", "/{tail:.*}", answer)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


async def examined(url: str, **settings: Any) -> tuple[OpenAiEngine, tuple[ModelDescription, ...]]:
    engine = OpenAiEngine(OpenAiSettings(url + "/v1/", **settings), SystemClock())
    try:
        return engine, (await engine.start()).models
    finally:
        await engine.close()


def model_list(*ids: str, **more: Any) -> dict[str, Any]:
    return {"object": "list", "data": [{"id": i, "object": "model", **more} for i in ids]}


def prompt_of(body: dict[str, Any]) -> str:
    parts = []
    for message in body["messages"]:
        content = message.get("content")
        if isinstance(content, list):
            content = "".join(block["text"] for block in content)
        parts.append(f"<{message['role']}>{content}")
    return "".join(parts)


def vllm(**changes: Any) -> Routes:
    metrics = (
        'vllm:cache_config_info{block_size="16",cache_dtype="auto",enable_prefix_caching="True"} 1.0\n'
        'vllm:num_requests_running{engine="0"} 2.0\n'
        'vllm:num_requests_waiting{engine="0"} 1.0\n'
        'vllm:kv_cache_usage_perc{engine="0"} 0.25\n'
        "process_start_time_seconds 100.5\n"
    )
    return {
        "/v1/models": model_list("m", root="/weights/m", max_model_len=2048),
        "/version": {"version": "0.32.0"},
        "/metrics": metrics,
        "/tokenize": lambda body: {"tokens": list(prompt_of(body).encode())},
        "/detokenize": lambda body: {"prompt": bytes(body["tokens"]).decode("utf-8", "replace")},
        **changes,
    }


async def test_vllm() -> None:
    async with served(vllm()) as url:
        engine, (model,) = await examined(url)
        assert engine.flavour is Flavour.VLLM
        facts = dict(model.fingerprint.facts)
        assert (facts["engine"], facts["engine.version"], facts["model"]) == ("vllm", "0.32.0", "/weights/m")
        assert facts["prefix_cache"] == "True" and facts["instance"].startswith(url) and facts["rendering"]
        assert model.context_tokens == 2048
        assert "single_text_block_is_string" in model.equivalences
        assert model.not_reusable_reason == ""
        counts = await engine.counts()
        await engine.close()
        assert (counts.running, counts.waiting, counts.kv_used_share) == (2, 1, 0.25)


async def test_a_template_that_tells_blocks_from_strings_has_no_equivalence() -> None:
    def tokens(body: dict[str, Any]) -> dict[str, Any]:
        return {"tokens": list(str(body["messages"]).encode())}

    async with served(vllm(**{"/tokenize": tokens})) as url:
        _, (model,) = await examined(url)
    assert model.equivalences == frozenset()


async def test_one_difference_in_one_conversation_is_enough() -> None:
    def tokens(body: dict[str, Any]) -> dict[str, Any]:
        trimmed = any(m["role"] == "system" and isinstance(m.get("content"), list) for m in body["messages"])
        return {"tokens": list((prompt_of(body) + "!" * trimmed).encode())}

    async with served(vllm(**{"/tokenize": tokens})) as url:
        _, (model,) = await examined(url)
    assert not {name for name in model.equivalences if "block" in name}


@pytest.mark.promise("C1.equivalence")
async def test_what_a_template_prints_of_calls_is_seen() -> None:
    def prints(show: Callable[[dict[str, Any]], object]) -> Routes:
        def tokens(body: dict[str, Any]) -> dict[str, Any]:
            shown = [show(message) for message in body["messages"]]
            return {"tokens": list(str(shown).encode())}

        return vllm(**{"/tokenize": tokens})

    def ids(message: dict[str, Any]) -> object:
        return [call["id"] for call in message.get("tool_calls", ())]

    def absence(message: dict[str, Any]) -> object:
        return "content" in message

    def nothing_said(message: dict[str, Any]) -> object:
        return message.get("content") == ""

    found = {}
    for show in (ids, absence, nothing_said):
        async with served(prints(show)) as url:
            _, (model,) = await examined(url)
        found[show] = model.equivalences
    all_of_calls = {"call_ids_are_not_printed", "absent_content_is_null", "empty_content_is_null"}
    assert all_of_calls - found[ids] == {"call_ids_are_not_printed"}
    assert all_of_calls - found[absence] == {"absent_content_is_null"}
    assert all_of_calls - found[nothing_said] == {"empty_content_is_null"}


async def test_adapters_are_models_of_their_own() -> None:
    cards = {"data": [{"id": "base", "root": "b"}, {"id": "tuned", "root": "t", "parent": "base"}]}
    async with served(vllm(**{"/v1/models": cards})) as url:
        _, (base, tuned) = await examined(url)
    assert dict(tuned.fingerprint.facts)["adapter"] == "tuned"
    assert base.fingerprint != tuned.fingerprint


async def test_sglang() -> None:
    info = {"version": "0.5", "dtype": "bfloat16", "disable_radix_cache": False, "max_running_requests": 48}
    routes = {"/v1/models": model_list("m"), "/get_server_info": info}
    async with served(routes) as url:
        engine, (model,) = await examined(url)
    facts = dict(model.fingerprint.facts)
    assert engine.flavour is Flavour.SGLANG
    assert (facts["engine.version"], facts["engine.dtype"]) == ("0.5", "bfloat16")
    assert model.not_reusable_reason, "its template can not be examined"


@pytest.mark.promise("I1")
async def test_a_restarted_server_of_unknown_weights_is_another_executor() -> None:
    later = str(vllm()["/metrics"]).replace("100.5", "200.5")
    routes = vllm()
    async with served(routes) as url:
        _, (before,) = await examined(url)
        routes["/metrics"] = later
        _, (after,) = await examined(url)
        _, (vouched,) = await examined(url, facts={"weights": "sha256:1"})
        routes["/metrics"] = vllm()["/metrics"]
        _, (vouched_before,) = await examined(url, facts={"weights": "sha256:1"})
    assert before.fingerprint != after.fingerprint
    assert vouched.fingerprint == vouched_before.fingerprint


@pytest.mark.promise("I1")
async def test_weights_that_nobody_can_tell_are_not_reused() -> None:
    async with served({"/v1/models": model_list("m")}) as url:
        _, (model,) = await examined(url, facts={"chat_template": "v1"})
    assert "weights" in model.not_reusable_reason


@pytest.mark.promise("C1.clock_templates_are_not_reused")
async def test_a_clock_that_shows_only_beside_tools_is_seen() -> None:
    def tokens(body: dict[str, Any]) -> dict[str, Any]:
        dated = f"Today: {datetime.now(UTC):%Y-%m-%d}" if body.get("tools") else ""
        return {"tokens": list((dated + prompt_of(body)).encode())}

    async with served(vllm(**{"/tokenize": tokens})) as url:
        _, (model,) = await examined(url)
    assert model.not_reusable_reason


@pytest.mark.promise("C1.equivalence")
async def test_blocks_that_differ_only_beside_tools_are_no_equivalence() -> None:
    def tokens(body: dict[str, Any]) -> dict[str, Any]:
        blocks = any(isinstance(m.get("content"), list) for m in body["messages"])
        return {"tokens": list((prompt_of(body) + "!" * bool(body.get("tools") and blocks)).encode())}

    async with served(vllm(**{"/tokenize": tokens})) as url:
        _, (model,) = await examined(url)
    assert not {name for name in model.equivalences if "block" in name}


@pytest.mark.promise("I1")
async def test_two_unknown_servers_with_one_model_name_share_nothing() -> None:
    routes = {"/v1/models": model_list("m")}
    async with served(routes) as one, served(routes) as other:
        engine, (first,) = await examined(one)
        _, (second,) = await examined(other)
        assert engine.flavour is Flavour.GENERIC
        assert first.fingerprint != second.fingerprint
        assert first.not_reusable_reason
        known = {"weights": "sha256:1", "chat_template": "v1"}
        _, (third,) = await examined(one, facts=known)
        _, (fourth,) = await examined(other, facts=known)
    assert third.fingerprint == fourth.fingerprint
    assert third.not_reusable_reason == ""


@pytest.mark.parametrize("models", [None, {"data": []}, {"data": "x"}, [], "text"])
async def test_a_server_without_models_is_not_ready(models: object) -> None:
    async with served({"/v1/models": models}) as url:
        with pytest.raises(EngineUnavailable):
            await examined(url)
