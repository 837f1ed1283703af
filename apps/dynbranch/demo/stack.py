"""The whole stack on one machine, a process each: store, controller, agents, passage store, gateways."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import AsyncIterator, Callable, Collection, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from http import HTTPStatus
from itertools import zip_longest
from pathlib import Path
from types import TracebackType
from typing import Self

from dynbranch.demo.processes import Processes, ProcessSpec, free_ports

STATE_FILE = "stack.json"
TOOLS_FILE = Path(__file__).with_name("tools.yaml")
TEMPLATES = Path(__file__).with_name("templates")
"""Of the demo's own workflows."""
START_TIMEOUT_S = 120.0
_PROBE_TIMEOUT_S = 2.0
_KEPT_SETTINGS = ("DYNBRANCH_LOG_LEVEL",)
_OWN_PREFIXES = ("DYNBRANCH_", "OTEL_")


@dataclass(frozen=True, slots=True)
class StackOptions:
    """No ``data_dir``: below the state folder. ``threads`` and ``slots`` 0: the engine agent's own choice."""

    state_dir: Path
    data_dir: Path | None = None
    gateway_port: int = 0
    engine_urls: tuple[str, ...] = ()
    """Engines that run already, by base URL; else ``engines`` embedded ones are started."""
    engine_kind: str = "openai"
    """How their agents speak to them: ``vllm``, ``sglang`` or ``openai``."""
    engine_facts: tuple[str, ...] = ()
    """What the agents of such engines can not probe: ``chat_template=...``, ``weights=...``."""
    engines: int = 1
    slots: int = 4
    threads: int = 0
    context_tokens: int = 2048
    traces_endpoint: str = ""
    metrics: bool = False
    """Every service but the gateways, which have a path of their own, serves its counts at a free port."""
    floor_gateway: bool = False
    """A second gateway before the same engines, with DynBranch disabled."""
    unforeseeing_gateway: bool = False
    """One more, which knows no controller: it reuses what has run, and nothing runs ahead of its requests."""
    templates: Path | None = TEMPLATES
    """The workflow types that may run ahead."""
    policy: str = "priced"
    """What runs ahead: ``priced``, ``always``, ``static`` or ``off``."""
    settings: Mapping[str, str] = field(default_factory=dict)
    """More settings of any service, by their variables: ``DYNBRANCH_CONTROLLER_FILLS``."""
    inherit: bool = False
    """Hand this process's DYNBRANCH_* and OTEL_* variables on; else they are dropped: runs compare."""


def default_state_dir(now: datetime | None = None) -> Path:
    """``./var/<time>``, or a folder for temporary files where the current one can not be written."""
    name = (now or datetime.now(UTC)).strftime("%Y-%m-%dT%H-%M-%SZ")
    here = Path.cwd()
    if os.access(here, os.W_OK):
        path = here / "var" / name
        try:
            path.mkdir(parents=True, exist_ok=True)
            return path
        except OSError:
            pass
    return Path(tempfile.mkdtemp(prefix=f"dynbranch-{name}-"))


@dataclass(frozen=True, slots=True)
class Addresses:
    """Where the services of one stack listen."""

    csl: str
    controller: str
    passages: str
    agents: tuple[str, ...]
    gateway: str
    floor: str = ""
    unforeseeing: str = ""

    @classmethod
    def choose(cls, options: StackOptions) -> Addresses:
        csl, controller, passages, floor, unforeseeing, gateway, *agents = (
            f"127.0.0.1:{port}" for port in free_ports((len(options.engine_urls) or options.engines) + 7)
        )
        return cls(
            csl=csl,
            controller=controller,
            passages=passages,
            agents=tuple(agents),
            gateway=f"127.0.0.1:{options.gateway_port}" if options.gateway_port else gateway,
            floor=floor if options.floor_gateway else "",
            unforeseeing=unforeseeing if options.unforeseeing_gateway else "",
        )


class Stack:
    """Runs from ``start`` to ``stop``; nothing of it outlives this process."""

    def __init__(self, options: StackOptions) -> None:
        self.options = options
        self.addresses = Addresses.choose(options)
        self._metrics: dict[str, str] = {}
        self._processes = Processes(self.specs(), options.state_dir / "logs")

    @property
    def url(self) -> str:
        return f"http://{self.addresses.gateway}"

    @property
    def pids(self) -> dict[str, int]:
        """Process ids by name: csl, controller, engine-1, …, tools, passages, gateway."""
        return self._processes.pids

    @property
    def floor_url(self) -> str:
        """The gateway that does nothing but pass requests on."""
        return f"http://{self.addresses.floor}"

    @property
    def unforeseeing_url(self) -> str:
        """The gateway that has no controller."""
        return f"http://{self.addresses.unforeseeing}"

    @property
    def passages_url(self) -> str:
        return f"http://{self.addresses.passages}"

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def start(self) -> None:
        """Start every process; ``wait_ready`` says when they can be used."""
        state = self.options.state_dir
        state.mkdir(parents=True, exist_ok=True)
        tools = TOOLS_FILE.read_text(encoding="utf-8").replace("PASSAGES_URL", self.passages_url)
        (state / "tools.yaml").write_text(tools, encoding="utf-8")
        self._processes.start()
        self._write_state()

    def stop(self) -> None:
        self._processes.stop()
        (self.options.state_dir / STATE_FILE).unlink(missing_ok=True)

    def send(self, name: str, signum: signal.Signals) -> None:
        """Pause or kill one service."""
        self._processes.send(name, signum)

    def start_again(self, name: str) -> None:
        """A service that was killed, at its old address."""
        self._processes.start_again(name)

    def check(self) -> None:
        """Raises ProcessDied."""
        self._processes.check()

    def wait_ready(
        self,
        *,
        timeout_s: float = START_TIMEOUT_S,
        tell: Callable[[str], None] = lambda _: None,
        absent_engines: Collection[str] = (),
    ) -> None:
        """Wait until every gateway is ready and has reached its controller. Raises ProcessDied or
        StartTimedOut.

        ``absent_engines``: URLs of engines that are known not to be there, and are not waited for.
        """
        deadline, at = time.monotonic() + timeout_s, self.addresses
        urls = self.options.engine_urls
        unserved = {agent for agent, url in zip(at.agents, urls, strict=False) if url in absent_engines}
        self._processes.wait_for_lines(timeout_s=timeout_s, tell=tell)
        for address in filter(None, (at.gateway, at.floor, at.unforeseeing)):
            url = f"http://{address}"
            self._processes.wait_until(
                partial(not_begun_reason, url, unserved),
                timeout_s=max(1.0, deadline - time.monotonic()),
                tell=tell,
            )

    def specs(self) -> list[ProcessSpec]:
        """In the order in which they start; they stop in the reverse one."""
        options, at = self.options, self.addresses
        data = options.data_dir or options.state_dir / "data"
        csl = {"CSL_LISTEN": at.csl, "CSL_DATA_DIR": str(data / "csl")}
        specs = [
            self._spec("csl", "dynbranch.csl", csl),
            self._spec("controller", "dynbranch.controller", _prefixed("CONTROLLER", self._controller())),
        ]
        *engines, tool = at.agents
        for number, (address, url) in enumerate(zip_longest(engines, options.engine_urls, fillvalue=""), 1):
            settings = self._engine_at(address, url) if url else self._engine(address)
            specs.append(self._spec(f"engine-{number}", "dynbranch.engine_agent", settings))
        agent = {
            "LISTEN": tool,
            "CSL": at.csl,
            "KIND": "tool",
            "TOOLS_FILE": str(options.state_dir / "tools.yaml"),
        }
        specs.append(self._spec("tools", "dynbranch.engine_agent", _prefixed("ENGINE_AGENT", agent)))
        store = {"LISTEN": at.passages, "DATA_DIR": str(data / "passages"), "GATEWAY": self.url}
        specs.append(self._spec("passages", "dynbranch.demo.passages", _prefixed("PASSAGES", store)))
        return [*specs, *self._gateways()]

    def _gateways(self) -> list[ProcessSpec]:
        at = self.addresses
        alone = {"CSL": at.csl, "AGENTS": ",".join(at.agents)}
        foreseeing = {**alone, "CONTROLLER": at.controller}
        specs = []
        if at.floor:
            floor = {**_prefixed("GATEWAY", {**foreseeing, "LISTEN": at.floor}), "ENABLED": "false"}
            specs.append(self._spec("gateway-floor", "dynbranch.gateway", floor))
        if at.unforeseeing:
            settings = _prefixed("GATEWAY", {**alone, "LISTEN": at.unforeseeing})
            specs.append(self._spec("gateway-unforeseeing", "dynbranch.gateway", settings))
        settings = _prefixed("GATEWAY", {**foreseeing, "LISTEN": at.gateway})
        specs.append(self._spec("gateway", "dynbranch.gateway", settings))
        return specs

    def _controller(self) -> dict[str, str]:
        options, at = self.options, self.addresses
        settings = {"LISTEN": at.controller, "CSL": at.csl, "AGENTS": ",".join(at.agents)}
        settings["POLICY"] = options.policy
        if options.templates is not None:
            settings["TEMPLATES"] = str(options.templates.resolve())
        return settings

    def _engine_at(self, address: str, url: str) -> dict[str, str]:
        settings = {"LISTEN": address, "CSL": self.addresses.csl, "ENGINE_URL": url}
        settings["KIND"] = self.options.engine_kind
        if self.options.engine_facts:
            settings["FINGERPRINT_FACTS"] = ",".join(self.options.engine_facts)
        return _prefixed("ENGINE_AGENT", settings)

    def _engine(self, address: str) -> dict[str, str]:
        options = self.options
        settings = {"LISTEN": address, "CSL": self.addresses.csl, "KIND": "embedded"}
        settings |= {"CONTEXT_TOKENS": str(options.context_tokens)}
        if options.slots:
            settings["SLOTS"] = str(options.slots)
        if options.threads:
            settings["THREADS"] = str(options.threads)
        return _prefixed("ENGINE_AGENT", settings)

    def _spec(self, name: str, module: str, settings: Mapping[str, str]) -> ProcessSpec:
        environ = {
            key: value
            for key, value in os.environ.items()
            if self.options.inherit or key in _KEPT_SETTINGS or not key.startswith(_OWN_PREFIXES)
        }
        environ |= {f"DYNBRANCH_{key}": value for key, value in settings.items()}
        if self.options.metrics and not name.startswith("gateway"):
            address = self._metrics.setdefault(name, f"127.0.0.1:{free_ports(1)[0]}")
            environ["DYNBRANCH_METRICS_PORT"] = address.rpartition(":")[2]
        environ |= self.options.settings
        if self.options.traces_endpoint:
            environ["OTEL_EXPORTER_OTLP_ENDPOINT"] = self.options.traces_endpoint
            environ["OTEL_EXPORTER_OTLP_INSECURE"] = "true"
            environ["OTEL_BSP_SCHEDULE_DELAY"] = "500"
        return ProcessSpec(name, (sys.executable, "-m", module), environ)

    def _write_state(self) -> None:
        """Where everything listens, for the other commands."""
        at = self.addresses
        state = {
            "pid": os.getpid(),
            "gateway": self.url,
            "csl": at.csl,
            "controller": at.controller,
            "agents": list(at.agents),
            "passages": self.passages_url,
            "metrics": {name: f"http://{address}/metrics" for name, address in self._metrics.items()},
            "processes": self._processes.pids,
        }
        (self.options.state_dir / STATE_FILE).write_text(json.dumps(state, indent=1) + "\n", encoding="utf-8")


@asynccontextmanager
async def running(options: StackOptions) -> AsyncIterator[Stack]:
    """A stack that is ready. Raises ProcessDied and StartTimedOut."""
    stack = Stack(options)
    stack.start()
    try:
        await asyncio.to_thread(stack.wait_ready)
        yield stack
    finally:
        await asyncio.to_thread(stack.stop)


def not_ready_reason(url: str) -> str:
    """What a gateway is still missing; empty when it is ready."""
    return _waited_for(url, lambda told: told["missing"])


def not_begun_reason(url: str, unserved: Collection[str] = ()) -> str:
    """The same, and the controller of a gateway that is ready without it: its first branch would be lost.
    ``unserved``: addresses of agents that are not waited for, since their engines are not there."""

    def parts(told: dict[str, list[str]]) -> list[str]:
        controller = [one for one in told["absent"] if one.startswith("controller")]
        others = tuple(f"agent {address}:" for address in unserved)
        return [one for one in told["missing"] or controller if not one.startswith(others)]

    return _waited_for(url, parts)


def _waited_for(url: str, parts: Callable[[dict[str, list[str]]], list[str]]) -> str:
    try:
        return ", ".join(parts(_readiness(url)))
    except OSError:
        return "the gateway does not listen yet"
    except (ValueError, LookupError, TypeError):
        return "the gateway does not say whether it is ready"


def _readiness(url: str) -> dict[str, list[str]]:
    try:
        with urllib.request.urlopen(f"{url}/readyz", timeout=_PROBE_TIMEOUT_S) as response:
            return dict(json.load(response))
    except urllib.error.HTTPError as error:
        if error.code != HTTPStatus.SERVICE_UNAVAILABLE:
            raise LookupError(f"the gateway answers {error.code}") from None
        return dict(json.load(error))


def _prefixed(service: str, settings: Mapping[str, str]) -> dict[str, str]:
    return {f"{service}_{key}": value for key, value in settings.items()}
