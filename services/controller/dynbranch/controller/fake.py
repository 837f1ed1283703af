"""The controller in memory, for whoever reports to one. It passes the contract tests of the real one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator

from dynbranch.clients.ports import Unreachable
from dynbranch.controller.core.journal import Journal
from dynbranch.domain.branches import BranchSummary, TemplateSet, TemplateSource
from dynbranch.domain.errors import NotFound
from dynbranch.domain.events import ControllerSummary, EventBatch
from dynbranch.domain.ids import BranchId
from dynbranch.runtime.clock import Clock, ManualClock
from dynbranch.wire import controller as wire


class FakeController:
    """Implements ``ports.Controller`` and ``ports.Branches``. Set ``reachable`` to False to play a controller
    that is gone; its branches and templates are what a test says they are."""

    def __init__(self, clock: Clock | None = None) -> None:
        self._clock = clock or ManualClock()
        self._journal = Journal()
        self.reachable = True
        self.batches: list[EventBatch] = []
        """Every batch that arrived, in order."""
        self.branches: dict[BranchId, tuple[BranchSummary, str]] = {}
        """Each with its view as JSON, oldest first."""
        self._templates = TemplateSet(0)
        self._changed = asyncio.Event()

    async def report_events(self, batch: EventBatch, *, timeout_s: float) -> int:
        self._reach()
        # Through the codec, so that the twin refuses what the wire would.
        batch = wire.batch_in(wire.batch_out(batch))
        self.batches.append(batch)
        return len(self._journal.handle(batch, self._clock.now()).fresh)

    async def summary(self, *, timeout_s: float) -> ControllerSummary:
        self._reach()
        return self._journal.summary()

    def put_templates(self, *templates: TemplateSource) -> None:
        self._templates = TemplateSet(self._templates.revision + 1, templates)
        self._wake()

    def lose(self) -> None:
        """Calls and watchers raise Unreachable from now on."""
        self.reachable = False
        self._wake()

    async def watch_templates(self) -> AsyncGenerator[TemplateSet]:
        while True:
            self._reach()
            changed = self._changed
            yield self._templates
            await changed.wait()

    async def inspect_branch(self, branch: BranchId, *, timeout_s: float) -> str:
        self._reach()
        if branch not in self.branches:
            raise NotFound("unknown_branch", f"no branch {branch.hex()} is known")
        return self.branches[branch][1]

    async def list_branches(
        self, *, workflow_id: str, at_most: int, timeout_s: float
    ) -> tuple[BranchSummary, ...]:
        self._reach()
        newest_first = (summary for summary, _ in reversed(self.branches.values()))
        found = [one for one in newest_first if not workflow_id or one.workflow_id == workflow_id]
        return tuple(found[:at_most])

    async def close(self) -> None:
        self.reachable = False

    def _wake(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    def _reach(self) -> None:
        if not self.reachable:
            raise Unreachable("the controller is gone")
