"""Requests with what they go on from."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from dynbranch.gateway.core.kept_response import KeptResponse, Owner
from dynbranch.gateway.desk import Desk
from dynbranch.gateway.edge.exchange import Exchange
from dynbranch.gateway.edge.inflight import BodyRoom
from dynbranch.gateway.protocols.errors import ApiError
from dynbranch.gateway.protocols.responses.dialect import ResponsesDialect
from dynbranch.gateway.reading import Reading
from dynbranch.runtime.clock import SystemClock

BODY = b'{"model":"m","input":"more","previous_response_id":"resp_1"}'
KEPT = KeptResponse(b"[]", b'{"model":"m","input":"%s"}' % (b"x" * 10_000), b'{"output":[]}')
ME = Owner("default")


class OneKept:
    """What keeps a single response, which anybody finds."""

    async def find(self, owner: Owner, response_id: str) -> KeptResponse:
        return KEPT


class CrowdedDesk(Desk):
    """``before`` is called while a body waits to be read."""

    def __init__(self, before: Callable[[], None]) -> None:
        super().__init__()
        self._before = before

    async def read(self, body: bytes, work: Any, *args: Any) -> Any:
        self._before()
        return await super().read(body, work, *args)


class CountedRoom(BodyRoom):
    def __init__(self, limit_bytes: int) -> None:
        super().__init__(limit_bytes)
        self.taken = 0

    def take(self, counted_bytes: int) -> None:
        super().take(counted_bytes)
        self.taken += counted_bytes

    def give(self, counted_bytes: int) -> None:
        super().give(counted_bytes)
        self.taken -= counted_bytes


def exchange_in(room: BodyRoom) -> Exchange:
    async def unheard(*_: Any) -> Any:
        raise AssertionError("nothing is sent or received here")

    return Exchange(
        {"method": "POST", "path": "/v1/responses", "headers": []},
        unheard,
        unheard,
        clock=SystemClock(),
        request_id="req_1",
        max_body_bytes=1,
        room=room,
        free_body_bytes=0,
    )


async def read_in(room: CountedRoom, before: Callable[[], None]) -> Exchange:
    exchange = exchange_in(room)
    with CrowdedDesk(before) as desk:
        reading = Reading(desk, OneKept())  # type: ignore[arg-type]
        await reading.read(ResponsesDialect(), exchange, BODY, ME)
    return exchange


async def test_what_a_request_goes_on_from_counts_from_when_it_was_found() -> None:
    room, taken = CountedRoom(100_000), list[int]()
    exchange = await read_in(room, lambda: taken.append(room.taken))
    before_it_was_found, found, put_together = taken
    assert (before_it_was_found, found) == (0, KEPT.size)
    assert 10_000 < put_together == room.taken < 11_000, "of the two only the conversation is held on"
    exchange.put_down()
    assert room.taken == 0


async def test_where_it_does_not_fit_the_request_is_refused() -> None:
    room, taken = CountedRoom(KEPT.size - 1), list[int]()
    with pytest.raises(ApiError) as refused:
        await read_in(room, lambda: taken.append(room.taken))
    assert (refused.value.status, refused.value.code, taken) == (503, "overloaded", [0])
