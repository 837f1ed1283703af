"""What goes into an engine model and what comes out: frozen values."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field

from dynbranch.domain.ids import Instant

RequestKey = Hashable
"""How the caller names a request."""

Block = Hashable
"""Stands for a whole prefix that ends with a full block: equal blocks mean equal prefixes and equal salts."""


@dataclass(frozen=True, slots=True)
class Pace:
    """A request's own speed, where the model's does not count."""

    time_to_first_token_ms: float
    inter_token_ms: float


@dataclass(frozen=True, slots=True)
class Submit:
    """A request arrives.

    ``blocks``: its full blocks in order, those of the prompt first, then those that its output will fill.
    ``priority``: lower is served first. ``marks``: indices of tokens that the caller wants to hear about.
    ``every_token``: hear about each one. ``pace`` counts in the fixed model only.
    """

    request: RequestKey
    prompt_tokens: int
    output_tokens: int
    blocks: tuple[Block, ...] = ()
    priority: int = 0
    marks: tuple[int, ...] = ()
    every_token: bool = False
    pace: Pace | None = None


@dataclass(frozen=True, slots=True)
class Abort:
    """The caller does not want it any more. An unknown or ended request is no mistake."""

    request: RequestKey


@dataclass(frozen=True, slots=True)
class Raise:
    """Somebody waits for it now: from here on it has this priority, running or waiting, if it had a lower one
    before. An unknown or ended request is no mistake."""

    request: RequestKey
    priority: int


@dataclass(frozen=True, slots=True)
class Wake:
    """Nothing new; only time has passed."""


WAKE = Wake()
Event = Submit | Abort | Raise | Wake


@dataclass(frozen=True, slots=True)
class Admitted:
    """It got a slot. ``hit_tokens``: what of its prompt was in the prefix cache when it got its first one."""

    request: RequestKey
    at: Instant
    hit_tokens: int


@dataclass(frozen=True, slots=True)
class Token:
    """It has token ``index``, and with it all before."""

    request: RequestKey
    at: Instant
    index: int


@dataclass(frozen=True, slots=True)
class Finished:
    """It has its last token."""

    request: RequestKey
    at: Instant


@dataclass(frozen=True, slots=True)
class Preempted:
    """It lost its slot to the pressure on the KV pool, and waits; what it has is computed again."""

    request: RequestKey
    at: Instant


@dataclass(frozen=True, slots=True)
class Refused:
    """It can never run: prompt and output are larger than the KV pool."""

    request: RequestKey
    at: Instant


Effect = Admitted | Token | Finished | Preempted | Refused


@dataclass(slots=True)
class Counters:
    """Sums since the beginning. Tokens of the prefix cache count once a request, at its first admission."""

    submitted: int = 0
    finished: int = 0
    aborted: int = 0
    refused: int = 0
    preemptions: int = 0
    prefix_query_tokens: int = 0
    prefix_hit_tokens: int = 0
    prompt_tokens: int = 0
    output_tokens: int = 0


@dataclass(frozen=True, slots=True)
class Gauges:
    """``kv_used_share``: tokens that running requests hold, over the pool; what is merely cached is free."""

    running: int
    waiting: int
    kv_used_share: float
    counters: Counters = field(default_factory=Counters)
