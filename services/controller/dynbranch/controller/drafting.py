"""The draft model: a second, small model on an engine says several times what comes next."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from dataclasses import dataclass

from dynbranch.clients.ports import EngineAgent
from dynbranch.controller.core.predictors.drafts import draft_body, ranked_by_drafts
from dynbranch.controller.core.predictors.port import Question
from dynbranch.domain.engine import Completed, GenerationOrder, ModelDescription, WireProtocol, WorkClass
from dynbranch.domain.errors import NotFound, NotReady
from dynbranch.domain.ids import GenerationId, Instant
from dynbranch.domain.reuse import Identity
from dynbranch.naming.chunks import MalformedLog
from dynbranch.naming.fingerprint import fingerprint_digest
from dynbranch.rendering.outputs import output_of
from dynbranch.runtime.chance import new_id

STAGE = "draft"
"""What a draft's order calls its stage: an engine agent's traces and logs show it."""


@dataclass(frozen=True, slots=True)
class Drafts:
    """How the model is asked. ``model`` empty: the agent's first one."""

    model: str = ""
    samples: int = 5
    max_tokens: int = 16
    temperature: float = 0.8
    describe_timeout_s: float = 2.0
    idle_s: float = 10.0
    cache_scope: str = ""


class DraftModel:
    """Ranks candidates by how many samples name them. All samples must be there by the deadline; at the
    deadline the engine's slots are freed, since leaving a generation ends it."""

    def __init__(self, agent: EngineAgent, drafts: Drafts | None = None) -> None:
        self._agent = agent
        self._drafts = drafts or Drafts()
        self._model: ModelDescription | None = None

    async def propose_slowly(self, question: Question, now: Instant) -> tuple[str, ...]:
        """Raises Unreachable, and NotFound where the agent serves no such model."""
        model = self._model = self._model or await self._described()
        try:
            async with asyncio.TaskGroup() as group:
                tasks = [
                    group.create_task(self._draft(question, model, seed), name=f"draft {seed}")
                    for seed in range(self._drafts.samples)
                ]
        except BaseExceptionGroup as problems:
            # The agent may have another model by now.
            self._model = None
            raise _first(problems) from None
        return ranked_by_drafts(question, [draft for task in tasks if (draft := task.result())])

    async def _described(self) -> ModelDescription:
        described = await self._agent.describe(timeout_s=self._drafts.describe_timeout_s)
        wanted = self._drafts.model
        for model in described.models:
            if not wanted or wanted == model.id or wanted in model.aliases:
                return model
        raise NotFound("no_draft_model", f"the agent for drafts serves no model {wanted!r}")

    async def _draft(self, question: Question, model: ModelDescription, seed: int) -> str:
        """One sample's text; empty where the engine failed or has no slot for it."""
        drafts = self._drafts
        order = GenerationOrder(
            generation_id=GenerationId(new_id()),
            protocol=WireProtocol.CHAT_COMPLETIONS,
            target=model.id,
            body=draft_body(
                question,
                model.id,
                max_tokens=drafts.max_tokens,
                temperature=drafts.temperature,
                seed=seed,
            ),
            fingerprint_digest=fingerprint_digest(model.fingerprint),
            identity=Identity(
                tenant=question.coordinate.tenant,
                workflow_type_id=question.coordinate.workflow_type_id,
                stage=STAGE,
            ),
            work=WorkClass.DRAFT,
            cache_scope=drafts.cache_scope,
        )
        items: list[bytes] = []
        try:
            async with aclosing(self._agent.generate(order, idle_s=drafts.idle_s)) as events:
                async for event in events:
                    items.extend(event.items)
                    if event.end is not None and not isinstance(event.end, Completed):
                        return ""
            return output_of(items).text
        except NotReady as refusal:
            if refusal.reason != "fill_limit":
                raise
            # The engine has no room to spare for this sample; the others count all the same.
            return ""
        except MalformedLog:
            return ""


def _first(problems: BaseExceptionGroup[BaseException]) -> BaseException:
    problem: BaseException = problems
    while isinstance(problem, BaseExceptionGroup):
        problem = problem.exceptions[0]
    return problem
