"""What harnesses of Responses ask beside answers: for a response that was kept, or for a websocket."""

from __future__ import annotations

from collections.abc import Mapping
from urllib.parse import parse_qs

from dynbranch.gateway.core.kept_response import Owner
from dynbranch.gateway.edge.exchange import Exchange
from dynbranch.gateway.kept_responses import KeptResponses
from dynbranch.gateway.protocols.errors import JSON, ApiError
from dynbranch.gateway.protocols.members import dump
from dynbranch.gateway.tenants import Tenants


async def no_socket(exchange: Exchange, _: str) -> None:
    """A harness that would rather have a websocket asks so, and then goes on by POST."""
    raise ApiError(
        426,
        f"{exchange.path} is served by POST alone, and not over a websocket.",
        code="upgrade_required",
        headers=((b"upgrade", b"HTTP/1.1"),),
    )


def owner_of(tenant: str, headers: Mapping[str, str]) -> Owner:
    """Whoever is authorised by all the same: of two headers one may be a proxy's, which many share."""
    scheme, _, token = headers.get("authorization", "").strip().partition(" ")
    # No scheme minds its case, and what no header can hold stands between the two.
    authorization = f"{scheme.capitalize()} {token.strip()}".strip()
    key = headers.get("x-api-key", "")
    return Owner(tenant, f"{authorization}\n{key}" if key else authorization)


class ResponsesEndpoints:
    """``kept`` None: nothing is kept."""

    def __init__(self, kept: KeptResponses | None, tenants: Tenants) -> None:
        self._kept = kept
        self._tenants = tenants

    async def one(self, exchange: Exchange, response_id: str) -> None:
        """A response as it was answered, which a stream's last event held."""
        kept, owner = self._asked(exchange, response_id)
        if parse_qs(exchange.query).get(b"stream", [b"false"])[-1] != b"false":
            raise ApiError(
                400,
                "'stream' is not served here: a kept response is told whole.",
                code="unsupported_parameter",
                param="stream",
            )
        found = await kept.find(owner, response_id)
        if found is None:
            raise _not_found(response_id)
        # For as long as its client takes to read it.
        exchange.also_holds(len(found.answered))
        await _answer(exchange, found.answered)

    async def delete(self, exchange: Exchange, response_id: str) -> None:
        """Once it is answered, nobody finds the response. What goes on from it has kept its own copy."""
        kept, owner = self._asked(exchange, response_id)
        with exchange.held():
            known = await kept.forget(owner, response_id)
        if not known:
            raise _not_found(response_id)
        await _answer(exchange, dump({"id": response_id, "object": "response", "deleted": True}))

    def _asked(self, exchange: Exchange, response_id: str) -> tuple[KeptResponses, Owner]:
        if self._kept is None or "/" in response_id:
            raise _not_found(response_id)
        return self._kept, owner_of(self._tenants.of(exchange.headers), exchange.headers)


def _not_found(response_id: str) -> ApiError:
    inner, _, part = response_id.partition("/")
    what = (
        f"There is no {part[:80]!r} of responses here."
        if part
        else f"The response {inner[:80]!r} is not kept here."
    )
    return ApiError(404, what, code="response_not_found")


async def _answer(exchange: Exchange, body: bytes) -> None:
    await exchange.respond(200, JSON, body, [(b"x-request-id", exchange.request_id.encode())])
