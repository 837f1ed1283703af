"""Agent frameworks as PyPI gives them, in an environment of their own, which ``make test-frameworks`` makes;
without it there is nothing to collect."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pytest_asyncio
from dynbranch.clients.engine_agent import GrpcEngineAgent
from dynbranch.controller.fake import FakeController
from dynbranch.csl.fake import FakeCsl
from dynbranch.domain.events import ArrivalSeen
from dynbranch.domain.reuse import Identity
from dynbranch.engine_agent.engines.http import Timeouts
from dynbranch.engine_agent.engines.openai import OpenAiEngine, OpenAiSettings
from dynbranch.engine_agent.server import service
from dynbranch.engine_agent.shell import Agent
from dynbranch.gateway.assembly import Peers
from dynbranch.gateway.config import GatewaySettings
from dynbranch.gateway.tenants import Tenants
from dynbranch.runtime.chance import new_id
from dynbranch.runtime.clock import SystemClock
from dynbranch.runtime.server import GrpcServer
from dynbranch.stub_engine.engine import StubEngine
from dynbranch.stub_engine.settings import StubSettings
from integration.gateway.world import eventually, serving_gateway

HOME: Final = os.environ.get("DYNBRANCH_FRAMEWORKS_HOME", "")
collect_ignore_glob = [] if HOME else ["test_*.py"]

ROOT: Final = Path(__file__).resolve().parents[2]
PROGRAMS: Final = Path(__file__).parent / "programs"
_PATH: Final = os.environ.get("PATH", "/usr/bin:/bin")
_LIMIT_S: Final = 300


@dataclass
class Stack:
    """A gateway before a stub engine; ``run`` has a program of a framework ask it."""

    url: str
    engine: StubEngine
    controller: FakeController
    folder: Path
    forgotten: int = 0

    async def run(self, program: str) -> Any:
        """What it printed last, as JSON. It knows of this checkout no more than ``dynbranch.client``."""
        environment = {
            "HOME": str(self.folder),
            "PATH": _PATH,
            "PYTHONPATH": str(ROOT / "lib"),
            "PYTHONDONTWRITEBYTECODE": "1",
        }
        process = await asyncio.create_subprocess_exec(
            str(Path(HOME) / "bin" / "python"),
            str(PROGRAMS / f"{program}.py"),
            self.url,
            self.engine.settings.model,
            cwd=self.folder,
            env=environment,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        try:
            async with asyncio.timeout(_LIMIT_S):
                printed, complaints = await process.communicate()
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
        assert process.returncode == 0, complaints.decode()[-4000:]
        return json.loads(printed.decode().splitlines()[-1])

    async def arrived(self, count: int) -> Sequence[Identity]:
        """Who the controller was told of since it was last asked."""

        def seen() -> list[Identity]:
            events = [event for batch in self.controller.batches for event in batch.events]
            found = [event.identity for event in events if isinstance(event, ArrivalSeen)]
            return found[self.forgotten :]

        await eventually(lambda: len(seen()) >= count)
        found = seen()
        assert len(found) == count, found
        self.forgotten += count
        return found


@pytest_asyncio.fixture
async def stack(tmp_path: Path) -> AsyncIterator[Stack]:
    async with running(tmp_path) as running_stack:
        yield running_stack


@asynccontextmanager
async def running(folder: Path) -> AsyncIterator[Stack]:
    clock = SystemClock()
    async with AsyncExitStack() as resources:
        engine = await resources.enter_async_context(StubEngine(StubSettings()))
        csl, controller = FakeCsl(clock=clock, new_id=new_id), FakeController()
        facts = {"weights": "none", "chat_template": "toy"}
        settings = OpenAiSettings(engine.url, slots=8, facts=facts, timeouts=Timeouts(idle_s=60))
        agent = await resources.enter_async_context(Agent(OpenAiEngine(settings, clock), csl, clock))
        server = GrpcServer("127.0.0.1:0", [service(agent)], clock)
        address = await server.start()
        resources.push_async_callback(server.stop, 0.1)
        await agent.until_ready()
        chosen = GatewaySettings(agents=(address,), stop_grace_s=1)
        peers = Peers(csl, controller, GrpcEngineAgent, controller)
        gateway, url = await resources.enter_async_context(serving_gateway(chosen, peers, Tenants()))
        await eventually(lambda: not gateway.readiness.missing())
        yield Stack(url, engine, controller, folder)
