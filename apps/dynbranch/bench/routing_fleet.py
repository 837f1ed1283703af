"""Several stub engines, and the ways to them that are compared: processes before the same engines."""

from __future__ import annotations

import json
import os
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from dynbranch.bench.peer_installs import VLLM_ROUTER, program
from dynbranch.bench.result import BenchFailed, Tell
from dynbranch.demo.processes import Processes, ProcessSpec, free_ports
from dynbranch.demo.stack import not_ready_reason

ENGINES = 4
MODEL = "stub-model"
PRESET = "rtx4090-qwen3-8b"
KV_TOKENS = 36_000
"""The preset's own pool, which the gateway is told."""
_COMMAND_LINE = "from dynbranch.cli.main import app; app()"
_START_S = 120.0
_TIMEOUT_S = 5.0


@dataclass(frozen=True, slots=True)
class Way:
    """One way to the engines. Of several URLs each is asked in its turn, whatever conversation it is."""

    name: str
    urls: tuple[str, ...]

    def url(self, number: int) -> str:
        return self.urls[number % len(self.urls)]


class Fleet:
    """A context manager: all of it ends with the block."""

    def __init__(self, folder: Path, tell: Tell) -> None:
        self._folder = folder
        self._tell = tell
        self._owned = ExitStack()
        self.engines: list[str] = []
        self._agents: list[str] = []

    def __enter__(self) -> Self:
        self._tell("starting the engines", 0, 0)
        ports = free_ports(2 * ENGINES)
        self.engines = [f"http://127.0.0.1:{port}" for port in ports[:ENGINES]]
        self._agents = [f"127.0.0.1:{port}" for port in ports[ENGINES:]]
        for number, url in enumerate(self.engines):
            port = url.rpartition(":")[2]
            command = (
                *(sys.executable, "-c", _COMMAND_LINE, "stub-engine", "--port", port, "--model", MODEL),
                *("--preset", PRESET, "--kv-tokens", str(KV_TOKENS)),
            )
            self._start(f"engine-{number}", command, {}, lambda url=url: _silent(f"{url}/health"))
        for number, (address, url) in enumerate(zip(self._agents, self.engines, strict=True)):
            settings = {
                "LISTEN": address,
                "KIND": "openai",
                "ENGINE_URL": url,
                "SLOTS": "256",
                "FINGERPRINT_FACTS": "weights=none,chat_template=toy",
            }
            prefixed = {f"DYNBRANCH_ENGINE_AGENT_{key}": value for key, value in settings.items()}
            self._start(f"agent-{number}", (sys.executable, "-m", "dynbranch.engine_agent"), prefixed)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._owned.close()

    # -- ways ----------------------------------------------------------------------------------------------

    def gateway(self, name: str, routing: str, *, count: int = 1) -> Way:
        """DynBranch without a store: what is sent is sampled, and sampled requests skip it."""
        return Way(name, tuple(self._gateway(f"{name} {number}", routing) for number in range(count)))

    def _gateway(self, name: str, routing: str) -> str:
        (port,) = free_ports(1)
        settings = {
            "LISTEN": f"127.0.0.1:{port}",
            "AGENTS": ",".join(self._agents),
            "ROUTING": routing,
            "ENGINE_CACHE_TOKENS": str(KV_TOKENS),
        }
        prefixed = {f"DYNBRANCH_GATEWAY_{key}": value for key, value in settings.items()}
        url = f"http://127.0.0.1:{port}"
        command = (sys.executable, "-m", "dynbranch.gateway")
        self._start(name, command, prefixed, lambda: not_ready_reason(url))
        return url

    def vllm_router(self, name: str, policy: str) -> Way:
        """Raises PeerMissing."""
        executable = program(VLLM_ROUTER, self._tell)
        port, metrics = free_ports(2)
        command = (
            *(str(executable), "--worker-urls", *self.engines, "--policy", policy),
            *("--host", "127.0.0.1", "--port", str(port)),
            *("--prometheus-port", str(metrics), "--log-level", "error"),
        )
        url = f"http://127.0.0.1:{port}"
        self._start(name, command, {}, lambda: _silent(f"{url}/health"))
        return Way(name, (url,))

    # -- engines -------------------------------------------------------------------------------------------

    def reset(self) -> None:
        """Every engine is there, nothing runs any more, and nothing is cached. Raises BenchFailed."""
        deadline = time.monotonic() + _START_S
        for url in self.engines:
            while _silent(f"{url}/health") or not _idle(url):
                if time.monotonic() > deadline:
                    raise BenchFailed("an engine does not become idle")
                time.sleep(0.05)
            post(f"{url}/stub/reset")

    @staticmethod
    def wait_whole(way: Way) -> None:
        """Until a gateway of ours has all its agents again. Raises BenchFailed."""
        deadline = time.monotonic() + _START_S
        while any(_absent(url) for url in way.urls):
            if time.monotonic() > deadline:
                raise BenchFailed(f"{way.name} misses an engine")
            time.sleep(0.05)

    def harm_busiest(self, fault: Mapping[str, object]) -> None:
        """The engine that was asked most since the last reset: what befalls it is sure to be noticed."""
        busiest = max(self.engines, key=_asked)
        post(f"{busiest}/stub/faults", fault)

    def _start(
        self, name: str, command: tuple[str, ...], settings: Mapping[str, str], missing: Any = None
    ) -> None:
        self._tell(f"starting {name}", 0, 0)
        kept = {
            key: value for key, value in os.environ.items() if not key.startswith(("DYNBRANCH_", "OTEL_"))
        }
        spec = ProcessSpec(name, command, {**kept, **settings})
        processes = self._owned.enter_context(Processes([spec], self._folder / "logs"))
        if missing is not None:
            processes.wait_until(missing, timeout_s=_START_S)


def post(url: str, document: Mapping[str, object] | None = None) -> None:
    body = json.dumps(document or {}).encode()
    headers = {"content-type": "application/json"}
    with urllib.request.urlopen(urllib.request.Request(url, body, headers), timeout=_TIMEOUT_S):
        pass


def _asked(url: str) -> int:
    with urllib.request.urlopen(f"{url}/stub/requests", timeout=_TIMEOUT_S) as response:
        return len(json.load(response)["requests"])


def _absent(url: str) -> list[str]:
    with urllib.request.urlopen(f"{url}/readyz", timeout=_TIMEOUT_S) as response:
        absent: list[str] = json.load(response)["absent"]
        return absent


def _idle(url: str) -> bool:
    with urllib.request.urlopen(f"{url}/metrics", timeout=_TIMEOUT_S) as response:
        lines = response.read().decode().splitlines()
    gauges = ("vllm:num_requests_running", "vllm:num_requests_waiting")
    return not any(float(line.rpartition(" ")[2]) for line in lines if line.startswith(gauges))


def _silent(url: str) -> str:
    try:
        with urllib.request.urlopen(url, timeout=_TIMEOUT_S):
            return ""
    except urllib.error.HTTPError:
        return ""
    except OSError:
        return f"an answer of {url}"
