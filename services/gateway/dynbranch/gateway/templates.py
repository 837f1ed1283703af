"""The templates in force, as the controller tells them. Without a controller there are none."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import aclosing

from dynbranch.clients.ports import Branches, Unreachable
from dynbranch.domain.branches import TemplateSet
from dynbranch.domain.errors import DomainError
from dynbranch.domain.ids import Instant
from dynbranch.gateway.telling import TemplateInForce
from dynbranch.rendering.reading import parse_template
from dynbranch.runtime.clock import Clock

_log = logging.getLogger(__name__)

_FIRST_BACK_OFF_S = 0.1
_LAST_BACK_OFF_S = 5.0
FORGET_S = 60.0
"""Nobody hears what is told of templates when the controller has been gone for so long."""


def read_template(workflow_type: str, text: str) -> TemplateInForce:
    """Raises whatever is wrong with it: DomainError, BadPath, ValueError."""
    return TemplateInForce(parse_template(text, workflow_type))


Read = Callable[[str, str], TemplateInForce]


class Templates:
    """``of`` is what requests ask; ``run`` keeps it up to date."""

    def __init__(self, branches: Branches, *, clock: Clock, read: Read = read_template) -> None:
        self._branches = branches
        self._clock = clock
        self._read = read
        self._in_force: dict[str, TemplateInForce] = {}
        self._texts: dict[str, str] = {}
        self._heard: Instant | None = None
        self.rejected = 0
        self.reached = False
        """The controller tells them now, and those that it told last were read."""

    def __len__(self) -> int:
        return len(self._in_force)

    def of(self, workflow_type: str) -> TemplateInForce | None:
        return self._in_force.get(workflow_type)

    async def run(self) -> None:
        """Runs for ever."""
        back_off_s = _FIRST_BACK_OFF_S
        while True:
            heard = self._heard
            try:
                async with aclosing(self._branches.watch_templates()) as told:
                    async for templates in told:
                        self._heard = self._clock.now()
                        await self._take(templates)
                        self.reached = True
            except (Unreachable, DomainError) as failure:
                if self._heard != heard:
                    _log.info("the controller tells no templates: %s", failure)
            self.reached = False
            if self._heard is not None and self._clock.now() - self._heard > FORGET_S:
                self._in_force, self._texts = {}, {}
            back_off_s = _FIRST_BACK_OFF_S if self._heard != heard else min(_LAST_BACK_OFF_S, 2 * back_off_s)
            await self._clock.sleep(back_off_s)

    async def _take(self, templates: TemplateSet) -> None:
        texts = {one.workflow_type_id: one.text for one in templates.templates}
        for gone in self._texts.keys() - texts.keys():
            self._in_force.pop(gone, None)
        changed = [(name, text) for name, text in texts.items() if self._texts.get(name) != text]
        self._texts = texts
        for name, text in changed:
            # A file is small, but reading it takes milliseconds that requests would wait for.
            ready = await asyncio.to_thread(self._ready, name, text)
            if ready is None:
                self.rejected += 1
                self._in_force.pop(name, None)
            else:
                self._in_force[name] = ready

    def _ready(self, name: str, text: str) -> TemplateInForce | None:
        try:
            return self._read(name, text)
        except Exception as problem:  # noqa: BLE001  # another version may know what this one does not
            _log.warning("the template of %s can not be used: %s", name, problem)
            return None
