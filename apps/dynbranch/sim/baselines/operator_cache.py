"""An exact cache of operators (Helium+): by what kind of operator it is and what it is given.

Least recently used goes; of two writers the first stays; nothing is ever invalidated. Where an operator
samples, it is not cached.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field

Signature = tuple[str, str]
"""Operator and materialised input."""


@dataclass(slots=True)
class OperatorCache:
    """``capacity`` in results."""

    capacity: int
    _results: OrderedDict[Signature, str] = field(default_factory=OrderedDict)

    def __len__(self) -> int:
        return len(self._results)

    def find(self, signature: Signature) -> str | None:
        value = self._results.get(signature)
        if value is not None:
            self._results.move_to_end(signature)
        return value

    def insert(self, signature: Signature, value: str) -> None:
        if not self.capacity:
            return
        if signature in self._results:
            self._results.move_to_end(signature)
            return
        self._results[signature] = value
        if len(self._results) > self.capacity:
            self._results.popitem(last=False)
