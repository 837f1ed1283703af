"""What load-priced admission has learned, kept in a file, so that a controller that starts again need not
begin anew. Reading and writing happen beside the event loop, and a file is replaced whole or not at all."""

from __future__ import annotations

import asyncio
import json
import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

from dynbranch.controller.core.pricing.gate import Gate
from dynbranch.controller.core.pricing.snapshot import BadSnapshot, snapshot_of, take_up
from dynbranch.runtime.clock import Clock

_log = logging.getLogger(__name__)

EVERY_S = 30.0
MAX_BYTES = 64 * 2**20
"""Far beyond what the bounds of admission allow: whatever is larger is no snapshot."""


class Learned:
    def __init__(self, path: Path, clock: Clock) -> None:
        self._path = path
        self._clock = clock
        self._writes = 0

    async def gate(self, fresh: Callable[[], Gate]) -> Gate:
        """With what stands in the file. What can not be read is set aside, and said."""
        gate = fresh()
        try:
            take_up(gate, json.loads(await asyncio.to_thread(_read, self._path)))
        except FileNotFoundError:
            return gate
        except (OSError, ValueError, RecursionError) as problem:
            # BadSnapshot is a ValueError, as is what is no JSON.
            why = problem if isinstance(problem, BadSnapshot) else f"it can not be read: {problem}"
            _log.error("admission begins anew, %s is set aside: %s", self._path, why)
            await asyncio.to_thread(_set_aside, self._path)
            return fresh()
        return gate

    async def keep(self, gate: Gate) -> NoReturn:
        while True:
            await self._clock.sleep(EVERY_S)
            await self.write(gate)

    async def write(self, gate: Gate) -> None:
        """Admission goes on without it: what can not be written is said."""
        self._writes += 1
        # One that was cancelled may still be at work on the other.
        draft = self._path.with_name(f"{self._path.name}.draft{self._writes % 2}")
        try:
            await asyncio.to_thread(_write, self._path, draft, snapshot_of(gate))
        except OSError as problem:
            _log.warning("what admission has learned could not be written: %s", problem)


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
