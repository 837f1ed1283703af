"""Engine seconds that a tenant's fills may use: a bucket that leaks, and the gate in front of it."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from dynbranch.controller.core.branches.admission import (
    Admission,
    Asked,
    Decision,
    LoadView,
    Offered,
    Verdict,
)
from dynbranch.controller.core.branches.experience import Experience, FillOver
from dynbranch.domain.ids import Instant

HOUR_S = 3600.0
MOST_TENANTS = 4096


@dataclass(slots=True)
class _Level:
    spent_s: float
    at: Instant


class Ledger:
    """What fills have used fills a tenant's bucket when they end; an hour empties it. ``engine_s``: seconds
    an hour, None: no bound; ``engine_s_of``: the same by tenant."""

    def __init__(self, engine_s: float | None = None, engine_s_of: Mapping[str, float] | None = None) -> None:
        self._engine_s = engine_s
        self._engine_s_of = dict(engine_s_of or {})
        self._levels: OrderedDict[str, _Level] = OrderedDict()

    @property
    def bounds(self) -> bool:
        """Whether anybody's seconds are bounded."""
        return self._engine_s is not None or bool(self._engine_s_of)

    def of(self, tenant: str, now: Instant) -> tuple[float | None, float]:
        """What it may use an hour, and how much of that is used up now."""
        budget_s = self._engine_s_of.get(tenant, self._engine_s)
        level = self._levels.get(tenant)
        if budget_s is None or level is None:
            return budget_s, 0.0
        return budget_s, max(0.0, level.spent_s - budget_s * (now - level.at) / HOUR_S)

    def spend(self, tenant: str, used_s: float, now: Instant) -> None:
        budget_s, spent_s = self.of(tenant, now)
        if budget_s is not None:
            self._put(tenant, spent_s + used_s, now)

    def rows(self, now: Instant) -> list[tuple[str, float]]:
        """Of each tenant that has used any what is used up now, the longest unchanged first."""
        found = [(tenant, self.of(tenant, now)[1]) for tenant in self._levels]
        return [(tenant, spent_s) for tenant, spent_s in found if spent_s > 0]

    def take_up(self, rows: Iterable[Sequence[object]], age_s: float, now: Instant) -> None:
        """What was used up ``age_s`` ago, before a restart. Raises ValueError and TypeError."""
        for tenant, spent_s in rows:
            if not isinstance(tenant, str) or not isinstance(spent_s, int | float):
                raise TypeError("what tenants have used is no list of names and seconds")
            if not (math.isfinite(spent_s) and spent_s >= 0):
                raise ValueError(f"{tenant} has used {spent_s} s")
            self._put(tenant, float(spent_s), Instant(now - max(0.0, age_s)))

    def _put(self, tenant: str, spent_s: float, at: Instant) -> None:
        self._levels[tenant] = _Level(spent_s, at)
        self._levels.move_to_end(tenant)
        while len(self._levels) > MOST_TENANTS:
            self._levels.popitem(last=False)

    def validate_state(self) -> None:
        assert len(self._levels) <= MOST_TENANTS
        assert all(level.spent_s >= 0 for level in self._levels.values())


class Budgeted:
    """A tenant that has used all of its seconds waits until some are free again."""

    def __init__(self, inner: Admission, ledger: Ledger) -> None:
        self._inner = inner
        self._ledger = ledger

    def open(self, asked: Asked, load: LoadView) -> Decision:
        budget_s, spent_s = self._ledger.of(asked.coordinate.tenant, asked.now)
        if budget_s is not None and spent_s >= budget_s:
            numbers = (("budget_s", budget_s), ("spent_s", spent_s))
            return Decision(False, "its tenant's engine seconds are spent", numbers)
        return self._inner.open(asked, load)

    def admit(self, asked: Asked, offered: Sequence[Offered], load: LoadView) -> tuple[Verdict, ...]:
        budget_s, spent_s = self._ledger.of(asked.coordinate.tenant, asked.now)
        if budget_s is not None and spent_s >= budget_s:
            numbers = (("budget_s", budget_s), ("spent_s", spent_s))
            reason = "its tenant's engine seconds are spent"
            return tuple(Verdict(one.selection, False, reason, numbers) for one in offered)
        return self._inner.admit(asked, offered, load)

    def hear(self, news: Experience, now: Instant) -> None:
        if isinstance(news, FillOver):
            self._ledger.spend(news.coordinate.tenant, news.used_ms / 1000, now)
        self._inner.hear(news, now)

    def validate_state(self) -> None:
        self._inner.validate_state()
        self._ledger.validate_state()
