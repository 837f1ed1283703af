"""The passage store as a service: a tool backend whose results may be kept, because it reports its writes.

    POST /search {"query", "k"}        ids, titles, scores     x-dynbranch-reads: passages/*
    POST /get {"id"}                   the passage, or "found": false     x-dynbranch-reads: passages/<id>
    PUT  /passages/{id} {"text", "title"?}
    GET  /healthz

A write is applied durably, then reported to the gateway, and only then acknowledged. When the report fails
the answer is 503: the text is written, the write is **not** acknowledged, and its report is tried again, in
the order of the writes, until it arrives; no later write is acknowledged before it. Reads meanwhile show
the new text.

That is safe. A result that was computed from the old text may be served until the report arrives, as for
any write that is still under way; a result computed from the new text falls with the report, which costs
one more execution and never a stale answer. Reporting first and applying afterwards would not be safe: a
read in between would store the old text as fresh.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import quote

import aiohttp
from aiohttp import web
from dynbranch.demo.passage_store import PassageStore
from dynbranch.demo.records import passages
from dynbranch.domain.ids import InvalidId, parse_record
from dynbranch.runtime import telemetry
from dynbranch.runtime.config import load_settings
from dynbranch.runtime.run import Started, run_service
from dynbranch.runtime.tasks import Tasks
from pydantic import Field, SecretStr
from pydantic_settings import BaseSettings

SOURCE = "passages"
SERVICE = "passages"
READS_HEADER = "x-dynbranch-reads"
MAX_RESULTS = 50
MAX_BODY_BYTES = 1 << 20
REPORTS_AT_ONCE = 64

_log = logging.getLogger(__name__)

T = TypeVar("T")


class PassageSettings(BaseSettings):
    listen: str = Field("127.0.0.1:0", description="host:port of the service")
    data_dir: Path = Field(Path("var/passages"), description="folder of the SQLite file")
    gateway: str = Field(description="base URL of the gateway that writes are reported to")
    gateway_key: SecretStr = Field(
        SecretStr(""), description="API key to report with, where one is asked for"
    )
    report_timeout_s: float = Field(10.0, description="how long one report to the gateway may take")
    retry_s: float = Field(0.5, description="pause before a failed report is tried again")


class ReportFailed(Exception):
    """The gateway did not confirm the writes. They stay noted."""


@dataclass(frozen=True, slots=True)
class Invalidated:
    """What the gateway says that reported writes removed."""

    entries: int = 0
    names: tuple[str, ...] = ()


class Reporter:
    """Reports writes in their order, one report at a time."""

    def __init__(
        self, store: Store, session: aiohttp.ClientSession, gateway: str, timeout_s: float, key: str = ""
    ) -> None:
        self._authorization = {"authorization": f"Bearer {key}"} if key else {}
        self._store = store
        self._session = session
        self._url = gateway.rstrip("/") + "/dynbranch/v1/writes"
        self._timeout = aiohttp.ClientTimeout(total=timeout_s)

    async def drain(self) -> Invalidated:
        """Report every noted write. Raises ReportFailed; what was confirmed before that stays confirmed."""
        last = Invalidated()
        while reports := await self._store.call(lambda store: store.unreported(REPORTS_AT_ONCE)):
            last = await self._report([report.id for report in reports])
            await self._store.call(partial(PassageStore.reported, up_to=reports[-1].number))
        return last

    async def _report(self, ids: list[str]) -> Invalidated:
        records = [f"{SOURCE}/{id}" for id in dict.fromkeys(ids)]
        body = {"records": records, "reporter": SERVICE}
        try:
            async with self._session.post(
                self._url,
                json=body,
                timeout=self._timeout,
                headers={**self._authorization, **dict(telemetry.inject())},
            ) as response:
                text = await response.text()
                if response.status != 200:
                    raise ReportFailed(f"the gateway answered {response.status}: {text[:300]}")
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise ReportFailed(f"no answer from the gateway: {error or type(error).__name__}") from error
        return _invalidated(text)


class Store:
    """Runs the store's blocking calls on the one thread that they belong to."""

    def __init__(self, store: PassageStore) -> None:
        self._store = store
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="passages")

    async def call(self, work: Callable[[PassageStore], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, work, self._store)

    def close(self) -> None:
        self._thread.shutdown(wait=True)
        self._store.close()


class PassageService:
    """The routes. ``retry_pending`` is to be run beside them."""

    def __init__(self, store: Store, reporter: Reporter, *, retry_s: float) -> None:
        self._store = store
        self._reporter = reporter
        self._retry_s = retry_s
        self._writing = asyncio.Lock()
        self._pending = asyncio.Event()
        # Reports that an earlier life of this process still owes.
        self._pending.set()

    def application(self) -> web.Application:
        app = web.Application(client_max_size=MAX_BODY_BYTES, middlewares=[_errors_as_json])
        app.add_routes(
            [
                web.post("/search", self.search),
                web.post("/get", self.get),
                web.put("/passages/{id}", self.put),
                web.get("/healthz", self.health),
            ]
        )
        return app

    async def health(self, _: web.Request) -> web.Response:
        return _json({"status": "ok"})

    async def search(self, request: web.Request) -> web.Response:
        body = await _body(request, {"query", "k"})
        query = _text(body, "query")
        k = body.get("k", 5)
        if not isinstance(k, int) or isinstance(k, bool) or not 1 <= k <= MAX_RESULTS:
            raise _BadRequest(f"'k' must be a whole number from 1 to {MAX_RESULTS}")
        found = await self._store.call(lambda store: store.search(query, k))
        results = [{"id": f.id, "title": f.title, "score": f.score} for f in found]
        # A query reads the collection: an insert anywhere could change it.
        return _json({"results": results}, reads=f"{SOURCE}/*")

    async def get(self, request: web.Request) -> web.Response:
        id = _text(await _body(request, {"id"}), "id")
        found = await self._store.call(lambda store: store.get(id))
        reads = f"{SOURCE}/{quote(id, safe='')}"
        if found is None:
            return _json({"id": id, "found": False}, reads=reads)
        passage = found.passage
        return _json(
            {"id": id, "title": passage.title, "text": passage.text, "version": found.version}, reads=reads
        )

    async def put(self, request: web.Request) -> web.Response:
        id = request.match_info["id"]
        _check_reportable(id)
        body = await _body(request, {"text", "title"})
        text = _text(body, "text")
        title = _text(body, "title") if "title" in body else None
        context = telemetry.extract(request.headers.items())
        with telemetry.tracer(__name__).start_as_current_span("passages.put", context=context):
            async with self._writing:
                written = await self._store.call(lambda store: store.put(id, text=text, title=title))
                try:
                    invalidated = await self._reporter.drain()
                except ReportFailed as error:
                    self._pending.set()
                    _log.warning("a write of %s is not acknowledged: %s", id, error)
                    return _json({"error": {"message": f"written but not acknowledged: {error}"}}, status=503)
        return _json(
            {
                "id": id,
                "version": written.version,
                "invalidated": {"entries": invalidated.entries, "names": list(invalidated.names)},
            }
        )

    async def retry_pending(self) -> None:
        """Report what is still noted, until it is confirmed. Runs for ever."""
        while True:
            await self._pending.wait()
            self._pending.clear()
            async with self._writing:
                try:
                    await self._reporter.drain()
                except ReportFailed as error:
                    _log.warning("a report is tried again in %.1f s: %s", self._retry_s, error)
                    self._pending.set()
            if self._pending.is_set():
                await asyncio.sleep(self._retry_s)


def _check_reportable(id: str) -> None:
    """Before anything is written: a write that no report can name would block every later one."""
    try:
        parse_record(f"{SOURCE}/{id}")
    except InvalidId as error:
        raise _BadRequest(f"this id can not be reported: {error}") from None


class _BadRequest(Exception):
    """The caller's fault; the message says what to change."""


@web.middleware
async def _errors_as_json(
    request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
) -> web.StreamResponse:
    try:
        return await handler(request)
    except _BadRequest as error:
        return _json({"error": {"message": str(error)}}, status=400)
    except web.HTTPException as error:
        return _json({"error": {"message": error.reason}}, status=error.status)


async def _body(request: web.Request, known: set[str]) -> dict[str, Any]:
    try:
        body = json.loads(await request.read())
    except (ValueError, RecursionError):
        raise _BadRequest("the body is not JSON") from None
    if not isinstance(body, dict):
        raise _BadRequest("the body must be a JSON object")
    if unknown := sorted(set(body) - known):
        raise _BadRequest(f"unknown member {unknown[0]!r}; known are {', '.join(sorted(known))}")
    return body


def _text(body: Mapping[str, Any], member: str) -> str:
    value = body.get(member)
    if not isinstance(value, str) or not value:
        raise _BadRequest(f"'{member}' must be a text that is not empty")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise _BadRequest(f"'{member}' holds a lone surrogate") from None
    return value


def _json(value: object, *, status: int = 200, reads: str = "") -> web.Response:
    """The same value gives the same bytes."""
    body = json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()
    headers = {READS_HEADER: reads} if reads else None
    return web.Response(body=body, status=status, content_type="application/json", headers=headers)


def _invalidated(text: str) -> Invalidated:
    try:
        answer = json.loads(text)
    except ValueError:
        return Invalidated()
    if not isinstance(answer, dict):
        return Invalidated()
    names = answer.get("invalidated_names", [])
    return Invalidated(entries=int(answer.get("invalidated", 0)), names=tuple(str(name) for name in names))


async def main(started: Started) -> None:
    settings = load_settings(PassageSettings, service=SERVICE)
    opened = PassageStore(settings.data_dir / "passages.sqlite")
    opened.load(passages())
    store = Store(opened)
    host, _, port = settings.listen.rpartition(":")
    try:
        async with aiohttp.ClientSession() as session, Tasks() as tasks:
            key = settings.gateway_key.get_secret_value()
            reporter = Reporter(store, session, settings.gateway, settings.report_timeout_s, key)
            service = PassageService(store, reporter, retry_s=settings.retry_s)
            runner = web.AppRunner(service.application(), access_log=None)
            await runner.setup()
            try:
                site = web.TCPSite(runner, host, int(port))
                await site.start()
                tasks.spawn(service.retry_pending(), name="retry pending reports")
                started.ready(f"{host}:{runner.addresses[0][1]}")
                await started.until_stopped(tasks)
            finally:
                await runner.cleanup()
    finally:
        store.close()


if __name__ == "__main__":
    run_service(SERVICE, main)
