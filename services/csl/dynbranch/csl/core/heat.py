"""How recently and how often names are hit, in a few fixed megabytes whatever the number of entries.

Names are uniform digests, so their own bytes serve as hashes. Two names may share a cell; the effect is a
wrong eviction now and then, never a wrong result.
"""

from __future__ import annotations

from array import array

from dynbranch.domain.ids import Instant, Name

_ROWS = 3
_MAX_COUNT = 255


class Heat:
    """A count-min sketch of hits that halves itself every ``8 · 2^bits`` hits, and the second of the last
    hit.
    """

    def __init__(self, *, bits: int = 18) -> None:
        self._mask = (1 << bits) - 1
        self._counts = tuple(bytearray(1 << bits) for _ in range(_ROWS))
        self._seconds = array("I", bytes(4 << bits))
        self._until_halved = 8 << bits

    def touch(self, name: Name, now: Instant) -> None:
        cells = self._cells(name)
        self._seconds[cells[0]] = max(0, int(now)) & 0xFFFFFFFF
        for counts, cell in zip(self._counts, cells, strict=True):
            if counts[cell] < _MAX_COUNT:
                counts[cell] += 1
        self._until_halved -= 1
        if self._until_halved <= 0:
            self._halve()

    def frequency(self, name: Name) -> int:
        """Recent hits, never too few."""
        return min(counts[cell] for counts, cell in zip(self._counts, self._cells(name), strict=True))

    def idle_s(self, name: Name, now: Instant) -> float:
        """Seconds since the name was last touched."""
        return max(0.0, float(now) - self._seconds[self._cells(name)[0]])

    def _cells(self, name: Name) -> tuple[int, int, int]:
        number = int.from_bytes(name[:12], "big")
        mask = self._mask
        return number & mask, (number >> 32) & mask, (number >> 64) & mask

    def _halve(self) -> None:
        table = bytes(value >> 1 for value in range(256))
        for counts in self._counts:
            counts[:] = counts.translate(table)
        self._until_halved = 8 * (self._mask + 1)
