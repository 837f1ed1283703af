"""Which member of a pool a request goes to: the one that holds its prompt's beginning, unless it is too busy.

**The rule.** An engine is *open* while ``in_flight + 1 <= SPREAD x mean + slack``: ``mean`` is over the
members, with this request counted, and ``slack`` a share of the engine's slots, a smaller one where requests
wait for room already (consistent hashing with bounded loads: Mirrokni, Thorup, Zadimoghaddam, SODA 2018,
where the load bound is ``c x mean``). Of the open engines those are preferred that hold the longest beginning
of the prompt, if that is worth it; a beginning that nobody holds is new. Of equally good ones, those within a
tighter bound of the same form, where a new prompt does not make a busy engine busier; of these, the one that
had to read least new text lately, so that no cache is turned over faster than another; and of several such
the highest in rendezvous order of the prompt's family (or of its opening, where the family is held already),
which every gateway finds without asking others.

A conversation that is under way goes where its last turn went, through whichever gateway: agents tell every
gateway of the prompts that they were sent, by two short digests each.

What an engine holds is an estimate: what was sent there, least recently used first out, as much as the engine
has room for. Being wrong costs one prefill.
"""

from __future__ import annotations

import hashlib
import math
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Final, TypeVar

from dynbranch.gateway.core.prompt_prefix import NO_PREFIX, PromptPrefix, read_hint

SPREAD = 1.25
"""The ``c`` of the bound: a quarter above the mean. Mirrokni et al. show a constant cost of moves for it."""

SLACK_SHARE = 1 / 8
"""Of an engine's slots. Few requests at once disturb one another less than a lost prefix costs."""

CALM_SHARE = 1 / 128
"""The slack of the tighter bound."""

WORTH_SHARE = 0.1
"""A held beginning counts from this share of the prompt on: to read less again is cheaper than to crowd all
prompts that share a first line onto one engine."""


MAX_CONVERSATIONS = 65_536
MAX_FAMILIES = 16_384

_NOWHERE: Final[frozenset[str]] = frozenset()
Kept = TypeVar("Kept")


class RoutingPolicy(Enum):
    PREFIX = "prefix"
    LEAST_IN_FLIGHT = "least_in_flight"


WAITING_SHARE = 1 / 8
"""What is left of the slack of an engine on which requests wait: its slots are not what limits it."""

LATELY_SHARE = 1 / 4
"""Of all engines' room: when so much new text was read, what was read before counts e times less."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """``in_flight`` fuses own counts and reports. ``waiting``: requests wait there for room. ``mute``: it
    owes an answer and says nothing."""

    address: str
    in_flight: int
    slots: int = 0
    waiting: bool = False
    mute: bool = False

    @property
    def room(self) -> float:
        """Slots, as far as they say how many requests more do no harm."""
        return self.slots * WAITING_SHARE if self.waiting else self.slots


@dataclass(slots=True)
class Holdings:
    """The beginnings that one engine is taken to hold. Every kept block is more recent than what builds on
    it, so that what goes first is the end of a prompt."""

    room: int
    blocks: OrderedDict[int, None] = field(default_factory=OrderedDict)
    read: float = 0.0
    """Blocks that were new when they came, those of lately."""

    def held(self, prefix: Sequence[int]) -> int:
        """How many leading blocks."""
        low, high = 0, len(prefix)
        while low < high:
            middle = (low + high) // 2
            if prefix[middle] in self.blocks:
                low = middle + 1
            else:
                high = middle
        return low

    def add(self, prefix: Sequence[int]) -> None:
        blocks = self.blocks
        for block in reversed(prefix):
            blocks[block] = None
            blocks.move_to_end(block)
        while len(blocks) > self.room:
            blocks.popitem(last=False)


@dataclass(slots=True)
class Whereabouts:
    """Where other gateways sent prompts lately: a conversation's last engine, and all of a family. Of what
    this gateway sent itself it knows more (``Holdings``). The least recently noted go first."""

    max_conversations: int = MAX_CONVERSATIONS
    max_families: int = MAX_FAMILIES
    own: OrderedDict[bytes, str] = field(default_factory=OrderedDict)
    conversations: OrderedDict[bytes, str] = field(default_factory=OrderedDict)
    families: OrderedDict[bytes, frozenset[str]] = field(default_factory=OrderedDict)

    def of_conversation(self, opening: bytes) -> str | None:
        return self.conversations.get(opening)

    def of_family(self, family: bytes) -> frozenset[str]:
        return self.families.get(family, _NOWHERE)

    def sent(self, address: str, opening: bytes) -> None:
        _put(self.own, opening, address, self.max_conversations)
        self.conversations.pop(opening, None)

    def heard(self, address: str, family: bytes, opening: bytes) -> None:
        """Own prompts are heard of, too: their news is old."""
        if self.own.get(opening) == address:
            return
        _put(self.conversations, opening, address, self.max_conversations)
        _put(self.families, family, self.of_family(family) | {address}, self.max_families)

    def forget(self, address: str) -> None:
        for opening in [key for key, at in self.conversations.items() if at == address]:
            del self.conversations[opening]
        for family, places in list(self.families.items()):
            if address in places:
                self.families[family] = places - {address}


def _put(kept: OrderedDict[bytes, Kept], key: bytes, value: Kept, room: int) -> None:
    kept[key] = value
    kept.move_to_end(key)
    if len(kept) > room:
        kept.popitem(last=False)


class Router:
    """``room_blocks`` is what one engine holds."""

    def __init__(self, policy: RoutingPolicy = RoutingPolicy.PREFIX, *, room_blocks: int) -> None:
        self._policy = policy
        self._room = room_blocks
        self._holdings: dict[str, Holdings] = {}
        self._whereabouts = Whereabouts()

    def choose(self, candidates: Iterable[Candidate], prefix: PromptPrefix = NO_PREFIX) -> str | None:
        """None without candidates."""
        everyone = list(candidates)
        if len(everyone) < 2:
            return everyone[0].address if everyone else None
        if self._policy is RoutingPolicy.LEAST_IN_FLIGHT:
            return min(everyone, key=lambda c: (c.mute, c.in_flight, c.address)).address
        able = open_ones(everyone)
        held = {c.address: self._held(c.address, prefix) for c in able}
        home = self._whereabouts.of_conversation(prefix.opening)
        if home in held:
            return home
        most = max(held.values())
        known = most > 0 and most >= WORTH_SHARE * len(prefix.blocks)
        if known:
            best = [c for c in able if held[c.address] == most]
        else:
            told = self._whereabouts.of_family(prefix.family)
            best = [c for c in able if c.address in told] or able
        key = prefix.opening if known else prefix.family
        best = _calm(best)
        least = min(self._read(c.address) for c in best)
        best = [c for c in best if self._read(c.address) == least]
        return max(best, key=lambda c: _rank(key, c.address)).address

    def sent(self, address: str, prefix: PromptPrefix) -> None:
        """The engine reads the prompt now."""
        if self._policy is not RoutingPolicy.PREFIX:
            return
        if prefix.opening:
            self._whereabouts.sent(address, prefix.opening)
        if prefix.blocks:
            self._read_now(self._holdings.setdefault(address, Holdings(self._room)), prefix.blocks)

    def heard(self, address: str, hints: Iterable[bytes]) -> None:
        """Some gateway, maybe this one, sent prompts there."""
        for hint in hints:
            if (keys := read_hint(hint)) is not None:
                self._whereabouts.heard(address, *keys)

    def forget(self, address: str) -> None:
        """The engine started anew, or may have."""
        self._holdings.pop(address, None)
        self._whereabouts.forget(address)

    def _read_now(self, holdings: Holdings, blocks: Sequence[int]) -> None:
        new = len(blocks) - holdings.held(blocks)
        left = math.exp(-new / (LATELY_SHARE * self._room * len(self._holdings)))
        for each in self._holdings.values():
            each.read *= left
        holdings.read += new
        holdings.add(blocks)

    def _read(self, address: str) -> float:
        holdings = self._holdings.get(address)
        return holdings.read if holdings is not None else 0.0

    def _held(self, address: str, prefix: PromptPrefix) -> int:
        holdings = self._holdings.get(address)
        return holdings.held(prefix.blocks) if holdings is not None else 0


def bound(candidate: Candidate, mean: float) -> float:
    """The most in flight there, a new request included."""
    return SPREAD * mean + max(1.0, candidate.room * SLACK_SHARE)


def open_ones(everyone: Sequence[Candidate]) -> list[Candidate]:
    """Those that may take one more; never none: where no engine speaks, one is as good as another."""
    speaking = [c for c in everyone if not c.mute] or list(everyone)
    mean = (sum(c.in_flight for c in speaking) + 1) / len(speaking)
    return [c for c in speaking if c.in_flight + 1 <= bound(c, mean)]


def _calm(candidates: list[Candidate]) -> list[Candidate]:
    """Those within the tighter bound: never none."""
    mean = sum(c.in_flight for c in candidates) / len(candidates)
    return [c for c in candidates if c.in_flight <= SPREAD * mean + c.room * CALM_SHARE]


def _rank(key: bytes, address: str) -> bytes:
    """Rendezvous hashing: the order of the engines that belongs to this key."""
    return hashlib.blake2b(address.encode(), key=key, digest_size=8).digest()
