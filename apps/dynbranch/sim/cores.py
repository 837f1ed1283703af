"""The classes that a world is made of. A test replaces one by a broken subclass, to see that it is found."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from dynbranch.csl.core.founding import open_store as production_open_store
from dynbranch.csl.core.library import Library
from dynbranch.csl.core.store import Batch, View
from dynbranch.engine_agent.core.registry import Registry
from dynbranch.gateway.core.life import RequestLife


@dataclass(frozen=True, slots=True)
class Cores:
    library: type[Library] = Library
    registry: type[Registry] = Registry
    life: type[RequestLife] = RequestLife
    open_store: Callable[[View], Batch] = production_open_store
