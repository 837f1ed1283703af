"""Generations whose client left, for as long as they go on: the same request, sent again by the same agent,
goes on with its own.

A request that samples is asked for by no name, so that only this gateway can know the two as one. A second
draw is never made out of the first: whoever takes a generation here has seen no end of it.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import Final

from dynbranch.domain.ids import Digest, Instant
from dynbranch.domain.reuse import GenerationRef, Identity

MAX_LEFT: Final = 256
MAX_LEFT_BYTES: Final = 32 * 2**20
MAX_OF_ONE_AGENT: Final = 4


@dataclass(frozen=True, slots=True)
class Asker:
    """Whose request it was, of which model, and what executes it: what another executor writes is no answer
    to it. An empty workflow is nobody."""

    sharing_group: str
    tenant: str
    workflow_id: str
    agent_id: str
    target: str
    fingerprint: Digest


def asker_of(sharing_group: str, identity: Identity, target: str, fingerprint: Digest) -> Asker | None:
    if not identity.workflow_id:
        return None
    workflow_id, agent_id = identity.workflow_id, identity.agent_id
    return Asker(sharing_group, identity.tenant, workflow_id, agent_id, target, fingerprint)


@dataclass(frozen=True, slots=True)
class LeftBehind:
    """``body`` is what the engine was sent."""

    generation: GenerationRef
    body: bytes
    until: Instant


class LeftGenerations:
    """Bounded in number and in bytes; the oldest go first."""

    def __init__(self, *, max_left: int = MAX_LEFT, max_bytes: int = MAX_LEFT_BYTES) -> None:
        self._max_left = max_left
        self._max_bytes = max_bytes
        self._left: OrderedDict[tuple[Asker, GenerationRef], LeftBehind] = OrderedDict()
        self._of: dict[Asker, list[GenerationRef]] = {}
        self._bytes = 0

    def __len__(self) -> int:
        return len(self._left)

    def leave(self, asker: Asker, left: LeftBehind) -> None:
        self.take(asker, left.generation)
        self._left[asker, left.generation] = left
        self._of.setdefault(asker, []).append(left.generation)
        self._bytes += len(left.body)
        while len(self._of[asker]) > MAX_OF_ONE_AGENT:
            self.take(asker, self._of[asker][0])
        while self._left and (len(self._left) > self._max_left or self._bytes > self._max_bytes):
            self.take(*next(iter(self._left)))

    def of(self, asker: Asker, now: Instant) -> tuple[LeftBehind, ...]:
        """Those that may still run, newest first."""
        self.forget_ended(now)
        return tuple(self._left[asker, one] for one in reversed(self._of.get(asker, ())))

    def forget_ended(self, now: Instant) -> None:
        """Nobody goes on with them any more, whoever left them."""
        for asker, generation in [key for key, left in self._left.items() if left.until <= now]:
            self.take(asker, generation)

    def take(self, asker: Asker, generation: GenerationRef) -> bool:
        """It is one request's from now on. False: it is another's already."""
        left = self._left.pop((asker, generation), None)
        if left is None:
            return False
        self._bytes -= len(left.body)
        known = self._of[asker]
        known.remove(generation)
        if not known:
            del self._of[asker]
        return True

    def validate_state(self) -> None:
        assert self._bytes == sum(len(left.body) for left in self._left.values())
        assert len(self._left) <= self._max_left and self._bytes <= self._max_bytes
        assert {(asker, one) for asker, known in self._of.items() for one in known} == self._left.keys()
        assert all(0 < len(known) <= MAX_OF_ONE_AGENT for known in self._of.values())
