"""The store underneath: ordered rows, atomic guarded batches, frozen views, and one call that makes all
durable.

Narrow on purpose, so that a distributed transactional store can stand behind it. ``rocks.py`` is the real
one; the in-memory twin here passes the same contract tests.

    StoreFailed
    ├── StoreCorrupt     rows or files are damaged; the directory must be set aside
    ├── StoreFull        no space left; nothing was written
    ├── StoreLocked      another process holds the directory
    └── StoreClosed      used after close
    GuardFailed          (Conflict) a guarded row is not what the decision was based on; nothing was written
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from itertools import islice
from typing import Protocol

from dynbranch.csl.core.store import Batch, View
from dynbranch.domain.errors import Conflict, StoreFailed


class StoreCorrupt(StoreFailed):
    def __init__(
        self, message: str, advice: str = "restart: the directory is set aside, the store starts empty"
    ) -> None:
        super().__init__("store_corrupt", message, advice=advice)


class StoreFull(StoreFailed):
    def __init__(self, message: str) -> None:
        super().__init__("store_full", message, advice="free disk space; hits are served meanwhile")


class StoreLocked(StoreFailed):
    def __init__(self, message: str) -> None:
        super().__init__(
            "store_locked", message, advice="stop the other process that uses this data directory"
        )


class StoreClosed(StoreFailed):
    def __init__(self) -> None:
        super().__init__("store_closed", "the store is closed")


class GuardFailed(Conflict):
    def __init__(self, key: bytes) -> None:
        super().__init__("guard_failed", f"row {key[:40].hex()} has changed since the decision was made")


class KeyValue(View, Protocol):
    """``get``, ``scan`` and ``page`` read what is applied now. One thread applies; ``sync`` may run in
    another.

    After StoreFull everything can still be read, and nothing written until ``reclaim`` returns.
    """

    def apply(self, batch: Batch) -> None:
        """All changes or none, visible at once, not yet durable. Raises GuardFailed, StoreFailed."""

    def frozen(self) -> AbstractContextManager[View]:
        """A view that later batches do not change."""

    def sync(self) -> None:
        """Block until everything applied before the call would survive a power loss. Raises StoreFailed."""

    def reclaim(self) -> None:
        """After StoreFull: take up writing again. Raises StoreFull while there is no room."""

    def close(self) -> None: ...


class _SortedKeys:
    """Keys in order, in blocks of bounded length: to add one costs much the same at any number of them."""

    most = 1024

    def __init__(self, blocks: list[list[bytes]]) -> None:
        self.blocks = blocks
        self._lasts = [block[-1] for block in blocks]
        self.changes = 0

    def copy(self) -> _SortedKeys:
        return _SortedKeys([list(block) for block in self.blocks])

    def place(self, key: bytes) -> tuple[int, int]:
        """Block and place of the first key that is not before this one."""
        at = bisect_left(self._lasts, key)
        return at, bisect_left(self.blocks[at], key) if at < len(self.blocks) else 0

    def add(self, key: bytes) -> None:
        """One that is not there."""
        self.changes += 1
        if not self.blocks:
            self.blocks.append([key])
            self._lasts.append(key)
            return
        at = min(bisect_left(self._lasts, key), len(self.blocks) - 1)
        block = self.blocks[at]
        insort(block, key)
        if len(block) > self.most:
            half = len(block) // 2
            self.blocks[at : at + 1] = [block[:half], block[half:]]
            self._lasts.insert(at, block[half - 1])
            at += 1
        self._lasts[at] = self.blocks[at][-1]

    def remove(self, key: bytes) -> None:
        """One that is there."""
        self.changes += 1
        at, place = self.place(key)
        block = self.blocks[at]
        del block[place]
        if block:
            self._lasts[at] = block[-1]
        else:
            del self.blocks[at], self._lasts[at]


class MemoryKeyValue:
    """The in-memory twin: nothing survives, ``sync`` costs nothing."""

    def __init__(self) -> None:
        self._rows: dict[bytes, bytes] = {}
        self._keys = _SortedKeys([])
        self._closed = False

    def get(self, key: bytes) -> bytes | None:
        if self._closed:
            raise StoreClosed
        return self._rows.get(key)

    def scan(self, prefix: bytes, start: bytes = b"") -> Iterator[tuple[bytes, bytes]]:
        self._check_open()
        keys = self._keys
        (at, place), seen = keys.place(prefix + start), keys.changes
        while at < len(keys.blocks):
            block = keys.blocks[at]
            if place == len(block):
                at, place = at + 1, 0
                continue
            key = block[place]
            if not key.startswith(prefix):
                return
            yield key, self._rows[key]
            self._check_open()
            place += 1
            if keys.changes != seen:
                (at, place), seen = keys.place(key + b"\0"), keys.changes

    def page(self, prefix: bytes, start: bytes, at_most: int) -> list[tuple[bytes, bytes]]:
        return list(islice(self.scan(prefix, start), at_most))

    def apply(self, batch: Batch) -> None:
        self._check_open()
        check_guards(self, batch)
        for key, value in batch.changes.items():
            if value is None:
                if self._rows.pop(key, None) is not None:
                    self._keys.remove(key)
            else:
                if key not in self._rows:
                    self._keys.add(key)
                self._rows[key] = value

    def copy(self) -> MemoryKeyValue:
        """The rows of this moment."""
        copy = MemoryKeyValue()
        copy._rows, copy._keys = dict(self._rows), self._keys.copy()
        return copy

    @contextmanager
    def frozen(self) -> Iterator[View]:
        self._check_open()
        copy = self.copy()
        try:
            yield copy
        finally:
            copy.close()

    def sync(self) -> None:
        self._check_open()

    def reclaim(self) -> None:
        self._check_open()

    def close(self) -> None:
        self._closed = True

    def _check_open(self) -> None:
        if self._closed:
            raise StoreClosed


def check_guards(view: View, batch: Batch) -> None:
    """Raises GuardFailed."""
    for key, expected in batch.guards.items():
        if view.get(key) != expected:
            raise GuardFailed(key)
