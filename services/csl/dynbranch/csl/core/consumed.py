"""What sampled demands were given, for a copy of the same demand."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field

from dynbranch.domain.ids import DemandId, Name
from dynbranch.domain.reuse import Demand, Hit, Live


@dataclass(slots=True)
class Consumed:
    """The longest known go first, down to the newest alone, which stays whatever its size."""

    max_count: int
    max_bytes: int
    held_bytes: int = 0
    _known: OrderedDict[tuple[DemandId, Name], Hit | Live] = field(default_factory=OrderedDict)

    def __len__(self) -> int:
        return len(self._known)

    def answer_to(self, demand: Demand) -> Hit | Live | None:
        return self._known.get((demand.demand_id, demand.name))

    def keep(self, demand: Demand, given: Hit | Live) -> None:
        self.forget(demand)
        self._known[demand.demand_id, demand.name] = given
        self.held_bytes += _bytes_of(given)
        while len(self._known) > self.max_count or (
            self.held_bytes > self.max_bytes and len(self._known) > 1
        ):
            _, oldest = self._known.popitem(last=False)
            self.held_bytes -= _bytes_of(oldest)

    def forget(self, demand: Demand) -> None:
        given = self._known.pop((demand.demand_id, demand.name), None)
        if given is not None:
            self.held_bytes -= _bytes_of(given)


def _bytes_of(given: Hit | Live) -> int:
    return len(given.payload) if isinstance(given, Hit) else 0
