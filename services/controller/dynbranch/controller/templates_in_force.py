"""The templates in force, and the predictors that they use: read from a folder, again when it changes."""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import AsyncGenerator, Mapping
from pathlib import Path

from dynbranch.controller.core.branches.messages import Propose
from dynbranch.controller.core.predictors.rates import Mixture
from dynbranch.controller.predicting import (
    AnyPredictor,
    BadPredictor,
    Factory,
    Predicting,
    Proposal,
    label,
    made,
)
from dynbranch.controller.predictor_metrics import PredictorMetrics
from dynbranch.controller.questions import question_of
from dynbranch.domain.branches import TemplateSet, TemplateSource
from dynbranch.rendering.watching import POLL_S, Adopted, LoadedTemplate, Rejected, TemplateFolder, Withdrawn
from dynbranch.runtime.clock import Clock

_log = logging.getLogger(__name__)

REPEAT_S = 10.0
"""How often watchers hear the same again, as a sign of life."""

MAX_OLD_TEMPLATES = 64
"""Versions that open branches may still render from."""


class Templates:
    """``folder`` None: there are none."""

    def __init__(self, folder: Path | None, clock: Clock, *, repeat_s: float = REPEAT_S) -> None:
        self._repeat_s = repeat_s
        self._folder = None if folder is None else TemplateFolder(folder)
        self._clock = clock
        self._by_digest: OrderedDict[str, LoadedTemplate] = OrderedDict()
        self._changed = asyncio.Event()
        self._revision = 0

    @property
    def in_force(self) -> Mapping[str, LoadedTemplate]:
        return {} if self._folder is None else self._folder.in_force

    def version(self, digest: str) -> LoadedTemplate | None:
        return self._by_digest.get(digest)

    def current(self) -> TemplateSet:
        sources = (TemplateSource(name, one.text) for name, one in sorted(self.in_force.items()))
        return TemplateSet(self._revision, tuple(sources))

    async def look(self) -> bool:
        """Read the folder again. Whether something changed."""
        if self._folder is None:
            return False
        changes = await asyncio.to_thread(self._folder.poll, self._clock.now())
        for change in changes:
            match change:
                case Adopted(file, template):
                    _log.info("template %s is in force (%s)", template.workflow_type, file)
                case Rejected(_, reason, kept):
                    _log.warning(
                        "a template is not used%s: %s", ", the last one stays" if kept else "", reason
                    )
                case Withdrawn(_, workflow_type):
                    _log.info("template %s is withdrawn", workflow_type)
        if not changes:
            return False
        for one in self.in_force.values():
            self._by_digest[one.template.digest] = one
            self._by_digest.move_to_end(one.template.digest)
        while len(self._by_digest) > max(MAX_OLD_TEMPLATES, len(self.in_force)):
            self._by_digest.popitem(last=False)
        self._revision += 1
        self._changed.set()
        self._changed = asyncio.Event()
        return True

    async def keep_reading(self) -> None:
        """Runs for ever."""
        while True:
            await self._clock.sleep(POLL_S)
            await self.look()

    async def watch(self) -> AsyncGenerator[TemplateSet]:
        """At once, at every change, and every so often all the same."""
        while True:
            changed = self._changed
            yield self.current()
            try:
                async with asyncio.timeout(self._repeat_s):
                    await changed.wait()
            except TimeoutError:
                continue


class Foretelling:
    """The predictors that the templates in force use. What they have learned outlives a changed template."""

    def __init__(
        self,
        factories: Mapping[str, Factory],
        clock: Clock,
        metrics: PredictorMetrics,
        *,
        deadline_ms: float,
    ) -> None:
        self._factories = factories
        self._clock = clock
        self._metrics = metrics
        self._deadline_ms = deadline_ms
        self._mixture = Mixture()
        self._predictors: dict[str, AnyPredictor] = {}
        self._asked = Predicting({}, clock, metrics, mixture=self._mixture)

    async def adopt(self, templates: Mapping[str, LoadedTemplate]) -> None:
        """Make what is new. A predictor that can not be had is told, and not asked."""
        fresh: dict[str, AnyPredictor] = {}
        for loaded in templates.values():
            for point in loaded.template.decision_points:
                for use in point.candidates.predictors:
                    if label(use) in self._predictors:
                        continue
                    try:
                        fresh |= made([use], self._factories)
                    except BadPredictor as problem:
                        _log.warning("template %s: %s", loaded.template.workflow_type, problem)
        if fresh:
            self._predictors |= fresh
            before = self._asked
            self._asked = Predicting(self._predictors, self._clock, self._metrics, mixture=self._mixture)
            await before.__aexit__(None, None, None)

    async def propose(self, ask: Propose, loaded: LoadedTemplate) -> Proposal:
        question = question_of(ask, loaded.follower)
        labels = [label(use) for use in ask.point.candidates.predictors]
        return await self._asked.propose(question, labels, deadline_ms=self._deadline_ms)

    def learn(self, proposal: Proposal, selections: tuple[str, ...]) -> None:
        self._asked.learn(proposal, selections)

    async def close(self) -> None:
        await self._asked.__aexit__(None, None, None)
