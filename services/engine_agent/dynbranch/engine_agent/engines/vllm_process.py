"""The vLLM server that the agent starts itself: which command, with which arguments, and its process."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import logging
import os
import shutil
import socket
import sys
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from dynbranch.engine_agent.engines.port import EngineUnavailable

_log = logging.getLogger(__name__)

KEEPER = Path(__file__).with_name("keeper.py")
END_TIMEOUT_S = 12.0
MAX_LINE_BYTES = 2**16
KEPT_LOG_LINES = 40
MODULE = ("-m", "vllm.entrypoints.openai.api_server")


@dataclass(frozen=True, slots=True)
class Command:
    """How a server is started; its model follows as it is, or after ``--model``."""

    words: tuple[str, ...]
    model_is_first: bool

    def line(self, model: str, arguments: Sequence[str]) -> tuple[str, ...]:
        return (*self.words, *((model,) if self.model_is_first else ("--model", model)), *arguments)


def commands(
    told: Sequence[str],
    *,
    which: Callable[[str], str | None] = shutil.which,
    importable: Callable[[str], bool] = lambda name: importlib.util.find_spec(name) is not None,
) -> tuple[Command, ...]:
    """What to try, in turn. ``told``: the operator's own command, after which nothing else is tried.

    Builds for CPUs have a ``vllm`` command that does not start; the module of the same environment does.
    """
    if told:
        return (Command(tuple(told), model_is_first=told[-1] == "serve"),)
    found: list[Command] = []
    if (vllm := which("vllm")) is not None:
        found.append(Command((vllm, "serve"), model_is_first=True))
        beside = Path(vllm).parent / "python"
        if beside.exists():
            found.append(Command((str(beside), *MODULE), model_is_first=False))
    if importable("vllm"):
        found.append(Command((sys.executable, *MODULE), model_is_first=False))
    return tuple(dict.fromkeys(found))


def argument(arguments: Sequence[str], name: str) -> str | None:
    """The value of the last ``--name value`` or ``--name=value``."""
    value = None
    for number, word in enumerate(arguments):
        if word.startswith(f"{name}="):
            value = word.partition("=")[2]
        elif word == name:
            value = arguments[number + 1] if number + 1 < len(arguments) else ""
    return value


@dataclass(frozen=True, slots=True)
class Address:
    """Where a server listens, and the arguments that make it listen there."""

    url: str
    arguments: tuple[str, ...]


def address(arguments: Sequence[str]) -> Address:
    """As the operator's arguments say; else a free port of this machine alone."""
    host, port = argument(arguments, "--host"), argument(arguments, "--port")
    added: list[str] = []
    if host is None:
        host = "127.0.0.1"
        added += ["--host", host]
    if port is None:
        with socket.socket() as found:
            found.bind((host, 0))
            port = str(found.getsockname()[1])
        added += ["--port", port]
    reached = socket.gethostname() if host in ("0.0.0.0", "::", "") else host
    return Address(f"http://{f'[{reached}]' if ':' in reached else reached}:{port}", tuple(added))


class VllmProcess:
    """One running server, in a process group of its own that ends as a whole. See ``keeper.py``."""

    def __init__(self) -> None:
        self._keeper: asyncio.subprocess.Process | None = None
        self._reader: asyncio.Task[None] | None = None
        self._log: deque[str] = deque(maxlen=KEPT_LOG_LINES)
        self.engine_pid: int | None = None

    @property
    def alive(self) -> bool:
        return self._keeper is not None and self._keeper.returncode is None

    async def start(self, line: Sequence[str], environ: Mapping[str, str]) -> None:
        """Raises EngineUnavailable where there is no such program."""
        await self.end()
        self._log.clear()
        self._keeper = await asyncio.create_subprocess_exec(
            *(sys.executable, "-I", "-S", str(KEEPER), *line),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            env={**os.environ, **environ},
            limit=MAX_LINE_BYTES,
            start_new_session=True,
        )
        assert self._keeper.stdout is not None
        first = await self._keeper.stdout.readline()
        with suppress(ValueError, KeyError, TypeError):
            self.engine_pid = int(json.loads(first)["engine_pid"])
        if self.engine_pid is None:
            await self.end()
            raise EngineUnavailable(f"{line[0]} can not be run")
        self._reader = asyncio.create_task(self._read_log(self._keeper.stdout), name="vllm log")

    async def ended(self) -> str:
        """Returns, with the end of its log, when the server has ended."""
        assert self._keeper is not None, "only what was started ends"
        status = await self._keeper.wait()
        if self._reader is not None:
            await asyncio.wait((self._reader,), timeout=1.0)
        return f"vllm ended with status {status}{self._last_words()}"

    def ask_to_end(self) -> None:
        if self._keeper is not None and self._keeper.returncode is None:
            self._keeper.terminate()

    async def end(self) -> None:
        keeper, self._keeper = self._keeper, None
        self.engine_pid = None
        if keeper is not None:
            assert keeper.stdin is not None
            keeper.stdin.close()
            try:
                await asyncio.wait_for(keeper.wait(), END_TIMEOUT_S)
            except TimeoutError:
                with suppress(ProcessLookupError):
                    keeper.kill()
                await keeper.wait()
        reader, self._reader = self._reader, None
        if reader is not None:
            reader.cancel()
            await asyncio.gather(reader, return_exceptions=True)

    async def _read_log(self, stream: asyncio.StreamReader) -> None:
        while True:
            try:
                data = await stream.readline()
            except ValueError:  # longer than the reader's limit
                continue
            if not data:
                return
            line = data.decode("utf-8", "replace").rstrip()
            self._log.append(line)
            _log.info("vllm: %s", line)

    def _last_words(self) -> str:
        """What explains an end best: the last line that names an error, else the end of the log."""
        lines = [line.strip() for line in self._log if line.strip()]
        errors = [line for line in lines if "Error" in line]
        text = errors[-1] if errors else " | ".join(lines)
        return f": {text[-400:]}" if text else ""
