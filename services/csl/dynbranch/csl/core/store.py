"""What the core needs of a store: reads of one moment, and one guarded batch of changes.

The core decides on a ``View`` and hands back a ``Batch``; whoever owns the store applies it atomically if
every guarded row is still what the decision was based on.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from types import MappingProxyType
from typing import Protocol

from dynbranch.domain.errors import StoreFailed


class Inconsistent(StoreFailed):
    """The rows of the store contradict each other. Nothing that it holds can be trusted."""

    def __init__(self, message: str) -> None:
        super().__init__("inconsistent_store", message, advice="the store is set aside at the next start")


class UnknownFormat(StoreFailed):
    """The store was written by another version of this program."""

    def __init__(self, message: str) -> None:
        super().__init__("unknown_format", message, advice="run the version that wrote it, or move it away")


class View(Protocol):
    """The rows of one moment, in key order."""

    def get(self, key: bytes) -> bytes | None: ...

    def scan(self, prefix: bytes, start: bytes = b"") -> Iterator[tuple[bytes, bytes]]:
        """Rows whose key begins with ``prefix``, from ``prefix + start`` on."""

    def page(self, prefix: bytes, start: bytes, at_most: int) -> list[tuple[bytes, bytes]]:
        """The first rows of such a scan."""


@dataclass(frozen=True, slots=True)
class Batch:
    """Changes that happen together or not at all. A value of None deletes the row.

    ``guards`` are rows and the values that they must still have (None: absent).
    """

    changes: Mapping[bytes, bytes | None] = field(default_factory=lambda: MappingProxyType({}))
    guards: Mapping[bytes, bytes | None] = field(default_factory=lambda: MappingProxyType({}))

    @property
    def empty(self) -> bool:
        return not self.changes


class Transaction:
    """A view that sees its own changes, and collects them into a batch."""

    def __init__(self, base: View) -> None:
        self._base = base
        self._changes: dict[bytes, bytes | None] = {}
        self._guards: dict[bytes, bytes | None] = {}

    @property
    def base(self) -> View:
        """The view underneath, without this transaction's changes."""
        return self._base

    def get(self, key: bytes) -> bytes | None:
        if key in self._changes:
            return self._changes[key]
        return self._base.get(key)

    def get_guarded(self, key: bytes) -> bytes | None:
        """Read a row that must not have changed when the batch is applied."""
        if key not in self._guards:
            self._guards[key] = self._base.get(key)
        return self._changes[key] if key in self._changes else self._guards[key]

    def scan(self, prefix: bytes, start: bytes = b"") -> Iterator[tuple[bytes, bytes]]:
        """Costs a pass over the collected changes: not for use inside a large cascade."""
        first = prefix + start
        staged = sorted(key for key in self._changes if key.startswith(prefix) and key >= first)
        position = 0
        for key, value in self._base.scan(prefix, start):
            while position < len(staged) and staged[position] < key:
                yield from self._staged(staged[position])
                position += 1
            if position < len(staged) and staged[position] == key:
                yield from self._staged(key)
                position += 1
            else:
                yield key, value
        for key in staged[position:]:
            yield from self._staged(key)

    def page(self, prefix: bytes, start: bytes, at_most: int) -> list[tuple[bytes, bytes]]:
        return list(islice(self.scan(prefix, start), at_most))

    def _staged(self, key: bytes) -> Iterator[tuple[bytes, bytes]]:
        value = self._changes[key]
        if value is not None:
            yield key, value

    def put(self, key: bytes, value: bytes) -> None:
        self._changes[key] = value

    def delete(self, key: bytes) -> None:
        self._changes[key] = None

    @property
    def changed(self) -> bool:
        return bool(self._changes)

    def batch(self) -> Batch:
        return Batch(self._changes, self._guards if self._changes else {})
