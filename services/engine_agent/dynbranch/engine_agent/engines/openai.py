"""An engine behind any OpenAI-compatible server: vLLM, SGLang, llama-server. Not ours to start or end."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

import aiohttp
from dynbranch.domain.engine import AgentKind, Failed, GenerationOrder
from dynbranch.domain.reuse import Level
from dynbranch.engine_agent.engines.chat_stream import ChatStream, ErrorChunk
from dynbranch.engine_agent.engines.fingerprint import metric, text_digest
from dynbranch.engine_agent.engines.http import EngineHttp, Timeouts, open_session
from dynbranch.engine_agent.engines.http_stream import Answer, EngineStreams
from dynbranch.engine_agent.engines.port import (
    CleanEnd,
    EngineCounts,
    EngineError,
    EngineFacts,
    EngineUnavailable,
    Heard,
)
from dynbranch.engine_agent.engines.probe import Flavour, Given, ModelDetails, examine, no_details
from dynbranch.engine_agent.engines.sse import MalformedStream, SseParser
from dynbranch.engine_agent.waiting import set_within
from dynbranch.runtime import telemetry
from dynbranch.runtime.clock import Clock

DEFAULT_SLOTS = 32
"""For servers that do not tell how many requests they run at once."""

RETRIABLE_STATUSES = frozenset({429, 502, 503, 504})
MAX_ERROR_BYTES = 2**20
HEALTH_INTERVAL_S = 2.0
HEALTH_MISSES = 3

KEEPS_CONNECTIONS = frozenset({Flavour.VLLM, Flavour.SGLANG})
"""Whose servers answer a second request on a connection as well as the first."""

_STREAM_HEADERS = {
    "content-type": "application/json",
    "accept": "text/event-stream",
    "accept-encoding": "identity",
}

_GAUGES: Mapping[Flavour, tuple[str, str, str]] = {
    Flavour.LLAMA_SERVER: ("llamacpp:requests_processing", "llamacpp:requests_deferred", ""),
    Flavour.VLLM: ("vllm:num_requests_running", "vllm:num_requests_waiting", "vllm:kv_cache_usage_perc"),
    Flavour.SGLANG: ("sglang:num_running_reqs", "sglang:num_queue_reqs", "sglang:token_usage"),
}


@dataclass(frozen=True, slots=True)
class OpenAiSettings:
    base_url: str
    slots: int | None = None
    api_key: str = ""
    facts: Mapping[str, str] = field(default_factory=dict)
    level: Level = Level.GREEDY
    timeouts: Timeouts = field(default_factory=Timeouts)
    details: Callable[[Mapping[str, Any]], Awaitable[ModelDetails]] = no_details
    """More about one model, by its card, than the server's own answers tell."""
    look_spacing_s: float = 0.0
    """Between two looks at the gauges. A server that makes its metrics anew each time has better to do."""


class OpenAiEngine:
    kind = AgentKind.OPENAI

    def __init__(self, settings: OpenAiSettings, clock: Clock) -> None:
        self._settings = settings
        self._gauges: _Shared[EngineCounts] = _Shared(clock, settings.look_spacing_s)
        self._looks: _Shared[str] = _Shared(clock, 0.0)
        self._base_url = settings.base_url.rstrip("/").removesuffix("/v1")
        self._clock = clock
        self._flavour = Flavour.GENERIC
        self._identity = ""
        self._suspect = asyncio.Event()
        self._session: aiohttp.ClientSession | None = None
        self._streams: EngineStreams | None = None

    @property
    def base_url(self) -> str:
        return self._base_url

    @property
    def flavour(self) -> Flavour:
        return self._flavour

    async def start(self) -> EngineFacts:
        http = self._http()
        self._suspect.clear()
        settings = self._settings
        given = Given(settings.facts, settings.level, self._clock.unix_ms(), self._identify, settings.details)
        server = await examine(http, given)
        slots = settings.slots or server.slots or DEFAULT_SLOTS
        return EngineFacts(slots, self._base_url, models=server.models)

    async def _identify(self, flavour: Flavour) -> str:
        """Remembers which server is examined."""
        self._flavour = flavour
        self._identity = await self._look()
        return f"{self._base_url} {text_digest(self._identity)}"

    async def lost(self) -> str:
        misses = 0
        while True:
            await self._pause()
            try:
                if await self._look() != self._identity:
                    return "the server has become another"
                misses = 0
            except EngineUnavailable as error:
                misses += 1
                refused = isinstance(error.__cause__, aiohttp.ClientConnectorError)
                if refused or misses >= HEALTH_MISSES:
                    return str(error)

    async def unchanged(self) -> bool:
        try:
            same = await self._looks.read(self._look) == self._identity
        except EngineUnavailable:
            same = False
        if not same:
            self._suspect.set()
        return same

    async def counts(self) -> EngineCounts:
        gauges = _GAUGES.get(self._flavour)
        if gauges is None:
            return EngineCounts()
        return await self._gauges.read(lambda: self._read_gauges(gauges))

    async def _read_gauges(self, gauges: tuple[str, str, str]) -> EngineCounts:
        text = await self._http().get("/metrics")
        if text is None and self._flavour is Flavour.LLAMA_SERVER:
            return await self._busy_slots()
        running, waiting, kv = (metric(text or "", name) if name else None for name in gauges)
        return EngineCounts(
            None if running is None else int(running), None if waiting is None else int(waiting), kv
        )

    async def restart(self) -> None:
        """The server is not ours; it is only examined anew."""
        self._suspect.set()

    async def close(self) -> None:
        if self._streams is not None:
            self._streams.close()
        if self._session is not None:
            await self._session.close()
            self._session = None

    async def run(self, order: GenerationOrder, heard: Heard) -> CleanEnd:
        stream = ChatStream()
        try:
            return await self._run(order, stream, heard)
        except ErrorChunk as error:
            refused = 400 <= error.status < 500
            failure = Failed(error.status, error.body, may_retry=not stream.produced and not refused)
            raise EngineError(failure) from None
        except MalformedStream as error:
            raise EngineError(_broken(str(error), may_retry=not stream.produced)) from None
        except (TimeoutError, OSError) as error:
            self._suspect.set()
            reason = str(error) or type(error).__name__
            raise EngineError(_broken(reason, may_retry=not stream.produced)) from error

    async def _run(self, order: GenerationOrder, stream: ChatStream, heard: Heard) -> CleanEnd:
        headers = {
            **self._auth(),
            **dict(order.forward_headers),
            **dict(telemetry.inject()),
            **_STREAM_HEADERS,
        }
        answer = await self._engine_streams().post("/v1/chat/completions", headers, order.body)
        try:
            if answer.status != 200:
                raise EngineError(await _refusal(answer))
            kind = answer.headers.get("content-type", "").partition(";")[0].strip()
            if kind != "text/event-stream":
                raise MalformedStream(f"the server answers with {kind}, not with a stream")
            parser = SseParser()

            def take(data: bytes) -> bool:
                lone = parser.lone(data)
                if lone is not None and stream.is_another_piece(lone):
                    heard((lone,))
                    return False
                items, flaw = stream.take_all(parser.feed(data))
                if items:
                    heard(items)
                if flaw is not None:
                    raise flaw
                return stream.done

            await answer.taken_by(take)
            if stream.done:
                answer.let_end()
            return CleanEnd(stream.check_end())
        finally:
            # Whoever stops reading wants the engine to stop, not to send on into a buffer.
            if not stream.done:
                answer.close()

    def _engine_streams(self) -> EngineStreams:
        if self._streams is None:
            self._streams = EngineStreams(self._base_url, self._settings.timeouts)
        self._streams.kept = self._flavour in KEEPS_CONNECTIONS
        return self._streams

    def _http(self) -> EngineHttp:
        if self._session is None:
            self._session = open_session(self._settings.timeouts)
        return EngineHttp(self._base_url, self._session, self._settings.timeouts, self._auth())

    def _auth(self) -> dict[str, str]:
        key = self._settings.api_key
        return {"authorization": f"Bearer {key}"} if key else {}

    async def _pause(self) -> None:
        """Until the next look is due, or something made the server suspect."""
        await set_within(self._suspect, HEALTH_INTERVAL_S, self._clock)
        self._suspect.clear()

    async def _look(self) -> str:
        """A text that changes when the server process or its models do. Raises EngineUnavailable."""
        http = self._http()
        if self._flavour is Flavour.LLAMA_SERVER:
            props = await http.get_json("/props")
            if not isinstance(props, dict):
                raise EngineUnavailable("/props does not answer")
            props.pop("is_sleeping", None)  # everything else, a random marker among it, is fixed at its start
            return text_digest(json.dumps(props, sort_keys=True))
        listing = await http.get_json("/v1/models")
        if not isinstance(listing, dict):
            raise EngineUnavailable("/v1/models does not answer")
        cards = [card for card in listing.get("data") or () if isinstance(card, dict)]
        identity = json.dumps(sorted(str((card.get("id"), card.get("root"))) for card in cards))
        if self._flavour is Flavour.SGLANG:
            identity += text_digest(json.dumps(await http.get_json("/get_model_info"), sort_keys=True))
        if self._flavour is Flavour.VLLM:
            started = metric(await http.get("/metrics") or "", "process_start_time_seconds")
            identity += f" {started}"
        return identity

    async def _busy_slots(self) -> EngineCounts:
        slots = await self._http().get_json("/slots")
        if not isinstance(slots, list):
            return EngineCounts()
        return EngineCounts(sum(bool(slot.get("is_processing")) for slot in slots if isinstance(slot, dict)))


_Answer = TypeVar("_Answer")


class _Shared(Generic[_Answer]):
    """Many who ask the engine's server the same share its answers. Nobody gets one that was asked for before
    it came."""

    def __init__(self, clock: Clock, spacing_s: float) -> None:
        self._clock = clock
        self._spacing_s = spacing_s
        self._turn = asyncio.Lock()
        self._asked = 0
        self._answered = 0
        self._last: _Answer | None = None
        self._not_before = 0.0

    async def read(self, look: Callable[[], Awaitable[_Answer]]) -> _Answer:
        """Raises EngineUnavailable."""
        came = self._asked
        async with self._turn:
            if self._answered > came and self._last is not None:
                return self._last
            await self._clock.sleep(max(0.0, self._not_before - self._clock.now()))
            self._asked += 1
            asked = self._asked
            try:
                answer = await look()
            finally:
                self._not_before = self._clock.now() + self._spacing_s
            self._answered, self._last = asked, answer
            return answer


async def _refusal(answer: Answer) -> Failed:
    """The server's own status and body, as they are."""
    body = b""
    async for data in answer.parts():
        body += data
        if len(body) > MAX_ERROR_BYTES:
            break
    content_type = answer.headers.get("content-type", "application/json")
    retriable = answer.status in RETRIABLE_STATUSES
    return Failed(
        answer.status,
        body[:MAX_ERROR_BYTES],
        retriable,
        content_type,
        retry_after=answer.headers.get("retry-after", ""),
    )


def _broken(reason: str, *, may_retry: bool) -> Failed:
    """The engine gave no status and no body of its own. Some harnesses ask again only where they read that
    something is unavailable."""
    said = f"the engine's stream broke: {reason}"
    message = {"message": said, "type": "engine_error", "code": "engine_unavailable"}
    return Failed(0, json.dumps({"error": message}).encode(), may_retry)
