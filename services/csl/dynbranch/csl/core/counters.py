"""What the library counts."""

from __future__ import annotations

from dataclasses import dataclass

from dynbranch.domain.ids import Version
from dynbranch.domain.reuse import StoreStats


@dataclass(slots=True)
class Counters:
    """Since the start of the process."""

    hits: int = 0
    joins: int = 0
    misses: int = 0
    commits: int = 0
    refused_commits: int = 0
    differing_commits: int = 0
    writes: int = 0
    invalidated_entries: int = 0
    evicted_entries: int = 0
    expired_entries: int = 0
    expired_leases: int = 0
    guard_misses: int = 0
    promotions: int = 0
    adoptions: int = 0
    consumptions: int = 0
    discarded_shadows: int = 0
    dropped_settlements: int = 0

    def with_gauges(
        self, *, version: Version, entries: int, payload_bytes: int, leases: int, shadows: int, fills: int
    ) -> StoreStats:
        return StoreStats(
            version=version,
            entries=entries,
            payload_bytes=payload_bytes,
            leases=leases,
            hits=self.hits,
            joins=self.joins,
            misses=self.misses,
            commits=self.commits,
            refused_commits=self.refused_commits,
            writes=self.writes,
            invalidated_entries=self.invalidated_entries,
            shadows=shadows,
            fills=fills,
            promotions=self.promotions,
            adoptions=self.adoptions,
            discarded_shadows=self.discarded_shadows,
        )
