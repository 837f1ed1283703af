"""What a benchmark of the gateway measures, side by side before one stub engine, and the load on it."""

from __future__ import annotations

import json
import os
import secrets
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Self, TypeVar

from dynbranch.bench.cpu_time import Cores, cpu_s, pin
from dynbranch.bench.load import ClosedLoop, Job, Seen, Streams, job_as_json
from dynbranch.bench.peer_installs import LITELLM, VLLM_ROUTER, program
from dynbranch.bench.result import BenchFailed, Tell
from dynbranch.demo.processes import Processes, ProcessSpec, free_ports
from dynbranch.demo.stack import Stack, StackOptions

CHAT = "/v1/chat/completions"
_COMMAND_LINE = "from dynbranch.cli.main import app; app()"
_START_TIMEOUT_S = 120.0
_JOB_GRACE_S = 120.0
_PROBE_TIMEOUT_S = 2.0

Item = TypeVar("Item")


@dataclass(frozen=True, slots=True)
class Arm:
    """One way to the engine. ``pids`` are the processes whose CPU time is the price of that way, by name."""

    name: str
    url: str
    pids: Mapping[str, int] = field(default_factory=dict)
    headers: tuple[tuple[str, str], ...] = ()

    def cpu_s(self) -> dict[str, float]:
        return {name: cpu_s([pid]) for name, pid in self.pids.items()}


@dataclass(frozen=True, slots=True)
class Measurement:
    """What the clients saw, and what it cost each of the arm's processes."""

    seen: Seen
    cpu_s_of: Mapping[str, float]

    @property
    def per_s(self) -> float:
        return self.seen.requests / self.seen.seconds

    @property
    def cpu_us_per_request(self) -> float:
        return sum(self.cpu_us_each(self.seen.requests).values())

    def cpu_us_each(self, count: int) -> dict[str, float]:
        """Of each process, for each of so many requests or tokens."""
        return {name: spent_s * 1e6 / count for name, spent_s in self.cpu_s_of.items()}


def together(pieces: Sequence[Measurement]) -> Measurement:
    """What was measured in several pieces, as one: only what adds up."""
    seen = Seen(
        seconds=sum(piece.seen.seconds for piece in pieces),
        first_byte_ms=[ms for piece in pieces for ms in piece.seen.first_byte_ms],
        whole_ms=[ms for piece in pieces for ms in piece.seen.whole_ms],
        body_bytes=sum(piece.seen.body_bytes for piece in pieces),
    )
    spent = {name: sum(piece.cpu_s_of[name] for piece in pieces) for name in pieces[0].cpu_s_of}
    return Measurement(seen, spent)


class LoadFailed(BenchFailed):
    """The load's process failed, or answers were no answers: nothing can be said of such a run."""


class Stand:
    """Starts what is asked for; all of it ends with the ``with`` block.

    ``pinned``: what is measured runs on one core, the load and the engine on another; else all share all.
    """

    def __init__(self, folder: Path, tell: Tell, *, pinned: bool) -> None:
        self.folder = folder
        self.cores = Cores.choose() if pinned else Cores((), ())
        self._tell = tell
        self._owned = ExitStack()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._owned.close()

    # What is measured

    def engine(self, rules: Sequence[Mapping[str, object]] = ()) -> Arm:
        """The stub engine: no delays but those that the script's ``rules`` tell."""
        (port,) = free_ports(1)
        script = self.folder / "script.jsonl"
        script.write_text("".join(json.dumps(rule) + "\n" for rule in rules), encoding="utf-8")
        command = (
            *(sys.executable, "-c", _COMMAND_LINE, "stub-engine", "--port", str(port)),
            *("--ttft-ms", "0", "--token-ms", "0", "--slots", "4096", "--script", str(script)),
        )
        pid = self._start("stub-engine", command, f"http://127.0.0.1:{port}/health", self.cores.load)
        return Arm("direct", f"http://127.0.0.1:{port}", {"stub-engine": pid})

    def plain(self, engine: Arm) -> Arm:
        (port,) = free_ports(1)
        command = (sys.executable, "-m", "dynbranch.bench.plain_proxy", engine.url, str(port))
        pid = self._start("plain-proxy", command, f"http://127.0.0.1:{port}/health", self.cores.measured)
        return Arm("plain proxy", f"http://127.0.0.1:{port}", {"proxy": pid})

    def dynbranch(self, engine: Arm, data_dir: Path | None = None) -> tuple[Arm, Stack]:
        """Every service as a process; the arm's CPU time is that of gateway and engine agent."""
        self._tell("starting the services", 0, 0)
        options = StackOptions(
            state_dir=self.folder / "stack",
            data_dir=data_dir,
            engine_urls=(engine.url,),
            engine_facts=("chat_template=toy", "weights=none"),
        )
        stack = self._owned.enter_context(Stack(options))
        stack.wait_ready()
        pin(stack.pids.values(), self.cores.measured)
        pids = {"gateway": stack.pids["gateway"], "engine agent": stack.pids["engine-1"]}
        return Arm("dynbranch", stack.url, pids), stack

    def litellm(self, engine: Arm, model: str, *, cache: bool) -> Arm:
        """One worker. Raises PeerMissing."""
        executable = program(LITELLM, self._tell)
        (port,) = free_ports(1)
        name = "litellm-cache" if cache else "litellm"
        key = f"sk-{secrets.token_hex(24)}"
        served = {"model": f"openai/{model}", "api_base": f"{engine.url}/v1", "api_key": "none"}
        settings: dict[str, object] = {"telemetry": False}
        if cache:
            settings |= {"cache": True, "cache_params": {"type": "local"}}
        document = {
            "model_list": [{"model_name": model, "litellm_params": served}],
            "litellm_settings": settings,
            "general_settings": {"master_key": key},
        }
        # JSON is YAML.
        config = self.folder / f"{name}.yaml"
        config.write_text(json.dumps(document), encoding="utf-8")
        command = (
            *(str(executable), "--config", str(config), "--host", "127.0.0.1"),
            *("--port", str(port), "--num_workers", "1"),
        )
        probe = f"http://127.0.0.1:{port}/health/liveliness"
        pid = self._start(name, command, probe, self.cores.measured)
        headers = (("authorization", f"Bearer {key}"),)
        return Arm(
            "litellm cache" if cache else "litellm", f"http://127.0.0.1:{port}", {"litellm": pid}, headers
        )

    def vllm_router(self, engine: Arm) -> Arm:
        """Raises PeerMissing."""
        executable = program(VLLM_ROUTER, self._tell)
        port, metrics = free_ports(2)
        command = (
            *(str(executable), "--worker-urls", engine.url, "--host", "127.0.0.1", "--port", str(port)),
            *("--prometheus-port", str(metrics), "--log-level", "error"),
        )
        pid = self._start("vllm-router", command, f"http://127.0.0.1:{port}/health", self.cores.measured)
        return Arm("vllm-router", f"http://127.0.0.1:{port}", {"vllm-router": pid})

    def _start(self, name: str, command: tuple[str, ...], probe: str, cores: tuple[int, ...]) -> int:
        self._tell(f"starting {name}", 0, 0)
        spec = ProcessSpec(name, command, _environ())
        processes = self._owned.enter_context(Processes([spec], self.folder / "logs"))
        processes.wait_until(lambda: _unanswered(probe), timeout_s=_START_TIMEOUT_S)
        pin(processes.pids.values(), cores)
        return processes.pids[name]

    # The load

    def run(self, arm: Arm, job: Job) -> Measurement:
        """Raises LoadFailed."""
        before = arm.cpu_s()
        seen = self.begin(job).seen()
        return Measurement(seen, {name: spent - before[name] for name, spent in arm.cpu_s().items()})

    def begin(self, job: Job) -> Running:
        return Running(job)

    def closed(
        self,
        arm: Arm,
        body: Mapping[str, object],
        seconds: float,
        concurrency: int,
        *,
        first: int = 0,
        cycle: int = 0,
        most: int = sys.maxsize,
    ) -> ClosedLoop:
        return ClosedLoop(
            url=arm.url + CHAT,
            body=json.dumps(body),
            seconds=seconds,
            concurrency=concurrency,
            first=first,
            cycle=cycle,
            most=most,
            headers=arm.headers,
            cores=self.cores.load,
        )

    def streams(self, arm: Arm, body: Mapping[str, object], streams: int, *, first: int = 0) -> Streams:
        return Streams(
            arm.url + CHAT, json.dumps(body), streams, first, headers=arm.headers, cores=self.cores.load
        )


class Running:
    """A load that has begun; ``seen`` waits for its end."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._process = subprocess.Popen(
            (sys.executable, "-m", "dynbranch.bench.load"),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._process.stdin is not None
        self._process.stdin.write(job_as_json(job))
        self._process.stdin.close()
        self._process.stdin = None

    def seen(self) -> Seen:
        """Raises LoadFailed when the process fails or more than one answer in a thousand is an error."""
        seconds = self._job.seconds if isinstance(self._job, ClosedLoop) else 0.0
        try:
            said, _ = self._process.communicate(timeout=seconds + _JOB_GRACE_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
            raise LoadFailed(f"the load on {self._job.url} did not end") from None
        if self._process.returncode:
            raise LoadFailed(f"the load on {self._job.url} ended with {self._process.returncode}")
        seen = Seen(**json.loads(said))
        if not seen.requests or sum(seen.errors.values()) > seen.requests / 1000:
            raise LoadFailed(f"{self._job.url}: {seen.requests} answers, errors: {seen.errors}")
        return seen


def turns(arms: Sequence[Item], repetition: int) -> list[Item]:
    """Every arm once; over the repetitions each comes early as often as late."""
    at = (repetition // 2) % len(arms)
    order = [*arms[at:], *arms[:at]]
    return order[::-1] if repetition % 2 else order


def percentile(values: Sequence[float], share: float) -> float:
    """The smallest value that ``share`` of all do not exceed; 0 of none."""
    if not values:
        return 0.0
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def _environ() -> dict[str, str]:
    """Nothing of DynBranch's or OpenTelemetry's own; LiteLLM takes its price list from its package."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("DYNBRANCH_", "OTEL_"))}
    return kept | {"LITELLM_LOCAL_MODEL_COST_MAP": "True", "LITELLM_LOG": "ERROR", "DO_NOT_TRACK": "1"}


def _unanswered(url: str) -> str:
    try:
        with urllib.request.urlopen(url, timeout=_PROBE_TIMEOUT_S):
            return ""
    except urllib.error.HTTPError:
        return ""
    except OSError:
        return f"an answer of {url}"
