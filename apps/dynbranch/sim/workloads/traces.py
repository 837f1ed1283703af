"""Recorded traces of two services: gaps and lengths as they were, for workflows of one request each, or the
gaps alone for other workloads."""

from __future__ import annotations

from typing import Final

from dynbranch.enginemodel.messages import Block
from dynbranch.records.loading import Record, Records
from dynbranch.sim.fleet.workflows import Call, Step, Turn
from dynbranch.sim.workloads import shapes
from dynbranch.sim.workloads.sizes import BLOCK_TOKENS
from dynbranch.sim.workloads.stories import Making, Story

TRACES: Final = {
    "azure-code": "az_code",
    "azure-conversation": "az_conv",
    "mooncake-conversation": "mc_conv",
    "mooncake-synthetic": "mc_synt",
}
TRACE_BLOCK_TOKENS: Final = 512
"""Of Mooncake's traces."""


def requests(records: Records, name: str) -> list[Record]:
    """Raises ValueError."""
    if name not in TRACES:
        raise ValueError(f"there is no trace {name!r}; there are {', '.join(TRACES)}")
    found = [record for record in records.arrivals if record["k"] == TRACES[name]]
    if not found:
        raise ValueError(f"the records hold no trace {name}")
    return found


class TraceWriter:
    """``name`` is the trace's. Of requests that are longer than an engine takes the beginning is left out."""

    def __init__(self, making: Making, name: str) -> None:
        self.making = making
        self.template = shapes.plain(name)
        self._prefixes: dict[int, tuple[Block, ...]] = {}
        self._requests = requests(making.records, name)
        self._longest = making.numbers["commands.longest_prompt_tokens"]

    def write(self, number: int, lent: Story | None = None) -> Story:
        place = number % len(self._requests)
        record = self._requests[place]
        prompt_tokens = max(1, min(record["i"], self._longest))
        blocks = self._blocks(place, record, number) if self.making.prefixes.kept else ()
        call = Call(
            shapes.STEP, f"step {self.making.own(number)}", prompt_tokens, max(1, record["o"]), blocks
        )
        return Story((Turn((Step(call),)),))

    def again(self, number: int, story: Story) -> Story:
        return story

    def _blocks(self, place: int, record: Record, number: int) -> tuple[Block, ...]:
        """Mooncake tells how many leading blocks which earlier request had."""
        if "nb" not in record:
            return ()
        if not place:
            self._prefixes.clear()
        fine = TRACE_BLOCK_TOKENS // BLOCK_TOKENS
        most = self._longest // BLOCK_TOKENS
        shared: tuple[Block, ...] = ()
        if record.get("par") is not None:
            shared = self._prefixes.get(record["par"], ())[: record["hb"] * fine]
        count = min(record["nb"] * fine, most)
        own = range(number * 4096, number * 4096 + max(0, count - len(shared)))
        blocks = (*shared[:count], *own)
        self._prefixes[place] = blocks
        return blocks
