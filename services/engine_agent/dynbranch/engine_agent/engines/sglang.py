"""SGLang, attached to: higher priorities first, aborts by request id, prefixes kept apart by salt."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from dynbranch.domain.engine import AgentKind, GenerationOrder, WorkClass
from dynbranch.domain.reuse import Level
from dynbranch.engine_agent.engines import sampling_defaults
from dynbranch.engine_agent.engines.http import EngineHttp, Timeouts, asking
from dynbranch.engine_agent.engines.model_folder import ModelFolder, find_model
from dynbranch.engine_agent.engines.openai import OpenAiEngine, OpenAiSettings
from dynbranch.engine_agent.engines.port import (
    BodyFields,
    CleanEnd,
    EngineCounts,
    EngineError,
    EngineFacts,
    EngineUnavailable,
    Heard,
)
from dynbranch.engine_agent.engines.probe import Flavour, ModelDetails
from dynbranch.engine_agent.orders import request_id
from dynbranch.runtime.clock import Clock

_log = logging.getLogger(__name__)

PRIORITIES: Mapping[WorkClass, int] = {WorkClass.CANONICAL: 20, WorkClass.FILL: 10, WorkClass.DRAFT: 0}
"""Higher first. SGLang ranks a request without a priority below all of them."""
LOWER_FIRST: Mapping[WorkClass, int] = {WorkClass.CANONICAL: 0, WorkClass.FILL: 10, WorkClass.DRAFT: 20}
"""For servers that run with ``--schedule-low-priority-values-first``."""

LOOK_SPACING_S = 0.02
ABORT_TIMEOUT_S = 2.0

VOUCHED_INVARIANCE = "batch_invariant"
"""The fact by which an operator vouches that the server computes alike whatever shares its batch."""

_MODEL_FACTS = ("model_path", "tokenizer_path", "weight_version", "preferred_sampling_params")


@dataclass(frozen=True, slots=True)
class SglangSettings:
    engine_url: str
    slots: int | None = None
    api_key: str = ""
    generation_config: str = "auto"
    """``auto``: as the server says. A folder: where its model's ``generation_config.json`` can be read."""
    facts: Mapping[str, str] = field(default_factory=dict)
    level: Level = Level.GREEDY
    timeouts: Timeouts = field(default_factory=Timeouts)


class SglangEngine:
    kind = AgentKind.SGLANG

    def __init__(self, settings: SglangSettings, clock: Clock) -> None:
        self._settings = settings
        self._clock = clock
        self._server: OpenAiEngine | None = None
        self._info: Mapping[str, Any] = {}
        self._model_info: Mapping[str, Any] = {}
        self._defaults: dict[str, dict[str, str]] = {}

    async def start(self) -> EngineFacts:
        await self.close()
        settings = self._settings
        async with asking(settings.engine_url, settings.timeouts, settings.api_key) as http:
            self._info = await _first(http, "/server_info", "/get_server_info")
            self._model_info = await _first(http, "/model_info", "/get_model_info")
        self._defaults.clear()
        self._server = OpenAiEngine(
            OpenAiSettings(
                settings.engine_url,
                slots=settings.slots,
                api_key=settings.api_key,
                facts=settings.facts,
                level=self._level(),
                timeouts=settings.timeouts,
                details=self._details,
                look_spacing_s=LOOK_SPACING_S,
            ),
            self._clock,
        )
        facts = await self._server.start()
        if self._server.flavour is not Flavour.SGLANG:
            raise EngineUnavailable(f"the server at {settings.engine_url} is not SGLang")
        sent = {model: sampling_defaults.sent(values) for model, values in self._defaults.items()}
        fields = BodyFields(self._priorities(), salt_field="cache_salt", id_field="rid", defaults=sent)
        return replace(facts, fields=fields)

    async def lost(self) -> str:
        return await self._running().lost()

    async def run(self, order: GenerationOrder, heard: Heard) -> CleanEnd:
        over = False
        try:
            end = await self._running().run(order, heard)
            over = True
            return end
        except EngineError:
            over = True
            raise
        finally:
            if not over:
                await self._abort(order)

    async def unchanged(self) -> bool:
        return await self._running().unchanged()

    async def counts(self) -> EngineCounts:
        return await self._running().counts()

    async def restart(self) -> None:
        await self._running().restart()

    async def close(self) -> None:
        server, self._server = self._server, None
        if server is not None:
            await server.close()

    def _running(self) -> OpenAiEngine:
        if self._server is None:
            raise EngineUnavailable("the server has not been examined")
        return self._server

    async def _abort(self, order: GenerationOrder) -> None:
        """The stream is closed already; a server notices that only when it next writes to it."""
        settings, named = self._settings, {"rid": request_id(order.generation_id)}
        timeouts = replace(settings.timeouts, probe_s=ABORT_TIMEOUT_S)
        try:
            async with asking(settings.engine_url, timeouts, settings.api_key) as http:
                await http.post_json("/abort_request", named)
        except EngineUnavailable as error:
            _log.info("an abort was not told: %s", error)

    # ---- what determines its output ----

    def _priorities(self) -> Mapping[WorkClass, int]:
        if not self._info.get("enable_priority_scheduling"):
            _log.warning("this SGLang has no priorities: start it with --enable-priority-scheduling")
            return {}
        return LOWER_FIRST if self._info.get("schedule_low_priority_values_first") else PRIORITIES

    def _level(self) -> Level:
        settings = self._settings
        if settings.level is not Level.BATCH_INVARIANT:
            return settings.level
        if self._info.get("enable_deterministic_inference") or VOUCHED_INVARIANCE in settings.facts:
            return settings.level
        _log.warning(
            "this server does not run with --enable-deterministic-inference, so its level is greedy; "
            "vouch for it with a fingerprint fact %s=1",
            VOUCHED_INVARIANCE,
        )
        return Level.GREEDY

    async def _details(self, card: Mapping[str, Any]) -> ModelDetails:
        info = self._model_info
        facts = {f"engine.{name}": str(info[name]) for name in _MODEL_FACTS if info.get(name) is not None}
        folder = find_model(str(info.get("model_path") or ""), "", os.environ)
        if self._settings.generation_config not in ("auto", "openai"):
            folder = ModelFolder(Path(self._settings.generation_config))
        defaults = self._sampling(folder)
        if defaults is not None:
            self._defaults[str(card.get("id", ""))] = defaults
            facts |= sampling_defaults.as_facts(defaults)
        if folder is None:
            return ModelDetails(facts)
        return ModelDetails({**folder.facts(), **facts}, folder.chat_template())

    def _sampling(self, folder: ModelFolder | None) -> dict[str, str] | None:
        """``--sampling-defaults openai`` takes neutral ones, ``model`` those of the model's own file."""
        if "openai" in (self._settings.generation_config, self._info.get("sampling_defaults")):
            return sampling_defaults.resolved()
        return (
            None if folder is None else sampling_defaults.resolved(folder.document("generation_config.json"))
        )


async def _first(http: EngineHttp, *paths: str) -> Mapping[str, Any]:
    """The first of these that answers; servers of several ages spell them differently."""
    for path in paths:
        answer = await http.get_json(path)
        if isinstance(answer, dict):
            return answer
    return {}
