"""A proxy that does nothing: what standing in the way costs at least in this language.

uvicorn (uvloop, httptools) takes requests as raw ASGI, one aiohttp session passes them on, and each piece of
the answer goes back as it comes. ``python -m dynbranch.bench.plain_proxy UPSTREAM PORT``.
"""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

import aiohttp
import uvicorn

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]

_NOT_PASSED_ON = frozenset((b"host", b"connection", b"transfer-encoding", b"content-length", b"keep-alive"))
_CONNECTIONS = 1024


class PlainProxy:
    """An ASGI application that asks ``upstream``, a base URL, the same."""

    def __init__(self, upstream: str) -> None:
        self._upstream = upstream.rstrip("/")
        self._session: aiohttp.ClientSession | None = None

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._lifespan(receive, send)
        elif scope["type"] == "http":
            await self._pass_on(scope, receive, send)

    async def _lifespan(self, receive: Receive, send: Send) -> None:
        await receive()
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=_CONNECTIONS), auto_decompress=False
        )
        await send({"type": "lifespan.startup.complete"})
        await receive()
        await self._session.close()
        await send({"type": "lifespan.shutdown.complete"})

    async def _pass_on(self, scope: Message, receive: Receive, send: Send) -> None:
        assert self._session is not None
        body = b""
        more = True
        while more:
            message = await receive()
            if message["type"] != "http.request":
                return
            body += message.get("body", b"")
            more = message.get("more_body", False)
        headers = {
            name.decode("latin-1"): value.decode("latin-1")
            for name, value in scope["headers"]
            if name not in _NOT_PASSED_ON
        }
        async with self._session.request(
            scope["method"], self._upstream + scope["path"], data=body or None, headers=headers
        ) as answer:
            passed = [
                (name.lower(), value)
                for name, value in answer.raw_headers
                if name.lower() not in _NOT_PASSED_ON - {b"content-length"}
            ]
            await send({"type": "http.response.start", "status": answer.status, "headers": passed})
            async for piece in answer.content.iter_any():
                await send({"type": "http.response.body", "body": piece, "more_body": True})
            await send({"type": "http.response.body", "body": b"", "more_body": False})


def main() -> None:
    upstream, port = sys.argv[1], int(sys.argv[2])
    uvicorn.run(
        PlainProxy(upstream),
        host="127.0.0.1",
        port=port,
        loop="uvloop",
        http="httptools",
        interface="asgi3",
        log_level="warning",
        access_log=False,
        timeout_graceful_shutdown=1,
    )


if __name__ == "__main__":
    main()
