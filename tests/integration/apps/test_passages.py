"""The passage store over HTTP: what it reads it says, and a write is reported before it is acknowledged."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from dynbranch.demo.passage_store import PassageStore
from dynbranch.demo.passages import PassageService, Reporter, Store
from dynbranch.demo.records import Passage
from dynbranch.runtime.tasks import Tasks

PASSAGES = (
    Passage("a", "Nile", "The Nile is a river in Africa."),
    Passage("b", "Danube", "The Danube is a river in Europe."),
    Passage("c", "Etna", "Etna is a volcano."),
)


@dataclass
class Gateway:
    """Stands where the gateway is: notes the reports and what the store held when they came."""

    reports: list[list[str]] = field(default_factory=list)
    refuse: bool = False
    reported: asyncio.Event = field(default_factory=asyncio.Event)

    async def writes(self, request: web.Request) -> web.Response:
        body = await request.json()
        if self.refuse:
            return web.json_response({"error": {"message": "the store is away"}}, status=503)
        self.reports.append(body["records"])
        self.reported.set()
        return web.json_response({"invalidated": 2, "invalidated_names": ["00" * 32]})


@dataclass
class Running:
    url: str
    gateway: Gateway
    session: aiohttp.ClientSession
    path: Path

    async def post(self, route: str, body: Any) -> tuple[int, str, str | None]:
        async with self.session.post(self.url + route, json=body) as response:
            return response.status, await response.text(), response.headers.get("x-dynbranch-reads")

    async def put(self, id: str, text: str) -> tuple[int, dict[str, Any]]:
        async with self.session.put(f"{self.url}/passages/{id}", json={"text": text}) as response:
            return response.status, await response.json()


@asynccontextmanager
async def serve(app: web.Application) -> AsyncIterator[str]:
    runner = web.AppRunner(app)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


@asynccontextmanager
async def running(path: Path, gateway: Gateway) -> AsyncIterator[Running]:
    app = web.Application()
    app.add_routes([web.post("/dynbranch/v1/writes", gateway.writes)])
    opened = PassageStore(path)
    opened.load(PASSAGES)
    store = Store(opened)
    try:
        async with (
            serve(app) as gateway_url,
            aiohttp.ClientSession(connector=aiohttp.TCPConnector(force_close=True)) as session,
            Tasks() as tasks,
        ):
            service = PassageService(store, Reporter(store, session, gateway_url, 5.0), retry_s=0.01)
            async with serve(service.application()) as url:
                tasks.spawn(service.retry_pending(), name="retry")
                yield Running(url, gateway, session, path)
    finally:
        store.close()


@pytest.fixture
async def service(tmp_path: Path) -> AsyncIterator[Running]:
    async with running(tmp_path / "passages.sqlite", Gateway()) as started:
        yield started


async def test_search_ranks_by_words_and_reads_the_collection(service: Running) -> None:
    status, text, reads = await service.post("/search", {"query": "Which river is in Europe?", "k": 2})
    assert status == 200
    assert '"id":"b"' in text.split("}")[0]
    assert reads == "passages/*"
    assert (await service.post("/search", {"query": "Which river is in Europe?", "k": 2}))[1] == text


async def test_get_reads_one_id_also_an_absent_one(service: Running) -> None:
    status, text, reads = await service.post("/get", {"id": "a"})
    assert (status, reads) == (200, "passages/a")
    assert text == '{"id":"a","title":"Nile","text":"The Nile is a river in Africa.","version":1}'
    status, text, reads = await service.post("/get", {"id": "no/such, id"})
    assert (status, reads) == (200, "passages/no%2Fsuch%2C%20id")
    assert text == '{"id":"no/such, id","found":false}'


@pytest.mark.parametrize(
    ("route", "body"),
    [
        ("/search", {"query": ""}),
        ("/search", {"query": "x", "k": 0}),
        ("/search", {"query": "x", "k": True}),
        ("/search", {"query": "x", "limit": 3}),
        ("/search", ["x"]),
        ("/get", {}),
        ("/get", {"id": 7}),
        ("/get", {"id": "\ud800"}),
    ],
)
async def test_a_wrong_body_is_refused_and_says_why(service: Running, route: str, body: Any) -> None:
    status, text, reads = await service.post(route, body)
    assert status == 400
    assert '"message"' in text
    assert reads is None


async def test_a_query_of_no_words_finds_nothing(service: Running) -> None:
    assert (await service.post("/search", {"query": '"?*'}))[1] == '{"results":[]}'


@pytest.mark.promise("I3")
async def test_a_write_is_applied_then_reported_then_acknowledged(service: Running) -> None:
    seen: list[int] = []
    answer = service.gateway.writes

    async def look_then_answer(request: web.Request) -> web.Response:
        # A second connection sees only what is committed.
        other = PassageStore(service.path)
        found = other.get("a")
        other.close()
        assert found is not None
        seen.append(found.version)
        return await answer(request)

    app = web.Application()
    app.add_routes([web.post("/dynbranch/v1/writes", look_then_answer)])
    async with serve(app) as url:
        opened = Store(PassageStore(service.path))
        put = PassageService(opened, Reporter(opened, service.session, url, 5.0), retry_s=0.01)
        async with (
            serve(put.application()) as store_url,
            service.session.put(f"{store_url}/passages/a", json={"text": "dry"}) as response,
        ):
            assert response.status == 200
            body = await response.json()
        opened.close()
    assert seen == [2]
    assert service.gateway.reports == [["passages/a"]]
    assert body == {"id": "a", "version": 2, "invalidated": {"entries": 2, "names": ["00" * 32]}}


@pytest.mark.promise("I3")
async def test_a_write_that_can_not_be_reported_waits_its_turn(
    service: Running,
) -> None:
    service.gateway.refuse = True
    assert (await service.put("a", "first"))[0] == 503
    assert (await service.put("b", "second"))[0] == 503
    assert '"text":"first"' in (await service.post("/get", {"id": "a"}))[1]
    assert service.gateway.reports == []
    service.gateway.refuse = False
    status, _ = await service.put("c", "third")
    assert status == 200
    flat = [record for report in service.gateway.reports for record in report]
    assert flat == ["passages/a", "passages/b", "passages/c"]


async def test_a_failed_report_is_repeated_without_a_further_write(service: Running) -> None:
    service.gateway.refuse = True
    assert (await service.put("a", "first"))[0] == 503
    service.gateway.refuse = False
    await asyncio.wait_for(service.gateway.reported.wait(), 10)
    assert service.gateway.reports == [["passages/a"]]


@pytest.mark.promise("I3")
async def test_a_report_that_is_owed_survives_a_restart(tmp_path: Path) -> None:
    path, gateway = tmp_path / "passages.sqlite", Gateway(refuse=True)
    async with running(path, gateway) as before:
        assert (await before.put("a", "first"))[0] == 503
    gateway.refuse = False
    async with running(path, gateway) as after:
        await asyncio.wait_for(gateway.reported.wait(), 10)
        assert gateway.reports == [["passages/a"]]
        assert '"text":"first"' in (await after.post("/get", {"id": "a"}))[1]


async def test_a_new_passage_is_found_and_keeps_its_title(service: Running) -> None:
    async with service.session.put(
        f"{service.url}/passages/d%2F1", json={"text": "Hekla is a volcano of Iceland.", "title": "Hekla"}
    ) as response:
        assert (await response.json())["version"] == 1
    await service.put("d%2F1", "Hekla is a stratovolcano of Iceland.")
    status, text, _ = await service.post("/search", {"query": "stratovolcano"})
    assert status == 200
    assert '"id":"d/1","title":"Hekla"' in text
    assert service.gateway.reports == [["passages/d/1"], ["passages/d/1"]]


async def test_an_id_that_no_report_can_name_is_refused_before_anything_is_written(service: Running) -> None:
    status, answer = await service.put("x" * 1100, "too long to report")
    assert status == 400 and "reported" in answer["error"]["message"]
    status, _ = await service.put("a", "The Nile again.")
    assert status == 200, "the refused write does not stand in the way"
    assert service.gateway.reports == [["passages/a"]]
