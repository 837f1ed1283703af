"""Which executors may serve a request: agents of one model with one fingerprint.

A pool is chosen before the request is named, and the request runs only there: a name made for one executor
never authorises the output of another. Every choice is a function of what the agents reported, so that two
gateways with the same view choose alike, and a controller names its fills as they name their requests.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from enum import Enum

from dynbranch.domain.engine import AgentDescription, ModelDescription, ToolDescription
from dynbranch.domain.ids import Digest
from dynbranch.naming.fingerprint import fingerprint_digest

Executor = ModelDescription | ToolDescription


@dataclass(frozen=True, slots=True)
class Offer:
    """One agent's offer of one executor."""

    address: str
    executor: Executor
    fingerprint: Digest
    ready: bool
    in_flight: int
    bypass_url: str = ""


@dataclass(frozen=True, slots=True)
class Member:
    address: str
    in_flight: int


@dataclass(frozen=True, slots=True)
class Pool:
    """Ready agents that are one and the same executor. ``members`` may be empty: nobody is ready."""

    executor: Executor
    fingerprint: Digest
    members: tuple[Member, ...]
    bypass_urls: tuple[str, ...] = ()


def names_of(executor: Executor) -> frozenset[str]:
    """What requests may call it."""
    match executor:
        case ModelDescription(id=known, aliases=aliases):
            return frozenset({known, *aliases})
        case ToolDescription(name=known):
            return frozenset({known})


def models_by_name(described: AgentDescription) -> dict[str, tuple[Executor, Digest]]:
    """Each model under every name that requests may call it, with the digest of its fingerprint."""
    return {
        name: (model, fingerprint_digest(model.fingerprint))
        for model in described.models
        for name in (model.id, *model.aliases)
    }


def tools_by_name(described: AgentDescription) -> dict[str, tuple[Executor, Digest]]:
    return {tool.name: (tool, fingerprint_digest(tool.fingerprint)) for tool in described.tools}


class NoPool(Enum):
    """Nobody offers the executor. UNDESCRIBED: an agent that has not spoken yet may do so."""

    UNKNOWN = "unknown"
    UNDESCRIBED = "undescribed"


def choose_pool(offers: Iterable[Offer], *, undescribed: int) -> Pool | NoPool:
    """The fingerprint with most ready agents; of equals the one with the lowest digest."""
    groups: dict[Digest, list[Offer]] = {}
    for offer in offers:
        groups.setdefault(offer.fingerprint, []).append(offer)
    if not groups:
        return NoPool.UNDESCRIBED if undescribed else NoPool.UNKNOWN
    best = next(iter(groups.values()))
    if len(groups) > 1:
        best = min(groups.values(), key=lambda group: (-sum(o.ready for o in group), group[0].fingerprint))
    return Pool(
        executor=best[0].executor,
        fingerprint=best[0].fingerprint,
        members=tuple(Member(o.address, o.in_flight) for o in best if o.ready),
        bypass_urls=tuple(dict.fromkeys(o.bypass_url for o in calmest_first(best) if o.bypass_url)),
    )


def calmest_first(offers: Iterable[Offer]) -> list[Offer]:
    """The order in which raw requests try engines: ready ones first, then by what is in flight."""
    return sorted(offers, key=lambda o: (not o.ready, o.in_flight))


def choose_member(pool: Pool, tried: Collection[str] = ()) -> str | None:
    """The member with least in flight that was not tried; of equals the lowest address. ``routing`` chooses
    better where the prompt is known."""
    left = [m for m in pool.members if m.address not in tried]
    return min(left, key=lambda m: (m.in_flight, m.address)).address if left else None
