"""What harnesses of Responses ask beside answers, and what is told them: none of it is there."""

from __future__ import annotations

from dynbranch.gateway.edge.exchange import Exchange
from dynbranch.gateway.protocols.errors import ApiError


async def no_socket(exchange: Exchange, _: str) -> None:
    """A harness that would rather have a websocket asks so, and then goes on by POST."""
    raise ApiError(
        426,
        f"{exchange.path} is served by POST alone, and not over a websocket.",
        code="upgrade_required",
        headers=((b"upgrade", b"HTTP/1.1"),),
    )


async def not_kept(_: Exchange, response: str) -> None:
    raise ApiError(
        404,
        f"The response {response.partition('/')[0][:80]!r} is not kept here: responses are served once.",
        code="response_not_found",
    )
