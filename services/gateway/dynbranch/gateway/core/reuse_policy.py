"""Which model stages ask the store at all."""

from __future__ import annotations

from enum import Enum

from dynbranch.domain.engine import Freshness
from dynbranch.domain.reuse import Level


class ReusePolicy(Enum):
    """What the operator lets be reused. GREEDY includes BATCH_INVARIANT."""

    BATCH_INVARIANT = "batch_invariant"
    GREEDY = "greedy"
    OFF = "off"


class AdoptPolicy(Enum):
    """What a demand does that finds a running fill. STREAM: it follows at once, as long as something comes.
    WAIT: it takes the whole result if that comes within a bound, as the paper has it, and executes
    otherwise."""

    STREAM = "stream"
    WAIT = "wait"


def why_not_reused(policy: ReusePolicy, level: Level, *, request: str, model: str) -> str:
    """The reason why a stage never asks the store; empty when it does.

    ``request`` and ``model`` are the reasons that its own fields and its model give, or empty.
    """
    if policy is ReusePolicy.OFF:
        return "Reuse is switched off."
    if model:
        return model
    if request:
        return request
    if level is Level.SAMPLED:
        return "The engine does not repeat itself."
    if policy is ReusePolicy.BATCH_INVARIANT and level is not Level.BATCH_INVARIANT:
        return f"Only batch-invariant results may be reused; this engine declares {level.value}."
    return ""


def storable(freshness: Freshness, source: str) -> bool:
    """Whether a tool's results may be stored at all."""
    return freshness is Freshness.IMMUTABLE or (freshness is not Freshness.NONE and bool(source))
