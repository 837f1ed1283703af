"""The store of the simulated CSL: rows in memory, and what of them a crash would leave."""

from __future__ import annotations

from collections.abc import Mapping
from random import Random

from dynbranch.csl.core.store import Batch
from dynbranch.csl.key_value import MemoryKeyValue

Changes = Mapping[bytes, bytes | None]


class CrashRows(MemoryKeyValue):
    """Batches are visible at once and durable when ``synced``. The log keeps its order: what survives a power
    loss is a beginning of it that holds everything synced.
    """

    def __init__(self) -> None:
        super().__init__()
        self._durable: dict[bytes, bytes] = {}
        self._log: list[Changes] = []
        self._synced = 0

    @property
    def applied(self) -> int:
        """How many batches were applied so far."""
        return self._synced + len(self._log)

    def apply(self, batch: Batch) -> None:
        super().apply(batch)
        self._log.append(dict(batch.changes))

    def synced(self, applied: int) -> None:
        """A flush that began when ``applied`` batches were there has ended."""
        self._harden(max(0, applied - self._synced))

    def lose(self, rng: Random | None) -> tuple[CrashRows, int]:
        """What the next process finds, and how many batches are lost: with ``rng`` the power goes too."""
        keep = len(self._log) if rng is None else rng.randint(0, len(self._log))
        lost = len(self._log) - keep
        self._harden(keep)
        after = CrashRows()
        MemoryKeyValue.apply(after, Batch(dict(self._durable)))
        after._durable = self._durable
        self.close()
        return after, lost

    def _harden(self, batches: int) -> None:
        for changes in self._log[:batches]:
            for key, value in changes.items():
                if value is None:
                    self._durable.pop(key, None)
                else:
                    self._durable[key] = value
        del self._log[:batches]
        self._synced += batches
