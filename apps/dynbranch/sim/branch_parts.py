"""A core's states, each kept once: what an event makes of one is worked out once for all worlds that have it.

A world of several cores has as many states as their states have combinations, and each core alone has few.
"""

from __future__ import annotations

import copyreg
import io
import pickle
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Generic, TypeVar, cast

from dynbranch.controller.core.branches.book import BranchBook
from dynbranch.csl.core.library import Library
from dynbranch.csl.key_value import MemoryKeyValue
from dynbranch.domain.template import Template
from dynbranch.engine_agent.core.registry import Registry
from dynbranch.sim.branch_cast import Ids, Scenario, template_of
from dynbranch.sim.fingerprint import digest_of

Core = TypeVar("Core")
T = TypeVar("T")


@dataclass(slots=True)
class StoreSide:
    """The store's core and its rows. ``sliced``: what a write condemned is deleted in steps of their own;
    ``index`` is what it looks in for what it fells."""

    library: Library
    rows: MemoryKeyValue
    ids: Ids
    sliced: bool = False
    index: MemoryKeyValue | None = None


class Table(Generic[Core]):
    """Every state of one core that was met, by number: as bytes, so that nobody changes one."""

    def __init__(self, scenario: Scenario) -> None:
        self._scenario = scenario
        self._frozen: list[bytes] = []
        self._numbers: dict[bytes, int] = {}
        self.moves: dict[tuple[int, Hashable], tuple[int, Any]] = {}
        self.looks: dict[tuple[int, Hashable], Any] = {}

    def __len__(self) -> int:
        return len(self._frozen)

    def put(self, core: Core) -> int:
        mark = digest_of(core)
        number = self._numbers.get(mark)
        if number is None:
            number = self._numbers[mark] = len(self._frozen)
            self._frozen.append(self._freeze(core))
        return number

    def get(self, number: int) -> Core:
        """A core of its own for the caller."""
        return cast(Core, pickle.loads(self._frozen[number]))

    def _freeze(self, core: Core) -> bytes:
        out = io.BytesIO()
        pickler = pickle.Pickler(out, pickle.HIGHEST_PROTOCOL)
        pickler.dispatch_table = {
            **copyreg.dispatch_table,
            MappingProxyType: lambda mapping: (_read_only, (dict(mapping),)),
            Template: lambda _: (template_of, (self._scenario,)),
        }
        pickler.dump(core)
        return out.getvalue()


class Part(Generic[Core]):
    """One world's core: the number of its state. ``what`` tells apart everything that is done to a core or
    read of it; an act's result is shared, and nobody changes it."""

    __slots__ = ("_table", "number")

    def __init__(self, table: Table[Core], number: int) -> None:
        self._table = table
        self.number = number

    def copy(self) -> Part[Core]:
        return Part(self._table, self.number)

    def do(self, what: Hashable, act: Callable[[Core], T]) -> T:
        key = (self.number, what)
        known = self._table.moves.get(key)
        if known is None:
            core = self._table.get(self.number)
            result = act(core)
            known = self._table.moves[key] = (self._table.put(core), result)
        self.number = known[0]
        return cast(T, known[1])

    def look(self, what: Hashable, read: Callable[[Core], T]) -> T:
        """``read`` has a core of its own, and may try what it likes."""
        key = (self.number, what)
        looks = self._table.looks
        if key not in looks:
            looks[key] = read(self._table.get(self.number))
        return cast(T, looks[key])

    @property
    def core(self) -> Core:
        """A copy, to read in."""
        return self._table.get(self.number)


class Tables:
    """Of all worlds of one exploration."""

    def __init__(self, scenario: Scenario) -> None:
        self.books: Table[BranchBook] = Table(scenario)
        self.stores: Table[StoreSide] = Table(scenario)
        self.registries: Table[Registry] = Table(scenario)
        self.told: dict[int, tuple[object, bytes]] = {}
        """Messages that a state holds on to, by identity, each with its digest."""


def _read_only(mapping: dict[str, Any]) -> MappingProxyType[str, Any]:
    return MappingProxyType(mapping)
