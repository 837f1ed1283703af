"""Harnesses that lose their connection send the same request again.

Under a name it joins its own generation by way of the store. What has no name is found here, for as long as
the generation outlives who asked for it.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from dynbranch.domain.engine import WireProtocol
from dynbranch.domain.ids import Instant
from dynbranch.domain.reuse import GenerationRef
from dynbranch.gateway.core.left_behind import Asker, LeftBehind, LeftGenerations, asker_of
from dynbranch.gateway.core.life import RequestLife, State
from dynbranch.gateway.desk import Desk
from dynbranch.gateway.stage import Stage
from dynbranch.naming.document import parse_body
from dynbranch.naming.normalise import NormalisedRequest
from dynbranch.runtime.clock import Clock

_RUNS = (State.EXECUTING, State.FOLLOWING, State.SHOWING)


class Returning:
    """``detach_grace_ms``: how long every generation outlives its client; of some harnesses longer."""

    def __init__(self, desk: Desk, clock: Clock, detach_grace_ms: int) -> None:
        self._desk = desk
        self._clock = clock
        self._detach_grace_ms = detach_grace_ms
        self._left = LeftGenerations()

    def anything_left(self) -> bool:
        """That may still run."""
        self._left.forget_ended(self._clock.now())
        return bool(self._left)

    def grace_ms(self, stage: Stage) -> int:
        return max(self._detach_grace_ms, stage.detach_grace_ms)

    def leave(self, life: RequestLife, stage: Stage) -> None:
        """To be called before ``life`` hears that its client left."""
        asker = self._asker(stage)
        if asker is None or life.generation is None or life.state not in _RUNS:
            return
        now = self._clock.now()
        self._left.forget_ended(now)
        until = Instant(now + self.grace_ms(stage) / 1000)
        self._left.leave(asker, LeftBehind(life.generation, stage.body, until))

    async def own_generation(self, stage: Stage, request: NormalisedRequest) -> GenerationRef | None:
        """That of the same request, where its client left it behind. It is this request's from now on."""
        asker = self._asker(stage)
        if asker is None or not stage.may_hit:
            return None
        for left in self._left.of(asker, self._clock.now()):
            same = await self._desk.read(left.body, partial(_is_same, request, left.body))
            if same and self._left.take(asker, left.generation):
                return left.generation
        return None

    def _asker(self, stage: Stage) -> Asker | None:
        """None where nothing would be found here: what has a name is found by it."""
        if stage.protocol is WireProtocol.TOOL or stage.plan.demands or self.grace_ms(stage) <= 0:
            return None
        return asker_of(stage.sharing_group, stage.identity, stage.target, stage.plan.pool.fingerprint)


def _is_same(request: NormalisedRequest, body: bytes) -> bool:
    """Whether both ask the same, however the answers are to be sent."""
    return replace(request, document=parse_body(body)).canonical == request.canonical
