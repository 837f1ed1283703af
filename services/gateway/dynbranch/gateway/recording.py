"""Records requests of chosen workflow types with their answers, for templates to be checked or learned.

One JSON object a line, in the order of arrival: what ``dynbranch template`` reads. Off unless asked for: the
file holds whole prompts and answers.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dynbranch.domain.reuse import Identity, ReadScope
from dynbranch.domain.template import Output, StageKind
from dynbranch.runtime.clock import Clock

_log = logging.getLogger(__name__)

MAX_OPEN = 1024
"""Requests that wait for an earlier one's answer; beyond it the earliest is written without."""

MAX_UNWRITTEN_BYTES = 32 * 2**20
_GATHER_S = 0.1


@dataclass(slots=True)
class Recorded:
    """One request on its way to the file."""

    line: dict[str, Any]
    size: int
    is_over: bool = False


class Recorder:
    """``note`` at the arrival, ``end`` with the answer. ``run`` writes; neither of the others waits."""

    def __init__(self, path: Path, workflow_types: frozenset[str], clock: Clock) -> None:
        self._path = path
        self._types = workflow_types
        self._clock = clock
        self._began_s = clock.now()
        self._open: deque[Recorded] = deque()
        self._lines: list[str] = []
        self._unwritten_bytes = 0
        self._some = asyncio.Event()
        self.dropped = 0

    def wants(self, identity: Identity) -> bool:
        return identity.workflow_type_id in self._types and bool(identity.workflow_id)

    def note(
        self, identity: Identity, kind: StageKind, target: str, body: bytes, scope: ReadScope
    ) -> Recorded:
        line: dict[str, Any] = {
            "workflow_type": identity.workflow_type_id,
            "workflow_id": identity.workflow_id,
            "agent_id": identity.agent_id,
            "stage": identity.stage,
            "kind": kind.value,
            "target": target,
            "body": body.decode("utf-8", "replace"),
            "at_ms": self._since_ms(),
        }
        if kind is StageKind.CHAT:
            line["reads"] = [read.record for read in scope.declared]
        recorded = Recorded(line, len(body))
        self._open.append(recorded)
        if len(self._open) > MAX_OPEN:
            self._open[0].is_over = True
            self._write_finished()
        return recorded

    def end(self, recorded: Recorded, output: Output | None, outcome: str) -> None:
        if recorded.is_over:
            return
        if output is not None:
            recorded.line["output"] = {
                "text": output.text,
                "calls": [{"name": call.name, "arguments": call.arguments} for call in output.calls],
                "reasoning": output.reasoning,
                "finish": output.finish,
            }
            recorded.size += len(output.text)
        recorded.line["done_ms"] = self._since_ms()
        recorded.line["outcome"] = outcome
        recorded.is_over = True
        self._write_finished()

    def _since_ms(self) -> float:
        return round((self._clock.now() - self._began_s) * 1000, 3)

    def _write_finished(self) -> None:
        """Those that no earlier one keeps waiting."""
        while self._open and self._open[0].is_over:
            recorded = self._open.popleft()
            if self._unwritten_bytes + recorded.size > MAX_UNWRITTEN_BYTES:
                self.dropped += 1
                continue
            self._unwritten_bytes += recorded.size
            self._lines.append(json.dumps(recorded.line, ensure_ascii=False) + "\n")
            self._some.set()

    async def run(self) -> None:
        """Runs for ever."""
        while True:
            await self._some.wait()
            await self._clock.sleep(_GATHER_S)
            await self.flush()

    async def flush(self) -> None:
        """Write what is finished."""
        lines, self._lines, self._unwritten_bytes = self._lines, [], 0
        self._some.clear()
        if lines:
            await asyncio.to_thread(_append, self._path, lines, self._failed)

    def _failed(self, count: int, problem: OSError) -> None:
        self.dropped += count
        _log.error("%d requests could not be recorded in %s: %s", count, self._path, problem)


def _append(path: Path, lines: list[str], failed: Callable[[int, OSError], None]) -> None:
    """Nobody but the owner may read what harnesses were told."""
    try:
        with os.fdopen(
            os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), "a", encoding="utf-8"
        ) as file:
            file.writelines(lines)
    except OSError as problem:
        failed(len(lines), problem)
