"""Prometheus metrics: read from the library when someone asks, so that requests pay nothing for them."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from dynbranch.csl.core.counters import Counters
from dynbranch.domain.reuse import StoreStats
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

_COUNTERS = {
    "hits": "Demands that were served a stored result",
    "joins": "Demands that were told to follow a live generation",
    "misses": "Demands that were told to execute",
    "commits": "Results stored or supported once more",
    "refused_commits": "Results that were served and not stored",
    "differing_commits": "Results that differed from the one stored under their name",
    "writes": "Writes acknowledged or under way",
    "invalidated_entries": "Entries that writes removed",
    "evicted_entries": "Entries that made room for others",
    "expired_entries": "Entries that were kept for their whole time",
    "expired_leases": "Leases that nobody renewed",
    "promotions": "Shadows that a demand made confirmed entries",
    "adoptions": "Running fills that a demand took over",
    "consumptions": "Sampled results that one demand was served",
    "discarded_shadows": "Shadows that were lost, stale or too old",
    "dropped_settlements": "Settlements that no controller took in before there were too many",
    "guard_misses": "Stored entries that were found not current and not served; must stay zero",
}


class StoreCollector(Collector):
    def __init__(
        self, stats: Callable[[], StoreStats], counters: Counters, flushes: Callable[[], int]
    ) -> None:
        self._stats = stats
        self._counters = counters
        self._flushes = flushes

    def collect(self) -> Iterator[Metric]:
        for name, text in _COUNTERS.items():
            yield CounterMetricFamily(f"dynbranch_csl_{name}", text, value=getattr(self._counters, name))
        yield CounterMetricFamily("dynbranch_csl_flushes", "Flushes of the log", value=self._flushes())
        stats = self._stats()
        gauges = {
            "entries": ("Entries stored", stats.entries),
            "payload_bytes": ("Bytes of all payloads stored", stats.payload_bytes),
            "leases": ("Executions in flight", stats.leases),
            "shadows": ("Results of fills that no demand has asked for", stats.shadows),
            "fills": ("Fills in flight", stats.fills),
            "write_sequence": ("Number of the last write", stats.version.sequence),
            "epoch": ("Epoch of the store", stats.version.epoch),
        }
        for name, (text, value) in gauges.items():
            yield GaugeMetricFamily(f"dynbranch_csl_{name}", text, value=value)

    def describe(self) -> list[Metric]:
        # Without it the registry would collect once at registration.
        return []
