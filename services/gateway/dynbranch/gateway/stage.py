"""One stage on its way: what is executed, under which name, and for whom."""

from __future__ import annotations

from dataclasses import dataclass

from dynbranch.domain.engine import WireProtocol
from dynbranch.domain.ids import Digest, Name
from dynbranch.domain.reuse import PURE, Identity, Level, ReadScope
from dynbranch.gateway.core.life import Plan
from dynbranch.gateway.core.prompt_prefix import NO_PREFIX, PromptPrefix


@dataclass(frozen=True, slots=True)
class Stage:
    """One stage to serve. ``level`` is what its executor declares for it. ``detach_grace_ms``: how long its
    generation outlives its client, where that is longer than for all."""

    plan: Plan
    protocol: WireProtocol
    target: str
    body: bytes
    identity: Identity
    level: Level
    name: Name | None = None
    scope: ReadScope = PURE
    input_digests: tuple[Digest, ...] = ()
    may_hit: bool = True
    forward_headers: tuple[tuple[str, str], ...] = ()
    sharing_group: str = ""
    cache_scope: str = ""
    prefix: PromptPrefix = NO_PREFIX
    detach_grace_ms: int = 0
