"""What happened, for people: the tail of a failing run, or a whole short scenario."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

from dynbranch.sim.heap import EventHeap

Line = tuple[float, str, str, tuple[object, ...]]


class Trace:
    """Keeps the last ``most`` lines. Values are turned into text only when somebody reads them."""

    def __init__(self, heap: EventHeap, most: int = 400) -> None:
        self._heap = heap
        self._lines: deque[Line] = deque(maxlen=most)

    def note(self, node: str, what: str, *values: object) -> None:
        self._lines.append((self._heap.now, node, what, values))

    def lines(self) -> Iterator[str]:
        for at, node, what, values in self._lines:
            shown = " ".join(map(_shown, values))
            yield f"{at * 1000:10.3f} ms  {node:<10} {what} {shown}".rstrip()


def _shown(value: object) -> str:
    if isinstance(value, bytes):
        return value.hex()[-8:]
    text = str(value)
    return text if len(text) <= 160 else text[:157] + "..."
