"""Responses that a later request may name, kept by the store beside the results.

A kept response is an entry of the store like any other: it survives a restart, every gateway finds it, and it
is bounded with all else by count, bytes and age. It reads one record of its own, so that deleting it is a
write. Its name is no request's, so that it is never served as a result.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Final

from dynbranch.clients.ports import Csl, Unreachable
from dynbranch.domain.errors import DomainError
from dynbranch.domain.ids import DemandId, Digest, GenerationId, Name
from dynbranch.domain.reuse import (
    PURE,
    Commit,
    Committed,
    Demand,
    GenerationRef,
    Hit,
    Identity,
    Lease,
    Level,
    Miss,
    ReadScope,
    Refusal,
    Refused,
)
from dynbranch.gateway.core.kept_response import (
    MAX_KEPT_BYTES,
    SOURCE,
    KeptResponse,
    Owner,
    decoded,
    name_of,
    record_of,
)
from dynbranch.gateway.core.life import Answered
from dynbranch.gateway.csl_gate import CslGate
from dynbranch.gateway.protocols.errors import ApiError

_WORTH_MS: Final = 60_000.0
"""What losing one costs, as eviction sees it: somebody's conversation, and not only a repeated execution."""

_ATTEMPTS: Final = 3
"""Another response may be deleted while this one is kept, which closes the lease."""


class KeptResponses:
    """``budget_s`` is the longest that an answer waits for being kept; ``new_id`` the source of chance."""

    def __init__(
        self, gate: CslGate, csl: Csl, *, budget_s: float, write_timeout_s: float, new_id: Callable[[], bytes]
    ) -> None:
        self._gate = gate
        self._csl = csl
        self._budget_s = budget_s
        self._write_timeout_s = write_timeout_s
        self._new_id = new_id

    async def keep(self, owner: Owner, response_id: str, kept: KeptResponse) -> bool:
        """Whether it can be asked for from now on."""
        payload = kept.encoded()
        if len(payload) > MAX_KEPT_BYTES:
            return False
        name = name_of(owner, response_id)
        for _ in range(_ATTEMPTS):
            match await self._gate.demand(self._demand(owner, name, keeps=True)):
                case Answered(Miss(lease=Lease() as lease)):
                    outcome = await self._committed(lease, payload)
                case _:
                    return False
            if not isinstance(outcome, Refused) or outcome.reason is not Refusal.LEASE_CLOSED:
                return isinstance(outcome, Committed)
        return False

    async def find(self, owner: Owner, response_id: str) -> KeptResponse | None:
        """Raises ApiError (503) where the store can not say."""
        match await self._gate.demand(self._demand(owner, name_of(owner, response_id), keeps=False)):
            case Answered(Hit(payload=payload)):
                return decoded(payload)
            case Answered():
                return None
            case _:
                raise _no_word()

    async def forget(self, owner: Owner, response_id: str) -> bool:
        """Whether there was one. When it returns, nobody finds it any more. Raises ApiError (503)."""
        if await self.find(owner, response_id) is None:
            return False
        record = record_of(name_of(owner, response_id))
        try:
            await self._csl.write([record], reporter=owner.tenant, timeout_s=self._write_timeout_s)
        except Unreachable:
            raise _no_word() from None
        return True

    async def _committed(self, lease: Lease, payload: bytes) -> Committed | Refused | None:
        """None: what became of it is not known."""
        commit = Commit(
            lease=lease,
            payload=payload,
            payload_digest=Digest(hashlib.sha256(payload).digest()),
            level=Level.SOURCED,
            execution_ms=_WORTH_MS,
            label="a kept response",
            reads=(record_of(lease.name),),
        )
        try:
            return await self._csl.commit(commit, timeout_s=self._budget_s)
        except (Unreachable, DomainError):
            return None

    def _demand(self, owner: Owner, name: Name, *, keeps: bool) -> Demand:
        return Demand(
            demand_id=DemandId(self._new_id()),
            name=name,
            identity=Identity(owner.tenant),
            scope=ReadScope(sources=(SOURCE,)) if keeps else PURE,
            intended=GenerationRef(GenerationId(self._new_id()), ""),
            may_execute=keeps,
            may_hit=not keeps,
        )


def _no_word() -> ApiError:
    return ApiError(
        503,
        "The store that keeps responses does not answer.",
        code="store_unreachable",
        retry_after_s=1,
    )
