"""What an engine's load is to a price: readings, the causal envelope, and the view after projected fills."""

from __future__ import annotations

import math
from bisect import bisect_right
from dataclasses import dataclass, replace

from dynbranch.domain.ids import Instant

MOST_SAMPLES = 4096
"""At four readings a second a quarter of an hour; beyond it the oldest go, and the window is shorter."""


@dataclass(frozen=True, slots=True)
class Reading:
    """One engine now. ``canonical`` and ``waiting`` count what harnesses wait for, neither fills nor drafts.
    ``fills`` are reserved ones, of at most ``fill_slots``; ``kv_tokens`` what they hold of ``kv_budget``
    (0: the engine tells none, and only the count bounds)."""

    engine: str
    slots: int
    canonical: int
    waiting: int
    fills: int
    fill_slots: int
    kv_tokens: int = 0
    kv_budget: int = 0

    @property
    def pressure(self) -> float:
        return (self.canonical + self.waiting) / max(1, self.slots)


@dataclass(frozen=True, slots=True)
class View:
    """V_H: what prices are a function of. ``rho_h`` is the envelope of ``rho``; all are shares, ``rho`` may
    exceed 1 while requests wait. ``slots`` and ``fill_slots`` are the engine's own counts."""

    rho_h: float
    rho: float
    o_fill: float
    o_kv: float
    backlog: float
    slots: int
    fill_slots: int

    @property
    def fills(self) -> float:
        return self.o_fill * self.fill_slots

    @property
    def co_resident(self) -> float:
        """Canonical requests that one fill meets."""
        return self.rho_h * self.slots

    def with_fill(self, kv_share: float) -> View:
        """The projection: one more fill, and its share of the KV budget."""
        return replace(self, o_fill=self.o_fill + 1 / max(1, self.fill_slots), o_kv=self.o_kv + kv_share)


class Envelope:
    """rho_h(t) = max(rho_t, mean of rho over the last H) (paper equation 3), of a value that holds until the
    next reading. Before the first reading the first one held."""

    def __init__(self, horizon_s: float) -> None:
        assert horizon_s > 0
        self.horizon_s = horizon_s
        self._times: list[float] = []
        self._values: list[float] = []
        self._areas: list[float] = []

    def see(self, value: float, now: Instant) -> None:
        """A reading that is older than the last one changes nothing; of two at one time the later counts."""
        assert math.isfinite(value) and value >= 0
        if self._times and now <= self._times[-1]:
            if now == self._times[-1]:
                self._values[-1] = value
            return
        area = self._area(now) if self._times else 0.0
        self._times.append(now)
        self._values.append(value)
        self._areas.append(area)
        self._trim(now)

    def value(self, now: Instant) -> float:
        if not self._times:
            return 0.0
        last = self._times[-1]
        now = Instant(max(now, last))
        area = self._areas[-1] + self._values[-1] * (now - last)
        mean = (area - self._area(now - self.horizon_s)) / self.horizon_s
        return max(self._values[-1], mean)

    @property
    def latest(self) -> float:
        return self._values[-1] if self._values else 0.0

    def _area(self, at: float) -> float:
        index = max(0, bisect_right(self._times, at) - 1)
        return self._areas[index] + self._values[index] * (at - self._times[index])

    def _trim(self, now: float) -> None:
        # The reading that held at the window's begin stays. In slices, as each costs the list's length.
        old = max(bisect_right(self._times, now - self.horizon_s) - 1, len(self._times) - MOST_SAMPLES)
        if old >= 64:
            base = self._areas[old]
            del self._times[:old], self._values[:old], self._areas[:old]
            self._areas = [area - base for area in self._areas]


def view_of(reading: Reading, envelope: Envelope, now: Instant) -> View:
    return View(
        rho_h=envelope.value(now),
        rho=reading.pressure,
        o_fill=reading.fills / max(1, reading.fill_slots),
        o_kv=reading.kv_tokens / reading.kv_budget if reading.kv_budget else 0.0,
        backlog=reading.waiting / max(1, reading.slots),
        slots=reading.slots,
        fill_slots=reading.fill_slots,
    )
