"""Which of a reporter's numbered events are new, which came twice and which never came."""

from __future__ import annotations

from dataclasses import dataclass

MAX_GAPS = 64
"""Per reporter. Beyond it the oldest gap is closed for good: what comes that late passes for a duplicate."""


@dataclass(frozen=True, slots=True)
class Gap:
    """The numbers from ``start`` up to ``end`` (excluded) have not come.

    ``lost`` is False for what a reporter sent before it was first heard of: another controller counted that.
    """

    start: int
    end: int
    lost: bool

    def without(self, number: int) -> list[Gap]:
        parts = (Gap(self.start, number, self.lost), Gap(number + 1, self.end, self.lost))
        return [part for part in parts if part.start < part.end]


class Numbering:
    """The numbers of one reporter, in little memory: the next one expected, and the gaps before it."""

    def __init__(self, first: int) -> None:
        self._next = first
        self._gaps = [Gap(0, first, lost=False)] if first else []
        self.lost = 0
        """How many numbers are missing now. A late arrival takes its number out again."""

    def claim(self, number: int) -> bool:
        """Whether ``number`` comes for the first time. From then on it has come."""
        if number >= self._next:
            if number > self._next:
                self._open(Gap(self._next, number, lost=True))
            self._next = number + 1
            return True
        for index, gap in enumerate(self._gaps):
            if gap.start <= number < gap.end:
                self._gaps[index : index + 1] = gap.without(number)
                self.lost -= gap.lost
                self._forget_old_gaps()
                return True
        return False

    def validate_state(self) -> None:
        assert len(self._gaps) <= MAX_GAPS
        assert self.lost >= sum(gap.end - gap.start for gap in self._gaps if gap.lost)
        edges = [edge for gap in self._gaps for edge in (gap.start, gap.end)]
        assert edges == sorted(edges)
        assert all(gap.start < gap.end <= self._next for gap in self._gaps)

    def _open(self, gap: Gap) -> None:
        self._gaps.append(gap)
        self.lost += gap.end - gap.start
        self._forget_old_gaps()

    def _forget_old_gaps(self) -> None:
        del self._gaps[: max(0, len(self._gaps) - MAX_GAPS)]
