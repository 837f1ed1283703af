"""What a generation reserves, and that each of it is given back exactly once (invariant I4)."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field

from dynbranch.domain.ids import GenerationId, Instant, LeaseId
from dynbranch.domain.reuse import Lease

RENEWALS_PER_TTL = 3
"""A lease survives two lost renewals."""


class ReleasedTwice(AssertionError):
    """A bug: what is released was not held."""


@dataclass(slots=True)
class Slots:
    """Engine slots. A generation of ``n`` choices takes ``n`` of them, at most all."""

    total: int
    held: dict[GenerationId, int] = field(default_factory=dict)
    waiting: OrderedDict[GenerationId, int] = field(default_factory=OrderedDict)
    peak: int = 0

    def take_peak(self) -> int:
        """The most that were used since this was asked last; counting begins anew."""
        peak, self.peak = max(self.peak, self.used), self.used
        return peak

    @property
    def used(self) -> int:
        return sum(self.held.values())

    def enqueue(self, generation: GenerationId, width: int) -> None:
        assert generation not in self.waiting and generation not in self.held
        self.waiting[generation] = max(1, width)

    def leave_queue(self, generation: GenerationId) -> None:
        if self.waiting.pop(generation, None) is None:
            raise ReleasedTwice("this generation does not wait for a slot")

    def next_ready(self) -> GenerationId | None:
        """The head of the queue if it fits now. First come, first served: nobody is overtaken."""
        for generation, width in self.waiting.items():
            return generation if min(width, self.total) <= self.total - self.used else None
        return None

    def occupy(self, generation: GenerationId) -> None:
        width = self.waiting.pop(generation)
        self.held[generation] = min(width, self.total)
        self.peak = max(self.peak, self.used)

    def release(self, generation: GenerationId) -> None:
        if self.held.pop(generation, None) is None:
            raise ReleasedTwice("this generation holds no slot")


@dataclass(frozen=True, slots=True)
class Share:
    """What one fill or draft has reserved."""

    slots: int
    tokens: int


@dataclass(slots=True)
class Speculation:
    """What fills and drafts have reserved, besides their engine slots, oldest first."""

    held: OrderedDict[GenerationId, Share] = field(default_factory=OrderedDict)

    @property
    def slots(self) -> int:
        return sum(share.slots for share in self.held.values())

    @property
    def tokens(self) -> int:
        return sum(share.tokens for share in self.held.values())

    def reserve(self, generation: GenerationId, share: Share) -> None:
        assert generation not in self.held
        self.held[generation] = share

    def release(self, generation: GenerationId) -> None:
        if self.held.pop(generation, None) is None:
            raise ReleasedTwice("this generation has reserved nothing")


@dataclass(slots=True)
class Leases:
    """Leases that running and committing generations hold in the store."""

    held: dict[LeaseId, Lease] = field(default_factory=dict)
    renew_at: Instant | None = None

    def hold(self, lease: Lease, now: Instant) -> None:
        assert lease.lease_id not in self.held, "a lease belongs to one generation"
        self.held[lease.lease_id] = lease
        due = Instant(now + lease.ttl_ms / 1000 / RENEWALS_PER_TTL)
        self.renew_at = due if self.renew_at is None else min(self.renew_at, due)

    def settle(self, lease: Lease) -> None:
        if self.held.pop(lease.lease_id, None) is None:
            raise ReleasedTwice("this lease is settled already")
        if not self.held:
            self.renew_at = None

    def due(self, now: Instant) -> dict[int, tuple[LeaseId, ...]]:
        """Every held lease by its ttl in ms, once the earliest is due; else nothing."""
        if self.renew_at is None or now < self.renew_at:
            return {}
        by_ttl: dict[int, list[LeaseId]] = {}
        for lease in self.held.values():
            by_ttl.setdefault(lease.ttl_ms, []).append(lease.lease_id)
        self.renew_at = Instant(now + min(by_ttl) / 1000 / RENEWALS_PER_TTL)
        return {ttl_ms: tuple(ids) for ttl_ms, ids in by_ttl.items()}
