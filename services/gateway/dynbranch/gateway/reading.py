"""Bodies as requests in the form of Chat Completions, each with what it goes on from."""

from __future__ import annotations

from dynbranch.gateway.core.kept_response import Owner
from dynbranch.gateway.desk import Desk
from dynbranch.gateway.edge.exchange import Exchange
from dynbranch.gateway.kept_responses import KeptResponses
from dynbranch.gateway.protocols.dialect import Dialect
from dynbranch.gateway.protocols.responses.continuing import conversation_in
from dynbranch.naming.document import Document


class Reading:
    """``kept`` None: nothing is kept, and no request goes on from anything."""

    def __init__(self, desk: Desk, kept: KeptResponses | None) -> None:
        self._desk = desk
        self._kept = kept

    async def read(self, dialect: Dialect, exchange: Exchange, body: bytes, owner: Owner) -> Document:
        """Raises InvalidRequest, and ApiError (503) where what it goes on from can not be had now."""
        earlier = await self._earlier(dialect, exchange, body, owner)
        longer = max(body, earlier, key=len)
        return await self._desk.read(longer, dialect.read, body, earlier)

    async def _earlier(self, dialect: Dialect, exchange: Exchange, body: bytes, owner: Owner) -> bytes:
        before = await self._desk.read(body, dialect.goes_on_from, body) if self._kept is not None else ""
        if not before:
            return b""
        assert self._kept is not None
        kept = await self._kept.find(owner, before)
        if kept is None:
            return b""
        # Many may wait for the desk, each with what it found.
        exchange.also_holds(kept.size)
        earlier = await self._desk.read(max(kept.asked, kept.earlier, key=len), conversation_in, kept)
        exchange.also_holds(len(earlier))
        exchange.lets_go(kept.size)
        return earlier
