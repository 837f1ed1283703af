"""A tool backend behind HTTP: a generation is one call, its log one JSON result."""

from __future__ import annotations

import asyncio
import json
from urllib.parse import unquote

import aiohttp
from dynbranch.domain.engine import AgentKind, Failed, Freshness, GenerationOrder, ToolDescription
from dynbranch.domain.ids import InvalidId, RecordId, parse_record, source_of, whole
from dynbranch.domain.reuse import Fingerprint, Level
from dynbranch.engine_agent.engines.http import Timeouts, open_session
from dynbranch.engine_agent.engines.openai import MAX_ERROR_BYTES, RETRIABLE_STATUSES
from dynbranch.engine_agent.engines.port import CleanEnd, EngineCounts, EngineError, EngineFacts, Heard
from dynbranch.engine_agent.engines.tools_file import Tool, Tools
from dynbranch.runtime import telemetry

READS_HEADER = "x-dynbranch-reads"
MAX_READS = 10_000


class ToolEngine:
    kind = AgentKind.TOOL

    def __init__(self, tools: Tools, slots: int, timeouts: Timeouts | None = None) -> None:
        self._tools = tools
        self._slots = slots
        self._timeouts = timeouts or Timeouts()
        self._session: aiohttp.ClientSession | None = None
        self._running = 0

    async def start(self) -> EngineFacts:
        described = tuple(_described(name, tool) for name, tool in sorted(self._tools.by_name.items()))
        return EngineFacts(self._slots, self._tools.bypass_url, tools=described)

    async def lost(self) -> str:
        """A backend that is away fails its calls, each with its own answer; the agent stays."""
        await asyncio.Event().wait()
        raise AssertionError("never set")

    async def run(self, order: GenerationOrder, heard: Heard) -> CleanEnd:
        tool = self._tools.by_name[order.target]
        self._running += 1
        try:
            body, reads = await self._call(tool, order)
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            message = f"the tool's backend failed: {error or type(error).__name__}"
            raise EngineError(_own_error(0, message, may_retry=True)) from error
        finally:
            self._running -= 1
        heard((body,))
        return _end(tool, reads)

    async def unchanged(self) -> bool:
        return True

    async def counts(self) -> EngineCounts:
        """The calls that are open: a backend has no other count."""
        return EngineCounts(running=self._running)

    async def restart(self) -> None:
        """There is nothing to start anew."""

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()
            self._session = None

    async def _call(self, tool: Tool, order: GenerationOrder) -> tuple[bytes, str]:
        headers = {**dict(order.forward_headers), "content-type": "application/json"}
        headers.update(telemetry.inject(), accept="application/json")
        if self._session is None:
            self._session = open_session(self._timeouts)
        timeout = aiohttp.ClientTimeout(total=tool.timeout_s, sock_connect=self._timeouts.connect_s)
        async with self._session.post(
            tool.url, data=order.body, headers=headers, timeout=timeout, allow_redirects=False
        ) as response:
            succeeded = 200 <= response.status < 300
            limit = tool.max_result_bytes if succeeded else MAX_ERROR_BYTES
            body = bytearray()
            async for data in response.content.iter_any():
                body += data
                if len(body) > limit:
                    break
            if not succeeded:
                content_type = response.headers.get("content-type", "application/json")
                retriable = response.status in RETRIABLE_STATUSES
                advice = response.headers.get("retry-after", "")
                raise EngineError(
                    Failed(response.status, bytes(body[:limit]), retriable, content_type, retry_after=advice)
                )
            if len(body) > limit:
                raise EngineError(
                    _own_error(502, f"the result is larger than {limit} bytes", may_retry=False)
                )
            _check_json(bytes(body))
            return bytes(body), ",".join(response.headers.getall(READS_HEADER, ()))


def _end(tool: Tool, header: str) -> CleanEnd:
    """The lease was granted for the tool's own source: no write to another one would have closed it."""
    reads = reads_of(tool, header)
    strange = any(source_of(record) != tool.source for record in reads or ())
    return CleanEnd("reads_outside_source" if strange else "", reads)


def reads_of(tool: Tool, header: str) -> tuple[RecordId, ...] | None:
    """The records that a call read, from the backend's header: percent-encoded ids between commas.

    None for an immutable source or none at all. What can not be understood counts as the whole source: a
    dependency too many costs a hit, one too few serves a stale result. ``id=version`` is how harnesses
    declare reads, not how backends report them: as an id it would name a record that nobody ever writes.
    """
    if not tool.source or tool.freshness is Freshness.IMMUTABLE:
        return None
    everything = (whole(tool.source),)
    parts = [part.strip() for part in header.split(",") if part.strip()]
    if not parts or len(parts) > MAX_READS or any("=" in part for part in parts):
        return everything
    try:
        reads = {parse_record(unquote(part, errors="strict")) for part in parts}
    except (InvalidId, UnicodeDecodeError):
        return everything
    return tuple(sorted(reads))


def _described(name: str, tool: Tool) -> ToolDescription:
    facts = {"tool": name, "source": tool.source, "freshness": tool.freshness.value}
    facts["code_version"] = tool.code_version
    if not tool.code_version:
        facts["instance"] = tool.url
    return ToolDescription(
        name=name,
        fingerprint=Fingerprint(tuple(sorted(facts.items())), Level.SOURCED),
        source=tool.source,
        freshness=tool.freshness,
        description=tool.description,
    )


def _check_json(body: bytes) -> None:
    try:
        json.loads(body)
    except (ValueError, RecursionError) as error:
        raise EngineError(_own_error(502, f"the result is not JSON: {error}", may_retry=False)) from None


def _own_error(status: int, message: str, *, may_retry: bool) -> Failed:
    error = {"message": message, "type": "tool_backend_error", "code": None}
    return Failed(status, json.dumps({"error": error}).encode(), may_retry)
