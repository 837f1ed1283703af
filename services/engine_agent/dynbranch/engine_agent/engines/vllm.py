"""vLLM: started and watched by the agent, or attached to. Lower priorities first, prefixes apart by salt."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from dynbranch.domain.engine import AgentKind, GenerationOrder, WorkClass
from dynbranch.domain.reuse import Level
from dynbranch.engine_agent.engines import sampling_defaults
from dynbranch.engine_agent.engines.fingerprint import cpu_features
from dynbranch.engine_agent.engines.http import EngineHttp, Timeouts, asking
from dynbranch.engine_agent.engines.model_folder import ModelFolder, Stamp, find_model
from dynbranch.engine_agent.engines.openai import OpenAiEngine, OpenAiSettings
from dynbranch.engine_agent.engines.port import (
    BodyFields,
    CleanEnd,
    EngineCounts,
    EngineFacts,
    EngineUnavailable,
    Heard,
)
from dynbranch.engine_agent.engines.probe import Flavour, ModelDetails
from dynbranch.engine_agent.engines.vllm_process import (
    Address,
    Command,
    VllmProcess,
    address,
    argument,
    commands,
)
from dynbranch.engine_agent.waiting import dead_or_silent
from dynbranch.runtime.clock import Clock

_log = logging.getLogger(__name__)

PRIORITIES: Mapping[WorkClass, int] = {WorkClass.CANONICAL: 0, WorkClass.FILL: 10, WorkClass.DRAFT: 20}
"""Lower first. What comes past DynBranch has none, which means 0: it ranks with canonical requests."""

DEFAULT_SLOTS = 256
"""vLLM's own ``--max-num-seqs`` where nobody sets it; its server does not tell."""
LOOK_SPACING_S = 0.02
"""vLLM takes some 6 ms of its API server's time to print its metrics."""
READY_POLL_S = 0.25

VOUCHED_INVARIANCE = "batch_invariant"
"""The fact by which an operator vouches that an attached server runs with ``VLLM_BATCH_INVARIANT=1``."""


@dataclass(frozen=True, slots=True)
class VllmSettings:
    """``engine_url``: attach to that server. Empty: start one for ``model`` and keep it running."""

    engine_url: str = ""
    model: str = ""
    model_id: str = ""
    """Its name for requests. Empty: the model's."""
    command: tuple[str, ...] = ()
    arguments: tuple[str, ...] = ()
    environ: Mapping[str, str] = field(default_factory=dict)
    generation_config: str = "auto"
    """As vLLM's ``--generation-config``: ``auto``, ``vllm``, a folder. An attached server was started so."""
    start_s: float = 900.0
    slots: int | None = None
    api_key: str = ""
    facts: Mapping[str, str] = field(default_factory=dict)
    level: Level = Level.GREEDY
    timeouts: Timeouts = field(default_factory=Timeouts)


class VllmEngine:
    kind = AgentKind.VLLM

    def __init__(
        self,
        settings: VllmSettings,
        clock: Clock,
        *,
        find: Callable[[Sequence[str]], tuple[Command, ...]] = commands,
    ) -> None:
        """``find``: the commands to try, from the operator's own."""
        self._settings = settings
        self._find = find
        self._clock = clock
        self._process = VllmProcess()
        self._server: OpenAiEngine | None = None
        self._started_well: Command | None = None
        self._digests: dict[Stamp, str] = {}
        self._weights = ""
        self._defaults: dict[str, dict[str, str]] = {}

    @property
    def engine_pid(self) -> int | None:
        """The process of a server that is ours."""
        return self._process.engine_pid if self._process.alive else None

    @property
    def _ours(self) -> bool:
        return not self._settings.engine_url

    async def start(self) -> EngineFacts:
        await self._let_server_go()
        url = self._settings.engine_url or await self._start_own()
        settings = self._settings
        async with self._asking(url) as http:
            shown = await http.get_json("/server_info?config_format=json")
        told = shown if isinstance(shown, dict) else {}
        level = self._level(told)
        self._defaults.clear()
        self._server = OpenAiEngine(
            OpenAiSettings(
                url,
                slots=settings.slots or self._max_sequences() or DEFAULT_SLOTS,
                api_key=settings.api_key,
                facts=settings.facts,
                level=level,
                timeouts=settings.timeouts,
                details=self._details,
                look_spacing_s=LOOK_SPACING_S,
            ),
            self._clock,
        )
        facts = await self._server.start()
        if self._server.flavour is not Flavour.VLLM:
            raise EngineUnavailable(f"the server at {url} is not vLLM; attach to it with kind openai")
        async with self._asking(url) as http:
            prioritised = self._policy(told) in ("priority", "") and await _takes_priorities(
                http, facts.models[0].id
            )
        if not prioritised:
            _log.warning("this vLLM has no priorities: start it with --scheduling-policy priority")
        sent = {model: sampling_defaults.sent(values) for model, values in self._defaults.items()}
        fields = BodyFields(
            priorities=PRIORITIES if prioritised else {}, salt_field="cache_salt", defaults=sent
        )
        return replace(facts, fields=fields)

    async def lost(self) -> str:
        server = self._running()
        if not self._ours:
            return await server.lost()
        ended, why = await dead_or_silent(self._process.ended(), server.lost())
        return f"vllm does not answer: {why}" if ended is None else ended

    async def run(self, order: GenerationOrder, heard: Heard) -> CleanEnd:
        return await self._running().run(order, heard)

    async def unchanged(self) -> bool:
        return self._process.alive if self._ours else await self._running().unchanged()

    async def counts(self) -> EngineCounts:
        if self._ours and not self._process.alive:
            raise EngineUnavailable("vllm does not run")
        return await self._running().counts()

    async def restart(self) -> None:
        if self._ours:
            self._process.ask_to_end()
        elif self._server is not None:
            await self._server.restart()

    async def close(self) -> None:
        await self._let_server_go()
        await self._process.end()

    def _running(self) -> OpenAiEngine:
        if self._server is None:
            raise EngineUnavailable("vllm has not started")
        return self._server

    def _asking(self, url: str) -> AbstractAsyncContextManager[EngineHttp]:
        return asking(url, self._settings.timeouts, self._settings.api_key)

    async def _let_server_go(self) -> None:
        server, self._server = self._server, None
        if server is not None:
            await server.close()

    # ---- a server of our own ----

    async def _start_own(self) -> str:
        """Its base URL, when it answers. Raises EngineUnavailable."""
        settings = self._settings
        found = (self._started_well,) if self._started_well is not None else self._find(settings.command)
        if not found:
            raise EngineUnavailable("no vllm is installed here: name its command, or a server's URL")
        place = address(settings.arguments)
        digest = asyncio.ensure_future(asyncio.to_thread(self._digest_folder))
        try:
            for number, command in enumerate(found, 1):
                try:
                    await self._start_with(command, place)
                except EngineUnavailable as error:
                    if number == len(found):
                        raise
                    _log.warning("%s did not start vLLM: %s", " ".join(command.words), error)
                else:
                    self._started_well = command
                    break
            await digest
        except BaseException:
            await self._process.end()
            digest.cancel()
            await asyncio.gather(digest, return_exceptions=True)
            raise
        return place.url

    async def _start_with(self, command: Command, place: Address) -> None:
        settings = self._settings
        arguments = [*settings.arguments, *place.arguments]
        if settings.model_id:
            arguments += ["--served-model-name", settings.model_id]
        if argument(arguments, "--scheduling-policy") is None:
            arguments += ["--scheduling-policy", "priority"]
        if argument(arguments, "--generation-config") is None and settings.generation_config != "auto":
            arguments += ["--generation-config", settings.generation_config]
        environ = dict(settings.environ)
        if settings.level is Level.BATCH_INVARIANT:
            environ["VLLM_BATCH_INVARIANT"] = "1"
        if settings.api_key:
            environ["VLLM_API_KEY"] = settings.api_key
        await self._process.start(command.line(settings.model, arguments), environ)
        died = asyncio.ensure_future(self._process.ended())
        ready = asyncio.ensure_future(self._until_ready(place.url))
        try:
            await asyncio.wait((died, ready), timeout=settings.start_s, return_when=asyncio.FIRST_COMPLETED)
            if died.done():
                raise EngineUnavailable(died.result())
            if not ready.done():
                raise EngineUnavailable(f"vllm was not ready after {settings.start_s:g} s")
            ready.result()
        finally:
            died.cancel()
            ready.cancel()
            await asyncio.gather(died, ready, return_exceptions=True)

    async def _until_ready(self, url: str) -> None:
        async with self._asking(url) as http:
            while True:
                with suppress(EngineUnavailable):
                    if await http.get("/health", timeout_s=2.0) is not None:
                        return
                await self._clock.sleep(READY_POLL_S)

    def _max_sequences(self) -> int | None:
        told = argument(self._settings.arguments, "--max-num-seqs")
        return int(told) if told is not None and told.isdigit() and int(told) else None

    # ---- what determines its output ----

    def _folder(self) -> ModelFolder | None:
        settings = self._settings
        revision = argument(settings.arguments, "--revision") or ""
        here = Path(settings.model)
        model = str(here.absolute()) if here.is_dir() else settings.model
        return find_model(model, revision, {**os.environ, **settings.environ})

    def _digest_folder(self) -> None:
        """While the server loads the same files; again only when they have changed."""
        folder, self._weights = self._folder(), ""
        if folder is None:
            return
        with suppress(OSError):
            stamp = folder.stamp()
            if stamp not in self._digests:
                self._digests = {stamp: folder.digest()}
            self._weights = self._digests[stamp]

    async def _details(self, card: Mapping[str, Any]) -> ModelDetails:
        if card.get("parent"):
            return ModelDetails()  # an adapter: its base model's folder says too little of it
        folder = self._folder() if self._ours else find_model(str(card.get("root") or ""), "", os.environ)
        facts = folder.facts() if folder is not None else {}
        if self._ours:
            facts |= _own_facts(self._settings)
            if self._weights:
                facts["weights"] = f"sha256:{self._weights}"
        defaults = await self._sampling(card, folder)
        if defaults is not None:
            self._defaults[str(card.get("id", ""))] = defaults
            facts |= sampling_defaults.as_facts(defaults)
        return ModelDetails(facts, folder.chat_template() if folder is not None else None)

    async def _sampling(self, card: Mapping[str, Any], folder: ModelFolder | None) -> dict[str, str] | None:
        """The server's own report before a file: it may have been started with other defaults."""
        settings = self._settings
        url = settings.engine_url or self._running().base_url
        async with self._asking(url) as http:
            silent = {"model": card.get("id"), "messages": [{"role": "user", "content": "x"}]}
            told = sampling_defaults.reported(await http.post_json("/v1/chat/completions/render", silent))
        if told is not None:
            return told
        source = argument(settings.arguments, "--generation-config") or settings.generation_config
        if argument(settings.arguments, "--override-generation-config") is not None:
            return None
        if source == "vllm":
            return sampling_defaults.resolved()
        if source != "auto":
            folder = ModelFolder(Path(source))
        return (
            None if folder is None else sampling_defaults.resolved(folder.document("generation_config.json"))
        )

    def _policy(self, told: Mapping[str, Any]) -> str:
        """How the server orders what waits. Empty: it does not tell."""
        if self._ours:
            return argument(self._settings.arguments, "--scheduling-policy") or "priority"
        config = told.get("vllm_config")
        scheduler = config.get("scheduler_config") if isinstance(config, dict) else None
        return str(scheduler.get("policy") or "") if isinstance(scheduler, dict) else ""

    def _level(self, told: Mapping[str, Any]) -> Level:
        """``batch_invariant`` only where it is certain; else what every engine promises."""
        settings = self._settings
        if settings.level is not Level.BATCH_INVARIANT or self._ours or VOUCHED_INVARIANCE in settings.facts:
            return settings.level
        environ = told.get("vllm_env")
        if isinstance(environ, dict) and str(environ.get("VLLM_BATCH_INVARIANT")) in ("1", "True", "true"):
            return settings.level
        _log.warning(
            "this server does not show that it runs with VLLM_BATCH_INVARIANT=1, so its level is greedy; "
            "vouch for it with a fingerprint fact %s=1",
            VOUCHED_INVARIANCE,
        )
        return Level.GREEDY


async def _takes_priorities(http: EngineHttp, model: str) -> bool:
    """Whether the server takes a request that has one: some refuse it where they serve first come, first
    served, others take it and do not heed it, which costs nothing. Costs the decode of one token."""
    ranked = {"model": model, "prompt": "1", "max_tokens": 1, "temperature": 0, "priority": 1}
    return isinstance(await http.post_json("/v1/completions", ranked), dict)


_NOT_OUTPUT = ("--host", "--port", "--served-model-name", "--api-key", "--uvicorn-log-level", "--revision")


def _own_facts(settings: VllmSettings) -> dict[str, str]:
    """How our own server is run: its arguments, its switches, and what it runs on."""
    words = iter(settings.arguments)
    arguments = []
    for word in words:
        if word.partition("=")[0] not in _NOT_OUTPUT:
            arguments.append(word)
        elif "=" not in word:
            next(words, None)
    environ = {**os.environ, **settings.environ}
    switches = {
        name: value for name, value in environ.items() if name.startswith("VLLM_") and "KEY" not in name
    }
    if settings.level is Level.BATCH_INVARIANT:
        switches["VLLM_BATCH_INVARIANT"] = "1"
    return {
        "engine.arguments": " ".join(arguments),
        "engine.environment": " ".join(f"{name}={value}" for name, value in sorted(switches.items())),
        "device": _device(),
    }


def _device() -> str:
    """The GPUs of this machine, or its CPU's instruction sets."""
    names = []
    for information in sorted(Path("/proc/driver/nvidia/gpus").glob("*/information")):
        with suppress(OSError):
            lines = information.read_text(encoding="utf-8", errors="replace").splitlines()
            names += [line.partition(":")[2].strip() for line in lines if line.startswith("Model:")]
    if names:
        return ", ".join(names)
    with suppress(OSError):
        return f"cpu {cpu_features(Path('/proc/cpuinfo').read_text(encoding='utf-8', errors='replace'))}"
    return "unknown"
