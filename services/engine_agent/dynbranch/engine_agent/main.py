"""Wiring of the engine agent's process."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

from dynbranch.clients.csl import GrpcCsl
from dynbranch.domain.engine import AgentKind
from dynbranch.engine_agent.config import EngineAgentSettings
from dynbranch.engine_agent.core.registry import Limits
from dynbranch.engine_agent.engines.embedded import EmbeddedEngine, EmbeddedSettings, packaged_model
from dynbranch.engine_agent.engines.http import Timeouts
from dynbranch.engine_agent.engines.openai import OpenAiEngine, OpenAiSettings
from dynbranch.engine_agent.engines.port import Engine
from dynbranch.engine_agent.engines.sglang import SglangEngine, SglangSettings
from dynbranch.engine_agent.engines.tool import ToolEngine
from dynbranch.engine_agent.engines.tools_file import ToolsFileError, read_tools
from dynbranch.engine_agent.engines.vllm import VllmEngine, VllmSettings
from dynbranch.engine_agent.server import service
from dynbranch.engine_agent.shell import Agent
from dynbranch.runtime import scheduling
from dynbranch.runtime.clock import Clock, SystemClock
from dynbranch.runtime.config import ConfigError, load_settings
from dynbranch.runtime.run import Started, run_service
from dynbranch.runtime.server import GrpcServer

DEFAULT_EMBEDDED_SLOTS = 4
DEFAULT_TOOL_SLOTS = 32


def engine_of(settings: EngineAgentSettings, clock: Clock) -> Engine:
    """Raises ConfigError."""
    timeouts = Timeouts(idle_s=settings.engine_idle_s)
    match settings.kind:
        case AgentKind.EMBEDDED:
            return EmbeddedEngine(_embedded(settings, timeouts), clock)
        case AgentKind.VLLM:
            return VllmEngine(_vllm(settings, timeouts), clock)
        case AgentKind.SGLANG:
            return SglangEngine(_sglang(settings, timeouts), clock)
        case AgentKind.OPENAI:
            return OpenAiEngine(
                OpenAiSettings(
                    settings.engine_url,
                    slots=settings.slots,
                    api_key=settings.engine_api_key.get_secret_value(),
                    facts=settings.facts,
                    level=settings.level,
                    timeouts=timeouts,
                ),
                clock,
            )
        case AgentKind.TOOL:
            assert settings.tools_file is not None
            try:
                tools = read_tools(settings.tools_file)
            except ToolsFileError as error:
                raise ConfigError(str(error)) from error
            return ToolEngine(tools, settings.slots or DEFAULT_TOOL_SLOTS, timeouts)


def _embedded(settings: EngineAgentSettings, timeouts: Timeouts) -> EmbeddedSettings:
    path = settings.model_path or packaged_model()
    if path is None:
        raise ConfigError("DYNBRANCH_ENGINE_AGENT_MODEL_PATH: no weights are installed; name a GGUF file")
    return EmbeddedSettings(
        model_path=path,
        model_id=settings.model_id or model_name(path),
        slots=settings.slots or DEFAULT_EMBEDDED_SLOTS,
        threads=settings.threads,
        context_tokens=settings.context_tokens,
        facts=settings.facts,
        level=settings.level,
        timeouts=timeouts,
    )


def _vllm(settings: EngineAgentSettings, timeouts: Timeouts) -> VllmSettings:
    """Raises ConfigError."""
    return VllmSettings(
        engine_url=settings.engine_url,
        model=settings.vllm_model,
        model_id=settings.model_id,
        command=_words("VLLM_COMMAND", settings.vllm_command),
        arguments=_words("VLLM_ARGUMENTS", settings.vllm_arguments),
        generation_config=settings.generation_config,
        start_s=settings.engine_start_s,
        slots=settings.slots,
        api_key=settings.engine_api_key.get_secret_value(),
        facts=settings.facts,
        level=settings.level,
        timeouts=timeouts,
    )


def _sglang(settings: EngineAgentSettings, timeouts: Timeouts) -> SglangSettings:
    return SglangSettings(
        settings.engine_url,
        slots=settings.slots,
        api_key=settings.engine_api_key.get_secret_value(),
        generation_config=settings.generation_config,
        facts=settings.facts,
        level=settings.level,
        timeouts=timeouts,
    )


def _words(name: str, text: str) -> tuple[str, ...]:
    try:
        return tuple(shlex.split(text))
    except ValueError as error:
        raise ConfigError(f"DYNBRANCH_ENGINE_AGENT_{name}: {error}") from error


def model_name(path: Path) -> str:
    """The file's name without its quantisation, which belongs to the fingerprint and not to the name."""
    return re.sub(r"[.-](I?Q\d\w*|[BF]F?\d+)$", "", path.stem, flags=re.IGNORECASE) or path.stem


def limits_of(settings: EngineAgentSettings) -> Limits:
    return Limits(
        waiting=settings.waiting,
        log_bytes=settings.log_bytes,
        retention_s=settings.retention_s,
        retention_bytes=settings.retention_bytes,
        commit_budget_s=settings.commit_budget_ms / 1000,
        fill_slots=settings.fill_slots,
        fill_kv_tokens=settings.fill_kv_tokens,
        fills_give_way=settings.fills_give_way,
    )


async def serve(started: Started) -> None:
    settings = load_settings(EngineAgentSettings, service="engine_agent")
    if settings.take_turns:
        scheduling.take_turns()
    clock = SystemClock()
    csl = GrpcCsl(settings.csl) if settings.csl else None
    agent = Agent(
        engine_of(settings, clock), csl, clock, limits=limits_of(settings), metrics=started.registry
    )
    try:
        async with agent:
            server = GrpcServer(settings.listen, [service(agent)], clock)
            address = await server.start(ready=False)
            try:
                agent.tasks.spawn(_tell_health(agent, server), name="health")
                # Describe answers from now on, and says whether the engine is ready.
                started.ready(settings.advertise or address)
                await started.until_stopped(agent.tasks)
                await agent.drain(deadline_s=settings.drain_s)
            finally:
                await server.stop(grace_s=1.0)
    finally:
        if csl is not None:
            await csl.close()


async def _tell_health(agent: Agent, server: GrpcServer) -> None:
    """The health service says what the agent's own description says."""
    async for occupancy in agent.watch_occupancy(interval_ms=60_000):
        await server.set_ready(occupancy.ready)


def main() -> None:
    run_service("engine_agent", serve)
