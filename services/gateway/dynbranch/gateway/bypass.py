"""The raw way to an engine: bytes in, bytes out, nothing understood.

Only what HTTP says about one connection is handled here: hop-by-hop headers, and the host.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
from dynbranch.gateway.core.outcome import Report, outcome_headers
from dynbranch.gateway.edge.exchange import Exchange, HeaderPairs
from dynbranch.gateway.protocols.errors import ApiError
from multidict import CIMultiDict
from yarl import URL

_HOP_BY_HOP = frozenset(
    {
        b"connection",
        b"keep-alive",
        b"proxy-authenticate",
        b"proxy-authorization",
        b"proxy-connection",
        b"te",
        b"trailer",
        b"transfer-encoding",
        b"upgrade",
    }
)
_OURS = b"x-dynbranch-"
_LACKS_PATH = frozenset({404, 405, 501})
_CONNECT_S = 5.0
_NOT_CONNECTED = (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError)
_PIECE_BYTES = 256 * 1024

Body = bytes | AsyncIterator[bytes] | None


class NotConnected(ApiError):
    """The engine can not have seen the request: it may be sent elsewhere."""


def new_session(idle_s: float) -> aiohttp.ClientSession:
    """A session that changes nothing: no decompression, no redirects, no headers of its own.

    A connection serves one request: some engines' servers answer a second one wrongly.
    """
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0, force_close=True),
        timeout=aiohttp.ClientTimeout(total=None, sock_connect=_CONNECT_S, sock_read=idle_s),
        auto_decompress=False,
        cookie_jar=aiohttp.DummyCookieJar(),
        skip_auto_headers=("User-Agent", "Accept", "Accept-Encoding", "Content-Type"),
        trust_env=False,
    )


class Bypass:
    """``hides_keys``: the client's key is the gateway's own and not for the engine to see."""

    def __init__(self, session: aiohttp.ClientSession, *, hides_keys: bool) -> None:
        self._session = session
        self._hidden = frozenset({b"authorization", b"x-api-key"}) if hides_keys else frozenset()

    async def answers(self, base: str) -> bool:
        """Whether an engine's server is there; not every one knows this path."""
        within = aiohttp.ClientTimeout(total=_CONNECT_S)
        try:
            async with self._session.get(f"{engine_root(base)}/health", timeout=within) as response:
                return response.status < 500
        except (aiohttp.ClientError, TimeoutError, OSError):
            return False

    async def ask(self, url: str, body: bytes, authorization: str) -> Any:
        """An engine's JSON answer to a question of the gateway's own; None where it gives none."""
        headers = {"content-type": "application/json"}
        if authorization:
            headers["authorization"] = authorization
        within = aiohttp.ClientTimeout(total=_CONNECT_S)
        try:
            async with self._session.post(url, data=body, headers=headers, timeout=within) as response:
                return json.loads(await response.read()) if response.status == 200 else None
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError):
            return None

    async def forward(
        self, exchange: Exchange, url: str, body: Body, report: Report, *, lacking: ApiError | None = None
    ) -> None:
        """``lacking`` is raised where the engine does not have the path; None: it says so itself.

        Raises ApiError (502) when the engine gives no response, NotConnected when it was not even reached;
        cuts the connection when it ends early.
        """
        try:
            async with self._session.request(
                exchange.method,
                URL(url, encoded=True),
                headers=self._request_headers(exchange, body),
                data=_in_pieces(body) if isinstance(body, bytes) and len(body) > _PIECE_BYTES else body,
                allow_redirects=False,
            ) as response:
                if lacking is not None and response.status in _LACKS_PATH:
                    raise lacking
                headers = _response_headers(response.raw_headers) + outcome_headers(report)
                await exchange.start(response.status, headers)
                async for part in response.content.iter_any():
                    await exchange.write(part)
        except (aiohttp.ClientError, TimeoutError, OSError) as failure:
            if exchange.body_failure is not None:
                raise exchange.body_failure from None
            # Once started, the response stays unfinished: the client sees a cut connection, as from the
            # engine.
            code = "engine_cut" if exchange.started else "engine_unreachable"
            message = (
                f"The engine at {URL(url, encoded=True).origin()} does not answer: {type(failure).__name__}. "
                "See whether it runs and listens there; the request can be sent again."
            )
            kind = NotConnected if isinstance(failure, _NOT_CONNECTED) else ApiError
            raise kind(502, message, code=code, retry_after_s=1) from None
        await exchange.finish()

    def _request_headers(self, exchange: Exchange, body: Body) -> CIMultiDict[str]:
        gone = _HOP_BY_HOP | _named_by_connection(exchange.raw_headers) | self._hidden | {b"host", b"expect"}
        kept: CIMultiDict[str] = CIMultiDict()
        if isinstance(body, bytes):
            gone |= {b"content-length"}
            kept.add("content-length", str(len(body)))
        for name, value in exchange.raw_headers:
            lower = name.lower()
            if lower not in gone and not lower.startswith(_OURS):
                kept.add(name.decode("latin-1"), value.decode("latin-1"))
        return kept


async def _in_pieces(body: bytes) -> AsyncIterator[bytes]:
    """One large write would hold the event loop."""
    for start in range(0, len(body), _PIECE_BYTES):
        yield body[start : start + _PIECE_BYTES]


def _response_headers(raw: tuple[tuple[bytes, bytes], ...]) -> HeaderPairs:
    gone = _HOP_BY_HOP | _named_by_connection(list(raw))
    return [(name.lower(), value) for name, value in raw if name.lower() not in gone]


def _named_by_connection(headers: HeaderPairs) -> frozenset[bytes]:
    """A Connection header may name more headers that are about this connection only."""
    return frozenset(
        token.strip().lower()
        for name, value in headers
        if name.lower() == b"connection"
        for token in value.split(b",")
    )


def engine_url(base: str, exchange: Exchange) -> str:
    """The engine's address of the path asked for. A base may or may not end in ``/v1``."""
    return f"{engine_root(base)}{exchange.raw_path.decode('latin-1')}{_query(exchange)}"


def engine_root(base: str) -> str:
    """The address below which an engine has its paths."""
    return base.rstrip("/").removesuffix("/v1")


def tool_url(base: str, name: str, exchange: Exchange) -> str:
    """The backend's address of one tool."""
    return f"{base.rstrip('/')}/{name}{_query(exchange)}"


def _query(exchange: Exchange) -> str:
    return f"?{exchange.query.decode('latin-1')}" if exchange.query else ""
