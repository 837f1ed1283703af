from __future__ import annotations

from collections.abc import AsyncIterator

import pytest_asyncio
from dynbranch.clients.engine_agent import GrpcEngineAgent
from integration.runtime.probe import Probe, server_of


@pytest_asyncio.fixture
async def probe() -> Probe:
    return Probe()


@pytest_asyncio.fixture
async def address(probe: Probe) -> AsyncIterator[str]:
    server = server_of(probe)
    yield await server.start()
    probe.release.set()
    await server.stop(0)


@pytest_asyncio.fixture
async def agent(address: str) -> AsyncIterator[GrpcEngineAgent]:
    client = GrpcEngineAgent(address)
    yield client
    await client.close()
