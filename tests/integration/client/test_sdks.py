"""The real SDKs, attached, before a whole gateway: what the controller hears of their calls."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import dynbranch.client
import httpx2
import pytest
import pytest_asyncio
from aiohttp import web
from anthropic import Anthropic, AsyncAnthropic
from dynbranch.domain.events import ArrivalSeen
from dynbranch.domain.reuse import Identity
from integration.gateway.world import MODEL, Plan, World, eventually, running_world
from openai import AsyncOpenAI, OpenAI

ROOT = Path(__file__).resolve().parents[3]
HI: Any = [{"role": "user", "content": "hi"}]


@pytest_asyncio.fixture
async def world() -> AsyncIterator[World]:
    async with running_world(Plan()) as running:
        yield running


async def arrived(world: World, count: int = 1) -> list[Identity]:
    """Who the controller was told of."""

    def seen() -> list[Identity]:
        events = [event for batch in world.controller.batches for event in batch.events]
        return [event.identity for event in events if isinstance(event, ArrivalSeen)]

    await eventually(lambda: len(seen()) >= count)
    assert len(seen()) == count
    return seen()


def openai(world: World, **options: Any) -> OpenAI:
    return OpenAI(base_url=f"{world.url}/v1", api_key="any", **options)


def openai_async(world: World, **options: Any) -> AsyncOpenAI:
    return AsyncOpenAI(base_url=f"{world.url}/v1", api_key="any", **options)


def ask(client: OpenAI, **more: Any) -> Any:
    return client.chat.completions.create(model=MODEL, messages=HI, temperature=0, **more)


async def ask_async(client: AsyncOpenAI, **more: Any) -> Any:
    return await client.chat.completions.create(model=MODEL, messages=HI, temperature=0, **more)


# -- every SDK -----------------------------------------------------------------------------------------------


@pytest.mark.promise("H.client")
async def test_openai_says_who_asks(world: World) -> None:
    async with openai_async(world) as client:
        attached = dynbranch.client.attach(world.url, client)
        with attached, dynbranch.client.workflow("reviews", "w1", agent="main") as run:
            await ask_async(client)
            with dynbranch.client.agent("critic"), dynbranch.client.stage("judge"):
                stream = await ask_async(client, stream=True)
                assert [chunk async for chunk in stream]
        assert run.outcomes.counts == attached.outcomes.counts == {"miss": 1, "hit": 1}
        assert run.outcomes.last is not None and run.outcomes.last.level == "greedy"
        assert dynbranch.client.outcome(stream) == run.outcomes.last
    assert await arrived(world, 2) == [
        Identity("default", "reviews", "w1", "main"),
        Identity("default", "reviews", "w1", "critic", "judge", "main"),
    ]


@pytest.mark.promise("H.client")
async def test_openai_says_it_without_asyncio_too(world: World) -> None:
    with openai(world) as client, dynbranch.client.attach(world.url, client) as attached:

        def work() -> dynbranch.client.Outcome | None:
            with dynbranch.client.workflow("reviews", "w1"):
                raw = client.chat.completions.with_raw_response.create(
                    model=MODEL, messages=HI, temperature=0
                )
                return dynbranch.client.outcome(raw)

        seen = await asyncio.to_thread(work)
        assert seen is not None and seen.kind == "miss" and seen == attached.outcomes.last
    assert await arrived(world) == [Identity("default", "reviews", "w1")]


@pytest.mark.promise("H.client")
async def test_anthropic_says_who_asks(world: World) -> None:
    request: Any = {"model": MODEL, "max_tokens": 8, "messages": HI, "extra_body": {"temperature": 0}}
    client = AsyncAnthropic(base_url=world.url, api_key="any")
    plain = Anthropic(base_url=world.url, api_key="any")
    attached = dynbranch.client.attach(world.url, client, plain)
    with attached, dynbranch.client.workflow("reviews", "w1"), dynbranch.client.agent("a"):
        await client.messages.create(**request)
        async with client.messages.stream(**request) as stream:
            await stream.until_done()
            seen = dynbranch.client.outcome(stream)
            assert seen is not None and seen.kind == "hit"
        await asyncio.to_thread(lambda: plain.messages.create(**request))
    await client.close()
    plain.close()
    assert await arrived(world, 3) == [Identity("default", "reviews", "w1", "a")] * 3


async def test_declared_reads_count(world: World) -> None:
    async with openai_async(world) as client:
        attached = dynbranch.client.attach(world.url, client)
        with attached, dynbranch.client.workflow("t", "w") as run, dynbranch.client.reads("passages/7"):
            await ask_async(client)
            await ask_async(client)
            await world.post("/dynbranch/v1/writes", {"records": ["passages/7"]})
            await ask_async(client)
        assert run.outcomes.counts == {"miss": 2, "hit": 1}


async def test_tasks_and_threads_say_their_own(world: World) -> None:
    async with openai_async(world) as client:
        with openai(world) as plain, dynbranch.client.attach(world.url, client, plain):

            async def work(agent: str) -> None:
                with dynbranch.client.agent(agent):
                    await ask_async(client)
                    await asyncio.to_thread(ask, plain)

            with dynbranch.client.workflow("t", "w"):
                await asyncio.gather(*(work(agent) for agent in "abcd"))
    seen = await arrived(world, 8)
    assert sorted(identity.agent_id for identity in seen) == list("aabbccdd")
    assert {identity.workflow_id for identity in seen} == {"w"}


async def test_the_documentations_examples_run(world: World) -> None:
    attach, say = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "clients.md").read_text(), re.DOTALL)

    def run() -> None:
        with openai(world) as client:
            known = {"client": client, "MODEL": MODEL, "messages": HI, "more": HI}
            code = attach.replace("http://127.0.0.1:8080", world.url).replace(
                "\ndynbranch.", "\ndone = dynbranch."
            )
            exec(code + say, known)
            known["done"].detach()  # type: ignore[attr-defined]
            assert known["run"].outcomes.counts == {"miss": 1, "hit": 1}  # type: ignore[attr-defined]

    await world.post("/dynbranch/v1/writes", {"records": ["passages/9"]})
    await asyncio.to_thread(run)
    assert [(who.workflow_id, who.agent_id, who.stage) for who in await arrived(world, 2)] == [
        ("review-17", "critic", "judge"),
        ("review-17", "", ""),
    ]


# -- what is said twice, and to whom -------------------------------------------------------------------------


async def test_a_tag_of_the_users_own_stands(world: World) -> None:
    async with openai_async(world, default_headers={"X-DynBranch-Agent": "own"}) as client:
        with dynbranch.client.attach(world.url, client, workflow_type="attached", agent="other"):
            with dynbranch.client.workflow("t", "w", agent="said"):
                await ask_async(client, extra_headers={"x-dynbranch-stage": "mine"})
            await ask_async(client)
    assert await arrived(world, 2) == [
        Identity("default", "t", "w", "own", "mine"),
        Identity("default", "attached", "", "own"),
    ]


class Elsewhere:
    """A server that is no gateway; it sends whoever asks for ``/to?URL`` to that address."""

    def __init__(self) -> None:
        self.url = ""
        self.seen: list[dict[str, str]] = []

    async def answer(self, request: web.Request) -> web.Response:
        self.seen.append({name.lower(): text for name, text in request.headers.items()})
        if request.path == "/to":
            raise web.HTTPTemporaryRedirect(request.query_string)
        return web.json_response({}, headers={"x-dynbranch-outcome": "hit"})

    def tags(self) -> list[set[str]]:
        return [{name for name in headers if name.startswith("x-dynbranch-")} for headers in self.seen]


@asynccontextmanager
async def serving() -> AsyncIterator[Elsewhere]:
    elsewhere = Elsewhere()
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", elsewhere.answer)
    runner = web.AppRunner(app)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        elsewhere.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        yield elsewhere
    finally:
        await runner.cleanup()


@pytest.mark.promise("H.client")
async def test_nobody_but_the_gateway_is_told() -> None:
    async with serving() as gateway, serving() as elsewhere:
        async with httpx2.AsyncClient(follow_redirects=True) as client:
            attached = dynbranch.client.attach(gateway.url, client)
            with attached, dynbranch.client.workflow("t", "w") as run:
                await client.post(f"{elsewhere.url}/v1", json={})
                # A redirected request has the headers of the one before it.
                await client.post(f"{gateway.url}/to?{elsewhere.url}/v1", json={})
                await client.post(f"{elsewhere.url}/to?{gateway.url}/v1", json={})
                await client.post(f"{gateway.url}/to?{gateway.url}/v1", json={})
        told = {"x-dynbranch-workflow", "x-dynbranch-workflow-type"}
        assert elsewhere.tags() == [set()] * 3
        assert gateway.tags() == [told] * 4
        # Nor is anything taken for a gateway's word that is another's.
        assert run.outcomes.counts == attached.outcomes.counts == {"hit": 2}


async def test_two_gateways_are_told_each_their_own() -> None:
    async with serving() as one, serving() as other, httpx2.AsyncClient() as client:
        first = dynbranch.client.attach(one.url, client, agent="first")
        second = dynbranch.client.attach(other.url, client, agent="second")
        for url in (one.url, other.url):
            await client.get(url)
        first.detach()
        for url in (one.url, other.url):
            await client.get(url)
        second.detach()
        await client.get(other.url)
    assert [headers.get("x-dynbranch-agent") for headers in one.seen] == ["first", None]
    assert [headers.get("x-dynbranch-agent") for headers in other.seen] == ["second", "second", None]


@pytest.mark.parametrize("url", ["127.0.0.1:8080", "", "ftp://host", "http://", "http://host:none"])
def test_an_address_that_is_none_is_refused(url: str) -> None:
    with pytest.raises(ValueError):
        dynbranch.client.attach(url)


def test_a_framework_that_nobody_knows_is_refused() -> None:
    with pytest.raises(ValueError, match="known: langraph"):
        dynbranch.client.attach("http://127.0.0.1:1", frameworks=["langraph"])


def test_a_client_without_an_http_client_is_refused() -> None:
    with pytest.raises(TypeError, match="object holds no client"):
        dynbranch.client.attach("http://127.0.0.1:1", object())


# -- all of a process, and nothing afterwards ----------------------------------------------------------------


@pytest.mark.promise("H.client")
async def test_one_line_attaches_all_clients_there_are_and_will_be(world: World) -> None:
    async with openai_async(world) as before:
        with dynbranch.client.attach(world.url, workflow_type="t"):
            async with (
                openai_async(world) as after,
                AsyncAnthropic(base_url=world.url, api_key="any") as third,
            ):
                await ask_async(before)
                await ask_async(after.with_options(max_retries=0))
                await third.messages.create(model=MODEL, max_tokens=8, messages=HI)
                with openai(world) as plain:
                    await asyncio.to_thread(ask, plain)
    assert [identity.workflow_type_id for identity in await arrived(world, 4)] == ["t"] * 4


async def test_detached_all_is_as_it_was(world: World) -> None:
    sends = httpx2.Client.send, httpx2.AsyncClient.send
    heard: list[str] = []

    async def own(request: httpx2.Request) -> None:
        heard.append(request.url.path)

    http = httpx2.AsyncClient(event_hooks={"request": [own]})
    async with openai_async(world, http_client=http) as client:
        everywhere = dynbranch.client.attach(world.url, workflow_type="everywhere")
        one = dynbranch.client.attach(world.url, client, agent="one")
        await ask_async(client)
        everywhere.detach()
        await ask_async(client)
        one.detach()
        one.detach()
        await ask_async(client)
        assert http.event_hooks == {"request": [own], "response": []}
    assert (httpx2.Client.send, httpx2.AsyncClient.send) == sends
    assert len(heard) == 3
    assert await arrived(world, 3) == [
        Identity("default", "everywhere", "", "one"),
        Identity("default", "", "", "one"),
        Identity("default"),
    ]


async def test_hooks_that_a_user_puts_in_place_of_all_do_not_end_it(world: World) -> None:
    async with httpx2.AsyncClient() as http, openai_async(world, http_client=http) as client:
        with dynbranch.client.attach(world.url, workflow_type="t"):
            await ask_async(client)
            http.event_hooks = {}
            await ask_async(client)
    assert [identity.workflow_type_id for identity in await arrived(world, 2)] == ["t", "t"]


async def test_somebody_elses_wrapping_stays(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    attached = dynbranch.client.attach(world.url, workflow_type="t")
    ours = httpx2.AsyncClient.send
    calls = 0

    async def theirs(client: Any, *args: Any, **kwargs: Any) -> Any:
        nonlocal calls
        calls += 1
        return await ours(client, *args, **kwargs)

    try:
        with monkeypatch.context() as patched:
            patched.setattr(httpx2.AsyncClient, "send", theirs)
            attached.detach()
            async with openai_async(world) as client:
                await ask_async(client)
        assert calls == 1
    finally:
        # The context has put ours back: it is what stood there when it began.
        httpx2.AsyncClient.send = ours.__wrapped__  # type: ignore[attr-defined,method-assign]
    assert await arrived(world) == [Identity("default")]
