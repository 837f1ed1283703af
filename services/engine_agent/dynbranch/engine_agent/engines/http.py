"""The HTTP client towards engines and tool backends.

Connections are not kept: a server that closes an idle one at the wrong moment would cost a generation.
There is no total deadline, which would cut a long decode; silence is what is bounded.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import aiohttp
from dynbranch.engine_agent.engines.port import EngineUnavailable

MAX_HEADER_BYTES = 2**20
"""A tool names its reads in a header; many reads make it long."""
MAX_PROBE_BYTES = 16 * 2**20


@dataclass(frozen=True, slots=True)
class Timeouts:
    connect_s: float = 5.0
    idle_s: float = 300.0
    """The longest silence of an engine: the first chunk comes after the whole prompt was read."""
    probe_s: float = 30.0


def open_session(timeouts: Timeouts) -> aiohttp.ClientSession:
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(force_close=True, limit=0, ttl_dns_cache=10),
        timeout=aiohttp.ClientTimeout(total=None, sock_connect=timeouts.connect_s, sock_read=timeouts.idle_s),
        max_field_size=MAX_HEADER_BYTES,
        max_line_size=MAX_HEADER_BYTES,
        read_bufsize=2**18,
        auto_decompress=True,
        cookie_jar=aiohttp.DummyCookieJar(),
    )


@dataclass(slots=True)
class EngineHttp:
    """Short questions to an engine's server: probes, gauges, health."""

    base_url: str
    session: aiohttp.ClientSession
    timeouts: Timeouts
    headers: Mapping[str, str]

    async def get(self, path: str, *, timeout_s: float | None = None) -> str | None:
        """The body; None for any status but 200. Raises EngineUnavailable when no answer came."""
        return await self._ask("GET", path, None, timeout_s)

    async def get_json(self, path: str) -> Any:
        """The parsed body; None for another status or no JSON. Raises EngineUnavailable."""
        return _parsed(await self.get(path))

    async def post_json(self, path: str, body: Mapping[str, Any]) -> Any:
        return _parsed(await self._ask("POST", path, body, None))

    async def _ask(
        self, method: str, path: str, body: Mapping[str, Any] | None, timeout_s: float | None
    ) -> str | None:
        timeout = aiohttp.ClientTimeout(total=timeout_s or self.timeouts.probe_s)
        try:
            async with self.session.request(
                method, self.base_url + path, json=body, headers=self.headers, timeout=timeout
            ) as response:
                data = await response.content.read(MAX_PROBE_BYTES)
                while not response.content.at_eof() and len(data) < MAX_PROBE_BYTES:
                    data += await response.content.read(MAX_PROBE_BYTES)
                return data.decode("utf-8", "replace") if response.status == 200 else None
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise EngineUnavailable(f"{method} {path}: {error or type(error).__name__}") from error


@asynccontextmanager
async def asking(base_url: str, timeouts: Timeouts, api_key: str = "") -> AsyncIterator[EngineHttp]:
    """A client for a few questions, without the base URL's ``/v1``."""
    base_url = base_url.rstrip("/").removesuffix("/v1")
    headers = {"authorization": f"Bearer {api_key}"} if api_key else {}
    async with open_session(timeouts) as session:
        yield EngineHttp(base_url, session, timeouts, headers)


def _parsed(text: str | None) -> Any:
    try:
        return None if text is None else json.loads(text)
    except ValueError:
        return None
