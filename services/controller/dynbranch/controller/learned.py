"""What load-priced admission has learned and what tenants' fills have used, kept in a file, so that a
controller that starts again need not begin anew. Reading and writing happen beside the event loop, and a file
is replaced whole or not at all."""

from __future__ import annotations

import asyncio
import json
import logging
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NoReturn

from dynbranch.controller.core.branches.budgets import Ledger
from dynbranch.controller.core.pricing.gate import Gate
from dynbranch.controller.core.pricing.snapshot import BadSnapshot, snapshot_of, take_up
from dynbranch.runtime.clock import Clock

_log = logging.getLogger(__name__)

EVERY_S = 30.0
MAX_BYTES = 64 * 2**20
"""Far beyond what the bounds of admission allow: whatever is larger is no snapshot."""


class Learned:
    """``gate`` and ``ledger`` make what has learned and spent nothing: at first, and again where a file can
    not be taken up. Under the same names it holds those to work with from then on."""

    def __init__(
        self,
        path: Path,
        clock: Clock,
        *,
        gate: Callable[[], Gate] = Gate,
        ledger: Callable[[], Ledger] = Ledger,
    ) -> None:
        self._path = path
        self._clock = clock
        self._fresh_gate, self._fresh_ledger = gate, ledger
        self._writes = 0
        self.gate, self.ledger = gate(), ledger()

    async def take_up(self) -> None:
        """What stands in the file. What can not be read is set aside, and said."""
        try:
            self._take_up(json.loads(await asyncio.to_thread(_read, self._path)))
        except FileNotFoundError:
            return
        except (OSError, ValueError, RecursionError) as problem:
            # BadSnapshot is a ValueError, as is what is no JSON.
            why = problem if isinstance(problem, BadSnapshot) else f"it can not be read: {problem}"
            _log.error("admission begins anew, %s is set aside: %s", self._path, why)
            await asyncio.to_thread(_set_aside, self._path)
            self.gate, self.ledger = self._fresh_gate(), self._fresh_ledger()

    def _take_up(self, document: object) -> None:
        take_up(self.gate, document)
        assert isinstance(document, Mapping)
        spent: Mapping[str, Any] = document.get("spent", {})
        try:
            # The clock of a host may have been put back.
            age_s = max(0.0, (self._clock.unix_ms() - int(spent.get("unix_ms", 0))) / 1000)
            self.ledger.take_up(spent.get("engine_s", ()), age_s, self._clock.now())
        except (AttributeError, TypeError, ValueError) as problem:
            raise BadSnapshot(f"it is damaged: {type(problem).__name__} {problem}") from None

    async def keep(self) -> NoReturn:
        while True:
            await self._clock.sleep(EVERY_S)
            await self.write()

    async def write(self) -> None:
        """Admission goes on without it: what can not be written is said."""
        self._writes += 1
        # One that was cancelled may still be at work on the other.
        draft = self._path.with_name(f"{self._path.name}.draft{self._writes % 2}")
        try:
            await asyncio.to_thread(_write, self._path, draft, self._document())
        except OSError as problem:
            _log.warning("what admission has learned could not be written: %s", problem)

    def _document(self) -> dict[str, Any]:
        spent = {"unix_ms": self._clock.unix_ms(), "engine_s": self.ledger.rows(self._clock.now())}
        return {**snapshot_of(self.gate), "spent": spent}


def _read(path: Path) -> str:
    if path.stat().st_size > MAX_BYTES:
        raise ValueError(f"larger than {MAX_BYTES} bytes")
    return path.read_text()


def _write(path: Path, draft: Path, snapshot: object) -> None:
    draft.parent.mkdir(parents=True, exist_ok=True)
    with draft.open("w") as file:
        json.dump(snapshot, file, separators=(",", ":"))
        file.flush()
        os.fsync(file.fileno())
    draft.replace(path)


def _set_aside(path: Path) -> None:
    try:
        path.replace(path.with_name(path.name + ".unreadable"))
    except OSError as problem:
        _log.warning("%s stays: %s", path, problem)
