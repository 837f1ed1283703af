"""What running fills hold of each engine: a slot and tokens of its KV cache, each given back exactly once."""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from enum import Enum

from dynbranch.controller.core.branches.admission import LoadView
from dynbranch.controller.core.branches.experience import EngineLoad
from dynbranch.controller.core.branches.messages import EngineSeen, StageKey

HELD_BLOCKS = 8192
"""Beginnings remembered per engine: about 2 MB of prompts."""

BLOCK_BYTES = 256


class Placement(Enum):
    """Which of the engines with room runs a fill. LEAST_LOADED suits engines that keep no prompts."""

    PREFIX = "prefix"
    LEAST_LOADED = "least_loaded"


@dataclass(frozen=True, slots=True)
class Quota:
    """What this controller's fills may take of one engine, beside the agent's own limit. Zero: no bound."""

    slots: int = 0
    tokens: int = 0
    placement: Placement = Placement.PREFIX


@dataclass(frozen=True, slots=True)
class Held:
    engine: str
    tokens: int


@dataclass(slots=True)
class _Engine:
    seen: EngineSeen | None = None
    reserved: int = 0
    tokens: int = 0
    load_made: EngineLoad | None = None
    """What was made of all this, until it changes."""
    blocks: OrderedDict[bytes, None] = field(default_factory=OrderedDict)


class Reservations:
    """Engines by address. One that is gone keeps what is reserved on it until each stage there has ended."""

    def __init__(self, quota: Quota | None = None) -> None:
        self._quota = quota or Quota()
        self._engines: dict[str, _Engine] = {}
        self._present: set[str] = set()
        self._order: list[str] = []
        self._held: dict[StageKey, Held] = {}

    def __len__(self) -> int:
        return len(self._held)

    # -- the engines ---------------------------------------------------------------------------------------

    def see(self, seen: EngineSeen) -> None:
        engine = self._engines.get(seen.address)
        if engine is None:
            engine = self._engines[seen.address] = _Engine()
        engine.seen, engine.load_made = seen, None
        if seen.address not in self._present:
            self._present.add(seen.address)
            self._order = sorted(self._present)

    def lose(self, address: str) -> None:
        self._present.discard(address)
        self._order = sorted(self._present)
        engine = self._engines.get(address)
        if engine is not None:
            engine.blocks.clear()
            if not engine.reserved:
                del self._engines[address]

    def load(self, unplaced: int = 0) -> LoadView:
        return LoadView(tuple(map(self.load_of, self._order)), unplaced)

    def load_of(self, address: str) -> EngineLoad:
        engine = self._engines[address]
        if engine.load_made is None:
            engine.load_made = self._load_of(engine)
        return engine.load_made

    def _load_of(self, engine: _Engine) -> EngineLoad:
        seen = engine.seen
        assert seen is not None
        return EngineLoad(
            address=seen.address,
            slots=seen.slots,
            canonical=max(0, seen.running - seen.fills),
            waiting=seen.waiting,
            fills=seen.fills,
            reserved=engine.reserved,
            serves_models=seen.serves_models,
            fill_slots=self._fill_slots(engine),
            kv_tokens=engine.tokens,
            kv_budget=self._fill_tokens(engine) or 0,
        )

    def keys_at(self, address: str) -> list[StageKey]:
        return [key for key, held in self._held.items() if held.engine == address]

    # -- taking and giving back ----------------------------------------------------------------------------

    def place(
        self, key: StageKey, members: Collection[str], body: bytes, tokens: int, priced_at: str = ""
    ) -> str | None:
        """Reserve on the least loaded, under PREFIX of the engines that hold the longest beginning of the
        prompt. One that has no free slot yields to the one at which the fill was priced. None: no member has
        room for one more fill."""
        assert key not in self._held, "a stage holds one reservation at a time"
        able = [a for a in members if a in self._present and self._has_room(self._engines[a], tokens)]
        if not able:
            return None
        blocks = prefix_blocks(body) if self._quota.placement is Placement.PREFIX else ()
        if blocks:
            held = {address: self._holds(address, blocks) for address in able}
            most = max(held.values())
            best = [address for address in able if held[address] == most]
        else:
            best = able
        burdens = {address: self._burden(address) for address in best}
        least = min(burdens.values())
        # Gateways send what is demanded to the first of equals: the last is farthest from it.
        engine = max(address for address in best if burdens[address] == least)
        if not least[1] and priced_at in able:
            engine = priced_at
        self._take(key, engine, tokens, blocks)
        return engine

    def release(self, key: StageKey) -> Held | None:
        """None: it holds nothing, or nothing any more."""
        held = self._held.pop(key, None)
        if held is None:
            return None
        engine = self._engines[held.engine]
        engine.reserved -= 1
        engine.tokens -= held.tokens
        engine.load_made = None
        if not engine.reserved and held.engine not in self._present:
            del self._engines[held.engine]
        return held

    def holds(self, key: StageKey) -> bool:
        return key in self._held

    def validate_state(self) -> None:
        for address, engine in self._engines.items():
            there = [held for held in self._held.values() if held.engine == address]
            assert engine.reserved == len(there)
            assert engine.tokens == sum(held.tokens for held in there)
            assert len(engine.blocks) <= HELD_BLOCKS
        assert all(held.engine in self._engines for held in self._held.values())
        assert self._present <= set(self._engines) and self._order == sorted(self._present)
        made = [engine for engine in self._engines.values() if engine.load_made is not None]
        assert all(engine.load_made == self._load_of(engine) for engine in made)

    def _has_room(self, engine: _Engine, tokens: int) -> bool:
        most = self._fill_tokens(engine)
        within = most is None or engine.tokens + tokens <= most
        return within and engine.reserved < self._fill_slots(engine)

    def _fill_slots(self, engine: _Engine) -> int:
        """This controller's quota or the agent's own limit, whichever is narrower."""
        assert engine.seen is not None
        slots = engine.seen.fill_slots or max(1, engine.seen.slots // 2)
        return min(slots, self._quota.slots) if self._quota.slots else slots

    def _fill_tokens(self, engine: _Engine) -> int | None:
        """None: there is no bound."""
        assert engine.seen is not None
        own, told = self._quota.tokens, engine.seen.fill_tokens
        if not own:
            return told
        return own if told is None else min(own, told)

    def _burden(self, address: str) -> tuple[int, int]:
        """The queue first, then how little is free."""
        load = self.load_of(address)
        return load.waiting, -load.free

    def _holds(self, address: str, blocks: Sequence[bytes]) -> int:
        known = self._engines[address].blocks
        count = 0
        for block in blocks:
            if block not in known:
                break
            count += 1
        return count

    def _take(self, key: StageKey, address: str, tokens: int, blocks: Sequence[bytes]) -> None:
        engine = self._engines[address]
        engine.reserved += 1
        engine.tokens += tokens
        engine.load_made = None
        self._held[key] = Held(address, tokens)
        for block in blocks:
            engine.blocks[block] = None
            engine.blocks.move_to_end(block)
        while len(engine.blocks) > HELD_BLOCKS:
            engine.blocks.popitem(last=False)


def prefix_blocks(body: bytes) -> tuple[bytes, ...]:
    """Chained digests of the body's whole blocks: equal ones begin alike. Bodies of one stage spell what
    stands before the messages alike, so that their beginnings are the prompts' too."""
    blocks, chain = [], b""
    for end in range(BLOCK_BYTES, len(body) + 1, BLOCK_BYTES):
        chain = hashlib.blake2b(body[end - BLOCK_BYTES : end], key=chain, digest_size=16).digest()
        blocks.append(chain)
    return tuple(blocks)
