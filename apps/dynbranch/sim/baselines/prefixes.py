"""Which engine holds the beginning of a prompt, as far as who sends prompts there can know."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

from dynbranch.enginemodel.messages import Block
from dynbranch.enginemodel.parameters import Parameters


def blocks_of(parameters: Parameters) -> int:
    """How many an engine keeps."""
    return parameters.kv_pool_tokens // parameters.block_tokens if parameters.block_tokens else 0


class Prefixes:
    """By engine the blocks that were sent there, least recently sent out first; ``blocks`` fit each."""

    def __init__(self, engines: int, blocks: int) -> None:
        self._room = blocks
        self._held: list[OrderedDict[Block, None]] = [OrderedDict() for _ in range(engines)]

    def sent(self, engine: int, blocks: Sequence[Block]) -> None:
        held = self._held[engine]
        # The longest prefix is the least likely to be asked for again.
        for block in reversed(blocks):
            held[block] = None
            held.move_to_end(block)
        while len(held) > self._room:
            held.popitem(last=False)

    def longest(self, engine: int, blocks: Sequence[Block]) -> int:
        """How many blocks, from the first on, are there."""
        held = self._held[engine]
        for number, block in enumerate(blocks):
            if block not in held:
                return number
        return len(blocks)


@dataclass(frozen=True, slots=True)
class Worker:
    """``in_flight``: requests. ``held``: blocks of the prompt's beginning."""

    number: int
    in_flight: int
    held: int


def cache_aware(workers: Sequence[Worker], slack: int) -> int:
    """The longest shared prefix, among those with at most ``slack`` requests more than the least busy; of
    equally long ones the least busy."""
    least = min(worker.in_flight for worker in workers)
    near = [worker for worker in workers if worker.in_flight <= least + slack]
    return min(near, key=lambda worker: (-worker.held, worker.in_flight, worker.number)).number
