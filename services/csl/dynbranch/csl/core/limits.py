"""Every bound of the store in one place."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Limits:
    """Counts, bytes and milliseconds. The configuration describes each to its operator."""

    max_payload_bytes: int = 16 << 20
    max_entries: int = 1_000_000
    max_stored_bytes: int = 8 << 30
    max_derivations: int = 8
    """Of one entry. More executions than these support it no better."""
    max_reads: int = 1024
    """Of one derivation. A commit with more depends on whole sources instead."""
    max_producers: int = 1024
    max_outputs: int = 256
    max_written_records: int = 10_000
    """Of one write."""
    max_leases: int = 65_536
    max_lease_ttl_ms: int = 60_000
    lease_ttl_ms: int = 10_000
    max_workflows: int = 1_000_000
    """First arrivals kept. A workflow beyond them has no known first arrival."""
    max_deferred_arrivals: int = 10_000
    """First arrivals kept in memory while the disk has no room for them."""
    max_provenance_workflows: int = 20_000
    max_provenance_outputs: int = 512
    max_versions: int = 1_000_000
    """Version rows kept. Above, older writes are forgotten behind a floor that every commit must be newer
    than.
    """
    max_history: int = 20_000
    max_history_per_write: int = 1_000
    max_label_chars: int = 200
    slice_nodes: int = 32
    """A cascade that condemns more nodes than this is deleted in slices of this size."""
    plan_nodes: int = 32
    """Nodes that the plan of a write looks at before others have their turn."""
    entry_ttl_ms: int = 30 * 86_400_000
    """Entries stored longer ago than this go; 0: never for their age."""
    expired_per_step: int = 64
    eviction_sample: int = 16
    eviction_attempts: int = 64
    """Evictions that one commit may do before it is refused for want of room."""
    max_spliced_children: int = 64
    reported_names: int = 100
    max_shadows: int = 20_000
    """Shadows and executing fills together. No fill is granted above."""
    max_shadow_ttl_ms: int = 3_600_000
    max_settlements: int = 100_000
    """Settlements that wait to be taken in. Above, the oldest is dropped."""
    max_tombstones: int = 100_000
    """Discarded fills that are remembered in case they begin only now."""
    max_consumed: int = 1_024
    """Consumed results kept for a demand that is repeated."""
    max_consumed_bytes: int = 64 << 20
    """The same in bytes: more than the largest of them."""
    swept_per_step: int = 32
