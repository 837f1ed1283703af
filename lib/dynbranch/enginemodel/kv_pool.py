"""The KV pool: what running requests hold, and the blocks that are kept for whoever has the same prefix."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field

from dynbranch.enginemodel.messages import Block


@dataclass(slots=True)
class Holding:
    """What one request holds: ``shared`` blocks that others may use too, and tokens of its own."""

    shared: list[Block] = field(default_factory=list)
    private_tokens: int = 0


class KvPool:
    """``held_tokens`` never exceeds the capacity; unreferenced blocks fill the rest and go in LRU order, the
    end of a prefix before its beginning."""

    def __init__(self, capacity_tokens: int, block_tokens: int) -> None:
        self.capacity_tokens = capacity_tokens
        self.block_tokens = block_tokens
        self.held_tokens = 0
        self._references: dict[Block, int] = {}
        # A plain dict looks for its first key from its beginning, past all that were deleted there.
        self._idle: OrderedDict[Block, None] = OrderedDict()

    @property
    def free_tokens(self) -> int:
        return self.capacity_tokens - self.held_tokens

    @property
    def idle_blocks(self) -> int:
        return len(self._idle)

    def cached_blocks(self, blocks: Sequence[Block], prompt_tokens: int) -> int:
        """How many leading blocks are there. The last token of a prompt is always computed."""
        if not self.block_tokens:
            return 0
        limit = min(len(blocks), (prompt_tokens - 1) // self.block_tokens)
        references, idle = self._references, self._idle
        for number in range(limit):
            block = blocks[number]
            if block not in references and block not in idle:
                return number
        return limit

    def needed_tokens(self, blocks: Sequence[Block], hits: int, prompt_tokens: int) -> int:
        """What holding this prompt adds to ``held_tokens``."""
        references = self._references
        woken = sum(block not in references for block in blocks[:hits])
        return prompt_tokens - (hits - woken) * self.block_tokens

    def hold(self, blocks: Sequence[Block], hits: int, prompt_tokens: int) -> Holding:
        """The caller has looked whether it fits."""
        references = self._references
        for block in blocks[:hits]:
            count = references.get(block, 0)
            if not count:
                del self._idle[block]
                self.held_tokens += self.block_tokens
            references[block] = count + 1
        private_tokens = prompt_tokens - hits * self.block_tokens
        self.held_tokens += private_tokens
        self.trim()
        return Holding(list(blocks[:hits]), private_tokens)

    def grow(self, holding: Holding, tokens: int) -> None:
        holding.private_tokens += tokens
        self.held_tokens += tokens
        self.trim()

    def publish(self, holding: Holding, blocks: Sequence[Block], first: int, last: int) -> None:
        """The blocks [first, last) are computed: others may use them. A block that somebody else computed at
        the same time stays private."""
        if not self.block_tokens:
            return
        references, idle = self._references, self._idle
        computed = [block for block in blocks[first:last] if block not in references and block not in idle]
        references.update(dict.fromkeys(computed, 1))
        holding.shared += computed
        holding.private_tokens -= self.block_tokens * len(computed)

    def release(self, holding: Holding) -> None:
        references, idle = self._references, self._idle
        freed = 0
        for block in reversed(holding.shared):
            count = references.pop(block)
            if count == 1:
                idle[block] = None
                freed += 1
            else:
                references[block] = count - 1
        self.held_tokens -= holding.private_tokens + freed * self.block_tokens
        holding.shared.clear()
        holding.private_tokens = 0
        self.trim()

    def trim(self) -> None:
        """Evicts until what is held and what is kept fit together."""
        if not self._idle:
            return
        excess = len(self._idle) - (self.capacity_tokens - self.held_tokens) // self.block_tokens
        for _ in range(min(excess, len(self._idle))):
            self._idle.popitem(last=False)

    def flush(self) -> None:
        """Forgets every block that nobody uses."""
        self._idle.clear()

    def validate_state(self, holdings: Sequence[Holding]) -> None:
        """Raises AssertionError."""
        shared = sum(len(holding.shared) for holding in holdings)
        private_tokens = sum(holding.private_tokens for holding in holdings)
        assert sum(self._references.values()) == shared, "references are not what is held"
        assert self.held_tokens == private_tokens + len(self._references) * self.block_tokens
        assert 0 <= self.held_tokens <= self.capacity_tokens, "more is held than there is"
        assert not self._references.keys() & self._idle.keys()
        assert self.held_tokens + len(self._idle) * self.block_tokens <= self.capacity_tokens
