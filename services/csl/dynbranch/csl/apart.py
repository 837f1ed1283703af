"""Answers that are too large for a stream that small ones share: kept until they are fetched by a call.

On a connection the messages of one stream wait for each other; those of two do not.
"""

from __future__ import annotations

from collections.abc import Callable

from dynbranch.domain.errors import NotFound
from dynbranch.v1 import csl_pb2 as pb

APART_BYTES = 2**18
"""A larger answer is fetched. Smaller ones are sent faster than a call costs."""

MAX_KEPT_BYTES = 2**26
"""Of all answers that wait. The oldest give way: whoever asked for them has ceased to wait."""


class AnswersApart:
    def __init__(self, new_ticket: Callable[[], bytes]) -> None:
        self._new_ticket = new_ticket
        self._kept: dict[bytes, pb.DemandResponse] = {}
        self._kept_bytes = 0

    def put(self, answer: pb.DemandResponse) -> bytes:
        """The ticket that it is taken by."""
        self._kept_bytes += answer.ByteSize()
        while self._kept and self._kept_bytes > MAX_KEPT_BYTES:
            self.take(next(iter(self._kept)))
        ticket = self._new_ticket()
        self._kept[ticket] = answer
        return ticket

    def take(self, ticket: bytes) -> pb.DemandResponse:
        """Raises NotFound where it was taken already, or has given way."""
        answer = self._kept.pop(ticket, None)
        if answer is None:
            raise NotFound("unknown_ticket", "no answer waits under this ticket", advice="ask again")
        self._kept_bytes -= answer.ByteSize()
        return answer
